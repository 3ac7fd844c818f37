"""A prepared home, and what trains in it by `phasewise trace`."""

import shutil
from collections import Counter
from pathlib import Path

import pytest

from phasewise.tasks.home import Home
from tests.flows.trace.world import PHASES, Piece, World, key, write_world


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(*write_world(tmp_path_factory.mktemp("traced")))


@pytest.fixture
def copied(world: World, tmp_path: Path) -> World:
    return World(world.recipe, Home.open(str(shutil.copytree(world.home.root, tmp_path / "home"))))


@pytest.fixture(scope="session")
def forward(world: World) -> Counter[Piece]:
    steps = ((name, step) for name, (start, stop) in PHASES.items() for step in range(start + 1, stop + 1))
    return Counter(key(row) for name, step in steps for row in world.ask(f"/{name}", step=step)["rows"])
