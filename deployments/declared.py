"""Deployments and work pools derived from built-in recipes and a folder of recipes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field

from phasewise.flows.prefect.server import CONTROL, DATA, LOCAL, TAG
from phasewise.flows.prefect.submission import FIXED
from phasewise.flows.recipes import default_scale, load_every
from phasewise.flows.recipes.catalogue import CATALOGUE
from phasewise.flows.recipes.feasibility import check_mixtures
from phasewise.flows.recipes.recipe import Recipe
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import ConfigError, RecipeError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.storage import read_yaml, write_atomically

DEFAULT_QUEUE, TRAINING_QUEUE, MAX_TRAININGS = "default", "training", 1
Kind = Literal["train-recipe", "train-phase", "prepare-data", "validate-data", "preflight", "evaluate", "export", "try", "search-mixture"]


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
    "try": FlowPlace("try_phase", LOCAL, TRAINING_QUEUE, "experiment"),
    "search-mixture": FlowPlace("search_mixture", LOCAL, TRAINING_QUEUE, "training"),
}
TOKEN_UNITS = ((10**12, "trillion"), (10**9, "billion"), (10**6, "million"))
START = "0 · start here"  # name of the deployment whose description is the start page in Prefect's UI
PAGE = "PHASEWISE_PAGE"  # placeholder of the page's address in descriptions
REFUSED = "refused by design"
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
        refused: phase → reason, for phases that every run rejects by design.
    """

    flow: Kind
    name: str
    description: str
    tags: tuple[str, ...]
    parameters: dict[str, str]
    asks: dict[str, tuple[str, ...]]
    required: tuple[str, ...] = ()
    refused: dict[str, str] = Field(default_factory=dict)
    schedules: tuple[Schedule, ...] = ()

    @property
    def full_name(self) -> str:
        """The name in Prefect, for example `train-phase/marin-8b · 2 ocelot`."""
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
    """Return the deployments of recipes, sorted by name: the start page, recipes with their phases in order, and work without training."""
    sources = list(sources)
    found = [one for number, source in enumerate(sources) for one in _of_recipe(source, number)] + _of_all(sources)
    return sorted(found, key=lambda one: (one.name, one.flow))


def refusals(recipe: Recipe) -> dict[str, str]:
    """Return phase → reason for phases that every run rejects by design, because of their mixture, text or ancestor."""
    found: dict[str, str] = {}
    for phase in recipe.phases:
        drawn = [CATALOGUE[name].stand_in for name in phase.components if name in CATALOGUE and name not in recipe.sources]
        if refused := [before.name for before in recipe.ancestors(phase) if before.name in found]:
            found[phase.name] = f"it starts from {refused[0]}"
        elif any(stand_in and stand_in.test_items for stand_in in drawn):
            found[phase.name] = "its text contains benchmark items"
        else:
            try:
                check_mixtures(recipe, [phase])
            except RecipeError:
                found[phase.name] = "a block of its mixture has no sequence of some components"
    return found


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


