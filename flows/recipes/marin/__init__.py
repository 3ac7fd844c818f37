"""The recipes of Marin 8B with its branches and of Marin 32B, with shared settings and mixtures."""
