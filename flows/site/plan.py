"""What a phase is meant to do, in words: the recipe's plan, or what its run file says where the recipe is not known."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from phasewise.flows.show.pages import groups_of
from phasewise.flows.show.words import rate_ends, rows_in_words
from phasewise.flows.site.shelf import PhaseFiles
from phasewise.trainer.base.wording import in_words, tokens

NOT_A_SETTING = ("start", "recipe", "scale", "phase", "caches", "held_out", "output", "verdict")


@dataclass(frozen=True)
class Plan:
    """The plan.

    Attributes:
        main: what one asks first: name → value.
        mixture: (first step, component → percent) of each span.
        groups: every value, in groups.
        changes: what the hand-off changes: name, before, after, whether it is declared.
    """

    main: Mapping[str, str]
    mixture: tuple[tuple[int, tuple[tuple[str, float], ...]], ...]
    groups: Mapping[str, Mapping[str, str]]
    changes: tuple[tuple[str, str, str, bool], ...] = ()


def plan_of(files: PhaseFiles, described: Mapping[str, Any] | None) -> Plan | None:
    """None where nothing says what is planned: a phase of a recipe that is not known, which has not begun."""
    if described is not None:
        return _of_recipe(dict(described))
    return _of_run(files.run) if files.run else None


def _of_recipe(phase: dict[str, Any]) -> Plan:
    groups = {name: values for name, values in groups_of(phase, phase["tokenizer"]).items() if values}
    start = phase["start"]
    from_ = f"step {start['step']:,} of {start['parent']}" if start["parent"] else f"scratch, seed {start['seed']}"
    main = {
        "starts from": from_,
        "steps": f"{phase['start_step']:,} → {phase['stop_step']:,}",
        "tokens": tokens(phase["tokens"]),
        "parameters": tokens(phase["parameters"]),
        "batch": _by_steps(phase["batch"], "sequences"),
        "sequence": f"{phase['model']['seq_len']:,} tokens",
        **_rows(phase),
        "learning rate": rate_ends(phase["learning_rate"], phase["start_step"], phase["stop_step"]),
        "slice": ", ".join(dict.fromkeys(str(name) for _, name in phase["slice"])),
    }
    changed = next((groups[name] for name in groups if name.startswith("changed against")), {})
    changes = tuple(_change(change, changed) for change in phase["changes"])
    return Plan(main, _spans(phase["mixture"]), groups, changes)


def _rows(phase: Mapping[str, Any]) -> dict[str, str]:
    """How documents become rows and what is predicted, where that is not all text in full rows."""
    rows = rows_in_words(phase["packing"], phase["loss_on"])
    return {"rows": rows} if rows else {}


def _of_run(run: Mapping[str, Any]) -> Plan:
    main = {"steps": f"{run.get('start_step', 0):,} → {run.get('stop_step', 0):,}", "seed": str(run.get("seed", "–"))}
    settings = {name: value for name, value in run.items() if name not in NOT_A_SETTING}
    groups = {name: _values(value) for name, value in settings.items() if isinstance(value, dict)}
    plain = {
        name.replace("_", " "): in_words(value) for name, value in settings.items() if not isinstance(value, dict) and name != "mixture"
    }
    mixture = [entry for entry in run.get("mixture", []) if entry[0] < run.get("stop_step", 0)]
    begun = [number for number, entry in enumerate(mixture) if entry[0] <= run.get("start_step", 0)]
    return Plan(main, _spans(mixture[begun[-1] if begun else 0 :]), {"settings": plain, **groups})


def _values(settings: Mapping[str, Any]) -> dict[str, str]:
    return {name.replace("_", " "): in_words(value) for name, value in settings.items()}


def _by_steps(entries: list[list[Any]], unit: str) -> str:
    if len(entries) > 3:
        return f"{len(entries)} sizes, {entries[0][1]:,} to {entries[-1][1]:,} {unit}"
    return f"{' → '.join(f'{size:,}' for _, size in entries)} {unit}"


def _spans(entries: list[Any]) -> tuple[tuple[int, tuple[tuple[str, float], ...]], ...]:
    return tuple(
        (step, tuple(sorted(((name, share) for name, share in shares.items() if share), key=lambda one: -one[1])))
        for step, shares in entries
    )


def _change(change: Mapping[str, Any], in_words_by_name: Mapping[str, str]) -> tuple[str, str, str, bool]:
    name = change["what"].replace("_", " ")
    before, _, after = in_words_by_name.get(name, "").partition(" → ")
    return name, before, after, change["declared"]
