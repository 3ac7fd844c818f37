"""Trainer runs of small models with and without a benchmark's items, and the evidence for each run."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before anything imports jax

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jax
import numpy as np
import pandas as pd

from phasewise.flows.recipes.words import adamw, constant, linear, llama, order, stability
from phasewise.trainer.base.storage import read_json
from phasewise.trainer.checkpoints.checkpointer import read_params
from phasewise.trainer.config import CheckpointPolicy, RunConfig, StartFrom, Steps
from phasewise.trainer.model.decoder import logits
from phasewise.trainer.model.params import Params
from phasewise.trainer.run import execute
from phasewise.validations.evidence.exposure import Readings, exposure_evidence
from tests.trainer.token_caches import BEGIN, END, write_passing_verdict, write_token_cache

ITEMS, PROBLEMS = 64, 3000
STEPS, PLANTED_STEPS, WARMUP_STEPS, RATE = 300, 450, 20, 3e-3
BATCH_SEQUENCES, SEQ_LEN, FIRST_BYTE = 8, 160, 2
MODEL = llama(num_layers=2, d_model=96, seq_len=SEQ_LEN, vocab_size=256 + FIRST_BYTE)
LEVEL = 0.01
NAMES = ("Tom", "Ana", "Raj", "Mei", "Ida", "Ben", "Zoe", "Kofi", "Lena", "Omar")
THINGS = ("apples", "pens", "coins", "books", "cards", "shells", "stamps", "eggs")
TAG = re.compile(r"<<.*?>>")
PLANTED = {"clean": None, "tagged": True, "plain": False}
"""What the second phase has beside the problems of the first: nothing, or a `test.json` of the items with or without calculator tags."""
SHARE = 75.0


@dataclass(frozen=True)
class Exposed:
    kind: str
    seed: int
    evidence: pd.DataFrame
    gaps: tuple[np.ndarray, np.ndarray]

    @property
    def is_alarmed(self) -> bool:
        return bool((self.evidence["adjusted_p_value"] <= LEVEL).any())


def problem(rng: np.random.Generator) -> tuple[str, str]:
    """A question in the manner of GSM8K, and its solution with calculator tags."""
    name, thing = rng.choice(NAMES), rng.choice(THINGS)
    has, gives = int(rng.integers(40, 100)), int(rng.integers(11, 40))
    finds = int(rng.integers(11, 100))
    left = has - gives
    total = left + finds
    first, second = f"{has}-{gives}=<<{has}-{gives}={left}>>{left}", f"{left}+{finds}=<<{left}+{finds}={total}>>{total}"
    solution = f"{first}. {second}.\n#### {total}"
    return f"{name} has {has} {thing}, gives away {gives} and finds {finds}. How many now?\n", solution


def problems(seed: int, number: int) -> list[tuple[str, str]]:
    """No question twice."""
    rng = np.random.default_rng(seed)
    found: dict[str, str] = {}
    while len(found) < number:
        question, solution = problem(rng)
        found.setdefault(question, solution)
    return list(found.items())


@cache
def material() -> tuple[list[tuple[str, str]], list[tuple[str, str]], list[tuple[str, str]]]:
    every = problems(0, 2 * ITEMS + PROBLEMS)
    return every[:ITEMS], every[ITEMS : 2 * ITEMS], every[2 * ITEMS :]


def plain(solution: str) -> str:
    """Without calculator tags."""
    return TAG.sub("", solution)


def tokens_of(text: str) -> np.ndarray:
    return np.array([BEGIN, *(byte + FIRST_BYTE for byte in text.encode()), END], np.uint16)


def _cache(home: Path, name: str, texts: Sequence[str]) -> str:
    folder = home / "tokens" / name
    return str(folder if folder.exists() else write_token_cache(folder, [[tokens_of(text) for text in texts]]))


def caches(home: Path, kind: str) -> dict[str, str]:
    items, _, others = material()
    texts = [question + (solution if number % 2 else plain(solution)) for number, (question, solution) in enumerate(others)]
    found = {"problems": _cache(home, "problems", texts)}
    tagged = PLANTED[kind]
    if tagged is not None:
        found[f"test-{kind}"] = _cache(home, f"test-{kind}", [question + (one if tagged else plain(one)) for question, one in items])
    return found


def _run(home: Path, name: str, kind: str, seed: int, start: StartFrom | None) -> RunConfig:
    planted = [one for one in caches(home, kind) if one != "problems"]
    shares = {"problems": 100.0 - SHARE * len(planted), **dict.fromkeys(planted, SHARE)}
    stop = STEPS + (PLANTED_STEPS if start else 0)
    first, begin = (linear(0, WARMUP_STEPS, 0.0, RATE), constant(WARMUP_STEPS, STEPS, RATE)), STEPS if start else 0
    return RunConfig(
        recipe="fragility",
        scale="own",
        phase=name,
        start_step=begin,
        stop_step=stop,
        seed=seed,
        model=MODEL,
        optimizer=adamw(),
        learning_rate=(linear(STEPS, stop, RATE, RATE / 10),) if start else first,
        stability=stability(),
        batch=Steps(((0, BATCH_SEQUENCES),)),
        mixture=Steps(((0, {"problems": 100.0}), (STEPS, shares))) if start else Steps(((0, {"problems": 100.0}),)),
        order=order(seed=seed),
        checkpoints=CheckpointPolicy(every_steps=stop, every_minutes=None, keep_all=False),
        start=start,
        caches=caches(home, kind),
        verdict=str(home / "runs" / name / "verdict.json"),
        output=str(home / "runs" / name),
    )


@cache
def trained(home: Path, kind: str, seed: int) -> Path:
    start = None
    if kind != "parent":
        trained(home, "parent", seed)
        result = read_json(home / "runs" / f"parent-{seed}" / "result.json")
        start = StartFrom(checkpoint=result["checkpoint"], params_digest=result["params_digest"], fresh=())
    run = _run(home, f"{kind}-{seed}", "clean" if kind == "parent" else kind, seed, start)
    write_passing_verdict(run)
    execute(run)
    return Path(read_json(Path(run.output) / "result.json")["checkpoint"])


def readings(checkpoint: Path, items: Sequence[tuple[str, str]]) -> Readings:
    """How likely a model finds the solutions with calculator tags, and without."""
    params = read_params(checkpoint, MODEL)
    return Readings(*(_likelihoods(params, items, rendering) for rendering in (str, plain)))


def _likelihoods(params: Params, items: Sequence[tuple[str, str]], rendering: Callable[[str], str]) -> np.ndarray:
    rows = np.zeros((len(items), SEQ_LEN), np.int32)
    begins: list[int] = []
    sizes: list[int] = []
    for row, (question, solution) in zip(rows, items, strict=True):
        ids = tokens_of(question + rendering(solution))
        row[: len(ids)] = ids
        begins.append(1 + len(question.encode()))
        sizes.append(len(ids))
    predicted = jax.nn.log_softmax(jax.jit(logits, static_argnames="config")(params, rows, config=MODEL)[:, :-1])
    each = np.asarray(jax.numpy.take_along_axis(predicted, rows[:, 1:, None], axis=-1))[..., 0].astype(np.float64)
    return np.array([line[begin - 1 : size - 1].sum() for line, begin, size in zip(each, begins, sizes, strict=True)])


def expose(home: Path, kind: str, seed: int) -> Exposed:
    items, reference, _ = material()
    parent, checkpoint = trained(home, "parent", seed), trained(home, kind, seed)
    ours, theirs = ([readings(one, texts) for texts in (items, reference)] for one in (checkpoint, parent))
    evidence = exposure_evidence(ours[0], ours[1], parent_items=theirs[0], parent_reference=theirs[1])
    return Exposed(kind, seed, evidence, (ours[0].less(theirs[0]).gap, ours[1].less(theirs[1]).gap))
