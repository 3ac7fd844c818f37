"""A tiny recipe through the real command line, a real Prefect server and real processes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from experiments.survival.in_turn import ANOTHER_READER, InTurn, in_turn_process
from experiments.survival.runs import COMPONENTS, Finished, Start, complete, tiny_recipe
from phasewise.flows.prefect.server import OwnServer, own_server
from phasewise.tasks.data.stand_ins import RECORD_NAME
from phasewise.tasks.home import Home
from tests.ports import free_port
from tests.shadows import write_shadows
from tests.tasks.conftest import write_lines, write_prose


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "tiny.json"
    path.write_text(tiny_recipe().model_dump_json())
    return path


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, shared: ExitStack) -> OwnServer:
    """One server for all runs, at a port that nobody uses."""
    return shared.enter_context(own_server(Home(tmp_path_factory.mktemp("server")), free_port(), "the tests"))


@pytest.fixture(scope="session")
def environment(server: OwnServer) -> dict[str, str]:
    """What XLA compiles runs for milliseconds: it need not be optimised."""
    prefect = {"PREFECT_API_URL": server.url, "PREFECT_API_AUTH_STRING": server.auth}
    settings = {**prefect, "PHASEWISE_DASK_WORKERS": "1", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    return {**os.environ, **settings}


@pytest.fixture(scope="module")
def phasewise(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Starts `phasewise …` against that server, in a folder where every import from the current folder fails."""
    shadows = write_shadows(tmp_path_factory.mktemp("shadows"))

    def start(*words: object) -> subprocess.Popen[str]:
        command = [Path(sys.executable).with_name("phasewise"), *map(str, words)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=shadows)

    return start


@pytest.fixture(scope="session")
def in_turn(environment: dict[str, str], shared: ExitStack) -> InTurn:
    """Runs `phasewise …` in one process after the other commands."""
    return shared.enter_context(in_turn_process(environment))


@pytest.fixture(scope="module")
def by_other_code(environment: dict[str, str]) -> Iterator[InTurn]:
    """The same, where the reader has another version, and makes the same bytes."""
    with in_turn_process(environment, ANOTHER_READER) as process:
        yield process


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With little text; the record says that it is a user's, so none is collected."""
    home = tmp_path_factory.mktemp("home")
    for place, name in enumerate(COMPONENTS):
        write_lines(home / "sources" / name / "part.jsonl", [write_prose(10_000 * place + number, 20) for number in range(150)])
    (home / "sources" / RECORD_NAME).write_text("{}")
    return home


@pytest.fixture(scope="module")
def finished(in_turn: InTurn, recipe_file: Path, home: Path) -> Finished:
    """The result of a run that nothing disturbs."""
    return complete(in_turn("run", recipe_file, "--home", home, "--json"))
