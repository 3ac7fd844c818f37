"""A collapsing router, and methods that balance the router, at small scale: `python -m experiments.incidents.collapse FOLDER [--seeds N]`.

A sparse model of Trinity's family learns a text with 50 % common words at a high rate. Without balancing, its router sends almost all
tokens to one expert. Sign updates and SMEBU hold it. Each run goes through the trainer, and the health verdict judges it. The command
prints a row per run and writes a report of the first seed. `docs/lab/experts.md` has the results.
"""

import os

from phasewise.trainer.base.run_folder import METRICS_NAME

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before anything imports jax

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from phasewise.flows.recipes.scales import COLLAPSED_SHARE
from phasewise.flows.recipes.words import WITHOUT_AVERAGE, adamw, afmoe, always, constant, linear, order, stability
from phasewise.tasks.home import Home
from phasewise.tasks.phase_state import State
from phasewise.tasks.report.contents import PhaseReport, Report, VerdictReport
from phasewise.tasks.report.html import write_report
from phasewise.tasks.report.sections import routing_of
from phasewise.tasks.validation.judge import judge_phase_health
from phasewise.trainer.config import Balancing, CheckpointPolicy, Experts, ModelConfig, RunConfig, SignBalancing, Smebu, turns_of
from phasewise.trainer.metrics import Row, read_metrics
from phasewise.trainer.model.params import count_parameters
from phasewise.trainer.run import execute
from phasewise.validations.limits import HealthLimits
from phasewise.validations.verdict import Verdict
from tests.trainer.token_caches import BEGIN, END, write_passing_verdict, write_token_cache

STEPS, WARMUP_STEPS, PEAK_RATE = 300, 10, 1e-2
BATCH_SEQUENCES, SEQ_LEN = 8, 32
NUM_EXPERTS, NUM_ACTIVE = 8, 2
RATE = 0.01
"""Of the bias. The record's 0.001 is for 400,000 steps; 300 need more."""
KINDS: dict[str, Balancing | None] = {
    "none": None,
    "sign": SignBalancing(kind="sign", rate=RATE),
    "smebu": Smebu(kind="smebu", rate=RATE, sharpness=2.0, momentum=0.5),
}
TITLES = {"none": "no balancing", "sign": "sign updates", "smebu": "SMEBU"}
COMPONENT = "topics"
VOCAB_SIZE, COMMON_WORDS, TOPICS = 256, 32, 4
COMMON_SHARE = 0.5
DOCUMENTS, DOCUMENT_TOKENS = 800, 128
UNJUDGED = dict.fromkeys(("max_loss_shift", "max_loss_rise", "max_data_share"))
LIMITS: HealthLimits = WITHOUT_AVERAGE.but(
    max_violation=COLLAPSED_SHARE * (NUM_EXPERTS / NUM_ACTIVE - 1), max_spike_percent=1.0, **UNJUDGED
)
"""The proxy's limit on the imbalance. The runs have no evaluation and no cooldown, and how fast this machine reads is of no interest."""


@dataclass(frozen=True)
class Trained:
    kind: str
    seed: int
    run: RunConfig
    rows: list[Row]
    verdict: Verdict

    @property
    def is_stopped(self) -> bool:
        found = {reason.expectation for reason in self.verdict.reasons if reason.severity == "critical"}
        assert found <= {"expect_experts_to_keep_their_balance"}, found
        return bool(found)

    @property
    def last_violation(self) -> float:
        """The median of MaxVio over the last 50 updates."""
        return float(np.median([row["max_violation"] for row in self.rows[-50:]]))


def model(balancing: Balancing | None) -> ModelConfig:
    kinds = {"num_experts": NUM_EXPERTS, "num_active": NUM_ACTIVE, "num_shared": 0, "num_dense_layers": 0}
    experts = Experts(**kinds, d_expert=32, route_scale=1.0, balancing=balancing, sequence_loss=0.0)
    shape = {"num_query_heads": 2, "num_kv_heads": 1, "head_dim": 16, "d_ff": 64}
    return afmoe(num_layers=2, d_model=32, experts=experts, seq_len=SEQ_LEN, vocab_size=VOCAB_SIZE, **shape)


