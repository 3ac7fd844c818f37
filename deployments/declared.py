"""What can be started from Prefect: deployments made from the recipes, and the work pools that they run in."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from phasewise.flows.prefect.deployment_params import TAG
from phasewise.flows.prefect.server import CONTROL, DATA, LOCAL
from phasewise.flows.recipes import default_scale, load_written
from phasewise.flows.recipes.phase import Phase
from phasewise.flows.recipes.recipe import Recipe
from phasewise.trainer.base.errors import RecipeError
from phasewise.trainer.base.frozen import Frozen

DEFAULT_QUEUE, TRAINING_QUEUE, MAX_TRAININGS = "default", "training", 1
BRANCHES = "branch"
Kind = Literal["train-recipe", "train-phase", "prepare-data", "validate-data", "preflight", "evaluate", "export"]
MODULES: dict[Kind, str] = {
    "train-recipe": "train_recipe",
    "train-phase": "train_phase",
    "prepare-data": "prepare_data",
    "validate-data": "validate_data",
    "preflight": "preflight",
    "evaluate": "evaluate_checkpoint",
    "export": "export_phase",
}
"""Name of a flow → its module, which has a function of the same name."""
PLACES: dict[Kind, tuple[str, str]] = {
    "train-recipe": (LOCAL, TRAINING_QUEUE),
    "train-phase": (LOCAL, TRAINING_QUEUE),
    "prepare-data": (DATA, DEFAULT_QUEUE),
    "validate-data": (DATA, DEFAULT_QUEUE),
    "preflight": (CONTROL, DEFAULT_QUEUE),
    "evaluate": (LOCAL, DEFAULT_QUEUE),
    "export": (CONTROL, DEFAULT_QUEUE),
}
"""Name of a flow → work pool and work queue."""
SUBJECTS: dict[Kind, str] = {
    "train-recipe": "training",
    "train-phase": "training",
    "prepare-data": "data",
    "validate-data": "data",
    "preflight": "preflight",
    "evaluate": "evaluation",
    "export": "export",
}


class Schedule(Frozen):
    """An example of when a deployment may run by itself; people switch it on. A time zone is named: an interval would move."""

    slug: str
    cron: str
    timezone: str = "UTC"


class Pool(Frozen):
    """A work pool of processes."""

    name: str
    description: str


class Deployment(Frozen):
    """A flow with the parameters that are fixed, and the choices of those that its form asks for.

    Attributes:
        flow: Prefect's name of the flow.
        parameters: fixed here, and not in the form.
        asks: parameters that the form asks for; a tuple has the choices, an empty one is whatever the flow takes.
        required: those of them that must be given.
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
        """As Prefect writes it: `train-phase/marin-8b-starling`."""
        return f"{self.flow}/{self.name}"

    @property
    def entrypoint(self) -> str:
        """Module and name of the flow."""
        return f"phasewise.flows.{MODULES[self.flow]}.{MODULES[self.flow]}"

    @property
    def place(self) -> tuple[str, str]:
        """Work pool and work queue."""
        return PLACES[self.flow]


@dataclass(frozen=True)
class Source:
    """A recipe, and what a flow finds it by: its name, or the path of a JSON file."""

    given: str
    written: Recipe

    @classmethod
    def named(cls, name: str) -> "Source":
        """One of this project's."""
        return cls(name, load_written(name))


def declare(sources: Iterable[Source]) -> list[Deployment]:
    """Every deployment of the recipes, sorted by name.

    Raises:
        RecipeError: two of them would have one name.
    """
    found: dict[str, Deployment] = {}
    for source in sources:
        for deployment in [*_trainings(source), *_of_data(source), *_of_phases(source)]:
            if deployment.full_name in found:
                other = found[deployment.full_name].parameters
                raise RecipeError(
                    f"two deployments would be called {deployment.full_name}: of {_named(other)}, and of {_named(deployment.parameters)}. "
                    "Give the recipe or the phase another name."
                )
            found[deployment.full_name] = deployment
    return [found[name] for name in sorted(found)]


def declare_pools(sources: Iterable[Source]) -> list[Pool]:
    """The work pools: for data, for what is light, for training on this machine, and one for each kind of slice in the recipes."""
    kinds = {
        name.split(" ")[-1].partition("-")[0] for source in sources for phase in source.written.phases for _, name in phase.slice.root
    } - {LOCAL}
    return [
        Pool(name=DATA, description="Data: documents, token caches, and the verdicts on them."),
        Pool(name=CONTROL, description="What needs little: preflight, export."),
        Pool(name=LOCAL, description="Training and evaluation on the machine of the worker. The queue `training` runs one at a time."),
        *(
            Pool(name=kind, description=f"Phases at full scale on slices of {kind}. No deployment uses it yet: full scale is not trained.")
            for kind in sorted(kinds)
        ),
    ]


