"""Stores for all tests: `store`, here and on Google Cloud Storage; `gcs`, there alone; `faulty_store`, where things go wrong on demand.

Processes find the emulator by their environment if it runs before they do: fixtures that start long-lived ones call `the_emulator()` first.
"""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from phasewise.trainer.base.storage import as_path
from tests.stores.emulator import BUCKET, Faults, the_emulator
from tests.stores.hub import FakeHub, serving

STORES = ("local", "gcs")


@dataclass(frozen=True)
class FaultyStore:
    root: Path
    faults: Faults


def _folder_on_emulator(name: str) -> Iterator[Path]:
    emulator = the_emulator()
    emulator.faults.clear()
    folder = f"{name}-{next(emulator.numbers)}"
    yield as_path(f"gs://{BUCKET}/{folder}")
    emulator.faults.clear()
    emulator.forget(f"{folder}/")


@pytest.fixture
def gcs(request: pytest.FixtureRequest) -> Iterator[Path]:
    yield from _folder_on_emulator(request.node.originalname)


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    if request.param == "local":
        (tmp_path / "store").mkdir()
        yield tmp_path / "store"
    else:
        yield from _folder_on_emulator(request.node.originalname)


@pytest.fixture
def faulty_store(gcs: Path, monkeypatch: pytest.MonkeyPatch) -> FaultyStore:
    """A folder on Google Cloud Storage between which and us things go wrong; gcsfs asks again after 1/100 of its usual seconds."""
    import gcsfs.retry  # half a second, only where it is needed

    monkeypatch.setattr(gcsfs.retry, "asyncio", SimpleNamespace(sleep=lambda seconds: asyncio.sleep(seconds / 100)))
    return FaultyStore(gcs, the_emulator().faults)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A Hugging Face hub of the test's own, which `hf://` reads in this process. Whoever sleeps moves its clock and does not wait."""
    from huggingface_hub import constants

    from phasewise.tasks.data.hub import Hub

    with serving() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.address)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.address + "/{repo_id}/resolve/{revision}/{filename}")
        monkeypatch.setattr(time, "sleep", hub.sleep)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield hub
    Hub.clear_instance_cache()
