"""A recipe as one command finds it: recipe, home, sources and plan are worked out once here, and handed down.

Flows call each other by names, because Prefect keeps those as a run's parameters. Within one process the same names are the same value.
"""

import os
import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from phasewise.flows.checks import check_declared, check_slices, check_sources
from phasewise.flows.plan import build_run, data_plan, stand_ins_of, start_of
from phasewise.flows.recipes import FILE, at_scale, load_written, split_target
from phasewise.flows.recipes.assignments import assigned, settings_in_force
from phasewise.flows.recipes.feasibility import check_feasible, check_mixtures
from phasewise.flows.recipes.phase import Phase
from phasewise.flows.recipes.recipe import Recipe, Scale
from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.data.plan import DataPlan
from phasewise.tasks.data.stand_ins import StandIn, missing_stand_ins
from phasewise.tasks.home import Home
from phasewise.tasks.locks import Holder
from phasewise.trainer.base.errors import RecipeError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import digest_of_json
from phasewise.trainer.base.storage import read_json, write_json
from phasewise.trainer.config import RunConfig, StartFrom
from phasewise.trainer.config.run import BIND_THE_RESULT, MAY_CHANGE
from phasewise.trainer.process.environment import check_usual


class RecipeOrigin(Frozen):
    """The file that a recipe was read from, on this machine, and what makes it another recipe: its phases, and where its own text is.

    All else may be edited, also in a copy: what it changes is trained again, and `run` says so.
    """

    file: str
    phases: tuple[str, ...]
    urls: dict[str, str]


def origin_of(name: str, written: Recipe, home: Home) -> RecipeOrigin | None:
    """The origin of a recipe in a file; None of one of this project, and of the copies that `phasewise up` keeps in its home."""
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
    """Refuse a recipe whose name another file of this home has. A file that is gone was moved.

    Raises:
        RecipeError: the home has runs from another file that is still there.
    """
    if origin is None:
        return
    try:
        found = RecipeOrigin.model_validate(read_json(_place(recipe, home)))
    except (OSError, ValueError, ValidationError):
        return
    is_same = (found.phases, found.urls) == (origin.phases, origin.urls)
    if is_same or _stem(found) == _stem(origin) or not _path(found).exists():
        return
    raise RecipeError(
        f"the name {recipe.name} is taken in the home {home.root}: its runs are of {found.file}, and {origin.file} is another recipe. Give "
        "it another `name`, or its own --home."
    )


def keep_origin(origin: RecipeOrigin | None, recipe: Recipe, home: Home) -> None:
    """Write which file the home's runs of a recipe come from."""
    if origin is not None:
        write_json(_place(recipe, home), origin.model_dump(mode="json"))


def _place(recipe: Recipe, home: Home) -> Path:
    return home.root / "recipes" / f"{recipe.run_name}.json"


def _path(origin: RecipeOrigin) -> Path:
    found = FILE.fullmatch(origin.file)
    return Path(found["path"] if found else origin.file)


def _stem(origin: RecipeOrigin) -> str:
    path = _path(origin)
    return f"{path.with_suffix('')}{origin.file[len(str(path)) :] if path.suffix == '.py' else ''}"


OF_DATA = {"tokenizer", "sources", "pins", "max_tokens", "length_bias"}
"""Fields of a recipe that decide its caches."""


def home_in_trial(home: Home, target: str, scale: Scale) -> Home:
    """The home with the folders of the trial that the settings in force make of a recipe; itself without settings.

    Raises:
        ConfigError: as `flows.recipes.load_record`.
    """
    if not settings_in_force():
        return home
    name, _ = split_target(target)
    recipe = at_scale(load_written(name), scale, name)
    return with_trial(home, recipe, assigned(recipe))


def with_trial(home: Home, recipe: Recipe, changed: Recipe) -> Home:
    """The home in which each phase that settings change has a folder named by what it and its ancestors train as.

    How a phase is executed, evaluated and judged makes no trial: it stays the same run.
    """
    keys = ((phase.name, _key(changed, phase)) for phase in changed.phases)
    before = {phase.name: _key(recipe, phase) for phase in recipe.phases}
    return replace(home, trials=tuple((name, f"{name}-trial-{key[:8]}") for name, key in keys if key != before[name]))


def _key(recipe: Recipe, phase: Phase) -> str:
    recipe = recipe.with_branch(phase.name)
    lineage = [_trained_as(one) for one in (*recipe.ancestors(phase), phase)]
    return digest_of_json([recipe.model_dump(mode="json", include=OF_DATA), recipe.components, lineage])


