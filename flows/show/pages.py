"""The phases of a recipe as a table that fits a screen."""

from typing import Any

import rich.box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from phasewise.flows.recipes import load_record, split_target
from phasewise.flows.recipes.catalogue import CATALOGUE
from phasewise.flows.recipes.facts import Reported
from phasewise.flows.recipes.recipe import Recipe, Scale, scale_in_words
from phasewise.flows.show.describe import change_in_words
from phasewise.flows.show.words import (
    arrows,
    bias_in_words,
    by_steps,
    describe_model,
    loss_in_words,
    mixture_in_a_word,
    model_in_words,
    packing_in_words,
    rate_ends,
    rope_in_words,
    rows_in_words,
    shares,
)
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.wording import in_words, number, tokens
from phasewise.validations.waivers import AcceptedWarning


def describe_component(target: str, scale: Scale, name: str) -> dict[str, Any]:
    """Its real data set, its stand-in, and its share of each phase that draws from it, stage by stage, in percent.

    Raises:
        ConfigError: no such recipe, or no phase of it draws from the component.
    """
    recipe = load_record(split_target(target)[0], scale)
    if name not in recipe.components:
        near = [other for other in recipe.components if name.replace("-", "_").lower() in other]
        hint = f"; did you mean {', '.join(near)}?" if near else f"; they draw from {', '.join(recipe.components)}."
        raise ConfigError(f"no phase of {recipe.name} draws from {name!r}{hint}")
    entry = CATALOGUE.get(name)
    own = recipe.sources.get(name)
    source = own or (entry.source if entry else None)
    return {
        "recipe": recipe.name,
        "scale": recipe.scale,
        "component": name,
        "source": source.model_dump(mode="json") if source else None,
        "own_source": own is not None,
        "is_public": bool(source) or entry is None,
        "stand_in": entry.stand_in.model_dump(mode="json") if entry and entry.stand_in else None,
        "length_bias": bias.model_dump(mode="json") if (bias := recipe.length_bias.get(name)) else None,
        "phases": _shares_of(recipe, name),
    }


def print_component(description: dict[str, Any]) -> None:
    """For people."""
    console = Console(highlight=False)
    console.print(
        f"{description['component']} of {description['recipe']} {scale_in_words(description['scale'])}", style="bold", markup=False
    )
    source = description["source"]
    values = {name.replace("_", " "): in_words(value) for name, value in source.items() if value not in (None, [], 0.0)} if source else {}
    if source and source.get("revision") is None:
        values["revision"] = "none is known: it is read as it is now"
    if not description["is_public"]:
        values["none"] = "its data are not public: at full scale a recipe of one's own must give it a source"
    print_values(console, "its source" if description["own_source"] else "its data set, which full scale reads", values)
    if description["stand_in"] and not description["own_source"]:
        stand_in = {name.replace("_", " "): in_words(value) for name, value in description["stand_in"].items()}
        print_values(console, "its stand-in at proxy scale", stand_in)
    if description["length_bias"]:
        print_values(console, "its documents by their length", {"are trained on": bias_in_words(description["length_bias"])})
    phases = {
        phase["name"]: ", ".join(f"{share:.2f} % from {step:,}" for step, share in phase["shares"]) for phase in description["phases"]
    }
    print_values(console, "its share", phases)


def _shares_of(recipe: Recipe, name: str) -> list[dict[str, Any]]:
    found = []
    for phase in recipe.phases:
        stages = phase.mixture.within(phase.start_step, phase.stop_step)
        if any(name in shares for _, shares in stages):
            found.append({"name": phase.name, "shares": [[step, shares.get(name, 0.0)] for step, shares in stages]})
    return found


def print_results(description: dict[str, Any]) -> None:
    """A group a phase: what was reported, and where."""
    console = Console(highlight=False)
    console.print(title_of(description), markup=False)
    shown = [phase for phase in description["phases"] if phase["reported"]]
    for phase in shown:
        by_source: dict[str, list[dict[str, Any]]] = {}
        for found in phase["reported"]:
            by_source.setdefault(found["source"], []).append(found)
        for source, rows in by_source.items():
            print_values(console, f"{phase['name']}: {source}", {row["what"]: Reported.model_validate(row).in_words for row in rows})
    if not shown:
        console.print("Nothing is reported of it.")


