"""One `phasewise up` for all that operate it, with recipes of their own; a file that ends it leaves it to the next to start it again."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from experiments.incidents.bison import write_incident
from phasewise.deployments.local import RUN_MODULE
from tests.deployments.recipes import write_asking_recipe, write_long_recipe, write_short_recipe, write_spiking_recipe
from tests.deployments.up import Up, ask, final_state, processes, wait_for
from tests.ports import free_port

UNHURRIED = Path(__file__).with_name("unhurried")  # for PYTHONPATH: trainers rest between updates


@pytest.fixture(scope="session")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recipes")
    write_long_recipe(folder)
    write_short_recipe(folder)
    for name in ("asking", "asked-too"):
        write_asking_recipe(folder, name)
    write_spiking_recipe(folder)
    bison = write_incident(folder / "incident", None).recipe()
    (folder / "bison.json").write_text(bison.model_dump_json())
    return folder


@pytest.fixture(scope="session")
def only_up(tmp_path_factory: pytest.TempPathFactory, recipes: Path, shared: ExitStack) -> Up:
    settings = {"PHASEWISE_BENCHMARKS": str(recipes / "incident" / "benchmarks"), "PYTHONPATH": str(UNHURRIED)}
    up = Up(tmp_path_factory.mktemp("operated") / "home", free_port(), ("--recipes", str(recipes)), settings)
    up.start()
    shared.callback(up.kill)
    return up


@pytest.fixture(scope="module")
def up(only_up: Up) -> Up:
    """It is up, whatever was done to it, and nothing is at work."""
    if only_up.process.poll() is not None:
        only_up.kill()  # it reads what was said last
        only_up.start()
    for run in ask(only_up, "flow_runs/filter", {"flow_runs": {"state": {"type": {"any_": ["SCHEDULED"]}}}}):
        ask(only_up, f"flow_runs/{run['id']}", method="DELETE")  # the server may make runs of a schedule that is being deleted
    at_work = ask(only_up, "flow_runs/filter", {"flow_runs": {"state": {"type": {"any_": ["RUNNING", "PENDING"]}}}})
    for run in at_work:
        if run["deployment_id"]:  # its subflows end with it
            ask(only_up, f"flow_runs/{run['id']}/set_state", {"state": {"type": "CANCELLING", "name": "Cancelling"}})
            final_state(only_up, run["id"])
    wait_for(only_up, "the end of every run's process", lambda: not processes(only_up, RUN_MODULE))  # it reports its end before
    return only_up
