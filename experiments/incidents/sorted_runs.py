"""The two branches of Marin 32B over sorted mathematics: their data, an unlucky stride, and their training with the loss of each row."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before anything imports jax

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import jax
import numpy as np

from phasewise.flows.plan import build_run, data_plan, stand_ins_of
from phasewise.flows.recipes import load_record
from phasewise.flows.recipes.phase import FromScratch, Phase
from phasewise.flows.recipes.recipe import Recipe
from phasewise.tasks.data.cluster import cluster
from phasewise.tasks.data.plan import DataPlan
from phasewise.tasks.data.prepare import build_missing_caches, collect_stand_ins, make_missing_tokenizer, write_missing_documents
from phasewise.tasks.evaluation.made_benchmarks import write_missing_benchmarks
from phasewise.tasks.home import Home
from phasewise.trainer.base.identity import digest_of_json
from phasewise.trainer.checkpoints.hand_off import state_to_start_from
from phasewise.trainer.config import RunConfig
from phasewise.trainer.data.cache import TokenCache
from phasewise.trainer.data.loader import Loader
from phasewise.trainer.data.mixture import MixtureSchedule
from phasewise.trainer.data.packing import RowsOfTokens
from phasewise.trainer.data.permutation import Kind, Permutation, derive_key
from phasewise.trainer.interventions import scheduled_at
from phasewise.trainer.loop import MeanLoss, build_mean_loss
from phasewise.trainer.run import execute
from phasewise.trainer.step import TrainStep, build_train_step
from phasewise.validations.evidence.order.signals import Shift, find_shift, token_mix
from tests.trainer.token_caches import write_passing_verdict

MATHEMATICS = "megamath_web_by_folder"
LINEAR, FEISTEL = "bison-clean", "bison-clean-feistel"
BRANCHES = (LINEAR, FEISTEL)
PARENTS = ("phase-1", "qk-norm")
MAX_P_VALUE, MIN_DEVIATIONS = 3e-9, 0.5
"""What the gate calls a shift: the recipe's limit, at about the rate that is left for each row of its tables."""
MAX_SEEDS = 100_000
LATE = (0.7, 0.95)
"""An unlucky order is looked for whose shift is in this part of the phase. Bison's was at 0.94."""


@dataclass(frozen=True)
class Losses:
    steps: np.ndarray
    is_mathematics: np.ndarray
    values: np.ndarray

    def by_step(self, *, mathematics: bool) -> tuple[np.ndarray, np.ndarray]:
        chosen = self.is_mathematics if mathematics else np.ones(len(self.steps), bool)
        steps = np.unique(self.steps[chosen])
        return steps, np.array([self.values[chosen & (self.steps == step)].mean() for step in steps])


def branches(order_seed: int = 0, weights_seed: int = 0) -> Recipe:
    """The main line and both branches at proxy scale, with seeds for the order of the branches and for the first weights."""
    recipe = load_record("marin-32b", "proxy")
    phases = [phase for phase in recipe.phases if phase.name in BRANCHES or not phase.branch]
    changed = [_seeded(phase, order_seed, weights_seed) for phase in phases]
    kept = {phase.name for phase in changed}
    accepts = [one.but(phases=tuple(name for name in one.phases if name in kept)) if one.phases else one for one in recipe.accepts]
    return recipe.but(phases=tuple(changed), accepts=tuple(one for one in accepts if one.phases is None or one.phases))


def _seeded(phase: Phase, order_seed: int, weights_seed: int) -> Phase:
    if isinstance(phase.start, FromScratch):
        return phase.but(start=FromScratch(seed=weights_seed))
    return phase.but(order=phase.order.but(seed=order_seed)) if phase.name in BRANCHES else phase


def prepare(home: Home) -> DataPlan:
    """What `phasewise data prepare marin-32b/bison-clean` does, without a Prefect server."""
    recipe = branches()
    with cluster():
        collect_stand_ins(stand_ins_of(recipe), home.sources)
        plan = data_plan(recipe, home)
        write_missing_documents(plan)
        make_missing_tokenizer(plan, recipe.tokenizer.vocab_size, recipe.tokenizer.name)
        build_missing_caches(plan)
        write_missing_benchmarks(plan)
    return plan


def run_of(recipe: Recipe, phase: str, home: Home, plan: DataPlan, *, needs_parent: bool = True) -> RunConfig:
    run = build_run(recipe, recipe.phase(phase), home, plan.folders("train"), needs_parent=needs_parent)
    return run.but(verdict=str(Path(run.output) / "passing-verdict.json"))


