"""Changes of a recipe for a trial, from `--set PHASE.NAME=VALUE`. `NAME=VALUE` and `*.NAME=VALUE` change every phase.

`PHASE.fork=NAME` copies a phase as a branch. The branch declares the changes at the hand-off, so settings of the branch need no setting
of `declares`. Existing phases stay unchanged.

Flows take the changes as their parameter `settings`. Within a flow or a command they apply to every loaded recipe.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, NamedTuple, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from phasewise.flows.recipes.feasibility import phases_without_order, with_blocks
from phasewise.flows.recipes.phase import HAND_OFF, PRETRAINED, SCRATCH, Change, FromScratch, Phase
from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.recipes.written import rewrite_schedule, schedule_arguments
from phasewise.trainer.base.errors import ConfigError, RecipeError
from phasewise.trainer.base.frozen import join_problems, state_problem
from phasewise.trainer.base.storage import parse_json
from phasewise.trainer.base.wording import near
from phasewise.trainer.config import AdamC, ExecutionSettings, StatePart

WORDS: Mapping[str, tuple[str, ...]] = {"declares": get_args(Change), "fresh": get_args(StatePart), "part": get_args(StatePart)}


def problems(error: ValidationError, raw: Any = None) -> str:
    """All problems in one line, which ends with a stop. `raw`: the recipe as JSON, for the names of its phases."""

    def described(item: ErrorDetails) -> str:
        value: Any = item["input"]
        names = [part for part in item["loc"] if isinstance(part, str)]
        known = WORDS.get(names[-1]) if names else None
        if item["type"] == "literal_error" and known and isinstance(value, str):
            return f"{_path(item, raw)}: {value!r} is unknown, {near(value, known).removesuffix('.')}"
        return f"{_path(item, raw)}: {state_problem(item)}"

    found = join_problems(error, of_field=described)
    return found if found.endswith("?") else f"{found}."


def _path(item: ErrorDetails, raw: Any) -> str:
    """The field's dotted path for `--set`, without the kind of a start and the only entry of a value by steps."""
    parts: list[str] = []
    at = raw
    for number, part in enumerate(item["loc"]):
        if part in (HAND_OFF, PRETRAINED, SCRATCH):
            continue
        inner: Any = None
        with suppress(KeyError, IndexError, TypeError):
            inner = at[part]
        named = inner.get("name") if number == 1 and item["loc"][0] == "phases" and isinstance(inner, dict) else None
        parts = [named] if isinstance(named, str) else [*parts, str(part)]
        at = inner
    if raw is not None and parts[-2:] == ["0", "1"] and len(parts) > 2:
        parts = parts[:-2]
    return ".".join(parts) or "recipe"


OF_RECIPE, EVERY_PHASE = "recipe", "*"
NOT_SET = {"phases": "name a phase: PHASE.FIELD=VALUE", "scale": "use --scale"}
SEED, PEAK, FORK = "seed", "peak", "fork"
"""`seed` sets the seed of the weights and of the data order. `fork` names a copy of the phase."""
NOT_OF_CALL = ("name", "start", "parent", "slice")
Raw = dict[str, Any]
Settings = tuple[str, ...]

_in_force: ContextVar[Settings] = ContextVar("settings", default=())


@contextmanager
def setting(settings: Sequence[str]) -> Iterator[None]:
    """Apply settings to each recipe that is loaded within the context."""
    before = _in_force.set(tuple(settings))
    try:
        yield
    finally:
        _in_force.reset(before)


def settings_in_force() -> Settings:
    """The settings of the current context."""
    return _in_force.get()


class Setting(NamedTuple):
    """A parsed setting: `PHASE`, `recipe` or `*`, the dotted path of the field, and the value."""

    text: str
    head: str
    path: tuple[str, ...]
    value: Any


def forks_in_force() -> dict[str, str]:
    """The branches of the current settings → the phases that they copy."""
    return {str(one.value): one.head for one in map(_parse, settings_in_force()) if one.path == (FORK,)}


def forked(recipe: Recipe) -> Recipe:
    """The recipe with the branches of `forks_in_force` at the end. Raises ConfigError for an unknown phase or a used name."""
    copies: list[Phase] = []
    for name, of in forks_in_force().items():
        if name in {one.name for one in recipe.phases}:
            raise ConfigError(f"--set {of}.{FORK}={name}: {recipe.name} has a phase {name} already. Choose another name.")
        copies.append(recipe.phase(of).as_branch(name))
    return Recipe.model_construct(None, **{**dict(recipe), "phases": (*recipe.phases, *copies)}) if copies else recipe


