"""A recipe in a home, resolved once by a command and handed down: recipe, home, sources and plan.

Flows call each other by names, because Prefect stores names as the parameters of a run. Within a process, equal names are the same value.
"""

import os
import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from phasewise.flows.checks import check_declared, check_machines, check_slices, check_sources
from phasewise.flows.plan import build_run, data_plan, stand_ins_of, start_of
from phasewise.flows.recipes import FILE, at_scale, load_written, split_target
from phasewise.flows.recipes.assignments import assigned, forked, settings_in_force
from phasewise.flows.recipes.feasibility import check_feasible, check_mixtures
from phasewise.flows.recipes.phase import Phase
from phasewise.flows.recipes.python_file import checked_recipes
from phasewise.flows.recipes.recipe import Recipe, Scale
from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.data.plan import DataPlan
from phasewise.tasks.data.stand_ins import StandIn, missing_stand_ins
from phasewise.tasks.data.tokenizer import OUR_TOKENS
from phasewise.tasks.evaluation.settings import OwnBenchmark
from phasewise.tasks.home import TRIAL, Home
from phasewise.tasks.locks import Holder
from phasewise.tasks.phase_state import State, enter_stage, working
from phasewise.tasks.validation.evidence_keys import items_key
from phasewise.trainer.base.errors import RecipeError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import digest_of_json
from phasewise.trainer.base.storage import read_json, write_json
from phasewise.trainer.config import RunConfig, StartFrom
from phasewise.trainer.config.run import BIND_THE_RESULT, MAY_CHANGE
from phasewise.trainer.process.environment import check_usual

OF_DATA = {"tokenizer", "sources", "pins", "max_tokens", "length_bias"}  # fields of a recipe that decide its caches
SOURCES = "the sources"


class RecipeOrigin(Frozen):
    """The file of a recipe, with the names of its phases and the addresses of its text. Copies with the same phases and text are the same
    recipe, and all other fields may be edited.
    """

    file: str
    phases: tuple[str, ...]
    urls: dict[str, str]


def origin_of(name: str, written: Recipe, home: Home) -> RecipeOrigin | None:
    """The origin of a recipe in a file. None for recipes of this project, and for the copies of `phasewise up` in its home."""
    file = FILE.fullmatch(name)
    if file is None or not home.is_local:
        return None
    path = Path(file["path"]).resolve()
    if path.is_relative_to(home.prefect):
        return None
    return RecipeOrigin(
        file=str(path) + (file["of_file"] or ""),
        phases=tuple(phase.name for phase in written.phases),
        urls={name: source.url for name, source in sorted(written.sources.items())},
    )


def check_name_free(origin: RecipeOrigin | None, recipe: Recipe, home: Home) -> None:
    """Raise RecipeError if runs in the home belong to another file with this recipe name. A missing file counts as moved."""
    if origin is None:
        return
    try:
        found = RecipeOrigin.model_validate(read_json(_origin_path(recipe, home)))
    except (OSError, ValueError, ValidationError):
        return
    paths: list[Path] = []
    stems: list[str] = []
    for file in (found.file, origin.file):
        matched = FILE.fullmatch(file)
        path = Path(matched["path"] if matched else file)
        paths.append(path)
        stems.append(f"{path.with_suffix('')}{file[len(str(path)) :] if path.suffix == '.py' else ''}")
    if (found.phases, found.urls) == (origin.phases, origin.urls) or stems[0] == stems[1] or not paths[0].exists():
        return
    raise RecipeError(
        f"the name {recipe.name} is taken in the home {home.root}: its runs are of {found.file}, and {origin.file} is another recipe. "
        "Change `name`, or give another --home."
    )


def _origin_path(recipe: Recipe, home: Home) -> Path:
    return home.root / "recipes" / f"{recipe.run_name}.json"


def home_in_trial(home: Home, target: str, scale: Scale) -> Home:
    """The home with the trial folders of the current settings. Raises ConfigError as `flows.recipes.load_record`."""
    if not settings_in_force():
        return home
    name, _ = split_target(target)
    recipe = at_scale(load_written(name), scale, name)
    return with_trial(home, recipe, assigned(recipe))


def with_trial(home: Home, recipe: Recipe, changed: Recipe) -> Home:
    """The home with a trial folder for each phase whose training settings change, named by settings and ancestors.

    A fork is always a trial. Changes of execution, evaluation and gates keep the folder, because they change no training.
    """
    before = {phase.name: _key(recipe, phase) for phase in recipe.phases}
    trials: list[tuple[str, str]] = []
    for phase in changed.phases:
        key = _key(changed, phase)
        if key != before.get(phase.name):
            trials.append((phase.name, f"{phase.name}{TRIAL}{key[:8]}"))
    return replace(home, trials=tuple(trials))