def shift_in_order(signal: np.ndarray, kind: Kind, seed: int, drawn: int) -> tuple[Shift, int]:
    """The shift of a signal of all rows of the mathematics, in the order of a seed, and the order's stride between neighbours in time."""
    rows = len(signal)
    permutation = Permutation.build(kind, length=rows, key=derive_key("component", seed, MATHEMATICS, 0))
    order = permutation(np.arange(min(drawn, rows)))
    stride = int(order[1] - order[0]) % rows
    return find_shift(signal[order]), min(stride, rows - stride)


@dataclass(frozen=True)
class Luck:
    seeds: int
    shifting: dict[Kind, int]
    unlucky: list[tuple[int, int]]
    refused: list[int]


def try_luck(cache: Path, seq_len: int, drawn: int, seeds: int, *, wanted: int = 1, refused: int = 0) -> Luck:
    laid = RowsOfTokens(TokenCache.open(cache), "chunk", seq_len)
    signal = token_mix(laid, np.arange(laid.num_rows))
    kinds: tuple[Kind, ...] = ("linear", "feistel")
    shifting: dict[Kind, int] = {}
    for kind in kinds:
        shifting[kind] = sum(_is_shift(shift_in_order(signal, kind, seed, drawn)[0]) for seed in range(seeds))
    late = ((seed, stride) for seed, shift, stride in _shifting(signal, drawn) if _is_late(shift, min(drawn, len(signal))))
    anywhere = (seed for seed, _, _ in _shifting(signal, drawn))
    return Luck(seeds, shifting, list(islice(late, wanted)), list(islice(anywhere, refused)))


def _is_shift(shift: Shift) -> bool:
    return shift.p_value < MAX_P_VALUE and shift.deviations > MIN_DEVIATIONS


def _is_late(shift: Shift, drawn: int) -> bool:
    return LATE[0] <= shift.at / drawn <= LATE[1]


def _shifting(signal: np.ndarray, drawn: int) -> Iterator[tuple[int, Shift, int]]:
    """Seeds whose linear order shifts the data, with the shift and the stride."""
    for seed in range(1, MAX_SEEDS):
        shift, stride = shift_in_order(signal, "linear", seed, drawn)
        if _is_shift(shift):
            yield seed, shift, stride
    raise AssertionError(f"too few of {MAX_SEEDS:,} seeds give such an order")


def train_parents(recipe: Recipe, home: Home, plan: DataPlan) -> None:
    """The phases that the branches start from, through the trainer."""
    for phase in PARENTS:
        run = run_of(recipe, phase, home, plan)
        if not (Path(run.output) / "result.json").exists():
            write_passing_verdict(run)
            execute(run)


def component_of(run: RunConfig, step: int) -> np.ndarray:
    """Whether each row of an update is of the sorted component."""
    schedule = MixtureSchedule(batch=run.batch, mixture=run.mixture, order=run.order)
    return schedule.batch(step)[0] == schedule.components().index(MATHEMATICS)


def losses_of(run: RunConfig) -> Losses:
    path = Path(run.output) / f"losses-{run.digest}.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        found = train_branch(run)
        unfinished = path.with_suffix(".unfinished.npz")
        np.savez(unfinished, steps=found.steps, is_mathematics=found.is_mathematics, values=found.values)
        unfinished.rename(path)
    with np.load(path) as kept:
        return Losses(kept["steps"], kept["is_mathematics"], kept["values"])


_PROGRAMS = dict[str, tuple[TrainStep, MeanLoss]]()


def _programs(run: RunConfig) -> tuple[TrainStep, MeanLoss]:
    key = digest_of_json([part.model_dump(mode="json") for part in (run.model, run.optimizer, run.execution)])
    if key not in _PROGRAMS:
        of_rows = jax.jit(jax.vmap(build_mean_loss(run.model, run.execution), in_axes=(None, 0, 0)))
        _PROGRAMS[key] = build_train_step(run.model, run.optimizer, run.execution), of_rows
    return _PROGRAMS[key]


def train_branch(run: RunConfig) -> Losses:
    update, of_rows = _programs(run)
    state, loader = state_to_start_from(run), Loader(run)
    steps, mathematics, values = list[np.ndarray](), list[np.ndarray](), list[np.ndarray]()
    for step in range(run.start_step, run.stop_step):
        batch = loader.batch(step)
        losses = np.asarray(of_rows(state.params, batch.tokens[:, None], batch.segment_ids[:, None]))
        steps.append(np.full(len(losses), step))
        mathematics.append(component_of(run, step))
        values.append(losses)
        state, _ = update(state, batch.tokens, batch.segment_ids, scheduled_at(run, step))
    return Losses(np.concatenate(steps), np.concatenate(mathematics), np.concatenate(values))
