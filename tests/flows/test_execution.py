from pathlib import Path
from typing import Any

import pytest

from phasewise.flows import train_phase as module
from phasewise.flows.recipes.assignments import setting
from phasewise.flows.resolved import Resolved, resolve, resolving_once
from phasewise.flows.train_phase import plan_of, runs_on_slices
from phasewise.tasks.preflight import launcher as preflight_module
from phasewise.tasks.training.execution import CPU, Machine
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.config import Execution, ExecutionSettings, Mesh
from tests.flows.test_resolved import write_sources

PLAN = Execution(mesh=Mesh(fsdp=2), remat="full", attention="xla", loss_chunk_tokens=64)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(module, "say", lines.append)
    monkeypatch.setattr(module, "machine_here", lambda: CPU)
    return lines


def resolved_at(recipe: str, tmp_path: Path, *settings: str) -> Resolved:
    with setting(settings):
        found, _ = resolve(recipe, "proxy", str(tmp_path / "home"))
    found.home.make_ready()
    write_sources(found.home, found.recipe)
    return found


def reported(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> list[Any]:
    asked: list[Any] = []

    def preflight_setup(setup: Any, home: Any) -> dict[str, Any]:
        asked.append(setup)
        return {"execution": PLAN.model_dump(mode="json"), "estimated": False, "plan": "blocks computed again", "reason": None, **fields}

    monkeypatch.setattr(preflight_module, "preflight_setup", preflight_setup)
    return asked


@pytest.mark.parametrize(
    ("machine", "execution", "words"),
    [(CPU, Execution(), "1 × CPU"), (Machine("gpu", "NVIDIA H200", 2), Execution(mesh=Mesh(fsdp=2)), "2 × H200")],
)
def test_on_this_machine_nothing_is_compiled_and_all_devices_are_used_and_said(
    recipe: str, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch, machine: Machine, execution: Execution, words: str
):
    monkeypatch.setattr(module, "machine_here", lambda: machine)
    with resolving_once():
        resolved = resolved_at(recipe, tmp_path)
        (planned,) = runs_on_slices(resolved, resolved.recipe.phases[0])
    assert planned.run == resolved.run(resolved.recipe.phases[0]).but(execution=execution)
    assert said == [f"kestrel: trains on {words}, float32, XLA attention"]


def test_a_slice_gives_the_plan_that_preflight_found(recipe: str, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch):
    asked = reported(monkeypatch)
    with resolving_once():
        resolved = resolved_at(recipe, tmp_path, "*.slice=cpu-2")
        resolved.check(resolved.recipe.phases)
        (planned,) = runs_on_slices(resolved, resolved.recipe.phases[0])
        run = planned.run
    assert [setup.slice for setup in asked] == ["cpu-2"]
    assert run.execution == PLAN
    assert said == ["kestrel: the plan for cpu-2: blocks computed again", "kestrel: trains on 2 × CPU, float32, XLA attention"]


def test_a_recipe_states_execution_over_the_plan_and_keeps_its_digest(
    recipe: str, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
):
    reported(monkeypatch)
    settings = ("*.slice=cpu-2", "kestrel.execution.remat=dots", "kestrel.execution.microbatch_sequences=2")
    with resolving_once():
        resolved, plain = resolved_at(recipe, tmp_path, *settings), resolved_at(recipe, tmp_path)
        resolved.check(resolved.recipe.phases)
        first, second = resolved.recipe.phases
        (planned,) = runs_on_slices(resolved, first)
    assert planned.run.execution == PLAN.but(remat="dots", microbatch_sequences=2)
    assert planned.run.digest == plain.run(plain.recipe.phases[0]).digest
    assert resolved.home.trials == ()
    assert said[1] == 'kestrel: the recipe states remat "dots", microbatch_sequences 2'
    assert second.execution == plain.recipe.phases[0].execution == ExecutionSettings()
    assert "execution" not in plain.recipe.phases[0].model_dump()  # earlier recipes keep their digests


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (['kestrel.execution.mesh={"fsdp": 2}'], "execution.mesh: expected 1 device, as the slice local has, found 2. Change the mesh"),
        (['kestrel.execution.mesh={"tensor": 2}', "*.slice=cpu-2", "kestrel.model.num_kv_heads=1"], "tensor of execution.mesh must divide"),
        (['kestrel.execution.mesh={"fsdp": 2}', "*.slice=cpu-2", "kestrel.batch=3", "ocelot.batch=3"], "must divide the batch from step 0"),
        (["kestrel.execution.microbatch_sequences=5", "*.batch=6"], "expected a divisor of the batch of 6 sequences from step 0, found 5"),
        (["kestrel.execution.remat=half"], "kestrel.execution.remat"),
        (["kestrel.instrumentation.mlflow=sqlite:///m.db"], "phase kestrel: instrumentation.mlflow needs the package mlflow"),
    ],
)  # fmt: skip
def test_a_stated_execution_that_does_not_fit_is_refused(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: list[str], reason: str
):
    monkeypatch.setattr("phasewise.tasks.training.execution.machine_here", lambda: CPU)
    monkeypatch.setattr("phasewise.trainer.config.execution.find_spec", lambda _name: None)
    declares = 'ocelot.start.declares=["rope", "learning_rate", "optimizer", "ema"]'
    given = [*settings, declares] if any("batch=" in one for one in settings) else settings

    def check() -> None:
        resolved = resolved_at(recipe, tmp_path, *given)
        resolved.check(resolved.recipe.phases)

    with pytest.raises(ConfigError) as refused:
        check()
    assert reason in str(refused.value)


