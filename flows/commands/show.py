"""`phasewise show`: every resolved number of a recipe, in the shape that scripts read."""

from typing import Any

import rich.box
from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from flows.recipes import load_record, split_target
from flows.recipes.accepting import accepted_among
from flows.recipes.phase import HandOff, Phase
from flows.recipes.recipe import Recipe, Scale, scale_in_words
from trainer.config import Steps, sequences_between
from trainer.data.mixture import block_counts
from trainer.errors import ConfigError
from trainer.schedule import learning_rate_at
from validations.accepted import AcceptedWarning


def describe(target: str, scale: Scale, step: int | None) -> dict[str, Any]:
    """The recipe, or one phase of it; with `step`, what is in force after so many updates, on the main line or in the phase.

    Raises:
        ConfigError: no such recipe or phase, or none of its phases has the step.
    """
    name, chosen = split_target(target)
    recipe = load_record(name, scale)
    phases = (recipe.phase(chosen),) if chosen else recipe.phases
    described: dict[str, Any] = {"recipe": recipe.name, "scale": recipe.scale, "tokenizer": recipe.tokenizer.model_dump(mode="json")}
    described |= describe_own_data(recipe)
    described["accepts"] = [one.model_dump(mode="json") for one in accepted_among([phase.name for phase in phases], recipe.accepts)]
    if step is None:
        return {**described, "phases": [describe_phase(recipe, one) for one in phases]}
    trained = phases if chosen else recipe.main_line
    at_step = [one for one in trained if one.start_step <= step < one.stop_step]
    if not at_step:
        spans = ", ".join(f"{one.name} {one.start_step} → {one.stop_step}" for one in trained)
        raise ConfigError(f"no phase of {target} trains at step {step}; there are {spans}.")
    return {**described, "step": step, "phases": [describe_step(recipe, one, step) for one in at_step]}


def describe_own_data(recipe: Recipe) -> dict[str, Any]:
    """The sources and pins that the recipe itself brings, where it brings any."""
    sources = {name: source.model_dump(mode="json") for name, source in recipe.sources.items()}
    pins = [pin.model_dump(mode="json") for pin in recipe.pins]
    return {**({"sources": sources} if sources else {}), **({"pins": pins} if pins else {})}


