"""What a training step needs of a TPU slice, found by compiling it for that slice on a machine without one."""