def _key(recipe: Recipe, phase: Phase) -> str:
    recipe = recipe.with_branch(phase.name)
    free = {path.partition(".")[0] for path in MAY_CHANGE} - {*BIND_THE_RESULT, "start"}
    lineage: list[dict[str, Any]] = []
    for one in (*recipe.ancestors(phase), phase):
        settings = one.model_dump(mode="json", include=RunConfig.model_fields.keys() - free)
        settings["start"].pop("declares", None)
        lineage.append({"name": one.name, **settings})
    data = recipe.model_dump(mode="json", include=OF_DATA)
    if (recipe.tokenizer.begin, recipe.tokenizer.end) == OUR_TOKENS:  # fields added later: earlier trials keep their folders
        data["tokenizer"] = recipe.tokenizer.model_dump(mode="json", exclude={"begin", "end"})
    return digest_of_json([data, recipe.components, lineage])


@dataclass(frozen=True)
class Resolved:
    """A recipe at a scale in a home.

    Attributes:
        name: `RECIPE`, or `RECIPE/PHASE` for a branch. Flows resolve this name to the same value.
        full: the recipe at full scale. None if it is written at another scale.
        digests: digests of source files, kept for the whole command.
    """

    name: str
    recipe: Recipe
    full: Recipe | None
    home: Home
    digests: KnownDigests = field(repr=False, compare=False)
    settings: tuple[str, ...] = ()
    origin: RecipeOrigin | None = None
    _runs: dict[tuple[str, StartFrom | None], RunConfig] = field(default_factory=dict, repr=False, compare=False)
    _items: dict[tuple[tuple[str, ...], tuple[OwnBenchmark, ...]], str] = field(default_factory=dict, repr=False, compare=False)
    _checked: set[str] = field(default_factory=set, repr=False, compare=False)

    @property
    def recipe_name(self) -> str:
        """The name without a phase."""
        return split_target(self.name)[0]

    @property
    def options(self) -> str:
        """The options of a command line for the same recipe and home."""
        given = "".join(f" --set {shlex.quote(one)}" for one in self.settings)
        return f"--scale {self.recipe.scale} --home {self.home.root}{given}"

    @cached_property
    def stand_ins(self) -> dict[str, StandIn]:
        """The proxy data sets of the recipe."""
        return stand_ins_of(self.recipe)

    @cached_property
    def plan(self) -> DataPlan:
        """All caches of the recipe, for its sources at the time of the first access.

        Raises ConfigError if a component has no source. Raises DataError if a component has no files.
        """
        return data_plan(self.recipe, self.home, digests=self.digests)

    @property
    def is_prepared(self) -> bool:
        """Whether every cache is built."""
        return not missing_stand_ins(self.stand_ins, self.home.sources) and self.plan.is_built

    def look_again(self) -> None:
        """Forget the plan after sources were written."""
        self.__dict__.pop("plan", None)
        self._runs.clear()
        self._items.clear()

    def items_key(self, phase: Phase) -> str:
        """Digest of the test items of a phase, at the time of the first call. Raises as `tasks.validation.evidence_keys.items_key`."""
        decides = phase.components, self.recipe.own_benchmarks(phase)
        if decides not in self._items:
            self._items[decides] = items_key(self.plan, *decides)
        return self._items[decides]

    @contextmanager
    def held(self, what: str, *, queues: Iterable[Phase] = (), on_wait: Callable[[Holder], None] | None = None) -> Iterator[None]:
        """Lock the home for a run of the phases `queues`, and upload results to a home on a store.

        Raises ConfigError if another process has the lock. Raises TakenOver or StorageError as `Home.kept`.
        """
        queues = tuple(queues)
        names = tuple(self.home.stage(self.recipe.run_name, phase.name).relative_to(self.home.root).as_posix() for phase in queues)
        with self.home.held(what, queues=names, on_wait=on_wait), self.home.kept(self.recipe.run_name):
            for phase in queues:
                enter_stage(self.home, self.recipe.run_name, phase.name, State.QUEUED)
            self.note_origin()
            yield

    def working(self, phase: Phase, what: str, *, on_wait: Callable[[Holder], None] | None = None) -> AbstractContextManager[None]:
        """Lock a phase for a process of its stages (`tasks.phase_state.working`)."""
        return working(self.home, self.recipe.run_name, phase.name, what, on_wait=on_wait)

    def note_origin(self) -> None:
        """Write the file of the recipe to the home."""
        if self.origin is not None:
            write_json(_origin_path(self.recipe, self.home), self.origin.model_dump(mode="json"))

    @contextmanager
    def kept(self, what: str) -> Iterator[None]:
        """Upload small results to a home on a store, with `held`. A home on this machine is not locked. Raises as `held`."""
        if self.home.is_local:
            yield
            return
        self.home.make_ready()
        with self.held(what):
            yield

    def run(self, phase: Phase) -> RunConfig:
        """The run of a phase for the trainer, built once per start checkpoint. Raises TrainingError if the parent is not trained."""
        start = start_of(self.recipe, phase, self.home)
        if (phase.name, start) not in self._runs:
            plan = self.plan
            run = build_run(self.recipe, phase, self.home, plan.folders("train"), held_out=plan.folders("held_out"))
            self._runs[phase.name, start] = run
        return self._runs[phase.name, start]

    def check(self, phases: Iterable[Phase]) -> None:
        """Check before any work that phases can run here, each phase once.

        Raises ConfigError for a missing slice or benchmark, or an environment variable of JAX that changes the run. Raises DataError if a
        component has no files.
        """
        check_usual(os.environ)
        new = [phase for phase in phases if phase.name not in self._checked]
        check_slices(self.recipe, new)
        check_machines(self.recipe, new)
        check_declared(self.recipe, new)
        self._checked.update(phase.name for phase in new)
        self.check_sources()

    def check_sources(self) -> None:
        """Check the sources once, as `flows.checks.check_sources`."""
        if SOURCES not in self._checked:
            check_sources(self.recipe, self.home)
            self._checked.add(SOURCES)


