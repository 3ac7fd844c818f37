import ast
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from phasewise.flows.recipes import load_recipe
from phasewise.flows.resolved import Resolved
from phasewise.flows.status import summary
from phasewise.flows.status.phase_status import PhaseRecord
from phasewise.flows.status.recipe_status import REPORTING, headline, status_of
from phasewise.flows.status.summary import macro_mean, measured_of, shared_components
from phasewise.tasks.home import Home
from phasewise.tasks.report.contents import MeasuredReport
from phasewise.trainer.base.identity import HOUSE, NAME, files_of
from phasewise.validations.evidence.gate import gate_tables
from phasewise.validations.evidence.parent_comparison import NOT_ASKED
from phasewise.validations.limits import GateLimits
from phasewise.validations.verdict import write_tables
from tests.validations.made_answers import guessed_result

MAKERS = ("flows/status/summary.py",)
READS_ALONE = {
    "flows/recipes/phase.py", "flows/recipes/recipe.py", "flows/status/phase_status.py", "flows/resolved.py",
    "tasks/evaluation/ngram_baselines.py", "tasks/phase_state.py", "trainer/base/decision.py", "trainer/base/run_folder.py",
    "trainer/base/storage.py",
    "trainer/config/__init__.py", "trainer/data/mixture.py", "trainer/metrics.py", "trainer/schedule.py",
    "trainer/model/params.py", "validations/limits.py",
    "validations/expectations/judging.py", "validations/verdict.py",
}  # fmt: skip
"""What these import to read the home, or for its types. What these read is in the report's key itself."""


def imported(path: str) -> set[str]:
    tree = ast.parse((HOUSE / path).read_text())
    names = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    ours = {name.partition(".")[2].replace(".", "/") for name in names if name.partition(".")[0] == NAME}
    return {f"{name}.py" if (HOUSE / f"{name}.py").exists() else f"{name}/__init__.py" for name in ours}


def test_whatever_says_something_in_a_report_is_in_its_version():
    known = {path.relative_to(HOUSE).as_posix() for path in files_of(*REPORTING)}
    assert set(MAKERS) <= known
    assert {name for maker in MAKERS for name in imported(maker)} - known - READS_ALONE == set()


RECIPE = load_recipe("trinity-nano", "proxy")
ROW = {"loss": 2.0, "learning_rate": 1e-3, "max_violation": 0.5, "dead_experts": 1.0, "router_entropy": 0.9}