def assigned(recipe: Recipe) -> Recipe:
    """The recipe with the current settings, validated again.

    `PHASE.NAME=VALUE` changes an argument of the call that wrote the phase or its schedule, and dependent values follow. Then settings of
    other fields replace values.
    """
    settings = settings_in_force()
    if not settings:
        return recipe
    given = " ".join(f"--set {one}" for one in settings)
    recipe = forked(recipe)
    of_calls: dict[str, dict[str, Any]] = {}
    of_values: list[Setting] = []
    for setting in [one for one in map(_parse, settings) if one.path != (FORK,)]:
        is_written = len(setting.path) == 1 and setting.path[0] not in NOT_OF_CALL
        chosen = [phase for phase in recipe.phases if setting.head in (EVERY_PHASE, phase.name)] if is_written else []
        known = [phase for phase in chosen if setting.path[0] in (*names_of_call(phase), *Phase.model_fields, SEED)]
        named = [phase.name for phase in known if phase.call]
        for name in named:
            of_calls.setdefault(name, {})[setting.path[0]] = setting.value
        if not named:
            of_values.append(setting)
    unstated = phases_without_order(recipe) - {name for name, changes in of_calls.items() if "order" in changes}
    recipe = with_blocks(_rewritten(recipe, of_calls, given), unstated)
    raw = recipe.model_dump(mode="json")
    for phase in raw["phases"]:
        phase.setdefault("execution", ExecutionSettings().model_dump(mode="json"))
        phase.setdefault("forecast", False)
        phase["instrumentation"].setdefault("mlflow", None)
    for setting in of_values:
        _assign(raw, setting, recipe)
    stops = {phase["name"]: phase["stop_step"] for phase in raw["phases"]}
    for phase in raw["phases"]:
        start = phase["start"]
        stop = stops.get(start.get("parent"))
        if isinstance(stop, int) and isinstance(start["step"], int) and start["step"] > stop != recipe.phase(start["parent"]).stop_step:
            raise RecipeError(
                f"{given}: phase {phase['name']} starts from step {start['step']} of {start['parent']}, which would stop at step {stop}. "
                f"Set {phase['name']}.start.step and its learning rate as well."
            )
    forks = forks_in_force()
    try:
        for number, phase in enumerate(raw["phases"]):
            if phase["name"] in forks and "parent" in phase["start"]:
                changed = [Phase.model_validate(one) for one in raw["phases"][: number + 1]]
                made = Recipe.model_construct(None, **{**dict(recipe), "phases": tuple(changed)}).changes_of(changed[-1])
                phase["start"]["declares"] = list(made)
        return Recipe.model_validate(raw)
    except ValidationError as error:
        raise RecipeError(f"{recipe.name} is invalid with {given}: {problems(error, raw)}") from None


def names_of_call(phase: Phase) -> tuple[str, ...]:
    """The names that `--set` changes by calling the function of the phase again. Empty for a phase without a call."""
    if phase.call is None:
        return ()
    arguments = phase.call.arguments
    names = [*arguments, *Phase.model_fields, *schedule_arguments(arguments.get("learning_rate")), SEED]
    return tuple(name for name in dict.fromkeys(names) if name not in NOT_OF_CALL)


def _parse(setting: str) -> Setting:
    place, equals, text = setting.partition("=")
    parts = place.strip().split(".")
    if equals and len(parts) == 1:
        parts = [EVERY_PHASE, *parts]
    if not equals or not all(parts):
        raise ConfigError(f"--set takes PHASE.NAME=VALUE, NAME=VALUE for every phase, or {OF_RECIPE}.NAME=VALUE, found {setting!r}.")
    try:
        value = parse_json(text.strip()) if text.strip() else ""
    except json.JSONDecodeError:
        value = text.strip()
    except ValueError as error:
        raise RecipeError(f"--set {setting[:120]}: {error}.") from None
    return Setting(setting, parts[0], tuple(parts[1:]), value)


