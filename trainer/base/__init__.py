"""Errors, files, locks and digests of every package. It imports no other package of the project."""