def test_a_phase_whose_slice_changes_has_a_plan_for_each(recipe: str, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch):
    asked = reported(monkeypatch)
    with resolving_once():
        resolved = resolved_at(recipe, tmp_path, '*.slice=[[0, "cpu-2"], [12, "cpu-2"], [20, "cpu-1"], [24, "local"]]')
        phase = resolved.recipe.phases[0]
        resolved.check([phase])
        planned = runs_on_slices(resolved, phase)
    assert sorted({setup.slice for setup in asked}) == ["cpu-1", "cpu-2"]
    assert [(one.slice_name, one.run.until_step, one.run.execution) for one in planned] == [
        ("cpu-2", 20, PLAN),
        ("cpu-1", 24, PLAN),
        ("local", None, Execution()),
    ]
    assert {one.run.digest for one in planned} == {resolved.run(phase).digest}, "the batches are the same"
    assert said[2:] == [
        "kestrel: trains on 2 × CPU, float32, XLA attention, to step 20",
        "kestrel: trains on 2 × CPU, float32, XLA attention, to step 24",
        "kestrel: trains on 1 × CPU, float32, XLA attention",
    ]


def test_a_later_slice_that_does_not_fit_is_refused_before_work(
    recipe: str, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
):
    def preflight_setup(setup: Any, home: Any) -> dict[str, Any]:
        fits = setup.slice == "cpu-2"
        execution = PLAN.model_dump(mode="json") if fits else None
        return {"execution": execution, "estimated": False, "plan": "", "reason": None if fits else "too large"}

    monkeypatch.setattr(preflight_module, "preflight_setup", preflight_setup)
    with resolving_once():
        resolved = resolved_at(recipe, tmp_path, '*.slice=[[0, "cpu-2"], [20, "cpu-1"]]')
        with pytest.raises(ConfigError, match="does not fit cpu-1: too large"):
            runs_on_slices(resolved, resolved.recipe.phases[0])


def test_parts_that_do_not_divide_another_batch_are_refused(recipe: str, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch):
    reported(monkeypatch, execution=PLAN.but(microbatch_sequences=3).model_dump(mode="json"))
    with resolving_once():
        resolved = resolved_at(recipe, tmp_path, "*.slice=cpu-2", "kestrel.batch=[[0, 6], [20, 8]]")
        with pytest.raises(ConfigError, match="in parts of 3 sequences, found 8 sequences from step 20"):
            plan_of(resolved, resolved.recipe.phases[0], "cpu-2")
