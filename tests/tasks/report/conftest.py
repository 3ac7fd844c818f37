"""Synthetic reports that look like a proxy run of marin-8b."""

import math
from typing import TypeVar

import numpy as np
import pytest

from phasewise.tasks.report.contents import BenchmarkReport, PhaseReport, Report, VerdictReport
from phasewise.tasks.report.sections import routing_of
from phasewise.validations.outcomes import CheckCounts

NEMOTRON = {"medium": 30.85, "hq_synth": 24.82, "medium_low": 14.06, "hq_actual": 8.34, "medium_high": 7.53, "low_actual": 6.4}
NEMOTRON.update({"low_synth": 5.73})
PRETRAINING = {"dclm_baseline": 92.57, "starcoderdata": 6.09, "proofpile_2": 1.34}
JELLYFISH = {"dolmino_dclm": 67.76, "starcoderdata": 2.23, "dolma_pes2o": 10.78, "finemath_3_plus": 6.31, "dolma_arxiv": 5.18}
JELLYFISH.update({"dolma_stackexchange": 3.17, "algebraic_stack": 2.13, "open_web_math": 0.94, "megawika": 0.82, "dolma_wiki": 0.68})
BRIDGE = {"dclm_baseline": 25.66, "proofpile_2": 0.37, "starcoderdata": 1.69}
BRIDGE.update({f"nemotron_{name}": share * 0.7228 / 0.9773 for name, share in NEMOTRON.items()})
STEADY = {f"nemotron_{name}": share for name, share in NEMOTRON.items()} | {"starcoderdata": 2.28}
STARLING = {f"nemotron_{name}": share * 0.7164 for name, share in NEMOTRON.items()}
STARLING.update({"starcoderdata": 4.47, "proofpile_2": 4.47, "arxiv_markdownified": 5.2, "dolmino_pes2o": 5.2, "flan": 3.04})
STARLING.update({"finemath_3_plus": 3.04, "dolmino_stackexchange": 1.53, "stackexchange_custom": 1.53, "all_math": 0.755})
STARLING.update({"dolmino_wiki": 0.327, "wikipedia_markdown": 0.327, "medu_science_qa": 0.107})

# name, start, stop, sequences a step, learning rate from, to, (first step, mixture), final loss
PHASES = (
    ("kestrel", 0, 660, 4, 5.7e-3, 5.7e-4, ((0, PRETRAINING),), 5.42),
    ("ocelot", 660, 740, 12, 5.7e-3, 5.7e-3, ((660, PRETRAINING),), 5.30),
    ("jellyfish", 740, 820, 12, 5.7e-3, 5.7e-4, ((740, JELLYFISH),), 5.13),
    ("phoenix", 820, 1320, 12, 5.7e-3, 5.7e-3, ((820, BRIDGE), (822, STEADY)), 5.06),
    ("starling", 1320, 1400, 16, 5.7e-3, 5.7e-4, ((1320, STARLING),), 4.93),
    ("deeper-starling", 1400, 1420, 16, 5.7e-4, 5.7e-4, ((1400, STARLING),), 4.91),
)
DECLARES = {
    "ocelot": ("batch: 4 → 12 sequences", "rope: theta 10,000 → llama3", "ema: off → 0.995"),
    "jellyfish": ("mixture: pre-training → 70 % dolmino_dclm, 30 % high quality", "learning rate: constant → linear decay"),
    "phoenix": ("mixture: bridge for 2 steps, then Nemotron", "learning rate: rewarmed"),
    "starling": ("mixture: 70 % Nemotron, 30 % high quality", "z_loss: off → 1e-4", "batch: 12 → 16 sequences"),
    "deeper-starling": (),
}


Model = TypeVar("Model", Report, PhaseReport)


def changed(model: Model, **fields: object) -> Model:
    """The model with other fields, validated again."""
    return type(model).model_validate(dict(model) | fields)


def learning_rates(name: str, start: int, stop: int, first: float, last: float) -> tuple[tuple[int, float], ...]:
    """Kestrel saws 66 times; the others go straight."""
    if name == "kestrel":
        return tuple(
            (step, first if step % 10 < 6 else 1 / (1 / first + (step % 10 - 5) / 4 * (1 / last - 1 / first))) for step in range(stop)
        )
    return tuple((step, first + (last - first) * (step - start) / (stop - start)) for step in range(start, stop))


def losses(start: int, stop: int, level: float, before: float, noise: np.random.Generator) -> tuple[tuple[int, float], ...]:
    """Falls from `before` to `level`, with noise."""
    return tuple(
        (step, level + (before - level) * math.exp(-(step - start) / (0.12 * (stop - start))) + noise.normal(0, 0.07))
        for step in range(start, stop)
    )


