"""A tiny recipe through the real command line, a real Prefect server and real processes."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.server import own_server
from tasks.home import Home
from tests.ports import free_port
from tests.pulse.in_turn import ANOTHER_READER, InTurn, in_turn_process
from tests.pulse.nursery import Command, Nursery, nursery_process
from tests.pulse.runs import Finished, complete, tiny_recipe


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "tiny.json"
    path.write_text(tiny_recipe().model_dump_json())
    return path


@pytest.fixture(scope="module")
def api_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One server for all runs of a file, at a port that nobody uses."""
    with own_server(Home(tmp_path_factory.mktemp("server")), free_port(), "the tests") as server:
        yield server.url


@pytest.fixture(scope="module")
def environment(api_url: str) -> dict[str, str]:
    """What XLA compiles runs for milliseconds: it need not be optimised."""
    settings = {"PREFECT_API_URL": api_url, "PHASEWISE_DASK_WORKERS": "2", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    return {**os.environ, **settings}


@pytest.fixture(scope="module")
def phasewise(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """Starts `phasewise …` against that server, in a process of its own that need not import everything first."""
    with nursery_process(environment, tmp_path_factory.mktemp("said")) as nursery:
        yield nursery


@pytest.fixture(scope="module")
def in_turn(environment: dict[str, str]) -> Iterator[InTurn]:
    """Runs `phasewise …` in one process after the other commands of the file."""
    with in_turn_process(environment) as process:
        yield process


@pytest.fixture(scope="module")
def by_other_code(environment: dict[str, str]) -> Iterator[InTurn]:
    """The same, where the reader has another version, and makes the same bytes."""
    with in_turn_process(environment, ANOTHER_READER) as process:
        yield process


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def begun(phasewise: Nursery, recipe_file: Path, home: Path) -> Command:
    """A run that nothing disturbs, which may still be at work."""
    return phasewise("run", recipe_file, "--home", home, "--json")


@pytest.fixture(scope="module")
def finished(begun: Command) -> Finished:
    """Its result."""
    return complete(begun)
