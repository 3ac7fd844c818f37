"""What the recipes of Marin 8B and 32B share, and the branches of the 8B."""
