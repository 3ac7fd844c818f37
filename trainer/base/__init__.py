"""What every room uses: errors, files, locks, the version of code. It imports nothing else of ours."""