KINDS = {
    "code": "the record's code",
    "default": "a library's default",
    "prose": "a report's prose, where no stored code has it",
    "notes": "public notes, of lesser authority than the report",
    "ours": "this project",
}


def print_sources(description: dict[str, Any]) -> None:
    """Of each phase, by kind: field, value and place. Of a phase after the first, only what differs from the first one's."""
    console = Console(highlight=False)
    console.print(title_of(description), markup=False)
    first: dict[str, Any] = {}
    for phase in description["phases"]:
        shown = {field: one for field, one in phase["sources"].items() if first.get(field) != one}
        more = ", where it is otherwise" if first else ""
        first = first or phase["sources"]
        for kind, words in KINDS.items():
            fields = {field: one for field, one in shown.items() if one["kind"] == kind}
            values = {field: f"{_short_value(phase, field)}  ({one['place']})" for field, one in fields.items()}
            print_values(console, f"{phase['name']}: {words}{more}", values)
    if not first:
        console.print("No source is named: this recipe is no record, and every value is the one that its file has.")


def _short_value(phase: dict[str, Any], field: str) -> str:
    if field == "mixture":
        return mixture_in_a_word(phase["mixture"])
    texts = list(dict.fromkeys(in_words(value) for value in _values_at(phase, field.split("."))))
    text = "; ".join(texts[:3]) + ("; …" if len(texts) > 3 else "")
    return text if len(text) <= 60 else f"{text[:57]}…"


def _values_at(value: Any, path: list[str]) -> list[Any]:
    if isinstance(value, list) and value and all(isinstance(part, list) and len(part) == 2 for part in value):
        return [one for _, part in value for one in _values_at(part, path)]
    if isinstance(value, list) and path:
        return [one for part in value for one in _values_at(part, path)]
    if not path:
        return [value]
    return _values_at(value[path[0]], path[1:]) if isinstance(value, dict) and path[0] in value else []


SEVERITIES = ("high", "medium", "low")


def print_notes(phase: dict[str, Any], console: Console) -> None:
    """The discrepancies of a phase, the weightiest first, and then what nobody states."""
    for found in sorted(phase["discrepancies"], key=lambda one: SEVERITIES.index(one["severity"])):
        values = {name: found[name] for name in ("code", "retrospective", "place")}
        print_values(console, f"{phase['name']}, {found['field']}: differs, {found['severity']}", values)
    for note in phase["notes"]:
        print_values(
            console, f"{phase['name']}, {note['field']}: not stated in the reports", {"note": note["text"], "place": note["place"]}
        )


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
        "steps and tokens": {
            "steps": f"{phase['start_step']:,} → {phase['stop_step']:,}",
            "tokens": f"{phase['tokens']:,} ({tokens(phase['tokens'])})",
            "tokens with its lineage": f"{phase['lineage_tokens']:,} ({tokens(phase['lineage_tokens'])})",
        },
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


COLUMNS = ("phase", "steps", "tokens", "batch", "rate", "mixture", "slice", "model", "verdict")
UNBROKEN = ("phase", "steps", "tokens")
MIN_WIDTHS = {"batch": 7, "rate": 11, "slice": 8, "mixture": 10, "model": 7, "verdict": 7}
"""The longest word of a column, at least. Between words a line may break, within a number it may not."""


