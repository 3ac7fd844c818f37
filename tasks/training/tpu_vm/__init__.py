"""The launcher for TPU VMs: the trainer over ssh on every worker."""
