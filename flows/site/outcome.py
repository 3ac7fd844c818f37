"""Plan and results of a phase: settings, comparisons with the parent and other phases, files with digests."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from phasewise.flows.show.difference import ABSENT, aligned, cell_of, fields_of
from phasewise.flows.show.pages import groups_of
from phasewise.flows.show.words import rate_ends, rows_in_words
from phasewise.flows.site.shelf import PhaseFiles, Shelf, known
from phasewise.flows.status.phase_status import PhaseRecord
from phasewise.flows.status.summary import measured_of
from phasewise.tasks.report.html import GATE_WORDS
from phasewise.tasks.report.sections import MeasuredRow, row_of
from phasewise.trainer.base.run_folder import EVALUATION_NAME, LOG_NAME, METRICS_NAME, RESULT_NAME, RUN_NAME, RunFolder
from phasewise.trainer.base.wording import MISSING, decimal, in_words, signed, tokens
from phasewise.trainer.checkpoints.files import saved_steps
from phasewise.validations.verdict import Verdict

NOT_A_SETTING = ("start", "recipe", "scale", "phase", "caches", "held_out", "output", "verdict")
NOT_A_PLAN = ("tokenizer", "recipe", "scale", "phase", "caches", "held_out", "output", "verdict", "checkpoint")
MAX_DIFFERENCES = 400
PLACES = 3


class Plan(NamedTuple):
    """The plan of a phase.

    `mixture`: (first step, (component, percent) pairs) of each span. `changes`: changes of the hand-off: name, before, after, whether
    declared.
    """

    main: Mapping[str, str]
    mixture: tuple[tuple[int, tuple[tuple[str, float], ...]], ...]
    groups: Mapping[str, Mapping[str, str]]
    changes: tuple[tuple[str, str, str, bool], ...] = ()


def plan_of(files: PhaseFiles, described: Mapping[str, Any] | None) -> Plan | None:
    """Return the plan of the recipe, else of the run file, else None."""
    if described is None and not files.run:
        return None
    if described is None:
        run = files.run
        start, stop = run.get("start_step", 0), run.get("stop_step", 0)
        settings = {name: value for name, value in run.items() if name not in NOT_A_SETTING}
        parts = {"settings": {name: value for name, value in settings.items() if not isinstance(value, dict) and name != "mixture"}}
        parts |= {name: value for name, value in settings.items() if isinstance(value, dict)}
        words = {part: {name.replace("_", " "): in_words(value) for name, value in values.items()} for part, values in parts.items()}
        mixture = [entry for entry in run.get("mixture", []) if entry[0] < stop]
        begun = [number for number, entry in enumerate(mixture) if entry[0] <= start]
        main = {"steps": f"{start:,} → {stop:,}", "seed": str(run.get("seed", "–"))}
        return Plan(main, _spans(mixture[begun[-1] if begun else 0 :]), words)
    phase = dict(described)
    groups = {name: values for name, values in groups_of(phase, phase["tokenizer"]).items() if values}
    start, batch = phase["start"], [f"{size:,}" for _, size in phase["batch"]]
    sizes = " → ".join(batch) if len(batch) <= 3 else f"{len(batch)} sizes, {batch[0]} to {batch[-1]}"
    rows = rows_in_words(phase["packing"], phase["loss_on"])
    main = {
        "starts from": groups["start"]["from"],
        "steps": f"{phase['start_step']:,} → {phase['stop_step']:,}",
        "tokens": tokens(phase["tokens"]),
        "parameters": tokens(phase["parameters"]),
        "batch": f"{sizes} sequences",
        "sequence": f"{phase['model']['seq_len']:,} tokens",
        **({"rows": rows} if rows else {}),
        "learning rate": rate_ends(phase["learning_rate"], phase["start_step"], phase["stop_step"]),
        "slice": ", ".join(dict.fromkeys(str(name) for _, name in phase["slice"])),
    }
    changed = next((groups[name] for name in groups if name.startswith("changed against")), {})
    changes: list[tuple[str, str, str, bool]] = []
    for change in phase["changes"]:
        name = change["what"].replace("_", " ")
        before, _, after = changed.get(name, "").partition(" → ")
        changes.append((name, before, after, change["declared"]))
    return Plan(main, _spans(phase["mixture"]), groups, tuple(changes))


def _spans(entries: list[Any]) -> tuple[tuple[int, tuple[tuple[str, float], ...]], ...]:
    return tuple(
        (step, tuple(sorted(((name, share) for name, share in of.items() if share), key=lambda one: -one[1]))) for step, of in entries
    )


def differences_of(left: dict[str, Any], right: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the different fields of two plans with both values. Schedules are compared stage by stage."""
    plans = [{name: value for name, value in plan.items() if name not in NOT_A_PLAN} for plan in (left, right)]
    for plan in plans:
        if isinstance(start := plan.get("start"), dict):
            plan["start"] = {name: value for name, value in start.items() if name not in NOT_A_PLAN}
    both = [fields_of(one) for one in aligned(*plans)]
    names = [name for name in {**both[0], **both[1]} if both[0].get(name, ABSENT) != both[1].get(name, ABSENT)]
    rows: list[tuple[str, str, str]] = []
    for name in names[:MAX_DIFFERENCES]:
        before, after = (cell_of(fields[name], name) if name in fields else "–" for fields in both)
        rows.append((name.replace("_", " ").replace(".", ": ", 1), before, after))
    return rows