def print_table(description: dict[str, Any], console: Console, *, branches: bool) -> None:
    """A line a phase: the main line, and with `branches` all."""
    shown = [phase for phase in description["phases"] if branches or not phase["branch"]] or description["phases"]
    console.print(title_of(description), style="bold")
    own = [f"source of {name}: {source['url']}" for name, source in description.get("sources", {}).items()]
    own += [f"pin of {pin['component']} ({pin['split']}): {pin['digest'][:16]} at {pin['url']}" for pin in description.get("pins", [])]
    for line in own:
        console.print(line, markup=False)
    rows = [_row(phase) for phase in shown]
    if console.width >= (sum(MIN_WIDTHS.get(name) or max(len(row[name]) for row in rows) for name in COLUMNS) + len(COLUMNS)):
        table = Table(box=rich.box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
        for name in COLUMNS:
            table.add_column(name, no_wrap=name in UNBROKEN, min_width=MIN_WIDTHS.get(name), overflow="fold")
        for phase in shown:
            table.add_row(*map(Text, _row(phase).values()))
        console.print(table)
    else:
        width = max(len(phase["name"]) for phase in shown)
        console.print(Text(f"{'phase':<{width}}  {'steps':<21}  {'tokens':<7}  batch; rate"), style="bold", soft_wrap=True)
        for phase in shown:
            row = _row(phase)
            numbers = f"{row['phase']:<{width}}  {row['steps']:<21}  {row['tokens']:<7}  {row['batch']}; {row['rate']}"
            console.print(Text(numbers))
            console.print(Text(f"  {row['mixture']}; {row['slice']}; {row['model']}; verdict {row['verdict']}", style="dim"))
    _print_rows_and_documents(shown, console)
    for phase in shown:
        if phase["verdict"]["why"]:
            console.print(f"{phase['name']} {phase['verdict']['state']} here: {phase['verdict']['why']}", markup=False)
    if any(phase["verdict"]["state"] for phase in shown):
        console.print(
            f"Verdicts as they were last given. Whether they hold for what is there now: status {description['recipe']}", style="dim"
        )
    hidden = len(description["phases"]) - len(shown)
    beside = f"{hidden} branches beside it: --branches. " if hidden else ""
    console.print(
        f"{beside}One phase: show {description['recipe']}/{shown[0]['name']}. Where code and reports differ: --notes.", style="dim"
    )


def title_of(description: dict[str, Any]) -> str:
    """Recipe and scale, and where the record's own numbers are."""
    more = "; --scale full has the record's own numbers" if description["scale"] not in ("full", "own") and description.get("full") else ""
    return f"{description['recipe']} {scale_in_words(description['scale'])}{more}"


def print_accepted(console: Console, accepts: list[dict[str, Any]]) -> None:
    """The warnings that the recipe accepts, each with its reason."""
    for one in map(AcceptedWarning.model_validate, accepts):
        phases = f"in {', '.join(one.phases)}" if one.phases else "in every phase"
        console.print(f"accepts a warning of {one.table}: {one.words}, {phases}. {one.reason} ({one.source})", markup=False)


def _row(phase: dict[str, Any]) -> dict[str, str]:
    state = phase["verdict"]["state"]
    return {
        "phase": phase["name"],
        "steps": f"{phase['start_step']:,} → {phase['stop_step']:,}",
        "tokens": tokens(phase["tokens"]),
        "batch": arrows(phase["batch"]),
        "rate": rate_ends(phase["learning_rate"], phase["start_step"], phase["stop_step"]),
        "mixture": mixture_in_a_word(phase["mixture"]),
        "slice": arrows(phase["slice"]),
        "model": _model(phase),
        "verdict": "–" if state is None else f"{state} here" if state == "refused" else state,
    }


def _model(phase: dict[str, Any]) -> str:
    if phase["model"]["experts"]:
        return f"{tokens(phase['parameters'])}, {tokens(phase['active_parameters'])} active"
    return f"{tokens(phase['parameters'])}{', QK-norm' if phase['model']['qk_norm'] else ''}"


def _print_rows_and_documents(shown: list[dict[str, Any]], console: Console) -> None:
    lines = [f"{phase['name']}: {rows}" for phase in shown if (rows := rows_in_words(phase["packing"], phase["loss_on"]))]
    taken = {name: bias for phase in shown for name, bias in phase["length_bias"].items()}
    lines += [f"documents of {name} by their length: {bias_in_words(bias)}" for name, bias in sorted(taken.items())]
    for line in lines:
        console.print(line, markup=False)
