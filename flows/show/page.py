"""Everything of one phase, in groups; and what is in force at one step of it."""

from typing import Any

import rich.box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from phasewise.flows.show.hand_off import change_in_words
from phasewise.flows.show.model import describe_model, model_in_words, rope_in_words
from phasewise.flows.show.words import bias_in_words, by_steps, loss_in_words, packing_in_words, rate_ends, shares
from phasewise.trainer.base.wording import in_words, number, tokens

MAX_SEGMENTS = 5
LABEL_WIDTH = 44
Values = dict[str, str]


def print_page(phase: dict[str, Any], tokenizer: dict[str, Any], console: Console) -> None:
    """Every value of a phase as `describe_phase` gives it."""
    console.print()
    console.print(f"{phase['name']}{kind_of(phase)}", style="bold", markup=False)
    verdict = {"": f"{phase['verdict']['state'] or '–'} {phase['verdict']['why']}".strip()}
    for name, values in {**groups_of(phase, tokenizer), "last verdict of this home": verdict}.items():
        print_values(console, name, values)


def groups_of(phase: dict[str, Any], tokenizer: dict[str, Any]) -> dict[str, Values]:
    """Every value of a phase as `describe_phase` gives it, in words, in groups."""
    return {
        "start": _start(phase["start"]),
        "steps and tokens": _steps(phase),
        "model": describe_model(phase),
        "tokenizer": _tokenizer(tokenizer),
        "optimizer": _settings(phase["optimizer"]),
        "learning rate": _rate(phase),
        "batch": {f"from {step:,}": f"{size:,} sequences of {phase['model']['seq_len']:,} tokens" for step, size in phase["batch"]},
        "mixture": {f"from {step:,}": shares(mixture) for step, mixture in phase["mixture"]},
        "stability": {_plain_name(name): by_steps(entries) for name, entries in phase["stability"].items()},
        "recovery": _settings(phase["recovery"] or {"action": "stop"}),
        "order": _settings(phase["order"]),
        "rows": {"packing": packing_in_words(phase["packing"]), "loss on": loss_in_words(phase["loss_on"])},
        "documents taken by their length": {name: bias_in_words(bias) for name, bias in phase["length_bias"].items()},
        "checkpoints": _settings(phase["checkpoints"]),
        "evaluation": _settings({**phase["evaluation"], "held_out_tokens": phase["evaluation"]["held_out_tokens"] or "all"}),
        "measured while it trains": _settings(phase["instrumentation"]),
        "gates": {f"{gate}: {name}": value for gate, limits in phase["gates"].items() for name, value in _settings(limits).items()},
        "slice": {f"from {step:,}": name for step, name in phase["slice"]},
        f"changed against {phase['start']['parent'] or 'nothing'}": _changes(phase["changes"]),
    }


def print_step(phase: dict[str, Any], console: Console) -> None:
    """What is in force at a step, as `describe_step` gives it."""
    sequences, model = phase["mixture_sequences"], phase["model"]
    mixture = sorted(phase["mixture"].items(), key=lambda item: -item[1])
    stability = ("max_grad_norm", "max_update_rms", "max_update_norm", "skip_step", "z_loss", "ema_decay")
    console.print()
    console.print(f"{phase['name']}{', after its last update' if phase['ended'] else ''}", style="bold", markup=False)
    values = {
        "learning rate": number(phase["learning_rate"]),
        "batch": f"{phase['batch']:,} sequences of {model['seq_len']:,} tokens",
        f"mixture (sequences of {sum(sequences.values()):,})": ", ".join(
            f"{name} {share:.2f} % ({sequences[name]})" for name, share in mixture
        ),
        "slice": phase["slice"],
        "model": model_in_words(model),
        "RoPE": rope_in_words(model["rope"]),
        "optimizer": in_words(phase["optimizer"]),
        "order": in_words(phase["order"]),
        "rows": f"{packing_in_words(phase['packing'])}; loss on {loss_in_words(phase['loss_on'])}",
        **{_plain_name(name): in_words(phase[name]) for name in stability},
        "tokens of the phase before it": f"{phase['phase_tokens_before']:,}",
        "tokens of the lineage before it": f"{phase['lineage_tokens_before']:,}",
    }
    print_values(console, None, values)


def print_values(console: Console, group: str | None, values: Values) -> None:
    """A group's name, and under it a line a value."""
    if not values:
        return
    if group:
        console.print(Text(group), style="italic")
    table = Table(box=rich.box.SIMPLE, show_header=False, padding=(0, 2, 0, 0), show_edge=False)
    table.add_column(max_width=LABEL_WIDTH)
    table.add_column(overflow="fold")
    for name, value in values.items():
        table.add_row(Text(name), Text(value))
    console.print(table)


def kind_of(phase: dict[str, Any]) -> str:
    """What is special of a phase, in brackets."""
    words = [word for word in ("branch", "abandoned") if phase[word]]
    return f" ({', '.join(words)})" if words else ""


def _start(start: dict[str, Any]) -> Values:
    if not start["parent"]:
        return {"from": f"scratch, seed {start['seed']}"}
    grafts = "; ".join(f"{graft['part']} from step {graft['step']:,} of {graft['phase']}" for graft in start["graft"])
    return {
        "from": f"step {start['step']:,} of {start['parent']}",
        "fresh": in_words(start["fresh"]),
        "grafted": grafts or "none",
        "declared changes": in_words(start["declares"]),
    }


def _steps(phase: dict[str, Any]) -> Values:
    return {
        "steps": f"{phase['start_step']:,} → {phase['stop_step']:,}",
        "tokens": f"{phase['tokens']:,} ({tokens(phase['tokens'])})",
        "tokens with its lineage": f"{phase['lineage_tokens']:,} ({tokens(phase['lineage_tokens'])})",
    }


def _tokenizer(tokenizer: dict[str, Any]) -> Values:
    trained = "trained on the recipe's own training split"
    return {"name": tokenizer["name"] or trained, "entries": f"{tokenizer['vocab_size']:,}"}


def _rate(phase: dict[str, Any]) -> Values:
    segments = phase["learning_rate"]
    shown = segments if len(segments) <= MAX_SEGMENTS else segments[: MAX_SEGMENTS - 1]
    values = {"from → to": rate_ends(segments, phase["start_step"], phase["stop_step"])}
    for part in shown:
        values[f"{part['start_step']:,} → {part['end_step']:,}"] = f"{part['kind']}, {number(part['start'])} → {number(part['end'])}"
    if shown != segments:
        last = segments[-1]
        values[f"… {len(segments) - len(shown)} more"] = f"the last ends at {last['end_step']:,} with {number(last['end'])}"
    return values


def _changes(changes: list[dict[str, Any]]) -> Values:
    return {_plain_name(change["what"]): change_in_words(change["before"], change["after"]) for change in changes}


def _settings(settings: dict[str, Any]) -> Values:
    return {_plain_name(name): in_words(value) for name, value in settings.items()}


def _plain_name(name: str) -> str:
    return name.replace("_", " ")
