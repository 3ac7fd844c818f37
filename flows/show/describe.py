"""A recipe and its phases as data, for `show --json`. All numbers are resolved. Its cost on a slice."""

from pathlib import Path
from typing import Any

from rich.console import Console

from phasewise.flows.recipes import load_record, load_written, split_target
from phasewise.flows.recipes.facts import results_of, sources_of
from phasewise.flows.recipes.hand_off import both_in_words, plain
from phasewise.flows.recipes.phase import GATES, FromScratch, HandOff, Phase
from phasewise.flows.recipes.recipe import Recipe, Scale
from phasewise.flows.recipes.waivers import limited_to
from phasewise.tasks.home import Home
from phasewise.tasks.phase_state import PhaseState, State, read_work, settle, state_now
from phasewise.trainer.base.decision import ruling_at
from phasewise.trainer.base.errors import ConfigError, VerdictError
from phasewise.trainer.base.identity import NotAsWritten, read_sealed
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.wording import rounded, small, to_places, tokens
from phasewise.trainer.config import Steps, learning_rate_at, sequences_between, without_added
from phasewise.trainer.data.mixture import block_counts

COMPARED = ("start_step", "stop_step", "model", "optimizer", "learning_rate", "stability", "order")
"""Fields of `run.json` with the phase's own values."""


def state_here(recipe: Recipe, phase: Phase, home: Home) -> dict[str, Any]:
    """The state of a phase in a home, with the reason. Only verdicts and settings count, for speed."""
    settled = _settled_here(recipe, phase, home)
    if not home.is_local:
        return {"state": settled.state, "why": settled.why}
    now = state_now(home, recipe.run_name, phase.name, settled, work=read_work(home, recipe.run_name, phase.name))
    return {"state": now.state, "why": now.why}


def _settled_here(recipe: Recipe, phase: Phase, home: Home) -> PhaseState:
    limits = {"data": phase.gates.data, "health": phase.gates.health, "model": phase.gates.model}
    verdicts: list[dict[str, Any] | None] = []
    for gate in GATES:
        path = home.verdict(recipe.run_name, phase.name, gate)
        verdict = _sealed_or_none(path)
        verdicts.append(verdict)
        if verdict is None:
            continue
        if verdict.get("thresholds") != limits[gate].model_dump(mode="json"):
            return PhaseState(state=State.OUTDATED, why=f"its verdict on {gate} has other limits")
        try:
            ruling = ruling_at(path, verdict)
        except VerdictError as error:
            return PhaseState(state=State.REFUSED, why=str(error))
        if ruling.lets_go_on:
            continue
        reasons = verdict.get("reasons") or [{"what": f"see verdicts/{path.parent.parent.name}/{path.parent.name}/{path.name}"}]
        if ruling.state == "waits":
            return PhaseState(state=State.WAITS_FOR_PERSON, why=reasons[0]["what"])
        return PhaseState(state=State.REFUSED, why=ruling.decision.words if ruling.decision else reasons[0]["what"])
    run = _sealed_or_none(RunFolder(home.run(recipe.run_name, phase.name)).run_file)
    if run:
        now = phase.model_dump(mode="json", include=set(COMPARED)) | {"start_step": phase.start_step}
        if changed := [name for name in COMPARED if without_added(run.get(name)) != without_added(now[name])]:
            return PhaseState(state=State.OUTDATED, why=f"it was trained with other values of {', '.join(changed)}")
    state = settle(None, is_complete=all(verdicts), is_outdated=False, is_begun=run is not None)
    return PhaseState(state=state, stop_step=phase.stop_step)


def _sealed_or_none(path: Path) -> dict[str, Any] | None:
    try:
        return read_sealed(path)
    except (OSError, NotAsWritten):
        return None


def describe_changes(recipe: Recipe, phase: Phase) -> list[dict[str, Any]]:
    """The changes of the hand-off to a phase, with values before and after."""
    if not isinstance(phase.start, HandOff):
        return []
    changes: list[dict[str, Any]] = []
    for what, pair in recipe.changes_of(phase).items():
        before, after = (list(value) if isinstance(value, tuple) else plain(value) for value in pair)
        changes.append({"what": what, "before": before, "after": after, "declared": what in phase.start.declares})
    return changes


