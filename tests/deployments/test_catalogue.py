from pathlib import Path

import pytest
import yaml

from deployments.catalogue import PREFECT_FILE, ROOT, DeclaredDeployment, read_deployments
from flows.recipes import load_recipe
from trainer.base.errors import PhasewiseError

DECLARED = read_deployments()
WHOLE = {
    "name": "marin-8b",
    "entrypoint": "flows/prepare_data.py:prepare_data",
    "description": "Data.",
    "tags": [],
    "parameters": {},
    "work_pool": {"name": "phasewise-local", "work_queue_name": "default"},
}


def write(path: Path, **changes: object) -> Path:
    path.write_text(yaml.safe_dump({"deployments": [{**WHOLE, **changes}]}), encoding="utf-8")
    return path


@pytest.mark.parametrize("declared", DECLARED, ids=lambda declared: declared.entrypoint)
def test_each_deployment_names_a_flow_that_takes_its_parameters(declared: DeclaredDeployment) -> None:
    from prefect.flows import Flow, load_flow_from_entrypoint

    flow = load_flow_from_entrypoint(str(ROOT / declared.entrypoint))
    assert isinstance(flow, Flow)
    assert flow.validate_parameters({**declared.parameters, "home": "/somewhere"})["recipe"] == "marin-8b"
    recipe = load_recipe(declared.parameters["recipe"], declared.parameters["scale"])
    assert declared.parameters.get("phase", "kestrel") in {phase.name for phase in recipe.phases}


def test_every_flow_has_a_deployment() -> None:
    modules = {path.stem for path in (ROOT / "flows").glob("*.py") if "\n@door(" in path.read_text(encoding="utf-8")}
    assert {f"flows/{name}.py:{name}" for name in modules} == {declared.entrypoint for declared in DECLARED}


def test_trainings_share_the_queue_that_runs_one_at_a_time() -> None:
    queues = {declared.entrypoint.partition(":")[2]: declared.work_pool.work_queue_name for declared in DECLARED}
    assert {name for name, queue in queues.items() if queue == "training"} == {"train_recipe", "train_phase"}


def test_schedules_are_valid_cron_in_a_fixed_time_zone() -> None:
    from prefect.client.schemas.schedules import CronSchedule

    schedules = [schedule for declared in DECLARED for schedule in declared.schedules]
    assert {CronSchedule(cron=schedule.cron, timezone=schedule.timezone).timezone for schedule in schedules} == {"UTC"}


def test_the_file_holds_no_path_of_a_machine() -> None:
    declared = yaml.safe_load(PREFECT_FILE.read_text(encoding="utf-8"))
    assert declared["pull"] == [{"prefect.deployments.steps.set_working_directory": {"directory": "{{ root.stdout }}"}}]
    assert str(ROOT) not in PREFECT_FILE.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "schedule",
    [
        {"slug": "drifting", "interval": 3600, "timezone": "UTC", "active": False},
        {"slug": "floating", "cron": "0 3 * * *", "active": False},
        {"slug": "running", "cron": "0 3 * * *", "timezone": "UTC", "active": True},
    ],
    ids=lambda schedule: schedule["slug"],
)
def test_a_schedule_that_drifts_or_starts_by_itself_is_refused(tmp_path: Path, schedule: dict[str, object]) -> None:
    with pytest.raises(PhasewiseError, match="does not read as deployments"):
        read_deployments(write(tmp_path / "prefect.yaml", schedules=[schedule]))


def test_a_missing_file_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(PhasewiseError, match="pip install -e"):
        read_deployments(tmp_path / "prefect.yaml")
    assert len(read_deployments(write(tmp_path / "prefect.yaml"))) == 1