def measured_rows(files: PhaseFiles) -> tuple[MeasuredRow, ...]:
    """Return the gate's figures with the parent's. Empty without an evaluation or a recipe."""
    if files.phase is None or not files.evaluation:
        return ()
    judged = dict(files.judged).get("model")
    record = PhaseRecord(files.phase, None, None, None, None, dict(files.evaluation), judged)
    return tuple(row_of(one, {}) for one in measured_of(record, files.evidence("model")))


def bits_per_byte(files: PhaseFiles, parent: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return component, value, parent's value and the difference, if both have the same text."""
    mine, theirs = known(files.evaluation.get("bits_per_byte")), known(parent.get("bits_per_byte"))
    rows: list[tuple[str, str, str, str]] = []
    for name in sorted(mine, key=lambda name: -mine[name]):
        before = theirs.get(name) if _is_same_text(files.evaluation, parent, name) else None
        change = MISSING if before is None else signed(mine[name] - before, places=PLACES)
        rows.append((name, decimal(mine[name], places=PLACES), decimal(before, places=PLACES), change))
    return rows


def _is_same_text(mine: Mapping[str, Any], theirs: Mapping[str, Any], component: str) -> bool:
    texts = [one.get("measured_on", {}).get(component) for one in (mine, theirs)]
    return texts[0] is not None and texts[0] == texts[1]


def scores_of(left: PhaseFiles, right: PhaseFiles) -> list[tuple[str, str, str, str, str]]:
    """Return name, both values, difference and note of each score and bits per byte. A figure on other items or text has no difference."""
    evaluations = mine, theirs = left.evaluation, right.evaluation
    rows: list[tuple[str, Any, Any, str]] = []
    if left.result or right.result:
        rows.append(("final training loss", left.result.get("final_loss"), right.result.get("final_loss"), "each on its own data"))
    scores = [{f"{one['benchmark']} {one['metric']}": float(one["value"]) for one in each.get("results", [])} for each in evaluations]
    note = "" if mine.get("benchmarks_digest") == theirs.get("benchmarks_digest") else "other items"
    rows += [(name, scores[0].get(name), scores[1].get(name), note) for name in dict.fromkeys([*scores[0], *scores[1]])]
    bits = [known(each.get("bits_per_byte")) for each in evaluations]
    notes = {name: "" if _is_same_text(mine, theirs, name) else "other text" for name in sorted({*bits[0], *bits[1]})}
    means = mine.get("macro_bits_per_byte"), theirs.get("macro_bits_per_byte")
    if means != (None, None):
        rows.append(("macro bits per byte", *means, "means over other text" if any(notes.values()) else ""))
    rows += [(f"bits per byte, {name}", bits[0].get(name), bits[1].get(name), note) for name, note in notes.items()]
    shown: list[tuple[str, str, str, str, str]] = []
    for name, one, other, note in rows:
        difference = MISSING
        if one is None or other is None:
            note = ""
        elif not note:
            difference = signed(float(other) - float(one), places=PLACES)
        shown.append((name, decimal(one, places=PLACES), decimal(other, places=PLACES), difference, note))
    return shown


def files_of(shelf: Shelf, files: PhaseFiles) -> list[tuple[str, str, str, str]]:
    """Return name, content, size and digest of the existing files of a phase. A digest is from the time the file was made or judged."""
    health = dict(files.judged).get("health")
    judged = next(iter(health.judged.values()), "") if health else ""
    named = [
        (files.folder / RUN_NAME, "all settings of the run", files.result.get("run_digest")),
        (files.folder / METRICS_NAME, "a row per update, with the digest from the verdict on its training", judged),
        (files.folder / RESULT_NAME, "the end of the run, with the digest of the weights", files.result.get("params_digest")),
        (files.folder / EVALUATION_NAME, "evaluation of the last checkpoint, with its key", files.evaluation.get("key")),
        (files.folder / LOG_NAME, "log of the trainer", ""),
    ]
    for gate, verdict in files.verdicts.items():
        version = f"suite {verdict.suite}, version {verdict.suite_version}" if isinstance(verdict, Verdict) else "damaged"
        named.append((files.evidence(gate).with_suffix(".json"), f"verdict on its {GATE_WORDS[gate]}, {version}", ""))
    rows: list[tuple[str, str, str, str]] = []
    for path, what, digest in named:
        try:
            rows.append((path.name, what, f"{path.stat().st_size:,} bytes", str(digest or "")))
        except OSError:
            continue
    contents = known(known(shelf.files.json(RunFolder(files.folder).caches)).get("contents"))
    rows += [(f"cache of {name}", "training tokens: digest of their content", MISSING, str(contents[name])) for name in sorted(contents)]
    steps = saved_steps(RunFolder(files.folder).checkpoints)
    return rows + [(f"checkpoints/{step}", f"checkpoint after step {step:,}", MISSING, "") for step in steps]
