"""Experiments: arms that fork from a common checkpoint, differences from a control, and the page of the result."""