def build_phase(i: int, held_out: dict[str, float], noise: np.random.Generator) -> PhaseReport:
    """The phase of `PHASES[i]`, trained and judged; `held_out` moves on with it."""
    name, start, stop, sequences, first, last, mixture, level = PHASES[i]
    for component in held_out:
        gain = 0.05 + 0.3 * any(shares.get(component, 0) > 0 for _, shares in mixture)
        held_out[component] -= gain * 0.35 if i else 0.2
        held_out[component] += abs(noise.normal(0, 0.05)) if i == 3 and component in PRETRAINING else noise.normal(0, 0.01)
    macro = sum(held_out.values()) / len(held_out)
    return PhaseReport(
        name=name,
        start_step=start,
        stop_step=stop,
        tokens=(stop - start) * sequences * 512,
        batch_sequences=((start, sequences),),
        learning_rate_turns=(first, last),
        learning_rate=learning_rates(name, start, stop, first, last),
        loss=losses(start, stop, level, 8.3 if i == 0 else level + 0.15, noise),
        final_loss=level,
        mixture=mixture,
        bits_per_byte=dict(held_out),
        macro_bits_per_byte=macro,
        ema_macro_bits_per_byte=macro - 0.04 if i else None,
        benchmarks=(
            BenchmarkReport(benchmark="next_sentence", metric="acc", value=0.27 + 0.03 * i, baseline=0.25, stderr=0.03),
            BenchmarkReport(benchmark="complete_word", metric="exact_match", value=0.02 * i, baseline=0.01, stderr=0.008),
        ),
        declares=DECLARES.get(name, ()),
        parent=PHASES[i - 1][0] if i else None,
        verdicts=(
            VerdictReport(name="data", counts=CheckCounts(passed=87), reasons=(), accepted=(), path=f"verdicts/{name}/data.json"),
            VerdictReport(name="gate", counts=CheckCounts(passed=34), reasons=(), accepted=(), path=f"verdicts/{name}/gate.json"),
        ),
        state="done",
        params_digest="9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a0" + str(i),
    )


def build_plan(i: int) -> PhaseReport:
    """The phase of `PHASES[i]` before anything ran."""
    name, start, stop, sequences, first, last, _, _ = PHASES[i]
    return PhaseReport(
        name=name,
        start_step=start,
        stop_step=stop,
        tokens=(stop - start) * sequences * 512,
        batch_sequences=((start, sequences),),
        learning_rate_turns=(first, last),
        declares=DECLARES.get(name, ()),
        parent=PHASES[i - 1][0] if i else None,
        state="not reached",
    )


def build_report(phases: tuple[PhaseReport, ...]) -> Report:
    return Report(
        recipe="marin-8b",
        scale="proxy",
        created="2025-11-20T13:06:41+00:00",
        status="passed",
        headline="All six phases trained and passed their gates.",
        parameters=2_361_600,
        phases=phases,
        baselines={"byte 3-gram": 2.61, "byte 5-gram": 2.2},
        facts={
            "tokenizer": "byte-level BPE, 4,096 entries, sha256 5e884898da28",
            "seed": "0",
            "versions": "jax 0.8.0 · optax 0.2.6 · lm-eval 0.4.13 · Python 3.11.9",
            "home": ".phasewise",
        },
    )


def build_phases(number: int) -> tuple[PhaseReport, ...]:
    """The first `number` phases, trained."""
    noise = np.random.default_rng(7)
    components = dict.fromkeys(name for phase in PHASES for _, shares in phase[6] for name in shares)
    held_out = {name: 2.95 + noise.normal(0, 0.35) for name in components}
    return tuple(build_phase(i, held_out, noise) for i in range(number))


@pytest.fixture
def passed_report() -> Report:
    """Six phases, all done."""
    return build_report(build_phases(6))


@pytest.fixture
def sparse_report() -> Report:
    """Three phases of a sparse model: one that lost its balance, one that kept it, one whose load by layer was not recorded."""
    first, second, third = build_phases(3)
    steps = range(first.start_step + 1, first.stop_step + 1)
    lost = [{"step": step, "max_violation": 3.0, "dead_experts": 2.0, "router_entropy": 0.9} for step in steps]
    lost[-1] |= {f"expert_load/1/{expert}": load for expert, load in enumerate((0.5, 0.3, 0.2, 0.0))}
    lost[-1] |= {f"expert_load/2/{expert}": 0.25 for expert in range(4)}
    kept = [{"step": row["step"], "max_violation": 0.4, "dead_experts": 0.0, "router_entropy": 0.97} for row in lost[:-1]]
    kept.append({**lost[-1], "max_violation": 0.4, **{f"expert_load/1/{expert}": 0.25 for expert in range(4)}})
    rows = (lost, kept, kept[:-1])
    phases = ((phase, routing_of(of_phase, 2.1)) for phase, of_phase in zip((first, second, third), rows, strict=True))
    return build_report(tuple(changed(phase, routing=routing) for phase, routing in phases))


@pytest.fixture
def planned_phase() -> PhaseReport:
    """A phase that was not reached: nothing but its plan."""
    return build_plan(1)


@pytest.fixture
def stopped_report() -> Report:
    """Kestrel trained; Ocelot's data were refused; the rest was not reached."""
    reasons = (
        "leakage: 13-gram containment must be at most 0.5, found 1.0: benchmark next_sentence, item 17, "
        "in documents/dclm_baseline/part-00003.parquet, document 812, 1 document",
        "mixture: proofpile_2 must be within 0.5 of 1.34 %, found 0.00 %; check that its cache is not empty",
    )
    refusal = VerdictReport(
        name="data", counts=CheckCounts(passed=85, failed=2), reasons=reasons, accepted=(), path="verdicts/ocelot/data.json"
    )
    ocelot = changed(build_plan(1), state="refused", verdicts=(refusal,), mixture=PHASES[1][6])
    report = build_report((*build_phases(1), ocelot, *(build_plan(i) for i in range(2, 6))))
    headline = "Stopped before Ocelot: a benchmark item is in the training data."
    return changed(report, status="stopped", headline=headline)
