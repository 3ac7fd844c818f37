"""Deployments and work pools derived from built-in recipes and a folder of recipes."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from phasewise.flows.prefect.server import CONTROL, DATA, LOCAL, TAG
from phasewise.flows.recipes import default_scale, load_every
from phasewise.flows.recipes.recipe import Recipe
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import ConfigError, RecipeError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.storage import write_atomically

DEFAULT_QUEUE, TRAINING_QUEUE, MAX_TRAININGS = "default", "training", 1
Kind = Literal["train-recipe", "train-phase", "prepare-data", "validate-data", "preflight", "evaluate", "export"]


class FlowPlace(NamedTuple):
    """Module of a flow, which has a function of the same name, the work pool and queue of its deployments, and their tag."""

    module: str
    pool: str
    queue: str
    subject: str


FLOWS: dict[Kind, FlowPlace] = {
    "train-recipe": FlowPlace("train_recipe", LOCAL, TRAINING_QUEUE, "training"),
    "train-phase": FlowPlace("train_phase", LOCAL, TRAINING_QUEUE, "training"),
    "prepare-data": FlowPlace("prepare_data", DATA, DEFAULT_QUEUE, "data"),
    "validate-data": FlowPlace("validate_data", DATA, DEFAULT_QUEUE, "data"),
    "preflight": FlowPlace("preflight", CONTROL, DEFAULT_QUEUE, "preflight"),
    "evaluate": FlowPlace("evaluate_checkpoint", LOCAL, DEFAULT_QUEUE, "evaluation"),
    "export": FlowPlace("export_phase", CONTROL, DEFAULT_QUEUE, "export"),
}
TOKEN_UNITS = ((10**12, "trillion"), (10**9, "billion"), (10**6, "million"))
_WAITS = "It waits until the parent has passed its gate. It does not repeat finished work."


class Schedule(Frozen):
    """An example schedule, inactive until a user activates it. An interval would have no fixed time of day, so it is a cron line."""

    slug: str
    cron: str
    timezone: str = "UTC"


class Pool(Frozen):
    """A work pool of processes."""

    name: str
    description: str


class Deployment(Frozen):
    """A flow with fixed parameters, and the fields of its form.

    Attributes:
        parameters: fixed values, absent from the form.
        asks: field of the form → its choices. Without choices the field accepts all values of the flow.
        required: fields without a default.
    """

    flow: Kind
    name: str
    description: str
    tags: tuple[str, ...]
    parameters: dict[str, str]
    asks: dict[str, tuple[str, ...]]
    required: tuple[str, ...] = ()
    schedules: tuple[Schedule, ...] = ()

    @property
    def full_name(self) -> str:
        """The name in Prefect, for example `train-phase/marin-8b-starling`."""
        return f"{self.flow}/{self.name}"

    @property
    def entrypoint(self) -> str:
        """The flow's module and function, as a dotted name."""
        module = FLOWS[self.flow].module
        return f"phasewise.flows.{module}.{module}"


@dataclass(frozen=True)
class Source:
    """A recipe, and its name or JSON file as flows load it."""

    given: str
    written: Recipe


def read_folder(folder: Path, home: Home) -> list[Source]:
    """Load the recipes of all `.py` and `.json` files in a folder, except names with a leading `_` or dot.

    Python files run here once, by the command of the user who named the folder. Flows never run them: they read a JSON copy under the
    home. Changes in the folder take effect at the next start.

    Raises:
        ConfigError: the folder does not exist, or has no recipe.
        RecipeError: a file is not a recipe, or two recipes have the same name.
    """
    if not folder.is_dir():
        raise ConfigError(f"--recipes needs a folder of recipes, found {folder}, which does not exist.")
    files = sorted(path for path in folder.iterdir() if path.suffix in (".py", ".json") and path.name[0] not in "_.")
    if not files:
        raise ConfigError(f"--recipes needs a folder with .py or .json files, found none in {folder}. `phasewise new` writes one.")
    found: dict[str, Path] = {}
    sources: list[Source] = []
    for file in files:
        for recipe in load_every(file):
            if other := found.get(recipe.name):
                raise RecipeError(
                    f"{file} and {other} both call a recipe {recipe.name}: they would share their folders. Give one another name."
                )
            found[recipe.name] = file
            absolute = {  # flows run in another folder than this command
                name: source if "://" in source.url else source.but(url=str(Path(source.url).expanduser().resolve()))
                for name, source in recipe.sources.items()
            }
            kept = home.prefect / "recipes" / f"{recipe.name}.json"
            write_atomically(kept, (recipe.but(sources=absolute).model_dump_json(indent=2) + "\n").encode())
            sources.append(Source(str(kept), recipe))
    return sources