def describe_phase(recipe: Recipe, phase: Phase) -> dict[str, Any]:
    """Every number of a phase. `parameters` counts weights; shares are percent; batch is in sequences of `model.seq_len` tokens."""
    from trainer.model.params import count_parameters

    def entries(values: Steps[Any]) -> list[list[Any]]:
        return [list(entry) for entry in values.within(phase.start_step, phase.stop_step)]

    return {
        "name": phase.name,
        "start_step": phase.start_step,
        "stop_step": phase.stop_step,
        "branch": phase.branch,
        "abandoned": phase.abandoned,
        "tokens": phase.tokens,
        "lineage_tokens": recipe.tokens_before(phase, phase.stop_step),
        "parameters": count_parameters(phase.model),
        "model": phase.model.model_dump(mode="json"),
        "learning_rate": [segment.model_dump(mode="json") for segment in phase.learning_rate],
        "batch": entries(phase.batch),
        "mixture": entries(phase.mixture),
        "optimizer": phase.optimizer.model_dump(mode="json"),
        "stability": {name: [[step, _plain(value)] for step, value in entries(values)] for name, values in phase.stability},
        "order": phase.order.model_dump(mode="json"),
        "slice": entries(phase.slice),
        "checkpoints": phase.checkpoints.model_dump(mode="json"),
        "evaluation": phase.evaluation.model_dump(mode="json"),
        "gates": phase.gates.model_dump(mode="json"),
        "instrumentation": phase.instrumentation.model_dump(mode="json"),
        "start": describe_start(phase),
        "discrepancies": [discrepancy.model_dump(mode="json") for discrepancy in phase.discrepancies],
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
    """What is in force for the update that follows `step` others; `mixture_sequences` are those of each component in a block."""
    return {
        "name": phase.name,
        "learning_rate": learning_rate_at(phase.learning_rate, step),
        "batch": phase.batch.at(step),
        "mixture": phase.mixture.at(step),
        "mixture_sequences": block_counts(phase.mixture.at(step), phase.order),
        **{name: _plain(values.at(step)) for name, values in phase.stability},
        "slice": phase.slice.at(step),
        "phase_tokens_before": phase.model.seq_len * sequences_between(phase.batch, phase.start_step, step),
        "lineage_tokens_before": recipe.tokens_before(phase, step),
    }


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else value


def print_description(description: dict[str, Any]) -> None:
    """The same for people: a block a phase."""
    console = Console(highlight=False)
    console.print(f"{description['recipe']} {scale_in_words(description['scale'])}")
    own = {f"source of {name}": source["url"] for name, source in description.get("sources", {}).items()}
    own |= {f"pin of {pin['component']} ({pin['split']})": f"{pin['digest'][:16]} at {pin['url']}" for pin in description.get("pins", [])}
    if own:
        _print_values(console, own)
    _print_accepted(console, description["accepts"])
    for phase in description["phases"]:
        console.print()
        console.print(phase["name"], style="bold")
        if "stop_step" in phase:
            _print_phase(console, phase)
        else:
            _print_step(console, phase)


def _print_accepted(console: Console, accepts: list[dict[str, Any]]) -> None:
    """The warnings that the recipe accepts, each with its reason."""
    for one in map(AcceptedWarning.model_validate, accepts):
        phases = f"in {', '.join(one.phases)}" if one.phases else "in every phase"
        _print_values(console, {f"accepts a warning of {one.table}": f"{one.words}, {phases}\n{one.reason}\n({one.source})"})


def _print_step(console: Console, phase: dict[str, Any]) -> None:
    sequences = phase["mixture_sequences"]
    mixture = ", ".join(f"{name} {share:.2f} % ({sequences[name]})" for name, share in _by_share(phase["mixture"]))
    values = {name: _told(value) for name, value in phase.items() if name not in ("name", "mixture", "mixture_sequences")}
    _print_values(console, {**values, f"mixture (sequences of {sum(sequences.values()):,})": mixture})


def _print_phase(console: Console, phase: dict[str, Any]) -> None:
    start, stability = phase["start"], phase["stability"]
    origin = f"step {start['step']:,} of {start['parent']}" if start["parent"] else f"scratch, seed {start['seed']}"
    segments, seq_len = phase["learning_rate"], phase["model"]["seq_len"]
    shown = segments if len(segments) <= 4 else segments[:3]
    rates = "; ".join(f"{s['kind']} {s['start']:g} → {s['end']:g} until {s['end_step']:,}" for s in shown)
    more = f"; … {len(segments)} segments to step {segments[-1]['end_step']:,} at {segments[-1]['end']:g}" if shown != segments else ""
    values = {
        "from": origin + (f", declares {', '.join(start['declares'])}" if start["declares"] else ""),
        "steps": f"{phase['start_step']:,} → {phase['stop_step']:,}"
        + (", a branch" if phase["branch"] else "")
        + (", abandoned" if phase["abandoned"] else ""),
        "tokens": f"{phase['tokens']:,}, with its lineage {phase['lineage_tokens']:,}",
        "parameters": f"{phase['parameters']:,}",
        "batch": ", ".join(f"{size:,} × {seq_len:,} tokens from step {step:,}" for step, size in phase["batch"]),
        "attention": _attention(phase["model"]),
        "learning rate": rates + more,
        "optimizer": _told(phase["optimizer"]),
        "gradient clip": _steps(stability["max_grad_norm"]),
        "update RMS clip": _steps(stability["max_update_rms"]),
        "update norm clip": _steps(stability["max_update_norm"]),
        "skip-step": _steps(stability["skip_step"]),
        "z-loss": _steps(stability["z_loss"]),
        "EMA": _steps(stability["ema_decay"]),
        "order": _told(phase["order"]),
        "slice": _steps(phase["slice"]),
        "benchmarks": ", ".join(phase["evaluation"]["benchmarks"]),
    }
    _print_values(console, values)
    for step, shares in phase["mixture"]:
        _print_values(console, {f"mixture from {step:,}": _shares(shares)})
    for discrepancy in phase["discrepancies"]:
        told = f"code: {discrepancy['code']}\nretrospective: {discrepancy['retrospective']}\n({discrepancy['source']})"
        _print_values(console, {f"differs: {discrepancy['field']}": told})


def _attention(model: dict[str, Any]) -> str:
    reach = "within documents" if model["attend_within_documents"] else "over the whole row, whatever documents are in it"
    return reach if model["sliding_window"] is None else f"{reach}, {model['sliding_window']:,} positions back"


def _print_values(console: Console, values: dict[str, Any]) -> None:
    table = Table(box=rich.box.SIMPLE, show_header=False, padding=(0, 2, 0, 0), show_edge=False)
    for name, value in values.items():
        table.add_row(name.replace("_", " "), "off" if value is None else str(value))
    console.print(table)


def _shares(shares: dict[str, float]) -> str:
    return ", ".join(f"{name} {share:.2f} %" for name, share in _by_share(shares))


def _by_share(shares: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(shares.items(), key=lambda item: -item[1])


def _told(value: Any) -> str:
    """A value in words; what is off stands at its default and is left out."""
    if isinstance(value, dict):
        return ", ".join(
            f"{name.replace('_', ' ')} {_told(part)}" for name, part in value.items() if part is not None and part is not False
        )
    return "off" if value is None else f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _steps(entries: list[list[Any]]) -> str:
    texts = [_told(value) for _, value in entries]
    return texts[0] if len(texts) == 1 else ", ".join(f"{text} from {step:,}" for text, (step, _) in zip(texts, entries, strict=True))
