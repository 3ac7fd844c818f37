"""A recipe and its phases as data: what `show --json` prints. Every number is resolved."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel

from phasewise.flows.recipes import load_record, load_written, split_target
from phasewise.flows.recipes.facts import Reported, results_of, sources_of
from phasewise.flows.recipes.hand_off import both_in_words
from phasewise.flows.recipes.phase import HandOff, Phase
from phasewise.flows.recipes.recipe import Recipe, Scale
from phasewise.flows.recipes.waivers import limited_to
from phasewise.flows.resolved import home_in_trial
from phasewise.tasks.home import Home
from phasewise.trainer.base.decision import ruling_at
from phasewise.trainer.base.errors import ConfigError, VerdictError
from phasewise.trainer.base.identity import NotAsWritten, read_sealed
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.wording import rounded
from phasewise.trainer.config import Steps, learning_rate_at, sequences_between
from phasewise.trainer.data.mixture import block_counts

GATES = ("data", "health", "model")
COMPARED = ("start_step", "stop_step", "model", "optimizer", "learning_rate", "stability", "order")
"""What `run.json` has of the phase itself, as the phase has it."""


def verdict_here(recipe: Recipe, phase: Phase, home: Home) -> dict[str, Any]:
    """`state` is "passed", "refused", "waits for a person", "out of date" or None where the phase is not finished here; `why` says more."""
    verdicts = {gate: _verdict_or_none(home.verdict(recipe.run_name, phase.name, gate)) for gate in GATES}
    limits = {"data": phase.gates.data, "health": phase.gates.health, "model": phase.gates.model}
    for gate, verdict in verdicts.items():
        if verdict is None:
            continue
        if verdict.get("thresholds") != limits[gate].model_dump(mode="json"):
            return {"state": "out of date", "why": f"its verdict on {gate} was given within other limits"}
        if why := _why_stopped(home.verdict(recipe.run_name, phase.name, gate), verdict):
            return why
    run = _verdict_or_none(RunFolder(home.run(recipe.run_name, phase.name)).run_file)
    if run and (changed := _changed(run, phase)):
        return {"state": "out of date", "why": f"it was trained with other values of {', '.join(changed)}"}
    return {"state": "passed" if all(verdicts.values()) else None, "why": ""}


def _why_stopped(path: Path, verdict: dict[str, Any]) -> dict[str, Any] | None:
    try:
        ruling = ruling_at(path, verdict)
    except VerdictError as error:
        return {"state": "refused", "why": str(error)}
    if ruling.lets_go_on:
        return None
    reasons = verdict.get("reasons") or [{"what": f"see verdicts/{path.parent.parent.name}/{path.parent.name}/{path.name}"}]
    if ruling.state == "waits":
        return {"state": "waits for a person", "why": reasons[0]["what"]}
    return {"state": "refused", "why": ruling.decision.words if ruling.decision else reasons[0]["what"]}


def _verdict_or_none(path: Path) -> dict[str, Any] | None:
    try:
        return read_sealed(path, may_lack_seal=True)
    except (OSError, NotAsWritten):
        return None


def _changed(run: dict[str, Any], phase: Phase) -> list[str]:
    dumped: dict[str, Any] = {"start_step": phase.start_step, "stop_step": phase.stop_step}
    dumped |= {name: getattr(phase, name).model_dump(mode="json") for name in ("model", "optimizer", "stability", "order")}
    dumped["learning_rate"] = [segment.model_dump(mode="json") for segment in phase.learning_rate]
    return [name for name in COMPARED if _without_defaults(run.get(name)) != _without_defaults(dumped[name])]


def _without_defaults(value: Any) -> Any:
    from phasewise.trainer.config import without_added

    return without_added(value)


def describe_changes(recipe: Recipe, phase: Phase) -> list[dict[str, Any]]:
    """What the hand-off to the phase changes, each with before and after. An undeclared one was refused when the recipe was loaded."""
    if not isinstance(phase.start, HandOff):
        return []
    found = recipe.changes_of(phase)
    return [
        {"what": what, "before": _dumped(before), "after": _dumped(after), "declared": what in phase.start.declares}
        for what, (before, after) in found.items()
    ]


def change_in_words(before: Any, after: Any) -> str:
    """Both values. Of settings, only those that differ."""
    if isinstance(before, dict) and isinstance(after, dict) and not (_is_mixture(before) or _is_mixture(after)):
        return " → ".join(both_in_words(before, after))
    return f"{_value_in_words(before)} → {_value_in_words(after)}"


def _dumped(value: object) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")  # pyright: ignore[reportAttributeAccessIssue]  # a pydantic model
    return list(value) if isinstance(value, tuple) else value


def _is_mixture(value: dict[str, Any]) -> bool:
    return bool(value) and all(isinstance(share, float) for share in value.values()) and abs(sum(value.values()) - 100) < 1


def _value_in_words(value: Any) -> str:
    if isinstance(value, dict):
        if _is_mixture(value):
            largest = sorted(value.items(), key=lambda item: -item[1])[:3]
            return f"{len(value)} components ({', '.join(f'{name} {share:.1f} %' for name, share in largest)} …)"
        return ", ".join(f"{name} {_value_in_words(part)}" for name, part in value.items() if part is not None)
    if isinstance(value, list):
        return ", ".join(_value_in_words(part) for part in value)
    return "off" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def load_shown(target: str, scale: Scale) -> tuple[Recipe, tuple[Phase, ...], bool]:
    """The recipe, the phases that are meant, and whether one was named.

    Raises:
        ConfigError: no such recipe or phase.
    """
    name, chosen = split_target(target)
    recipe = load_record(name, scale, chosen)
    return recipe, (recipe.phase(chosen),) if chosen else recipe.phases, chosen is not None


def describe(target: str, scale: Scale, step: int | None, *, home: str | None = None) -> dict[str, Any]:
    """The recipe, or one phase of it; with `step`, what is in force after so many updates, on the main line or in the phase.

    Args:
        home: whose verdicts are shown, as `Home.at` takes it. Nothing is made there.

    Raises:
        ConfigError: no such recipe or phase, none of its phases has the step, or the home cannot be read.
    """
    recipe, phases, chosen = load_shown(target, scale)
    described = describe_recipe(recipe) | {"full": load_written(split_target(target)[0]).scale == "full"}
    described["accepts"] = [one.model_dump(mode="json") for one in limited_to([phase.name for phase in phases], recipe.accepts)]
    if step is None:
        place, reported = home_in_trial(Home.at(home, reads_only=True), target, scale), results_of(recipe)
        place.look(recipe.run_name)
        return {**described, "phases": [_with_what_is_known(recipe, one, place, reported) for one in phases]}
    at_step = phases_at(phases if chosen else recipe.main_line, step)
    if not at_step:
        spans = ", ".join(f"{one.name} {one.start_step} → {one.stop_step}" for one in (phases if chosen else recipe.main_line))
        raise ConfigError(f"no phase of {target} trains at step {step}; there are {spans}. Name a branch to ask about its steps.")
    return {**described, "step": step, "phases": [describe_step(recipe, one, step) for one in at_step]}


def _with_what_is_known(recipe: Recipe, phase: Phase, home: Home, reported: dict[str, tuple[Reported, ...]]) -> dict[str, Any]:
    rows = [one.model_dump(mode="json") for one in reported.get(phase.name, ())]
    sources = {field: one.model_dump(mode="json") for field, one in sources_of(recipe, phase).items()}
    known = {"verdict": verdict_here(recipe, phase, home), "reported": rows, "sources": sources}
    return describe_phase(recipe, phase) | known


def phases_at(phases: tuple[Phase, ...], step: int) -> list[Phase]:
    """Those that train the update after so many others; where none does, those that end with this step."""
    return [one for one in phases if one.start_step <= step < one.stop_step] or [one for one in phases if one.stop_step == step]


def describe_recipe(recipe: Recipe) -> dict[str, Any]:
    """Name, scale and tokenizer; sources, pins, and components whose documents are taken by their length, where the recipe has any."""
    sources = {name: source.model_dump(mode="json") for name, source in recipe.sources.items()}
    pins = [pin.model_dump(mode="json") for pin in recipe.pins]
    named = {"recipe": recipe.name, "scale": recipe.scale, "tokenizer": recipe.tokenizer.model_dump(mode="json")}
    biases = {name: bias.model_dump(mode="json") for name, bias in sorted(recipe.length_bias.items())}
    beside = {"sources": sources, "pins": pins, "length_bias": biases}
    return {**named, **{name: found for name, found in beside.items() if found}}


def describe_phase(recipe: Recipe, phase: Phase) -> dict[str, Any]:
    """Every number of a phase. `parameters` counts weights, `active_parameters` those that a token meets.

    Shares are percent; batch is in sequences of `model.seq_len` tokens.
    """
    from phasewise.trainer.model.params import count_active_parameters, count_parameters

    def entries(values: Steps[Any]) -> list[list[Any]]:
        return [list(entry) for entry in values.within(phase.start_step, phase.stop_step)]

    return {
        "name": phase.name,
        "start_step": phase.start_step,
        "stop_step": phase.stop_step,
        "branch": phase.branch,
        "abandoned": phase.abandoned,
        "schedule_goes_on": phase.schedule_goes_on,
        "tokens": phase.tokens,
        "lineage_tokens": recipe.tokens_before(phase, phase.stop_step),
        "parameters": count_parameters(phase.model),
        "active_parameters": count_active_parameters(phase.model),
        "model": phase.model.model_dump(mode="json"),
        "learning_rate": [segment.model_dump(mode="json") for segment in phase.learning_rate],
        "batch": entries(phase.batch),
        "mixture": entries(phase.mixture),
        "optimizer": phase.optimizer.model_dump(mode="json"),
        "stability": {name: [[step, plain(value)] for step, value in entries(values)] for name, values in phase.stability},
        "order": phase.order.model_dump(mode="json"),
        "packing": phase.packing,
        "loss_on": phase.loss_on,
        "length_bias": {name: bias.model_dump(mode="json") for name, bias in recipe.length_bias.items() if name in phase.components},
        "slice": entries(phase.slice),
        "checkpoints": phase.checkpoints.model_dump(mode="json"),
        "evaluation": phase.evaluation.model_dump(mode="json"),
        "gates": phase.gates.model_dump(mode="json"),
        "recovery": phase.recovery.model_dump(mode="json") if phase.recovery else None,
        "instrumentation": phase.instrumentation.model_dump(mode="json"),
        "start": describe_start(phase),
        "changes": describe_changes(recipe, phase),
        "discrepancies": [discrepancy.model_dump(mode="json") for discrepancy in phase.discrepancies],
        "notes": [note.model_dump(mode="json") for note in phase.notes],
    }


def describe_start(phase: Phase) -> dict[str, Any]:
    """Where a phase starts from; `seed` only where it starts from scratch."""
    if isinstance(phase.start, HandOff):
        start = phase.start
        return {
            "parent": start.parent,
            "step": start.step,
            "fresh": list(start.fresh),
            "graft": [graft.model_dump(mode="json") for graft in start.graft],
            "declares": list(start.declares),
        }
    return {"parent": None, "step": 0, "fresh": ["params", "optimizer"], "graft": [], "declares": [], "seed": phase.start.seed}


def describe_step(recipe: Recipe, phase: Phase, step: int) -> dict[str, Any]:
    """What is in force for the update that follows `step` others; `mixture_sequences` are those of each component in a block.

    After a phase's last step no update follows in it: `ended` is true, the learning rate is the one that its schedule ends at, and
    everything else is what its last update had.
    """
    last = min(step, phase.stop_step - 1)
    return {
        "name": phase.name,
        "ended": step == phase.stop_step,
        "learning_rate": rounded(learning_rate_at(phase.learning_rate, step)),
        "batch": phase.batch.at(last),
        "mixture": phase.mixture.at(last),
        "mixture_sequences": block_counts(phase.mixture.at(last), phase.order),
        **{name: plain(values.at(last)) for name, values in phase.stability},
        "slice": phase.slice.at(last),
        "model": phase.model.model_dump(mode="json"),
        "optimizer": phase.optimizer.model_dump(mode="json"),
        "order": phase.order.model_dump(mode="json"),
        "packing": phase.packing,
        "loss_on": phase.loss_on,
        "phase_tokens_before": phase.model.seq_len * sequences_between(phase.batch, phase.start_step, step),
        "lineage_tokens_before": recipe.tokens_before(phase, step),
    }


def plain(value: Any) -> Any:
    """A setting as JSON has it."""
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else value
