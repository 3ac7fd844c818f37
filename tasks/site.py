"""Addresses on the site next to Prefect's UI."""

import os
from urllib.parse import quote

SITE_VARIABLE = "PHASEWISE_SITE_URL"


def site_address(*parts: str) -> str | None:
    """Return the address of a recipe, a phase or a gate: `URL/marin-8b/proxy/kestrel/data`. None without `PHASEWISE_SITE_URL`."""
    root = os.environ.get(SITE_VARIABLE, "").rstrip("/")
    return "/".join([root, *(quote(part, safe="") for part in parts)]) if root else None


def gate_address(subject: str, gate: str) -> str | None:
    """Return the address of the verdict on `RECIPE/SCALE/PHASE …`, if any. Questions (`recovery`) are on the page of the phase."""
    parts = subject.split(" ")[0].split("/")
    if len(parts) != 3:
        return None
    return site_address(*parts) if gate == "recovery" else site_address(*parts, gate)