def change_in_words(before: Any, after: Any) -> str:
    """Both values as text. Of settings, only differing fields."""
    if isinstance(before, dict) and isinstance(after, dict) and not (_is_mixture(before) or _is_mixture(after)):
        return " → ".join(both_in_words(before, after))
    return f"{_value_in_words(before)} → {_value_in_words(after)}"


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


def describe(target: str, scale: Scale, step: int | None, *, home: str | None = None) -> dict[str, Any]:
    """A recipe or one phase. With `step`, the values for the update after that step, on the main line or in the phase."""
    name, chosen = split_target(target)
    recipe = load_record(name, scale, chosen)
    phases = (recipe.phase(chosen),) if chosen else recipe.phases
    described = describe_recipe(recipe) | {"full": load_written(name).scale == "full"}
    described["accepts"] = [one.model_dump(mode="json") for one in limited_to([phase.name for phase in phases], recipe.accepts)]
    if step is None:
        from phasewise.flows.resolved import home_in_trial  # it imports the data's libraries

        place, reported = home_in_trial(Home.at(home, reads_only=True), target, scale), results_of(recipe)
        place.look(recipe.run_name)
        shown: list[dict[str, Any]] = []
        for phase in phases:
            known = {
                "verdict": state_here(recipe, phase, place),
                "reported": [one.model_dump(mode="json") for one in reported.get(phase.name, ())],
                "sources": {field: one.model_dump(mode="json") for field, one in sources_of(recipe, phase).items()},
            }
            shown.append(describe_phase(recipe, phase) | known)
        return {**described, "phases": shown}
    line = phases if chosen else recipe.main_line
    at_step = [one for one in line if one.start_step <= step < one.stop_step] or [one for one in line if one.stop_step == step]
    if not at_step:
        spans = ", ".join(f"{one.name} {one.start_step} → {one.stop_step}" for one in line)
        raise ConfigError(f"no phase of {target} trains at step {step}. Phases are {spans}. For a branch, name the branch.")
    return {**described, "step": step, "phases": [describe_step(recipe, one, step) for one in at_step]}


def describe_recipe(recipe: Recipe) -> dict[str, Any]:
    """Name, scale and tokenizer, and the recipe's sources, pins and length biases."""
    further = {
        "sources": {name: plain(source) for name, source in recipe.sources.items()},
        "pins": [plain(pin) for pin in recipe.pins],
        "length_bias": {name: plain(bias) for name, bias in sorted(recipe.length_bias.items())},
    }
    named = {"recipe": recipe.name, "scale": recipe.scale, "tokenizer": plain(recipe.tokenizer)}
    return {**named, **{name: found for name, found in further.items() if found}}


def describe_phase(recipe: Recipe, phase: Phase) -> dict[str, Any]:
    """Every value of a phase. `active_parameters` are the weights per token. Shares are percent, batches sequences."""
    from phasewise.trainer.model.params import count_active_parameters, count_parameters

    def entries(values: Steps[Any]) -> list[list[Any]]:
        return [[step, plain(value)] for step, value in values.within(phase.start_step, phase.stop_step)]

    start: dict[str, Any] = {"parent": None, "step": 0, "fresh": ["params", "optimizer"], "graft": [], "declares": []}
    if isinstance(phase.start, HandOff):
        dumped = phase.start.model_dump(mode="json")
        start = {name: dumped[name] for name in start}
    elif isinstance(phase.start, FromScratch):
        start["seed"] = phase.start.seed
    else:
        source = phase.start.model_dump(mode="json")
        start |= {"fresh": [part for part in phase.state_parts if part != "qk_norm"], "declares": source.pop("declares"), **source}
    own = ("name", "start_step", "stop_step", "branch", "abandoned", "schedule_goes_on", "tokens")
    return {
        **{name: getattr(phase, name) for name in own}, "lineage_tokens": recipe.tokens_before(phase, phase.stop_step),
        "parameters": count_parameters(phase.model), "active_parameters": count_active_parameters(phase.model),
        "model": plain(phase.model), "learning_rate": [plain(segment) for segment in phase.learning_rate], "batch": entries(phase.batch),
        "mixture": entries(phase.mixture), "optimizer": plain(phase.optimizer),
        "stability": {name: entries(values) for name, values in phase.stability},
        **{name: plain(getattr(phase, name)) for name in ("order", "packing", "loss_on")},
        "length_bias": {name: plain(bias) for name, bias in recipe.length_bias.items() if name in phase.components},
        "slice": entries(phase.slice),
        **{
            name: plain(getattr(phase, name)) for name in ("checkpoints", "evaluation", "gates", "recovery", "instrumentation", "execution")
        },
        "start": start, "changes": describe_changes(recipe, phase),
        "discrepancies": [plain(discrepancy) for discrepancy in phase.discrepancies], "notes": [plain(note) for note in phase.notes],
    }  # fmt: skip


