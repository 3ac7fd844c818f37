"""Hosts that see no folder of the launcher's: each brings what it needs from the store, and sends what its trainer writes."""
