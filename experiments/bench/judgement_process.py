"""Judge one phase of a proxy recipe (data, training health, gate) in a process without caches. Prints the seconds of each.

python -m experiments.bench.judgement_process HOME OTHER_HOME PHASE

The process reads data from the home and writes to a second home. The phase is not trained: metrics for each update and scores for each
benchmark are synthetic.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from experiments.bench.measure import seconds
from phasewise.flows.plan import build_run, data_plan
from phasewise.flows.recipes import load_recipe
from phasewise.flows.recipes.phase import HandOff, Phase
from phasewise.flows.recipes.recipe import Recipe
from phasewise.tasks.data.plan import DataPlan
from phasewise.tasks.home import Home
from phasewise.tasks.validation import judge
from phasewise.trainer.base.identity import write_sealed
from phasewise.trainer.base.run_folder import METRICS_NAME
from phasewise.trainer.base.storage import as_path, write_atomically
from phasewise.trainer.config import RunConfig
from phasewise.trainer.data.manifest import read_manifest
from phasewise.validations.evidence.caches import hand_off_evidence
from phasewise.validations.expectations.judging import load_library
from phasewise.validations.verdict import Verdict, judge_gate, write_verdict
from tests.validations.evidence.health.simulated import Scenario, healthy_rows

RECIPE = "marin-8b"
LIBRARY = "Great Expectations"
BASELINES = {"word_order": 0.25, "next_word": 0.0625}


@dataclass(frozen=True)
class Judged:
    steps: dict[str, float]
    great_expectations: float
    everything: float
    failures: dict[str, str]
    components: int
    tokens: int


class Clock:
    def __init__(self):
        self.steps: dict[str, float] = {}

    def watch(self, owner: Any, name: str, step: str) -> None:
        """Count every call of `owner.name`."""
        function = getattr(owner, name)

        def timed(*arguments: Any, **named: Any) -> Any:
            return self.call(step, lambda: function(*arguments, **named))

        setattr(owner, name, timed)

    def call(self, step: str, function: Callable[[], Any]) -> Any:
        result: list[Any] = []
        self.steps[step] = self.steps.get(step, 0.0) + seconds(lambda: result.append(function()))
        return result[0]


def judge_all(home: Home, other: Home, phase_name: str) -> Judged:
    """Judge the phase as a flow does, without Prefect."""
    clock = Clock()
    clock.watch(judge, "test_items", "its list of items")
    clock.watch(judge.KeptItems, "folder", "its index")
    clock.watch(judge, "scan_caches", "leakage")
    clock.watch(judge, "order_evidence", "order")
    clock.watch(judge, "judge_data", "data suite")
    recipe = load_recipe(RECIPE, "proxy")
    phase = recipe.phase(phase_name)
    plan = data_plan(recipe, home)
    run = _run(recipe, phase, plan, other)
    verdicts: list[Verdict] = []

    def judge_three() -> None:
        clock.call(LIBRARY, load_library)
        hand_off = hand_off_evidence(None, {})
        verdicts.append(clock.call("data", lambda: judge.judge_phase_data(run, plan, phase.gates.data, other, hand_off=hand_off)))
        verdicts.append(clock.call("training", lambda: judge.judge_phase_health(run, phase.gates.health, other)))
        verdicts.append(clock.call("model", lambda: _judge_model(run, phase, other)))

    everything = seconds(judge_three)
    great_expectations = clock.steps.pop(LIBRARY)
    failures = {verdict.subject: f"{verdict.subject} {verdict.counts.words}" for verdict in verdicts if not verdict.passes}
    tokens = sum(read_manifest(as_path(folder)).tokens for folder in run.caches.values())
    return Judged(clock.steps, great_expectations, everything, failures, len(run.caches), tokens)


def _run(recipe: Recipe, phase: Phase, plan: DataPlan, other: Home) -> RunConfig:
    if isinstance(phase.start, HandOff):
        write_sealed(other.run(recipe.run_name, phase.start.parent) / "result.json", {"params_digest": "0" * 64})
    run = build_run(recipe, phase, other, plan.folders("train"))
    rows = healthy_rows(Scenario(updates=phase.stop_step - phase.start_step, first_step=phase.start_step + 1, schedule="wsd"))
    write_atomically(as_path(run.output) / METRICS_NAME, b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    return run


def _judge_model(run: RunConfig, phase: Phase, other: Home) -> Verdict:
    results = [{"benchmark": name, "metric": "acc", "value": 2 * least, "baseline": least} for name, least in BASELINES.items()]
    bits = dict.fromkeys(run.caches, 2.0)
    evaluation = {"checkpoint": run.output, "finite": True, "results": results, "bits_per_byte": bits, "macro_bits_per_byte": 2.0}
    path = other.verdict(f"{run.recipe}-{run.scale}", run.phase, "model")
    parent = evaluation if isinstance(phase.start, HandOff) else None
    verdict = judge_gate(run.phase, evaluation, parent_evaluation=parent, limits=phase.gates.model, folder=path.with_suffix(""))
    write_verdict(path, verdict)
    return verdict


def main() -> None:
    home, other, phase = sys.argv[1:]
    print(json.dumps(asdict(judge_all(Home.open(home), Home.open(other), phase))))


if __name__ == "__main__":
    main()
