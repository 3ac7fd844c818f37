"""The recipes of Trinity Nano, Mini and Large, with shared settings and mixtures."""
