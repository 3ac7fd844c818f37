"""What each command does; `flows/cli.py` says how it is called."""
