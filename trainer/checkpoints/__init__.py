"""Checkpoints: the training state on disk, and its hand-off to the next phase."""
