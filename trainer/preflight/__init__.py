"""Needs of a training step on a TPU slice, from its compilation on a machine without TPUs."""
