"""Plan and results of a phase: settings, comparisons with the parent and other phases, files with digests."""

import re
from collections.abc import Mapping, Sequence
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
TOPICS: dict[str, str] = dict.fromkeys(("start step", "stop step", "tokens", "lineage tokens", "sequences"), "steps and tokens")
"""Fields that share a topic. Other fields are their own topic."""
TOPIC_STAGE = re.compile(r"( \d+)?( from step)?$")
PLACES = 3
OF_COMPONENT = "bits per byte, "


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


class Topic(NamedTuple):
    """A topic of the settings, such as the optimizer, with its differing fields and their values by phase."""

    name: str
    fields: tuple[tuple[str, tuple[str, ...]], ...]


def topics_of(plans: Sequence[Mapping[str, Any]]) -> tuple[list[Topic], list[str]]:
    """Return the topics with differing fields, and a key for each plan that leaves out its seeds.

    Schedules are compared stage by stage.
    """
    shown = [{name: value for name, value in plan.items() if name not in NOT_A_PLAN} for plan in plans]
    for plan in shown:
        if isinstance(start := plan.get("start"), dict):
            plan["start"] = {name: value for name, value in start.items() if name not in NOT_A_PLAN}
    every = [fields_of(one) for one in aligned(*shown)]
    topics: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
    seeds: set[str] = set()
    for name in {name: None for fields in every for name in fields}:
        found = [fields.get(name, ABSENT) for fields in every]
        if all(value == found[0] for value in found) or ".caches." in name:  # folders
            continue
        if name.rpartition(".")[2] == "seed":
            seeds.add(name)
        topic = TOPIC_STAGE.sub("", name.partition(".")[0]).replace("_", " ")
        values = tuple(cell_of(value, name) if value != ABSENT else MISSING for value in found)
        topics.setdefault(TOPICS.get(topic, topic), []).append((name.replace("_", " ").replace(".", ": ", 1), values))
    keys = [repr(sorted((name, value) for name, value in fields.items() if name not in seeds)) for fields in every]
    return [Topic(name, tuple(fields)) for name, fields in topics.items()], keys


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
    texts, of_parent = known(files.evaluation.get("measured_on")), known(parent.get("measured_on"))
    rows: list[tuple[str, str, str, str]] = []
    for name in sorted(mine, key=lambda name: -mine[name]):
        before = theirs.get(name) if name in texts and texts[name] == of_parent.get(name) else None
        change = MISSING if before is None else signed(mine[name] - before, places=PLACES)
        rows.append((name, decimal(mine[name], places=PLACES), decimal(before, places=PLACES), change))
    return rows


class Score(NamedTuple):
    """A figure of a compared phase. `difference`: to the first phase, if both have the same items or text."""

    value: str
    difference: str = ""
    note: str = ""


def scores_of(phases: Sequence[PhaseFiles]) -> tuple[dict[str, tuple[Score, ...]], dict[str, tuple[Score, ...]]]:
    """Return name → figures by phase: loss, scores and the mean of bits per byte, then the bits per byte of each component."""
    figures: dict[str, list[tuple[Any, tuple[str, object]]]] = {}  # value, and a key of the measured items or text
    for place, files in enumerate(phases):
        found, texts = files.evaluation, known(files.evaluation.get("measured_on"))
        bits, mean = known(found.get("bits_per_byte")), found.get("macro_bits_per_byte")
        rows: list[tuple[str, Any, tuple[str, object]]] = [("final training loss", files.result.get("final_loss"), ("data", place))]
        for one in found.get("results", []):
            rows.append((f"{one['benchmark']} {one['metric']}", float(one["value"]), ("items", found.get("benchmarks_digest"))))
        rows.append(("macro bits per byte", mean, ("means over text", tuple((name, texts.get(name, place)) for name in sorted(bits)))))
        rows += [(f"{OF_COMPONENT}{name}", bits[name], ("text", texts.get(name, place))) for name in sorted(bits)]
        for name, value, key in rows:
            figures.setdefault(name, [(None, ("", None))] * len(phases))[place] = (value, key)
    shown: tuple[dict[str, tuple[Score, ...]], dict[str, tuple[Score, ...]]] = {}, {}
    for name, of_phases in figures.items():
        (first, first_key), scores = of_phases[0], list[Score]()
        for place, (value, key) in enumerate(of_phases):
            difference = note = ""
            if place and value is not None and first is not None:
                is_alike = key == first_key
                difference = signed(float(value) - float(first), places=PLACES) if is_alike else ""
                note = "" if is_alike else f"other {key[0]}"
            scores.append(Score(decimal(value, places=PLACES), difference, note))
        if any(value is not None for value, _ in of_phases):
            shown[name.startswith(OF_COMPONENT)][name.removeprefix(OF_COMPONENT)] = tuple(scores)
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