def _trained_as(phase: Phase) -> dict[str, Any]:
    free = {path.partition(".")[0] for path in MAY_CHANGE} - {*BIND_THE_RESULT, "start"}
    settings = phase.model_dump(mode="json", include=RunConfig.model_fields.keys() - free)
    settings["start"].pop("declares", None)
    return {"name": phase.name, **settings}


SOURCES = "the sources"


@dataclass(frozen=True)
class Resolved:
    """What is trained, and where.

    Attributes:
        name: `RECIPE`, or `RECIPE/PHASE` where the phase is a branch: by this name every flow finds the same.
        recipe: the main line, and of the branches those that lead to the phase.
        full: the same at full scale; None where the recipe is written at proxy scale.
        settings: what `--set` changes in it.
        origin: the file that it comes from, where it is not one of this project.
        digests: the contents of source files as this command knows them.
    """

    name: str
    recipe: Recipe
    full: Recipe | None
    home: Home
    digests: KnownDigests = field(repr=False, compare=False)
    settings: tuple[str, ...] = ()
    origin: RecipeOrigin | None = None
    _runs: dict[tuple[str, StartFrom | None], RunConfig] = field(default_factory=dict, repr=False, compare=False)
    _items: dict[tuple[str, ...], str] = field(default_factory=dict, repr=False, compare=False)
    _checked: set[str] = field(default_factory=set, repr=False, compare=False)

    @property
    def recipe_name(self) -> str:
        """What it was asked for by, without a phase."""
        return split_target(self.name)[0]

    @property
    def options(self) -> str:
        """What a command line needs to find the same again."""
        given = "".join(f" --set {shlex.quote(one)}" for one in self.settings)
        return f"--scale {self.recipe.scale} --home {self.home.root}{given}"

    @cached_property
    def stand_ins(self) -> dict[str, StandIn]:
        """What is collected from this installation first."""
        return stand_ins_of(self.recipe)

    @cached_property
    def plan(self) -> DataPlan:
        """Every cache that the recipe needs, from its sources as they were found when it was first asked for.

        Raises:
            ConfigError: a component has no source.
            DataError: a component has no files.
        """
        return data_plan(self.recipe, self.home, digests=self.digests)

    def items_key(self, phase: Phase) -> str:
        """Digest of what the phase must not train on, as it was when it was first asked for.

        Raises:
            ConfigError, DataError: as `tasks.validation.scan_caches.items_key`.
        """
        from phasewise.tasks.validation.scan_caches import items_key  # it imports the scan

        if phase.components not in self._items:
            self._items[phase.components] = items_key(self.plan, phase.components)
        return self._items[phase.components]

    def look_again(self) -> None:
        """Forget what was planned: sources were written."""
        self.__dict__.pop("plan", None)
        self._runs.clear()
        self._items.clear()

    @property
    def is_planned(self) -> bool:
        """Whether the plan was asked for already."""
        return "plan" in self.__dict__

    @contextmanager
    def held(self, what: str, *, on_wait: Callable[[Holder], None] | None = None) -> Iterator[None]:
        """Hold the home for one run, as `Home.held`, and keep what it does where the home is.

        Raises:
            ConfigError: another process holds it.
            TakenOver, StorageError: as `Home.kept`.
        """
        with self.home.held(what, on_wait=on_wait), self.home.kept(self.recipe.run_name):
            keep_origin(self.origin, self.recipe, self.home)
            yield

    @contextmanager
    def kept(self, what: str) -> Iterator[None]:
        """Within it, what is written beside a recipe's work is kept where the home is. Of a home on this machine nothing is held.

        Raises:
            ConfigError: another process works in the home on a store, or it cannot be written.
            TakenOver, StorageError: as `Home.kept`.
        """
        if self.home.is_local:
            yield
            return
        self.home.make_ready()
        with self.held(what):
            yield

    def run(self, phase: Phase) -> RunConfig:
        """The phase as the trainer wants it, built once for the weights that it starts from.

        Raises:
            TrainingError: its parent is not trained yet.
        """
        start = start_of(self.recipe, phase, self.home)
        if (phase.name, start) not in self._runs:
            plan = self.plan
            run = build_run(self.recipe, phase, self.home, plan.folders("train"), held_out=plan.folders("held_out"))
            self._runs[phase.name, start] = run
        return self._runs[phase.name, start]

    def check(self, phases: Iterable[Phase]) -> None:
        """Refuse, before anything is made, what can be known to fail; each phase is checked once.

        Raises:
            ConfigError: a phase needs a slice, or names a benchmark that nothing measures; or a variable of jax would make another run.
            DataError: a component has no files.
        """
        check_usual(os.environ)
        new = [phase for phase in phases if phase.name not in self._checked]
        check_slices(self.recipe, new)
        check_declared(self.recipe, new)
        self._checked.update(phase.name for phase in new)
        self.check_sources()

    def check_sources(self) -> None:
        """Refuse, once, sources that cannot be read.

        Raises:
            ConfigError, DataError: as `flows.checks.check_sources`.
        """
        if SOURCES not in self._checked:
            check_sources(self.recipe, self.home)
            self._checked.add(SOURCES)

    @property
    def is_prepared(self) -> bool:
        """Whether every cache is there."""
        return not missing_stand_ins(self.stand_ins, self.home.sources) and self.plan.is_built


