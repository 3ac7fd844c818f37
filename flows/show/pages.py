"""A recipe, its phases and components on the screen."""

from typing import Any

import rich.box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from phasewise.flows.recipes import load_record, split_target
from phasewise.flows.recipes.catalogue import CATALOGUE
from phasewise.flows.recipes.facts import Reported
from phasewise.flows.recipes.recipe import Scale, scale_in_words
from phasewise.flows.show import words
from phasewise.flows.show.describe import change_in_words
from phasewise.tasks.phase_state import State
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.wording import in_words, number, tokens
from phasewise.validations.limits import AcceptedWarning


def describe_component(target: str, scale: Scale, name: str) -> dict[str, Any]:
    """The data set of a component, its proxy data set, and its share in each phase by stage, in percent."""
    recipe = load_record(split_target(target)[0], scale)
    if name not in recipe.components:
        near = [other for other in recipe.components if name.replace("-", "_").lower() in other]
        hint = f"Did you mean {', '.join(near)}?" if near else f"Components are {', '.join(recipe.components)}."
        raise ConfigError(f"no phase of {recipe.name} draws from {name!r}. {hint}")
    entry = CATALOGUE.get(name)
    own, bias = recipe.sources.get(name), recipe.length_bias.get(name)
    source = own or (entry.source if entry else None)
    phases: list[dict[str, Any]] = []
    for phase in recipe.phases:
        stages = phase.mixture.within(phase.start_step, phase.stop_step)
        if any(name in shares for _, shares in stages):
            phases.append({"name": phase.name, "shares": [[step, shares.get(name, 0.0)] for step, shares in stages]})
    return {
        "recipe": recipe.name,
        "scale": recipe.scale,
        "component": name,
        "source": source.model_dump(mode="json") if source else None,
        "own_source": own is not None,
        "is_public": bool(source) or entry is None,
        "stand_in": entry.stand_in.model_dump(mode="json") if entry and entry.stand_in else None,
        "length_bias": bias.model_dump(mode="json") if bias else None,
        "phases": phases,
    }


def print_component(description: dict[str, Any]) -> None:
    """Print the result of `describe_component`."""
    console = Console(highlight=False)
    console.print(
        f"{description['component']} of {description['recipe']} {scale_in_words(description['scale'])}", style="bold", markup=False
    )
    source = description["source"] or {}
    values = _settings({name: value for name, value in source.items() if value not in (None, [], 0.0)})
    if source and source.get("revision") is None:
        values["revision"] = "unknown: the current version is read"
    if not description["is_public"]:
        values["none"] = "its data are not public: at full scale, a recipe file must have a source for it"
    print_values(console, "its source" if description["own_source"] else "its data set, which full scale reads", values)
    if description["stand_in"] and not description["own_source"]:
        print_values(console, "its stand-in at proxy scale", _settings(description["stand_in"]))
    if description["length_bias"]:
        print_values(console, "its documents by their length", {"are trained on": words.bias_in_words(description["length_bias"])})
    phases = {
        phase["name"]: ", ".join(f"{share:.2f} % from {step:,}" for step, share in phase["shares"]) for phase in description["phases"]
    }
    print_values(console, "its share", phases)


def print_results(description: dict[str, Any]) -> None:
    """The published results of each phase, by source."""
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
        console.print("No results are published.")


KINDS = {
    "code": "the published code",
    "default": "a library's default",
    "prose": "a report's prose, not in the published code",
    "notes": "public notes, with less authority than the report",
    "ours": "this project",
}


def print_sources(description: dict[str, Any]) -> None:
    """Field, value and source of each phase, by kind. Phases after the first have only different sources."""
    console = Console(highlight=False)
    console.print(title_of(description), markup=False)
    first: dict[str, Any] = {}
    for phase in description["phases"]:
        shown = {field: one for field, one in phase["sources"].items() if first.get(field) != one}
        more = ", if different" if first else ""
        first = first or phase["sources"]
        for kind, label in KINDS.items():
            values: Values = {}
            for field, one in shown.items():
                if one["kind"] == kind:
                    texts = list(dict.fromkeys(in_words(value) for value in _values_at(phase, field.split("."))))
                    text = "; ".join(texts[:3]) + ("; …" if len(texts) > 3 else "")
                    text = text if len(text) <= 60 else f"{text[:57]}…"
                    values[field] = f"{words.mixture_in_a_word(phase['mixture']) if field == 'mixture' else text}  ({one['place']})"
            print_values(console, f"{phase['name']}: {label}{more}", values)
    if not first:
        console.print("This recipe has no published run: all values come from its file.")


def _values_at(value: Any, path: list[str]) -> list[Any]:
    if isinstance(value, list) and value and all(isinstance(part, list) and len(part) == 2 for part in value):
        return [one for _, part in value for one in _values_at(part, path)]
    if isinstance(value, list) and path:
        return [one for part in value for one in _values_at(part, path)]
    if not path:
        return [value]
    return _values_at(value[path[0]], path[1:]) if isinstance(value, dict) and path[0] in value else []