def _rewritten(recipe: Recipe, settings: Mapping[str, Mapping[str, Any]], given: str) -> Recipe:
    """The recipe whose phases are written again with other arguments, and then the phases that continue from them."""
    phases: dict[str, Phase] = {}
    for phase in recipe.phases:
        parent = phases.get(phase.parent or "")
        is_changed = phase.name in settings or (parent is not None and parent is not recipe.phase(parent.name))
        try:
            phases[phase.name] = _write_again(phase, parent, settings.get(phase.name, {})) if is_changed else phase
        except ValidationError as error:
            problem = f"{phase.name}.{problems(error)}".replace(f"{phase.name}.recipe: ", f"{phase.name}: ")
            raise RecipeError(f"{recipe.name} is invalid with {given}: {problem}") from None
        except RecipeError as error:
            raise RecipeError(f"{recipe.name} is invalid with {given}: {phase.name}: {error}") from None
    return recipe if not settings else Recipe.model_construct(None, **{**dict(recipe), "phases": tuple(phases.values())})


def _write_again(phase: Phase, parent: Phase | None, changes: Mapping[str, Any]) -> Phase:
    if phase.call is None:
        return phase
    before = phase.call.arguments
    schedule = before.get("learning_rate")
    of_schedule = {name: value for name, value in changes.items() if name in schedule_arguments(schedule) and name not in before}
    after = {**before, **{name: value for name, value in changes.items() if name not in (*of_schedule, SEED)}}
    numbers = {**{name: after[name] for name in ("stop_step", "step") if name in after}, **of_schedule}
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise RecipeError(f"{name}: expected a number, found {value!r}.")
    if parent is not None:
        after["parent"] = parent
    start = after.get("step", parent.stop_step) if parent else phase.start_step
    if start >= after["stop_step"]:
        raise RecipeError(f"stop_step: expected more than {start}, where the phase starts, found {after['stop_step']}. Set it as well.")
    if schedule is not None and "learning_rate" not in changes:
        moves = {phase.start_step: start, phase.stop_step: after["stop_step"]}
        after["learning_rate"] = rewrite_schedule(schedule, moves, of_schedule)
        optimizer = after.get("optimizer")
        if isinstance(optimizer, AdamC) and optimizer.peak_learning_rate == schedule_arguments(schedule).get(PEAK):
            after["optimizer"] = optimizer.but(peak_learning_rate=of_schedule.get(PEAK, optimizer.peak_learning_rate))
    if SEED in changes:
        after["order"] = after.get("order", phase.order).but(seed=changes[SEED])
        if isinstance(phase.start, FromScratch):
            after[SEED if SEED in before else "start"] = changes[SEED] if SEED in before else FromScratch(seed=changes[SEED])
    return phase.call.function(**after)


def _assign(raw: Raw, setting: Setting, recipe: Recipe) -> None:
    head, parts, text = setting.head, setting.path, setting.text
    phases = {phase["name"]: phase for phase in raw["phases"]}
    if head == EVERY_PHASE:
        for name, phase in phases.items():
            _assign(raw, setting._replace(head=name), recipe)
            if parts == ("slice",) and "declares" in phase["start"]:
                phase["start"]["declares"] = [name for name in phase["start"]["declares"] if name != "slice"]
        return
    if head == OF_RECIPE and parts and parts[0] in NOT_SET:
        raise ConfigError(f"--set {text}: {parts[0]} cannot be set this way. Instead, {NOT_SET[parts[0]]}.")
    if head != OF_RECIPE and head not in phases:
        raise RecipeError(f"--set {text}: {raw['name']} has no phase {head!r}, {near(head, [*phases, OF_RECIPE])}")
    if head != OF_RECIPE and parts == (SEED,):
        for holder in (phases[head]["start"], phases[head]["order"]):
            holder |= {SEED: setting.value} if SEED in holder else {}
        return
    known = names_of_call(recipe.phase(head)) if head != OF_RECIPE and len(parts) == 1 else ()
    holder: Any = raw if head == OF_RECIPE else phases[head]
    for number, part in enumerate(parts[:-1]):
        holder = holder[_key(holder, part, ".".join([head, *parts[:number]]), text)]
    holder[_key(holder, parts[-1], ".".join([head, *parts[:-1]]), text, known)] = setting.value


def _key(holder: Any, part: str, place: str, setting: str, names: Sequence[str] = ()) -> str | int:
    if isinstance(holder, dict):
        if part not in holder:
            raise RecipeError(f"--set {setting}: {place} has no field {part!r}, {near(part, list(dict.fromkeys([*holder, *names])))}")
        return part
    if isinstance(holder, list):
        if not (part.isdigit() and int(part) < len(holder)):
            raise RecipeError(f"--set {setting}: {place} is a list of {len(holder)}: take a number from 0 on, or set {place} as a whole.")
        return int(part)
    raise RecipeError(f"--set {setting}: {place} is {json.dumps(holder)}, and has no fields: set {place} as a whole.")
