"""Real benchmark items, their harmless siblings and real text, where they lie beside the checkout; they never go into the project."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "shared"


def shared_folder(name: str) -> Path:
    """The folder of that name beside the checkout; a test without it is skipped, saying so."""
    folder = ROOT / name
    if not folder.is_dir():
        pytest.skip(f"needs the real data in shared/{name}, beside the checkout; items that the project makes itself cover the same ground")
    return folder
