"""Synthetic reports that look like a proxy run of marin-8b."""

import math
from typing import Any, TypeVar

import pytest

from phasewise.tasks.report.contents import BenchmarkReport, PhaseReport, Report, VerdictReport
from phasewise.tasks.report.sections import routing_of
from phasewise.validations.verdict import CheckCounts

WEB = {"dclm_baseline": 92.6, "starcoderdata": 6.1, "proofpile_2": 1.3}
JELLYFISH = {"dolmino_dclm": 70.0, "dolma_pes2o": 15.0, "finemath": 10.0, "starcoderdata": 5.0}
STEADY = {"nemotron_medium": 50.0, "nemotron_hq_synth": 30.0, "nemotron_low": 17.7, "starcoderdata": 2.3}
BRIDGE = {name: share / 2 for name, share in STEADY.items()} | {"dclm_baseline": 48.0, "starcoderdata": 3.15}
SMALL = {"flan": 3.0, "finemath": 3.0, "stackexchange": 1.5, "wikipedia": 1.0, "medu_science_qa": 0.5}
LARGE = {"nemotron_medium": 40.0, "nemotron_hq_synth": 24.0, "nemotron_low": 8.0, "dolmino_pes2o": 5.0, "arxiv": 5.0}
STARLING = {**LARGE, **SMALL, "starcoderdata": 4.5, "proofpile_2": 4.5}
# name, start, stop, sequences a step, learning rate from, to, (first step, mixture), final loss
PHASES = (
    ("kestrel", 0, 660, 4, 5.7e-3, 5.7e-4, ((0, WEB),), 5.42),
    ("ocelot", 660, 740, 12, 5.7e-3, 5.7e-3, ((660, WEB),), 5.30),
    ("jellyfish", 740, 820, 12, 5.7e-3, 5.7e-4, ((740, JELLYFISH),), 5.13),
    ("phoenix", 820, 1320, 12, 5.7e-3, 5.7e-3, ((820, BRIDGE), (822, STEADY)), 5.06),
    ("starling", 1320, 1400, 16, 5.7e-3, 5.7e-4, ((1320, STARLING),), 4.93),
    ("deeper-starling", 1400, 1420, 16, 5.7e-4, 5.7e-4, ((1400, STARLING),), 4.91),
)
Model = TypeVar("Model", Report, PhaseReport)


def changed(model: Model, **fields: object) -> Model:
    return type(model).model_validate(dict(model) | fields)


def build_phase(name: str, **fields: object) -> PhaseReport:
    plan = {"start_step": 0, "stop_step": 10, "tokens": 10, "batch_sequences": ((0, 1),), "learning_rate_turns": (1.0, 0.0)}
    return PhaseReport.model_validate(plan | {"name": name, "state": "done"} | fields)


def build_report(*phases: PhaseReport, **fields: object) -> Report:
    plain = {"recipe": "r", "scale": "proxy", "created": "now", "status": "passed", "headline": "h", "parameters": 1}
    return Report.model_validate(plain | {"phases": phases} | fields)


def planned(i: int) -> PhaseReport:
    name, start, stop, sequences, first, last, _, _ = PHASES[i]
    steps = {"start_step": start, "stop_step": stop, "tokens": (stop - start) * sequences * 512, "batch_sequences": ((start, sequences),)}
    declares = (f"batch: {PHASES[i - 1][3]} → {sequences} sequences", "mixture: pre-training → 70 % dolmino_dclm") if i else ()
    parent = PHASES[i - 1][0] if i else None
    return build_phase(name, **steps, learning_rate_turns=(first, last), declares=declares, parent=parent, state="not started")


