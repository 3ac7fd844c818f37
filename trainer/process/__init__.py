"""The trainer as a process among others: platform, peers, permission, how it stops."""
