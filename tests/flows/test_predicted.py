"""Which prediction a phase gets: what was measured here, or preflight's for a slice; and that nothing is calibrated unasked."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flows import predicted as module
from flows.predicted import predict_local, predict_phase, run_without_data
from flows.recipes.phase import Phase
from flows.recipes.recipe import Recipe
from tasks.home import Home
from tasks.prediction.conditions import conditions_here
from tasks.prediction.costs import Costs, StepCost, step_key
from tasks.prediction.evidence import keep_calibration
from tasks.preflight import preflight as preflight_module
from tasks.training.choice import LAUNCHER_VARIABLE
from tests.pulse.runs import tiny_recipe
from trainer.base.errors import ConfigError
from trainer.config import RunConfig, always

REPORT = {"slice": "v5e-8", "steps": 40, "step_seconds": 2.0, "estimated": False, "gib_per_chip": {"peak": 1.0}}

HOLDS = """
import sys
from tasks.home import Home
with Home.open(sys.argv[1]).held("a test"):
    print("holds", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.open(str(tmp_path / "home"))


def costs_of(run: RunConfig, batch: int) -> Costs:
    step = StepCost(updates=9, seconds=0.5, low_seconds=0.5, high_seconds=0.5, first_seconds=0.5, compiled=False)
    return Costs(
        source="a calibration", measured_at=1.0, conditions=conditions_here(), recipe="another", from_scratch=True,
        steps={step_key(run, batch): step}, process_seconds=0, start_seconds=0, finish_seconds=0, save_seconds=0, last_save_seconds=0,
        evaluation_seconds=0, first_evaluation_seconds=0, checkpoint_bytes=None, row_bytes=0, peak_memory_bytes=None,
    )  # fmt: skip


def kestrel_on(slice_name: str) -> tuple[Recipe, Phase]:
    recipe = tiny_recipe()
    return recipe, recipe.phases[0].but(slice=always(slice_name))


def test_only_what_is_not_known_is_calibrated_and_only_where_asked(home: Home, monkeypatch: pytest.MonkeyPatch):
    asked: list[int] = []

    def calibrate(run: RunConfig, batch_sequences: int, home: Home) -> Costs:
        asked.append(batch_sequences)
        return costs_of(run, batch_sequences)

    monkeypatch.setattr(module, "calibrate", calibrate)
    recipe = tiny_recipe()
    unknown = predict_local(recipe, recipe.phases, home, calibrates=False)
    assert {name: one.seconds for name, one in unknown.items()} == {"kestrel": None, "ocelot": None}
    assert asked == []
    known = predict_local(recipe, recipe.phases, home, calibrates=True)
    assert asked == [2, 6]
    assert {name: one.seconds for name, one in known.items()} == {"kestrel": 20.0, "ocelot": 6.0}
    assert predict_local(recipe, recipe.phases, home, calibrates=True) == known
    assert asked == [2, 6]


def test_a_slice_has_preflights_time_unless_this_machine_is_it_and_was_measured(home: Home, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(preflight_module, "preflight_setup", lambda setup, home: REPORT)
    recipe, phase = kestrel_on("v5e-8")
    run = run_without_data(recipe, phase, home)
    assert predict_local(recipe, [phase], home, calibrates=False) == {}
    assert predict_phase(phase, run, home).source == "preflight's roofline for v5e-8"
    keep_calibration(home, costs_of(run, 2))
    assert predict_phase(phase, run, home).source == "a calibration"
    monkeypatch.setenv(LAUNCHER_VARIABLE, "jobset")
    assert predict_phase(phase, run, home).source == "preflight's roofline for v5e-8", "it trains elsewhere"


def test_a_phase_that_moves_has_preflights_time_of_each_slice(home: Home, monkeypatch: pytest.MonkeyPatch):
    """What was measured here is of one of them."""
    monkeypatch.setattr(preflight_module, "preflight_setup", lambda setup, home: {**REPORT, "slice": setup.slice, "steps": setup.steps})
    recipe, phase = kestrel_on("v5e-8")
    phase = phase.but(slice=[[0, "v5e-8"], [15, "v6e-8"]])
    run = run_without_data(recipe, phase, home)
    keep_calibration(home, costs_of(run, 2))
    prediction = predict_phase(phase, run, home)
    assert (prediction.seconds, prediction.source) == (80.0, "preflight's roofline for v5e-8 and v6e-8")
    part = phase.but(slice=[[0, "local"], [15, "v6e-8"]])
    assert predict_phase(part, run, home).source.startswith("15 updates are made on this machine")


def test_of_a_cpu_preflight_has_no_time(home: Home, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(preflight_module, "preflight_setup", lambda setup, home: pytest.fail("its roofline says nothing"))
    recipe, phase = kestrel_on("cpu-2")
    run = run_without_data(recipe, phase, home)
    for moves in ("cpu-2", [[0, "cpu-2"], [15, "cpu-1"]]):
        of_cpu = phase.but(slice=[[0, moves]] if isinstance(moves, str) else moves)
        prediction = predict_phase(of_cpu, run, home)
        assert (prediction.seconds, "nothing of a CPU's time" in prediction.source) == (None, True)


def test_the_price_is_of_the_environment(home: Home, monkeypatch: pytest.MonkeyPatch):
    recipe, phase = kestrel_on("local")
    run: Any = run_without_data(recipe, phase, home)
    keep_calibration(home, costs_of(run, 2))
    assert predict_phase(phase, run, home).usd is None
    monkeypatch.setenv("PHASEWISE_USD_PER_HOUR", "360")
    assert predict_phase(phase, run, home).usd == 2.0


def test_while_a_run_is_at_work_nothing_is_calibrated(home: Home, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "calibrate", lambda *given: pytest.fail("it would be measured, too"))
    recipe = tiny_recipe()
    held = subprocess.Popen([sys.executable, "-c", HOLDS, str(home.root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with held:
        assert held.stdout
        assert held.stdout.readline() == "holds\n"
        with pytest.raises(ConfigError, match="a test"):
            predict_local(recipe, recipe.phases, home, calibrates=True)
        held.communicate()