@dataclass(frozen=True)
class _Found:
    written: dict[str, Recipe] = field(default_factory=dict)
    scaled: dict[tuple[str, Scale, tuple[str, ...]], Recipe] = field(default_factory=dict)
    digests: dict[str, KnownDigests] = field(default_factory=dict)
    resolved: dict[tuple[str, Scale, str, tuple[str, ...]], Resolved] = field(default_factory=dict)

    def resolve(self, target: str, scale: Scale, place: Home) -> tuple[Resolved, Phase | None]:
        name, wanted = split_target(target)
        if name not in self.written:
            self.written[name] = load_written(name)
        written, settings = self.written[name], settings_in_force()
        if (name, scale, settings) not in self.scaled:
            self.scaled[name, scale, settings] = assigned(at_scale(written, scale, name))
        record = self.scaled[name, scale, settings]
        phase = record.phase(wanted) if wanted else None
        branch = wanted if phase and any(one.branch for one in (phase, *record.ancestors(phase))) else None
        named = f"{name}/{branch}" if branch else name
        root = str(place.root)
        key = (named, scale, root, settings)
        if key not in self.resolved:
            full = written.with_branch(branch) if written.scale == "full" else None
            chosen = record.with_branch(branch)
            if full:
                check_mixtures(full, full.phases)
            check_feasible(chosen, chosen.phases)
            origin = origin_of(name, written, place)
            check_name_free(origin, chosen, place)
            if root not in self.digests:
                self.digests[root] = KnownDigests(place)
            home = with_trial(place, at_scale(written, scale, name), record) if settings else place
            self.resolved[key] = Resolved(named, chosen, full, home, self.digests[root], settings, origin)
        return self.resolved[key], phase


_found: ContextVar[_Found | None] = ContextVar("found", default=None)


@contextmanager
def resolving_once() -> Iterator[None]:
    """Within it the same names resolve once, to what is found then. One within another changes nothing."""
    if _found.get() is not None:
        yield
        return
    before = _found.set(_Found())
    try:
        yield
    finally:
        _found.reset(before)


def resolve(
    target: str, scale: Scale, home: str | None, *, reads_only: bool = False, has_weights: bool = False
) -> tuple[Resolved, Phase | None]:
    """What `RECIPE[/PHASE]` names, and the phase if one is named. Nothing is made, and the sources are not looked at yet.

    Args:
        home: as `Home.at` takes it, with `reads_only`.
        has_weights: where the home is only read, and on a store: whether the checkpoints of the phase are brought here, too.

    Raises:
        ConfigError: no such recipe, phase or home.
    """
    found = (_found.get() or _Found()).resolve(target, scale, Home.at(home, reads_only=reads_only))
    if reads_only:
        phase = found[1]
        place = found[0].home
        place.look(found[0].recipe.run_name, weights_of=place.folder_of(phase.name) if phase and has_weights else None)
    return found


def resolve_phase(recipe: str, phase: str, scale: Scale, home: str | None, *, reads_only: bool = False) -> tuple[Resolved, Phase]:
    """A phase of a recipe, which may be named `RECIPE/BRANCH`: then its ancestors are found in that.

    Raises:
        ConfigError: as `resolve`.
    """
    resolved, _ = resolve(recipe, scale, home, reads_only=reads_only)
    if phase not in {one.name for one in resolved.recipe.phases}:
        resolved, _ = resolve(f"{split_target(recipe)[0]}/{phase}", scale, home, reads_only=reads_only)
    return resolved, resolved.recipe.phase(phase)
