"""What automations are told of gates: names alone, so that whoever brings up a server needs no Prefect to know them."""

GATE_EVENTS = {"fails": "phasewise.gate.refused", "waits": "phasewise.gate.waits"}
"""State of a ruling → event."""
GATE_RESOURCE = "phasewise.gate"