SEVERITIES = ("high", "medium", "low")
MAX_SEGMENTS = 5
LABEL_WIDTH = 44
Values = dict[str, str]


def groups_of(phase: dict[str, Any], tokenizer: dict[str, Any]) -> dict[str, Values]:
    """All values of `describe_phase` as text, in groups."""
    start, segments = phase["start"], phase["learning_rate"]
    begin = {"from": f"scratch, seed {start.get('seed')}"}
    if source := start.get("pretrained"):
        begin = {
            "from": f"the weights of {source}{' at ' + start['revision'] if start['revision'] else ''}",
            "fresh": in_words(start["fresh"]),
            "new rows of the vocabulary": f"{start['new_rows']:,}",
            "declared changes": in_words(start["declares"]),
        }
    elif start["parent"]:
        grafts = "; ".join(f"{graft['part']} from step {graft['step']:,} of {graft['phase']}" for graft in start["graft"])
        begin = {
            "from": f"step {start['step']:,} of {start['parent']}",
            "fresh": in_words(start["fresh"]),
            "grafted": grafts or "none",
            "declared changes": in_words(start["declares"]),
        }
    shown = segments if len(segments) <= MAX_SEGMENTS else segments[: MAX_SEGMENTS - 1]
    rates = {"from → to": words.rate_ends(segments, phase["start_step"], phase["stop_step"])}
    for part in shown:
        rates[f"{part['start_step']:,} → {part['end_step']:,}"] = f"{part['kind']}, {number(part['start'])} → {number(part['end'])}"
    if shown != segments:
        last = segments[-1]
        rates[f"… {len(segments) - len(shown)} more"] = f"the last ends at {last['end_step']:,} with {number(last['end'])}"
    return {
        "start": begin,
        "steps and tokens": {
            "steps": f"{phase['start_step']:,} → {phase['stop_step']:,}",
            "tokens": f"{phase['tokens']:,} ({tokens(phase['tokens'])})",
            "tokens with its lineage": f"{phase['lineage_tokens']:,} ({tokens(phase['lineage_tokens'])})",
        },
        "model": words.describe_model(phase),
        "tokenizer": {"name": tokenizer["name"] or "trained on the recipe's own training split", "entries": f"{tokenizer['vocab_size']:,}"},
        "optimizer": _settings(phase["optimizer"]), "learning rate": rates,
        "batch": {f"from {step:,}": f"{size:,} sequences of {phase['model']['seq_len']:,} tokens" for step, size in phase["batch"]},
        "mixture": {f"from {step:,}": words.shares(mixture) for step, mixture in phase["mixture"]},
        "stability": {name.replace("_", " "): words.by_steps(entries) for name, entries in phase["stability"].items()},
        "recovery": _settings(phase["recovery"] or {"action": "stop"}), "order": _settings(phase["order"]),
        "rows": {"packing": words.PACKING_WORDS[phase["packing"]], "loss on": words.LOSS_WORDS[phase["loss_on"]]},
        "documents taken by their length": {name: words.bias_in_words(bias) for name, bias in phase["length_bias"].items()},
        "checkpoints": _settings(phase["checkpoints"]),
        "evaluation": _settings({**phase["evaluation"], "held_out_tokens": phase["evaluation"]["held_out_tokens"] or "all"}),
        "measured while it trains": _settings(phase["instrumentation"]),
        "execution": _settings({name: value for name, value in phase["execution"].items() if value is not None}),
        "gates": {f"{gate}: {name}": value for gate, limits in phase["gates"].items() for name, value in _settings(limits).items()},
        "slice": {f"from {step:,}": name for step, name in phase["slice"]},
        f"changed against {start['parent'] or 'nothing'}": {
            one["what"].replace("_", " "): change_in_words(one["before"], one["after"]) for one in phase["changes"]
        },
    }  # fmt: skip


def print_step(phase: dict[str, Any], console: Console) -> None:
    """Print the values of `describe_step`."""
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
        "model": words.model_in_words(model),
        "RoPE": words.rope_in_words(model["rope"]),
        "optimizer": in_words(phase["optimizer"]),
        "order": in_words(phase["order"]),
        "rows": f"{words.PACKING_WORDS[phase['packing']]}; loss on {words.LOSS_WORDS[phase['loss_on']]}",
        **{name.replace("_", " "): in_words(phase[name]) for name in stability},
        "tokens of the phase before it": f"{phase['phase_tokens_before']:,}",
        "tokens of the lineage before it": f"{phase['lineage_tokens_before']:,}",
    }
    print_values(console, None, values)


def print_values(console: Console, group: str | None, values: Values) -> None:
    """The name of a group, and a line for each value."""
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