@dataclass(frozen=True)
class _Found:
    scaled: dict[tuple[str, Scale, tuple[str, ...]], Recipe] = field(default_factory=dict)
    digests: dict[str, KnownDigests] = field(default_factory=dict)
    resolved: dict[tuple[str, Scale, str, tuple[str, ...]], Resolved] = field(default_factory=dict)


_found: ContextVar[_Found | None] = ContextVar("found", default=None)


@contextmanager
def resolving_once() -> Iterator[None]:
    """Resolve equal names once within the outermost context, to one value."""
    if _found.get() is not None:
        yield
        return
    before, checked_before = _found.set(_Found()), checked_recipes.set(checked_recipes.get({}))
    try:
        yield
    finally:
        _found.reset(before)
        checked_recipes.reset(checked_before)


def resolve(
    target: str, scale: Scale, home: str | None, *, reads_only: bool = False, has_weights: bool = False
) -> tuple[Resolved, Phase | None]:
    """The recipe of `RECIPE[/PHASE]`, and the phase if one is named. Nothing is written, and no source is read.

    `has_weights`: download the checkpoints of the phase from a read-only home on a store. Raises ConfigError for an unknown recipe, phase
    or home.
    """
    known, place, (name, wanted) = _found.get() or _Found(), Home.at(home, reads_only=reads_only), split_target(target)
    recipe, settings = load_written(name), settings_in_force()
    if (name, scale, settings) not in known.scaled:
        known.scaled[name, scale, settings] = assigned(at_scale(recipe, scale, name))
    record = known.scaled[name, scale, settings]
    phase = record.phase(wanted) if wanted else None
    branch = wanted if phase and any(one.branch for one in (phase, *record.ancestors(phase))) else None
    named = f"{name}/{branch}" if branch else name
    root = str(place.root)
    key = (named, scale, root, settings)
    if key not in known.resolved:
        full = forked(recipe).with_branch(branch) if recipe.scale == "full" else None
        chosen = record.with_branch(branch)
        if full:
            check_mixtures(full, full.phases)
        check_feasible(chosen, chosen.phases)
        origin = origin_of(name, recipe, place)
        check_name_free(origin, chosen, place)
        if root not in known.digests:
            known.digests[root] = KnownDigests(place)
        in_trial = with_trial(place, at_scale(recipe, scale, name), record) if settings else place
        known.resolved[key] = Resolved(named, chosen, full, in_trial, known.digests[root], settings, origin)
    resolved = known.resolved[key]
    if reads_only:
        place, run_name = resolved.home, resolved.recipe.run_name
        place.look(run_name, weights_of=place.run(run_name, phase.name).name if phase and has_weights else None)
    return resolved, phase


def resolve_phase(recipe: str, phase: str, scale: Scale, home: str | None, *, reads_only: bool = False) -> tuple[Resolved, Phase]:
    """A phase of a recipe, or of `RECIPE/BRANCH` with the ancestors of the branch. Raises ConfigError as `resolve`."""
    resolved, _ = resolve(recipe, scale, home, reads_only=reads_only)
    if phase not in {one.name for one in resolved.recipe.phases}:
        resolved, _ = resolve(f"{split_target(recipe)[0]}/{phase}", scale, home, reads_only=reads_only)
    return resolved, resolved.recipe.phase(phase)