def documents() -> Iterator[np.ndarray]:
    rng = np.random.default_rng(0)
    first_own = END + 1 + COMMON_WORDS
    own_words = (VOCAB_SIZE - first_own) // TOPICS
    frequencies = 1 / np.arange(1, COMMON_WORDS + 1)
    for _ in range(DOCUMENTS):
        topic = int(rng.integers(TOPICS))
        places = np.arange(DOCUMENT_TOKENS)
        own = first_own + topic * own_words + (rng.integers(own_words) + (1 + 2 * topic) * places) % own_words
        common = END + 1 + rng.choice(COMMON_WORDS, p=frequencies / frequencies.sum(), size=DOCUMENT_TOKENS)
        words = np.where(rng.random(DOCUMENT_TOKENS) < COMMON_SHARE, common, own)
        yield np.array([BEGIN, *words, END], np.uint16)


@cache
def tokens(home: Path) -> Path:
    return write_token_cache(home / COMPONENT, [list(documents())])


def train(kind: str, seed: int, home: Path, steps: int = STEPS) -> Trained:
    phase = f"{kind}-{seed}"
    run = RunConfig(
        recipe="collapse",
        scale="own",
        phase=phase,
        start_step=0,
        stop_step=steps,
        seed=seed,
        model=model(KINDS[kind]),
        optimizer=adamw(),
        learning_rate=(linear(0, WARMUP_STEPS, 0.0, PEAK_RATE), constant(WARMUP_STEPS, steps, PEAK_RATE)),
        stability=stability(),
        batch=always(BATCH_SEQUENCES),
        mixture=always({COMPONENT: 100.0}),
        order=order(seed=seed),
        checkpoints=CheckpointPolicy(every_steps=steps, every_minutes=None, keep_all=False),
        start=None,
        caches={COMPONENT: str(tokens(home))},
        verdict=str(home / "runs" / phase / "verdict.json"),
        output=str(home / "runs" / phase),
    )
    write_passing_verdict(run)
    execute(run)
    verdict = judge_phase_health(run, LIMITS, Home.open(str(home)))
    return Trained(kind, seed, run, read_metrics(Path(run.output) / METRICS_NAME), verdict)


def report_of(trained: Sequence[Trained]) -> Report:
    stopped = sum(one.is_stopped for one in trained)
    phases: list[PhaseReport] = []
    for one in trained:
        run, reasons = one.run, tuple(reason.sentence for reason in one.verdict.reasons)
        path = f"verdicts/{run.recipe}-{run.scale}/{run.phase}/health.json"
        phases.append(
            PhaseReport(
                name=TITLES[one.kind],
                start_step=run.start_step,
                stop_step=run.stop_step,
                tokens=sum(row["tokens"] for row in one.rows),
                batch_sequences=run.batch.within(run.start_step, run.stop_step),
                learning_rate_turns=turns_of(run.learning_rate, run.start_step, run.stop_step),
                learning_rate=tuple((row["step"], row["learning_rate"]) for row in one.rows),
                loss=tuple((row["step"], row["loss"]) for row in one.rows),
                routing=routing_of(one.rows, LIMITS.max_violation),
                final_loss=one.rows[-1]["loss"],
                verdicts=(VerdictReport(name="training", counts=one.verdict.counts, reasons=reasons, accepted=(), path=path),),
                state=State.REFUSED if one.is_stopped else State.DONE,
            )
        )
    return Report(
        recipe="collapse",
        scale="own",
        created="2026-01-01T00:00:00+00:00",
        status="stopped" if stopped else "passed",
        headline=f"{stopped} of {len(trained)} runs lost the balance of their experts.",
        parameters=count_parameters(trained[0].run.model),
        phases=tuple(phases),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    asked = parser.parse_args()
    print("kind   seed  MaxVio   dead   loss  health verdict (medians and means of the last 50 updates)", flush=True)
    firsts: list[Trained] = []
    for kind in KINDS:
        for seed in range(asked.seeds):
            one = train(kind, seed, asked.folder)
            firsts += [one] if seed == 0 else []
            dead, loss = (float(np.mean([row[name] for row in one.rows[-50:]])) for name in ("dead_experts", "loss"))
            found = "stopped" if one.is_stopped else "passes"
            print(f"{kind:<6} {seed:>4} {one.last_violation:>7.2f} {dead:>6.1f} {loss:>6.2f}  {found}", flush=True)
    print(write_report(asked.folder / "report.html", report_of(firsts)))


if __name__ == "__main__":
    main()