def declare(sources: Iterable[Source]) -> list[Deployment]:
    """Return all deployments of the recipes, sorted by name.

    Raises:
        RecipeError: two deployments would have the same name.
    """
    found: dict[str, Deployment] = {}
    nightly = (Schedule(slug="nightly", cron="0 2 * * *"),)
    asks: dict[str, tuple[str, ...]] = {"retrain": (), "settings": ()}
    for source in sources:
        recipe = source.written
        scale, here = ("As it is written", "") if recipe.scale == "own" else ("At full scale", " Here it runs at proxy scale.")
        of_phases: list[Deployment] = []
        for phase in recipe.phases:
            if phase.branch:
                continue
            steps = f"{phase.stop_step - phase.start_step:,} steps, {phase.start_step:,} to {phase.stop_step:,}"
            slices = " → ".join(dict.fromkeys(name for _, name in phase.slice.within(phase.start_step, phase.stop_step)))
            start = f"It starts from {phase.parent}." if phase.parent else "It starts from scratch."
            divisor, word = next((unit for unit in TOKEN_UNITS if phase.tokens >= unit[0]), (1, ""))
            tokens = f"{phase.tokens / divisor:.3g} {word}" if word else f"{phase.tokens:,}"
            size = f"{scale}: {steps}; {tokens} tokens; on {'this machine' if slices == LOCAL else slices}."
            text = f"Trains {phase.name} of {recipe.name}. {start}\n\n{size}{here}\n\n{_WAITS}"
            of_phases.append(_deployment(source, "train-phase", text, asks, phase=phase.name, schedules=nightly))
        for deployment in [*of_phases, *_of_recipe(source)]:
            if other := found.get(deployment.full_name):
                subjects = [
                    "/".join(one.parameters[name] for name in ("recipe", "phase") if name in one.parameters) for one in (other, deployment)
                ]
                raise RecipeError(
                    f"two deployments would be called {deployment.full_name}: of {subjects[0]}, and of {subjects[1]}. "
                    "Give the recipe or the phase another name."
                )
            found[deployment.full_name] = deployment
    return [found[name] for name in sorted(found)]


def declare_pools(sources: Iterable[Source]) -> list[Pool]:
    """Return the work pools for data, light work and training here, and one pool per kind of slice in the recipes."""
    slices = {name for source in sources for phase in source.written.phases for _, name in phase.slice.root}
    kinds = {name.split(" ")[-1].partition("-")[0] for name in slices} - {LOCAL}
    return [
        Pool(name=DATA, description="Data: documents, token caches, and the verdicts on them."),
        Pool(name=CONTROL, description="Light work: preflight, export."),
        Pool(name=LOCAL, description="Training and evaluation on the machine of the worker. The queue `training` runs one at a time."),
        *(
            Pool(name=kind, description=f"Phases at full scale on slices of {kind}. No deployment uses it yet: full scale is not trained.")
            for kind in sorted(kinds)
        ),
    ]


def _of_recipe(source: Source) -> list[Deployment]:
    recipe = source.written
    is_own = recipe.scale == "own"
    scales: dict[str, tuple[str, ...]] = {} if is_own else {"scale": ("proxy", "full")}
    every = tuple(phase.name for phase in recipe.phases)
    branches = tuple(phase.name for phase in recipe.phases if phase.branch)
    line = " → ".join(phase.name for phase in recipe.phases if not phase.branch)
    how = "as it is written" if is_own else "at proxy scale, on this machine"
    made = [
        _deployment(
            source,
            "train-recipe",
            f"Trains {recipe.name} {how}, phase by phase, gate by gate: {line}.\n\n"
            "It resumes unfinished phases. A refused phase stops its descendants.",
            {"up_to": every, "retrain": every, "extend": every, "settings": ()},
            schedules=(Schedule(slug="weekly", cron="0 3 * * 1"),),
        ),
        _deployment(
            source,
            "prepare-data",
            f"Builds every token cache of {recipe.name} that is missing: documents, tokenizer, caches, benchmarks.",
            {**scales, "settings": ()},
        ),
        _deployment(
            source,
            "validate-data",
            f"Judges the caches, the mixture, the order and the leakage of one phase of {recipe.name}. It fails if the verdict fails.",
            {**scales, "phase": every, "settings": ()},
            required=("phase",),
        ),
        _deployment(
            source,
            "preflight",
            f"Compiles the steps of {recipe.name} for its slices, without a TPU: memory, FLOPs, networks, time, "
            "chip-hours.\n\nIt fails if a phase does not fit. It needs the extra `tpu`.",
            {"phase": every, "settings": ()},
            scale="own" if is_own else "full",
        ),
        _deployment(
            source,
            "evaluate",
            f"Measures the last checkpoint of a phase of {recipe.name}, and judges it against its parent's. It fails if the gate fails.",
            {"phase": every, "settings": ()},
            required=("phase",),
        ),
        _deployment(
            source,
            "export",
            f"Writes the weights of a trained phase of {recipe.name} as transformers reads them, to `exports/` in the worker's home.",
            {"phase": every, "weights": (), "average_of": (), "dtype": (), "generation_prompt": (), "settings": ()},
            required=("phase",),
        ),
    ]
    if branches:
        text = f"Trains one branch of {recipe.name}. The form lists the branches.\n\n{_WAITS}"
        asks: dict[str, tuple[str, ...]] = {"phase": branches, "retrain": (), "settings": ()}
        made.append(_deployment(source, "train-phase", text, asks, name=f"{recipe.name}-branch", required=("phase",)))
    return made


def _deployment(
    source: Source,
    flow: Kind,
    description: str,
    asks: dict[str, tuple[str, ...]],
    *,
    name: str | None = None,
    phase: str | None = None,
    scale: str | None = None,
    required: tuple[str, ...] = (),
    schedules: tuple[Schedule, ...] = (),
) -> Deployment:
    recipe = source.written
    scales = {} if "scale" in asks else {"scale": scale or default_scale(recipe)}
    return Deployment(
        flow=flow,
        name=name or (f"{recipe.name}-{phase}" if phase else recipe.name),
        description=description,
        tags=(TAG, recipe.name, FLOWS[flow].subject, *scales.values()),
        parameters={"recipe": source.given, **scales, **({"phase": phase} if phase else {})},
        asks=asks,
        required=required,
        schedules=schedules,
    )