def trained(i: int) -> PhaseReport:
    """The phase of `PHASES[i]`, trained and judged; a component improves most when it is trained on first."""
    name, start, stop, _, first, last, mixture, level = PHASES[i]
    names = {component for phase in PHASES for _, shares in phase[6] for component in shares}
    held_out = dict.fromkeys(names, 3.0 - 0.01 * i)
    for earlier in range(1, i + 1):
        for component in {component for _, shares in PHASES[earlier][6] for component in shares}:
            held_out[component] -= 0.4 / earlier
    macro = sum(held_out.values()) / len(held_out)
    steps = range(start, stop)
    curves = {
        "learning_rate": tuple((step, first + (last - first) * (step - start) / (stop - start)) for step in steps),
        "loss": tuple((step, level + (3.0 - 2.85 * bool(i)) * math.exp((start - step) / 80) + 0.1 * math.sin(step)) for step in steps),
    }
    benchmarks = (
        BenchmarkReport(benchmark="next_sentence", metric="acc", value=0.27 + 0.03 * i, baseline=0.25, stderr=0.03),
        BenchmarkReport(benchmark="complete_word", metric="exact_match", value=0.02 * i, baseline=0.01, stderr=0.008),
    )
    gates: tuple[tuple[Any, int], ...] = (("data", 87), ("gate", 34))
    verdicts = tuple(
        VerdictReport(name=what, counts=CheckCounts(passed=passed), reasons=(), accepted=(), path=f"verdicts/{name}/{what}.json")
        for what, passed in gates
    )
    return changed(
        planned(i), **curves, final_loss=level, mixture=mixture, bits_per_byte=held_out, macro_bits_per_byte=macro, benchmarks=benchmarks,
        ema_macro_bits_per_byte=macro - 0.04 if i else None, verdicts=verdicts, state="done", params_digest=f"{i}" * 64,
    )  # fmt: skip


def marin(*phases: PhaseReport, **fields: object) -> Report:
    about: dict[str, object] = {
        "recipe": "marin-8b", "created": "2025-11-20T13:06:41+00:00", "parameters": 2_361_600, "facts": {"seed": "0"},
        "headline": "All six phases trained and passed their gates.", "baselines": {"byte 3-gram": 2.61, "byte 5-gram": 2.2},
    }  # fmt: skip
    return build_report(*phases, **(about | fields))


@pytest.fixture
def passed_report() -> Report:
    return marin(*map(trained, range(6)))


@pytest.fixture
def sparse_report() -> Report:
    """Three phases of a sparse model: one that lost its balance, one that kept it, one whose load by layer was not recorded."""
    lost = [{"step": step, "max_violation": 3.0, "dead_experts": 2.0, "router_entropy": 0.9} for step in range(1, 661)]
    lost[-1] |= {f"expert_load/1/{expert}": load for expert, load in enumerate((0.5, 0.3, 0.2, 0.0))}
    lost[-1] |= {f"expert_load/2/{expert}": 0.25 for expert in range(4)}
    kept = [{"step": row["step"], "max_violation": 0.4, "dead_experts": 0.0, "router_entropy": 0.97} for row in lost]
    kept[-1] |= {name: 0.25 for name in lost[-1] if name.startswith("expert_load")}
    return marin(*(changed(trained(i), routing=routing_of(rows, 2.1)) for i, rows in enumerate((lost, kept, kept[:-1]))))


@pytest.fixture
def stopped_report() -> Report:
    reasons = (
        "leakage: 13-gram containment must be at most 0.5, found 1.0: benchmark next_sentence, item 17, document 812",
        "mixture: proofpile_2 must be within 0.5 of 1.34 %, found 0.00 %; check that its cache is not empty",
    )
    counts, path = CheckCounts(passed=85, failed=2), "verdicts/ocelot/data.json"
    refusal = VerdictReport(name="data", counts=counts, reasons=reasons, accepted=(), path=path)
    ocelot = changed(planned(1), state="refused", verdicts=(refusal,), mixture=PHASES[1][6])
    headline = "Stopped before Ocelot: a benchmark item is in the training data."
    return marin(trained(0), ocelot, *map(planned, range(2, 6)), status="stopped", headline=headline)