def _trainings(source: Source) -> list[Deployment]:
    recipe = source.written
    main = [phase for phase in recipe.phases if not phase.branch]
    branches = tuple(phase.name for phase in recipe.phases if phase.branch)
    made = [_train_phase(source, phase) for phase in main]
    if branches:
        text = f"Trains one branch of {recipe.name}, beside its main line: the form lists them.\n\n{_WAITS}"
        asks = {"phase": branches, "retrain": (), "settings": ()}
        made.append(_deployment(source, "train-phase", f"{recipe.name}-{BRANCHES}", text, asks, required=("phase",)))
    how = "as it is written" if recipe.scale == "own" else "at proxy scale, on this machine"
    line = " → ".join(phase.name for phase in main)
    text = (
        f"Trains {recipe.name} {how}, phase by phase, gate by gate: {line}.\n\n"
        "It goes on with what is half done. A refused phase stops what starts from it."
    )
    asks = {"up_to": _names(recipe), "retrain": _names(recipe), "settings": ()}
    weekly = Schedule(slug="weekly", cron="0 3 * * 1")
    return [*made, _deployment(source, "train-recipe", recipe.name, text, asks, schedules=(weekly,))]


def _of_data(source: Source) -> list[Deployment]:
    recipe = source.written
    own = recipe.scale == "own"
    scale = {} if own else {"scale": ("proxy", "full")}
    build = f"Builds every token cache of {recipe.name} that is not there yet: documents, tokenizer, caches, benchmarks."
    judge = f"Judges the caches, the mixture, the order and the leakage of one phase of {recipe.name}. It fails where the verdict does."
    asks = {**scale, "phase": _names(recipe), "settings": ()}
    return [
        _deployment(source, "prepare-data", recipe.name, build, {**scale, "settings": ()}),
        _deployment(source, "validate-data", recipe.name, judge, asks, required=("phase",)),
    ]


def _of_phases(source: Source) -> list[Deployment]:
    recipe = source.written
    compiles = (
        f"Compiles the steps of {recipe.name} for the slices that it names, without a TPU: memory, FLOPs, networks, time, chip-hours.\n\n"
        "It fails where a phase does not fit. It needs the extra `tpu`."
    )
    measures = (
        f"Measures the last checkpoint of a phase of {recipe.name}, and judges it against its parent's. It fails where the gate does."
    )
    writes = f"Writes the weights of a trained phase of {recipe.name} as transformers reads them, to `exports/` in the worker's home."
    asks = {"phase": _names(recipe), "settings": ()}
    exports = {"phase": _names(recipe), "weights": (), "average_of": (), "dtype": (), "generation_prompt": (), "settings": ()}
    full = "own" if recipe.scale == "own" else "full"
    return [
        _deployment(source, "preflight", recipe.name, compiles, asks, scale=full),
        _deployment(source, "evaluate", recipe.name, measures, asks, required=("phase",)),
        _deployment(source, "export", recipe.name, writes, exports, required=("phase",)),
    ]


def _names(recipe: Recipe) -> tuple[str, ...]:
    return tuple(phase.name for phase in recipe.phases)


_WAITS = "It waits where its parent is not done, and starts when that is past its gate. What is done already is not done again."


def _train_phase(source: Source, phase: Phase) -> Deployment:
    recipe = source.written
    scale = "As it is written" if recipe.scale == "own" else "At full scale"
    steps = f"{phase.stop_step - phase.start_step:,} steps, {phase.start_step:,} to {phase.stop_step:,}"
    slices = " → ".join(dict.fromkeys(name for _, name in phase.slice.within(phase.start_step, phase.stop_step)))
    start = f"It starts from {phase.parent}." if phase.parent else "It starts from scratch."
    size = f"{scale}: {steps}; {_tokens(phase.tokens)} tokens; on {'this machine' if slices == LOCAL else slices}."
    here = "" if recipe.scale == "own" else " Here it runs at proxy scale."
    text = f"Trains {phase.name} of {recipe.name}. {start}\n\n{size}{here}\n\n{_WAITS}"
    nightly = Schedule(slug="nightly", cron="0 2 * * *")
    name = f"{recipe.name}-{phase.name}"
    asks = {"retrain": (), "settings": ()}
    return _deployment(source, "train-phase", name, text, asks, schedules=(nightly,), fixed={"phase": phase.name})


def _deployment(
    source: Source,
    flow: Kind,
    name: str,
    description: str,
    asks: dict[str, tuple[str, ...]],
    *,
    required: tuple[str, ...] = (),
    schedules: tuple[Schedule, ...] = (),
    fixed: dict[str, str] | None = None,
    scale: str | None = None,
) -> Deployment:
    scales = {} if "scale" in asks else {"scale": scale or default_scale(source.written)}
    parameters = {"recipe": source.given, **scales, **(fixed or {})}
    tags = (TAG, source.written.name, SUBJECTS[flow], *scales.values())
    return Deployment(
        flow=flow,
        name=name,
        description=description,
        tags=tags,
        parameters=parameters,
        asks=asks,
        required=required,
        schedules=schedules,
    )


def _named(parameters: dict[str, str]) -> str:
    return "/".join(parameters[name] for name in ("recipe", "phase") if name in parameters)


def _tokens(count: int) -> str:
    for size, word in ((10**12, "trillion"), (10**9, "billion"), (10**6, "million")):
        if count >= size:
            return f"{count / size:.3g} {word}"
    return f"{count:,}"