def _of_recipe(source: Source, number: int) -> list[Deployment]:
    """Return the deployments that train a recipe, a phase of the main line, or a branch. `number` of the recipe decides schedule times."""
    recipe, scale = source.written, default_scale(source.written)
    minute = (10 * number + number // 6) % 60
    fixed = {"recipe": (source.given,), "scale": (scale,)}
    of_phase: dict[str, tuple[str, ...]] = {**fixed, "retrain": (), "settings": ()}
    size, here = ("As it is written", "") if scale == "own" else ("At full scale", " Here it runs at proxy scale.")
    how = "as it is written" if scale == "own" else "at proxy scale, on this machine"
    refused = refusals(recipe)
    main_line = [phase for phase in recipe.phases if not phase.branch]
    every, branches = tuple(phase.name for phase in recipe.phases), tuple(phase.name for phase in recipe.phases if phase.branch)
    made = [
        _deployment(
            "train-recipe",
            recipe.name,
            f"Trains {recipe.name} {how}, phase by phase, gate by gate: {' → '.join(phase.name for phase in main_line)}.\n\n"
            "It resumes unfinished phases. A refused phase stops its descendants.",
            {**fixed, "up_to": every, "retrain": every, "extend": every, "settings": ()},
            tags=(recipe.name,),
            refused=refused,
            schedule=Schedule(slug="weekly", cron=f"{minute} 1 * * 1"),
        )
    ]
    for position, phase in enumerate(main_line):
        slices = " → ".join(dict.fromkeys(name for _, name in phase.slice.within(phase.start_step, phase.stop_step)))
        divisor, word = next((unit for unit in TOKEN_UNITS if phase.tokens >= unit[0]), (1, ""))
        text = (
            f"Trains {phase.name} of {recipe.name}. It starts from {phase.parent or 'scratch'}.\n\n"
            f"{size}: {phase.stop_step - phase.start_step:,} steps, {phase.start_step:,} to {phase.stop_step:,}; "
            f"{f'{phase.tokens / divisor:.3g} {word}' if word else f'{phase.tokens:,}'} tokens; "
            f"on {'this machine' if slices == LOCAL else slices}.{here}\n\n{_WAITS}"
        )
        name = f"{recipe.name} · {position + 1:0{len(str(len(main_line)))}} {phase.name}"
        tags = (recipe.name, *([REFUSED] if phase.name in refused else []))
        schedule = Schedule(slug="nightly", cron=f"{minute} {(2 + position) % 24} * * *")
        asks = {**of_phase, "phase": (phase.name,)}
        made.append(_deployment("train-phase", name, text, asks, tags=tags, refused=refused, schedule=schedule))
    if branches:
        text = f"Trains one branch of {recipe.name}. The form lists the branches.\n\n{_WAITS}"
        asks = {"phase": branches, **of_phase}
        made.append(_deployment("train-phase", f"{recipe.name} · branch", text, asks, tags=(recipe.name,), refused=refused))
    return made


def _of_all(sources: Sequence[Source]) -> list[Deployment]:
    """Return the start page and the deployments without training, from `forms.yaml`. Their forms list the recipes."""
    default = tuple(dict.fromkeys(default_scale(source.written) for source in sources))
    full = tuple(dict.fromkeys(scale for one in default for scale in (one, *(("full",) if one == "proxy" else ()))))
    scales = {"default": default, "any": full, "not proxy": tuple(one for one in full if one != "proxy")}
    phases = tuple(dict.fromkeys(phase.name for source in sources for phase in source.written.phases))
    choices: dict[str, tuple[str, ...]] = dict.fromkeys(("phase", "up_to", "control"), phases)
    refused = {f"{source.written.name}/{name}": why for source in sources for name, why in refusals(source.written).items()}
    made: list[Deployment] = []
    for name, form in read_yaml(Path(__file__).with_name("forms.yaml")).items():
        text = form["text"].format(page=PAGE, trainings=MAX_TRAININGS).strip()
        if name == START:
            text = "\n".join([text, *(f"* **Refused by design**: {phase}, because {why}." for phase, why in refused.items())])
        asks = {"recipe": tuple(source.given for source in sources), "scale": scales[form["scales"]]}
        asks |= {field: choices.get(field, ()) for field in (*form["asks"], "settings")}
        made.append(_deployment(form["flow"], name, text, asks, required=tuple(form["required"])))
    return made


def _deployment(
    flow: Kind,
    name: str,
    description: str,
    asks: Mapping[str, tuple[str, ...]],
    *,
    tags: tuple[str, ...] = (),
    required: tuple[str, ...] = (),
    refused: Mapping[str, str] | None = None,
    schedule: Schedule | None = None,
) -> Deployment:
    """Return a deployment. A recipe, phase or scale with a single choice is fixed."""
    fixed = {field: asks[field][0] for field in FIXED if len(asks.get(field, ())) == 1}
    phase = fixed.get("phase")
    why = (refused or {}).get(phase or "")
    return Deployment(
        flow=flow,
        name=name,
        description=f"{description}\n\n**Refused by design**: {why}." if why else description,
        tags=(TAG, *tags, FLOWS[flow].subject, *([fixed["scale"]] if "scale" in fixed else [])),
        parameters=fixed,
        asks={field: choices for field, choices in asks.items() if field not in fixed},
        required=tuple(field for field in required if field not in fixed) + (("phase",) if flow == "train-phase" and not phase else ()),
        refused=dict(refused or {}),
        schedules=(schedule,) if schedule else (),
    )
