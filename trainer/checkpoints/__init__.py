"""The training state on disk, and what the next phase takes of it."""