def _settings(settings: dict[str, Any]) -> Values:
    return {name.replace("_", " "): in_words(value) for name, value in settings.items()}


COLUMNS = ("phase", "steps", "tokens", "batch", "rate", "mixture", "slice", "model", "verdict")
UNBROKEN = ("phase", "steps", "tokens")
MIN_WIDTHS = {"batch": 7, "rate": 11, "slice": 8, "mixture": 10, "model": 7, "verdict": 7}
"""At least the longest word of a column, because lines break only between words."""


def print_table(description: dict[str, Any], console: Console, *, branches: bool) -> None:
    """A line for each phase of the main line, with `branches` for all phases."""
    shown = [phase for phase in description["phases"] if branches or not phase["branch"]] or description["phases"]
    console.print(title_of(description), style="bold")
    for name, source in description.get("sources", {}).items():
        console.print(f"source of {name}: {source['url']}", markup=False)
    for pin in description.get("pins", []):
        console.print(f"pin of {pin['component']} ({pin['split']}): {pin['digest'][:16]} at {pin['url']}", markup=False)
    rows: list[dict[str, str]] = []
    for phase in shown:
        state = phase["verdict"]["state"]
        model = f"{tokens(phase['parameters'])}{', QK-norm' if phase['model']['qk_norm'] else ''}"
        if phase["model"]["experts"]:
            model = f"{tokens(phase['parameters'])}, {tokens(phase['active_parameters'])} active"
        row = {
            "phase": phase["name"],
            "steps": f"{phase['start_step']:,} → {phase['stop_step']:,}",
            "tokens": tokens(phase["tokens"]),
            "batch": words.arrows(phase["batch"]),
            "rate": words.rate_ends(phase["learning_rate"], phase["start_step"], phase["stop_step"]),
            "mixture": words.mixture_in_a_word(phase["mixture"]),
            "slice": words.arrows(phase["slice"]),
            "model": model,
            "verdict": "–" if state == State.NOT_STARTED else f"{state} here" if state == State.REFUSED else state,
        }
        rows.append(row)
    widths = [MIN_WIDTHS.get(name) or max(len(row[name]) for row in rows) for name in COLUMNS]
    if console.width >= sum(widths) + len(COLUMNS):
        table = Table(box=rich.box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
        for name in COLUMNS:
            table.add_column(name, no_wrap=name in UNBROKEN, min_width=MIN_WIDTHS.get(name), overflow="fold")
        for row in rows:
            table.add_row(*map(Text, row.values()))
        console.print(table)
    else:
        width = max(len(phase["name"]) for phase in shown)
        console.print(Text(f"{'phase':<{width}}  {'steps':<21}  {'tokens':<7}  batch; rate"), style="bold", soft_wrap=True)
        for row in rows:
            numbers = f"{row['phase']:<{width}}  {row['steps']:<21}  {row['tokens']:<7}  {row['batch']}; {row['rate']}"
            console.print(Text(numbers))
            console.print(Text(f"  {row['mixture']}; {row['slice']}; {row['model']}; verdict {row['verdict']}", style="dim"))
    lines = [f"{phase['name']}: {packed}" for phase in shown if (packed := words.rows_in_words(phase["packing"], phase["loss_on"]))]
    taken = {name: bias for phase in shown for name, bias in phase["length_bias"].items()}
    lines += [f"documents of {name} by their length: {words.bias_in_words(bias)}" for name, bias in sorted(taken.items())]
    for line in lines:
        console.print(line, markup=False)
    for phase in shown:
        if phase["verdict"]["why"]:
            console.print(f"{phase['name']} {phase['verdict']['state']} here: {phase['verdict']['why']}", markup=False)
    if any(phase["verdict"]["state"] != State.NOT_STARTED for phase in shown):
        console.print(f"These are the last verdicts. Whether they are still current: status {description['recipe']}", style="dim")
    hidden = len(description["phases"]) - len(shown)
    branches_hint = f"{hidden} more branches: --branches. " if hidden else ""
    console.print(
        f"{branches_hint}One phase: show {description['recipe']}/{shown[0]['name']}. Differences between code and reports: --notes.",
        style="dim",
    )


def title_of(description: dict[str, Any]) -> str:
    """Recipe and scale, and the option for the published numbers."""
    more = "; --scale full has the published numbers" if description["scale"] not in ("full", "own") and description.get("full") else ""
    return f"{description['recipe']} {scale_in_words(description['scale'])}{more}"


def print_accepted(console: Console, accepts: list[dict[str, Any]]) -> None:
    """The accepted warnings of the recipe, with reasons."""
    for one in map(AcceptedWarning.model_validate, accepts):
        phases = f"in {', '.join(one.phases)}" if one.phases else "in every phase"
        console.print(f"accepts a warning of {one.table}: {one.words}, {phases}. {one.reason} ({one.source})", markup=False)
