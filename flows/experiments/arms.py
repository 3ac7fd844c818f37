"""The arms of an experiment: forks of a phase, each trained with several seeds of the data order."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from phasewise.flows.recipes import at_scale, load_written
from phasewise.flows.recipes.assignments import FORK, SEED, assigned, setting, settings_in_force
from phasewise.flows.recipes.phase import FromScratch, HandOff, Phase
from phasewise.flows.recipes.recipe import Scale
from phasewise.flows.resolved import Resolved, resolve
from phasewise.flows.show.difference import aligned, fields_of
from phasewise.flows.status.phase_status import named_phase
from phasewise.trainer.base.errors import ConfigError, PhasewiseError
from phasewise.trainer.base.identity import digest_of_json

CONTROL = "control"
NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
TRAINED = {
    "start", "stop_step", "model", "optimizer", "learning_rate", "batch", "mixture", "order", "stability", "packing", "loss_on", "recovery",
}  # fmt: skip
"""Fields of a phase that decide its weights."""
OF_PARTS = ("model", "stability", "start")
"""Fields whose parts are variables. Of a further field, the whole value is a variable."""


class Run(NamedTuple):
    """A training of an arm: the seed, the recipe with the fork, the fork, and the folder relative to the home."""

    seed: int
    resolved: Resolved
    phase: Phase
    folder: str


@dataclass(frozen=True)
class Arm:
    """An arm, or the control.

    Attributes:
        phase: the phase that its forks copy.
        differences: differing field → values of control and arm.
        variables: groups of differing fields.
        refusal: the reason for an invalid recipe. Then the arm has no runs.
    """

    name: str
    phase: str
    settings: tuple[str, ...]
    runs: tuple[Run, ...]
    refusal: str = ""
    differences: tuple[tuple[str, Any, Any], ...] = ()
    variables: tuple[str, ...] = ()


@dataclass(frozen=True)
class Experiment:
    """The arms of a phase, the control first. `resolved` is the recipe without arms."""

    resolved: Resolved
    phase: Phase
    arms: tuple[Arm, ...]

    @property
    def name(self) -> str:
        """The phase and a digest of the runs. Equal arms and seeds give an equal name."""
        return f"{self.phase.name}-{digest_of_json([[one.name, one.refusal, [run.folder for run in one.runs]] for one in self.arms])[:8]}"


def plan_experiment(target: str, scale: Scale, home: str | None, arms: Sequence[str], seeds: int, control: str | None = None) -> Experiment:
    """Resolve and check the arms before the first training.

    Args:
        target: `RECIPE/PHASE`.
        arms: `NAME:FIELD=VALUE` or `NAME:PHASE`. Entries with an equal name belong together.
        seeds: replicates of each arm.
        control: the phase of the control. None is the phase itself.

    Raises:
        ConfigError: no arm, an unknown phase or field, an arm with a different start, or an arm that trains like the control.
    """
    resolved, found = resolve(target, scale, home)
    phase = named_phase(resolved, found, "`phasewise try`")
    given: dict[str, tuple[str, list[str]]] = {CONTROL: (control or phase.name, [])}
    for text in arms:
        name, _, what = (part.strip() for part in text.partition(":"))
        if not (what and NAME.fullmatch(name)) or name == CONTROL:
            raise ConfigError(f"--arm takes NAME:FIELD=VALUE or NAME:PHASE, with a name other than {CONTROL}, found {text!r}.")
        of, settings = given.get(name, (phase.name, []))
        given[name] = (of, [*settings, what]) if "=" in what else (what, settings)
    if len(given) == 1 or seeds < 1:
        raise ConfigError(f"an experiment: expected at least one arm and one seed, found {len(given) - 1} and {seeds}. Name both.")
    planned: list[Arm] = []
    for name, (of, settings) in given.items():
        arm = _fork(resolved, phase, name, of, settings, seeds=seeds)
        if arm.refusal and not planned:
            raise ConfigError(f"the control {of}: {arm.refusal}")
        planned.append(_compared(planned[0], arm) if planned and arm.runs else arm)
    return Experiment(resolved, phase, tuple(planned))


def _fork(resolved: Resolved, phase: Phase, name: str, of: str, settings: Sequence[str], *, seeds: int) -> Arm:
    """Fork a phase once for each replicate.

    The first seed is the phase's. At a hand-off it is the next number, because the parent used the phase's seed.
    """
    recipe, scale, home, others = resolved.recipe_name, resolved.recipe.scale, str(resolved.home.root), settings_in_force()
    copied = assigned(at_scale(load_written(recipe), scale, recipe)).phase(of)
    starts = [f"step {one.start.step:,} of {one.start.parent}" if isinstance(one.start, HandOff) else "no phase" for one in (phase, copied)]
    if starts[0] != starts[1]:
        raise ConfigError(f"the arm {name}: expected a phase that starts from {starts[0]} as {phase.name}, found {of}, from {starts[1]}.")
    seeded = [one.partition("=")[2].strip() for one in settings if one.partition("=")[0].strip() in (SEED, f"order.{SEED}")]
    if seeded and not seeded[-1].isdigit():
        raise ConfigError(f"the arm {name}: seed: expected a whole number, found {seeded[-1]!r}.")
    first = int(seeded[-1]) if seeded else copied.order.seed + (not isinstance(phase.start, FromScratch))
    kept = [one for one in settings if one.partition("=")[0].strip() not in (SEED, f"order.{SEED}")]
    kept = [*(one.partition(".")[2] for one in others if one.partition("=")[0].startswith(f"{of}.")), *kept]
    runs: list[Run] = []
    for seed in range(first, first + seeds):
        fork = f"{phase.name}-{name}-{seed}"
        with setting((*others, f"{of}.{FORK}={fork}", f"{fork}.{SEED}={seed}", *(f"{fork}.{one}" for one in kept))):
            try:
                found, chosen = resolve(f"{recipe}/{fork}", scale, home)
            except PhasewiseError as refusal:
                if settings:
                    raise
                return Arm(name, of, (), (), str(refusal))  # a phase that its recipe means to be refused
        assert chosen is not None
        folder = found.home.run(found.recipe.run_name, fork).relative_to(found.home.work).as_posix()
        runs.append(Run(seed, found, chosen, folder))
    return Arm(name, of, tuple(settings), tuple(runs))


def _compared(control: Arm, arm: Arm) -> Arm:
    """Return the arm with its differences from the control. Raises ConfigError for equal training, or for a shared seed."""
    plain = [one.runs[0].phase.model_dump(mode="json", include=TRAINED) for one in (control, arm)]
    for one in plain:
        one["start"].pop("declares", None)
    before, after = (fields_of(one) for one in aligned(*plain))
    fields = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    seeds = [{run.seed for run in one.runs} for one in (control, arm)]
    if set(fields) <= {"order.seed", "start.seed"} and seeds[0] & seeds[1]:
        raise ConfigError(
            f"the arm {arm.name}: expected a change of the training of {control.phase}, found the same settings and seeds. Change a field, "
            f"or set a seed of at least {max(seeds[0]) + 1}."
        )
    variables: dict[str, None] = {}
    for name in [one for one in fields if one != "start.seed"]:
        parts = re.split(r"[ .]", name)
        variables[".".join(parts[: 2 if parts[0] in OF_PARTS else 1])] = None
    differences = tuple((name, before.get(name), after.get(name)) for name in fields)
    return Arm(arm.name, arm.phase, arm.settings, arm.runs, arm.refusal, differences, tuple(variables))
