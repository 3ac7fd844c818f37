"""Addresses on the page that is served beside Prefect's UI."""

import os
from urllib.parse import quote

SITE_VARIABLE = "PHASEWISE_SITE_URL"


def site_address(*parts: str) -> str | None:
    """The address of a recipe, of its phase at a scale, or of a gate, such as `URL/marin-8b/proxy/kestrel/data`; None where no site is
    named by the environment."""
    root = os.environ.get(SITE_VARIABLE, "").rstrip("/")
    return "/".join([root, *(quote(part, safe="") for part in parts)]) if root else None


def gate_address(subject: str, gate: str) -> str | None:
    """The address of the verdict on this subject, `RECIPE/SCALE/PHASE …`; None where no site is named, or the subject is another.

    What a training asks (`recovery`) is on its phase's page.
    """
    parts = subject.split(" ")[0].split("/")
    if len(parts) != 3:
        return None
    return site_address(*parts) if gate == "recovery" else site_address(*parts, gate)