def describe_step(recipe: Recipe, phase: Phase, step: int) -> dict[str, Any]:
    """The values for the update after `step` updates. At the end of a phase (`ended`) most values are of the last update."""
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
        **{name: plain(getattr(phase, name)) for name in ("model", "optimizer", "order", "packing", "loss_on")},
        "phase_tokens_before": phase.model.seq_len * sequences_between(phase.batch, phase.start_step, step),
        "lineage_tokens_before": recipe.tokens_before(phase, step),
    }


Takes = dict[str, Any]


def describe_takes(recipe: Recipe, slice_name: str | None, home: Home) -> Takes:
    """Sums over the main line. A recipe without a main line has sums over all phases. Raises ConfigError for an unknown slice."""
    from phasewise.flows.recipes.sizes import body_parameters
    from phasewise.trainer.flops import step_flops
    from phasewise.trainer.model.params import count_active_parameters, count_parameters

    phases = recipe.main_line or recipe.phases
    model = phases[0].model
    found: Takes = {
        "body_parameters": body_parameters(model),
        "parameters": count_parameters(model),
        "active_parameters": count_active_parameters(model),
        "tokens": sum(phase.tokens for phase in phases),
        "steps": sum(phase.stop_step - phase.start_step for phase in phases),
        "batch": [list(entry) for phase in phases for entry in phase.batch.within(phase.start_step, phase.stop_step)],
        "flops": sum(
            step_flops(phase.model, 1).total * sequences_between(phase.batch, phase.start_step, phase.stop_step) for phase in phases
        ),
        "on": None,
    }
    if slice_name is None:
        return found
    from phasewise.flows.plan import setups_of
    from phasewise.tasks.preflight.launcher import preflight_setup
    from phasewise.tasks.preflight.slices import find_slice

    where = find_slice(slice_name)
    reports = [preflight_setup(setup, home, estimated=True) for setup in setups_of(phases, slice_name)]
    refused = [f"{report['phase']}: {report['reason']}" for report in reports if not report["fits"]]
    places = {"days": 2, "chip_hours": 0}
    sums = {name: None if refused else to_places(sum(report[name] for report in reports), places[name]) for name in places}
    most = max((report["gib_per_chip"]["peak"] or 0.0 for report in reports), default=0.0)
    found["on"] = {"slice": where.name, "chips": where.chips, "estimated": True, "refused": refused, "gib_per_chip": most or None, **sums}
    return found


def print_takes(takes: Takes, console: Console) -> None:
    """One or two lines below the table of phases."""
    size = f"{tokens(takes['body_parameters'])} parameters without embedding and head"
    is_sparse = takes["parameters"] != takes["active_parameters"]
    size += f" that a token meets ({tokens(takes['parameters'])} in all)" if is_sparse else f" ({tokens(takes['parameters'])} with)"
    sizes = [size for _, size in takes["batch"]]
    changes = [size for number, size in enumerate(sizes) if number == 0 or sizes[number - 1] != size]
    batches = " → ".join(f"{size:,}" for size in changes)
    steps = f"{tokens(takes['tokens'])} tokens in {takes['steps']:,} steps of {batches} sequences"
    console.print(f"Takes: {size}; {steps}; {takes['flops']:.2g} FLOPs.")
    if (on := takes["on"]) is None:
        return
    if on["refused"]:
        console.print(f"Does not fit {on['slice']}, by an estimate: {on['refused'][0]}.", markup=False)
        return
    console.print(
        f"On {on['slice']}: {small(on['days'], 2)} days, {small(on['chip_hours'], 0)} chip-hours, up to {on['gib_per_chip']:.1f} GiB a "
        "chip. Estimated, not compiled: preflight says more."
    )