def test_the_report_has_what_the_routers_of_each_trained_phase_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(summary, "read_baselines", lambda *_: {})
    rows = [{"step": 1, **ROW}, {"step": 2, **ROW, "expert_load/1/0": 0.75, "expert_load/1/1": 0.25}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run: Any = SimpleNamespace(output=str(tmp_path), last_step=1, batch=RECIPE.phases[0].batch)
    done: dict[str, Any] = {"final_loss": 1.0}
    first, second = RECIPE.phases[:2]
    records = [PhaseRecord(first, run, None, None, done, None, None), PhaseRecord(second, None, None, None, None, None, None)]
    fields = {"recipe": RECIPE, "recipe_name": RECIPE.name, "options": "", "plan": SimpleNamespace(components={}, benchmark_components=())}
    resolved = cast(Resolved, SimpleNamespace(home=Home.open(str(tmp_path / "home")), **fields))
    trained, planned = summary.build_report(resolved, records).phases
    assert trained.routing is not None
    assert trained.routing.max_violation == ((1, 0.5), (2, 0.5))
    assert trained.routing.loads == ((1.5, 0.5),)
    assert trained.routing.limit == first.gates.health.max_violation == pytest.approx(2.1)
    assert planned.routing is None
    assert [(start, sum(shares.values())) for start, shares in trained.mixture] == [(0, pytest.approx(100))]


def records(**states: str) -> list[PhaseRecord]:
    return [cast(PhaseRecord, SimpleNamespace(phase=SimpleNamespace(name=name), state=state)) for name, state in states.items()]


@pytest.mark.parametrize(
    ("states", "status", "sentence"),
    [
        ({"one": "done"}, "passed", "The phase trained on judged data and passed its gate."),
        ({"one": "done", "two": "done", "three": "done"}, "passed", "All 3 phases trained on judged data and passed their gates."),
        ({"one": "done", "two": "not started", "three": "not started"}, "unfinished", "1 of 3 phases are done; next is two."),
        ({"one": "done", "two": "refused", "three": "not started"}, "stopped", "1 of 3 phases passed; refused: two."),
        ({"one": "waiting for a person", "two": "not started"}, "stopped", "0 of 2 phases passed; waiting for a person: one."),
    ],
)
def test_a_phase_that_is_still_to_come_stops_nothing(states: dict[str, str], status: str, sentence: str):
    assert (status_of(records(**states)), headline(records(**states))) == (status, sentence)


def evaluation(ema: float | None = 1.5, **bits: float) -> dict[str, Any]:
    return {"bits_per_byte": bits, "macro_bits_per_byte": sum(bits.values()) / len(bits), "ema_macro_bits_per_byte": ema}


KESTREL, OCELOT = evaluation(web=2.0, code=1.0), evaluation(web=1.8, code=1.0)
TALKS = evaluation(web=1.8, code=1.0, talks=4.4)


@pytest.mark.parametrize("phases", [[], [None], [KESTREL], [KESTREL, None, OCELOT]])
def test_phases_that_are_measured_alike_have_the_mean_that_was_kept(phases: list[dict[str, Any] | None]):
    shared = shared_components(phases)
    assert shared == ()
    for phase in phases:
        kept = (phase["macro_bits_per_byte"], 1.5) if phase else (None, None)
        assert macro_mean(phase, shared) == kept


def test_a_phase_with_text_of_its_own_is_not_worse_for_it():
    shared = shared_components([KESTREL, OCELOT, None, TALKS])
    assert shared == ("code", "web")
    means = [macro_mean(phase, shared) for phase in (KESTREL, OCELOT, TALKS)]
    assert [mean[0] for mean in means] == [1.5, 1.4, 1.4]
    assert [mean[1] for mean in means] == [1.5, 1.5, None]  # of averaged weights only the mean over all is kept
    other = evaluation(talks=4.0)
    shared = shared_components([KESTREL, other])
    assert (shared, macro_mean(other, shared)[0]) == ((), 4.0)


FIRST, SECOND = load_recipe("marin-8b", "proxy").phases[:2]
JUDGED: Any = object()
BENCHMARK = "continuation acc"


def evaluation_of(right: int, bits: dict[str, float], **fields: Any) -> dict[str, Any]:
    return {
        "phase": "kestrel", "benchmarks": ["continuation"], "results": [guessed_result(right=right, first=140)], "bits_per_byte": bits,
        "macro_bits_per_byte": sum(bits.values()) / len(bits), "measured_on": dict.fromkeys(bits, "same"),
        "schedule": {"end": 1e-3, "peak": 1e-3, "optimizer": "adamw"}, "finite": True, **fields,
    }  # fmt: skip


LIMITS = GateLimits(
    max_increase_bits_per_byte=0.1, must_beat_baseline=True, floor_error_rate=0.01,
    false_refusal_rate=0.05, max_score_fall=0.01, max_score_rise=0.25,
)  # fmt: skip
CHILD = evaluation_of(90, {"law": 1.5, "code": 2.5})
PARENT = evaluation_of(60, {"law": 2.0, "code": 2.4})


def rows(folder: Path, *, evaluation: dict[str, Any] = CHILD, judged: Any = JUDGED, phase: Any = SECOND) -> dict[str, MeasuredReport]:
    record = PhaseRecord(phase, None, None, None, None, evaluation, judged)
    return {one.what: one for one in measured_of(record, folder)}


def write(folder: Path, parent: dict[str, Any] | None = PARENT, limits: GateLimits = LIMITS) -> Path:
    write_tables(folder, gate_tables(CHILD, parent, limits))
    return folder


def test_values_are_beside_the_parent_s_and_the_floor(tmp_path: Path) -> None:
    found = rows(write(tmp_path))
    benchmark, macro = found[BENCHMARK], found["macro bits per byte"]
    assert (benchmark.value, benchmark.parent, benchmark.floor) == (0.45, 0.3, 0.25)
    assert benchmark.difference == pytest.approx(0.15)
    assert benchmark.stderr is not None
    assert benchmark.interval is not None
    low, high = benchmark.interval
    assert low < 0.15 < high
    assert benchmark.smallest_effect is not None
    assert benchmark.not_compared == ""
    assert (macro.value, macro.parent, macro.higher_is_better) == (2.0, 2.2, False)
    assert macro.difference == pytest.approx(-0.2)


def test_what_was_not_compared_says_why_and_components_without_a_parent_s_are_counted(tmp_path: Path) -> None:
    [result] = PARENT["results"]
    otherwise = {**PARENT, "results": [{**result, "setting": {**result["setting"], "shots": 5}}]}
    found = rows(write(tmp_path, otherwise))[BENCHMARK]
    assert (found.parent, found.difference) == (None, None)
    assert found.not_compared == "examples in the prompt 0, the parent's 5"
    limits = LIMITS.but(false_refusal_rate=None, max_score_fall=None, max_score_rise=None)
    found = rows(write(tmp_path / "none", limits=limits))[BENCHMARK]
    assert (found.parent, found.not_compared) == (None, NOT_ASKED)
    parent = {**PARENT, "measured_on": {"law": "same", "code": "another text"}}
    [macro] = [one for name, one in rows(write(tmp_path, parent)).items() if name.startswith("macro")]
    assert (macro.what, macro.value, macro.parent) == ("macro bits per byte, of the 1 component that its parent was measured on", 1.5, 2.0)


def test_a_first_phase_and_one_without_a_verdict_have_values_alone(tmp_path: Path) -> None:
    write(tmp_path)
    for found in (rows(tmp_path, phase=FIRST), rows(tmp_path, judged=None), rows(tmp_path / "gone")):
        one = found[BENCHMARK]
        assert (one.value, one.floor, one.parent, one.difference, found["macro bits per byte"].parent) == (0.45, 0.25, None, None, None)
    other = rows(tmp_path, evaluation=evaluation_of(100, {"law": 1.5, "code": 2.6}))  # the table is not believed
    assert {one.what: (one.value, one.parent) for one in other.values()} == {BENCHMARK: (0.5, None), "macro bits per byte": (2.05, None)}
    assert measured_of(PhaseRecord(SECOND, None, None, None, None, None, None), tmp_path) == ()
