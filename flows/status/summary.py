"""A recipe's record as people and scripts read it: the JSON of `phasewise run`, the table at its end, the report."""

import math
import platform
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from phasewise.flows.recipes.facts import results_of
from phasewise.flows.recipes.phase import HandOff, Phase
from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.resolved import Resolved
from phasewise.flows.show.words import bias_in_words, rows_in_words
from phasewise.flows.status.phase_status import PhaseRecord, read_records
from phasewise.flows.status.recipe_status import PACKAGES, computed_of, headline, report_path, seal_report, status_of, why_no_report
from phasewise.tasks.evaluation.ngram_baselines import baselines_path, read_baselines
from phasewise.tasks.report.contents import (
    BenchmarkReport,
    MeasuredReport,
    PhaseReport,
    RecordReport,
    Report,
    RollBackReport,
    VerdictReport,
)
from phasewise.tasks.report.sections import routing_of
from phasewise.tasks.training.time_breakdown import read_time_breakdown, words_of
from phasewise.trainer.base.decision import Ruling
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.wording import plural
from phasewise.trainer.config import Component, turns_of
from phasewise.trainer.metrics import read_metrics
from phasewise.trainer.skipped_steps import read_roll_backs
from phasewise.validations.evidence.gate import MACRO
from phasewise.validations.expectations.judging import Reason
from phasewise.validations.outcomes import sum_counts, verdicts_in_words
from phasewise.validations.verdict import Verdict, unused_of


class MacroMean(NamedTuple):
    """Of one phase, and of its averaged weights; None where it was not measured."""

    trained: float | None
    averaged: float | None


def shared_components(evaluations: Sequence[Mapping[str, Any] | None]) -> tuple[Component, ...]:
    """The components on which all phases that were evaluated were measured, where some were measured on others as well; else none."""
    measured = [set(evaluation["bits_per_byte"]) for evaluation in evaluations if evaluation and evaluation.get("bits_per_byte")]
    if not measured or all(names == measured[0] for names in measured):
        return ()
    return tuple(sorted(set.intersection(*measured)))


def macro_mean(evaluation: Mapping[str, Any] | None, shared: Sequence[Component]) -> MacroMean:
    """Of one phase: over the shared components, or else over its own. Of averaged weights only the mean over all is kept."""
    if not evaluation:
        return MacroMean(None, None)
    values = evaluation.get("bits_per_byte", {})
    if not shared or set(shared) == set(values):
        return MacroMean(evaluation.get("macro_bits_per_byte"), evaluation.get("ema_macro_bits_per_byte"))
    return MacroMean(sum(values[name] for name in shared) / len(shared), None)


COMPARISONS = ("falls", "rises")
"""Tables of a gate with a row for each benchmark that was measured alike in both. The difference is the same in both tables."""
NOT_ALIKE = "measured otherwise than its parent"

Row = Mapping[str, Any]


def measured_of(record: PhaseRecord, folder: Path) -> tuple[MeasuredReport, ...]:
    """A row a benchmark, and one for macro bits per byte; none where the phase is not evaluated.

    Args:
        folder: of the evidence tables of the phase's gate. They count where its verdict holds, and where they have the evaluation's values.
    """
    evaluation = record.evaluation
    if evaluation is None:
        return ()
    has_parent = record.phase.parent is not None
    tables = _Tables(folder) if record.model_verdict else None
    benchmarks = tuple(_benchmark(result, tables, has_parent=has_parent) for result in evaluation.get("results", []))
    return (*benchmarks, *([_macro(evaluation, tables, has_parent=has_parent)] if "macro_bits_per_byte" in evaluation else []))


class _Tables:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.benchmarks, self.bits_per_byte = self._rows("benchmarks"), self._rows("bits_per_byte")
        self.needles = self._rows("needles")
        rows = [self._rows(name) for name in reversed(COMPARISONS)]
        self.compared = {name: row for table in rows for name, row in table.items()}
        self.comparable = self._rows("comparable")

    def _rows(self, name: str) -> dict[str, Row]:
        path = self._folder / f"{name}.parquet"
        if not path.exists():
            return {}
        import pandas as pd  # `phasewise show` does without

        rows: list[dict[Any, Any]] = pd.read_parquet(path).to_dict("records")
        return {str(row["name"]): row for row in rows}


def _benchmark(result: Row, tables: _Tables | None, *, has_parent: bool) -> MeasuredReport:
    what = f"{result['benchmark']} {result['metric']}"
    value = float(result["value"])
    found = MeasuredReport(
        what=what, higher_is_better=True, value=value, stderr=_known(result.get("stderr")), floor=_known(result.get("baseline"))
    )
    if tables and has_parent and (needle := tables.needles.get(what)) and needle["value"] == value:
        return _but(found, **({"not_compared": str(needle["why_not"])} if needle["why_not"] else _against(value, needle)))
    row = tables.benchmarks.get(what) if tables else None
    if tables is None or row is None or not has_parent or row["value"] != value:
        return found
    compared = tables.compared.get(what)
    if compared is None:
        said = tables.comparable.get(what, {})
        return _but(found, not_compared=str(said.get("differs") or said.get("why_not") or NOT_ALIKE))
    return _but(found, **_against(value, compared))


def _macro(evaluation: Row, tables: _Tables | None, *, has_parent: bool) -> MeasuredReport:
    value = float(evaluation["macro_bits_per_byte"])
    row = tables.bits_per_byte.get(MACRO) if tables else None
    if row is None or not has_parent or _known(row["parent"]) is None:
        return MeasuredReport(what=MACRO, higher_is_better=False, value=value)
    components = evaluation["bits_per_byte"]
    shared = [name for name in str(row["components"]).split(", ") if name in components]
    expected = sum(components[name] for name in shared) / len(shared) if shared else math.nan
    if not math.isclose(expected, row["value"], rel_tol=1e-9):  # a table of another evaluation
        return MeasuredReport(what=MACRO, higher_is_better=False, value=value)
    only = f", of the {plural(len(shared), 'component')} that its parent was measured on"
    what = MACRO if len(shared) == len(components) else f"{MACRO}{only}"
    return _but(MeasuredReport(what=what, higher_is_better=False, value=expected), **_against(expected, row))


def _against(value: float, row: Row) -> dict[str, Any]:
    parent = _known(row.get("parent"))
    difference = _known(row.get("difference"))
    if difference is None and parent is not None:
        difference = value - parent
    low, high = (_known(row.get(end)) for end in ("low", "high"))
    smallest = _known(row.get("smallest_detectable"))
    interval = (low, high) if low is not None and high is not None else None
    return {"parent": parent, "difference": difference, "interval": interval, "smallest_effect": smallest}


def _but(found: MeasuredReport, **fields: Any) -> MeasuredReport:
    return MeasuredReport.model_validate({**dict(found), **fields})


def _known(value: Any) -> float | None:
    return None if value is None or value != value else float(value)


AT_A_BATCH = {"expect_only_finite_numbers", "expect_spikes_within_limit", "expect_no_spike_to_be_led_by_updates"}
"""What may come from the batch of one step."""
AT_STEP = re.compile(r"step (\d+)")
MEASURES = ("score", "loss")
"""Kinds of what the record reported that are figures of a model."""
VERDICT_WORDS = {"done": "passed", "refused": "failed", "waits for a person": "waits for a person", "not reached": None}


def phase_summary(record: PhaseRecord, shared: Sequence[Component] = ()) -> dict[str, Any]:
    """One phase in the shape of `phasewise run --json`; what was not measured is null.

    `steps` counts updates, also those that a roll-back passed over; `passed_over` names these, counted from 0. `bits_per_byte` is the mean
    over components, on held-out text; `standing` is `verdict` with its warnings.

    Args:
        shared: as of `flows.macro_mean.macro_mean`.
    """
    phase = record.phase
    result = record.result or {}
    macro = macro_mean(record.evaluation, shared)
    counts = sum_counts(verdict.counts for verdict in record.verdicts)
    return {
        "name": phase.name,
        "start_step": phase.start_step,
        "stop_step": phase.stop_step,
        "steps": phase.stop_step - phase.start_step,
        "tokens": result.get("tokens", phase.tokens) if result.get("passed_over") else phase.tokens,
        "passed_over": result.get("passed_over", []),
        "learning_rate": turns_of(phase.learning_rate, phase.start_step, phase.stop_step),
        "final_loss": result.get("final_loss"),
        "bits_per_byte": macro.trained,
        "ema_bits_per_byte": macro.averaged,
        "verdict": VERDICT_WORDS[record.state],
        "standing": _standing_words(record),
        "checks": counts.model_dump(),
        "verdicts": [
            {"subject": verdict.subject, "told": verdict.counts.words, "decided": decided_of(ruling), **verdict.counts.model_dump()}
            for verdict, ruling in zip(record.verdicts, record.rulings, strict=True)
        ],
        "checkpoint": result.get("checkpoint"),
        "params_digest": result.get("params_digest"),
    }


def decided_of(ruling: Ruling) -> str | None:
    """Who let the verdict pass or rejected it, when and why; None where nobody was asked."""
    return ruling.decision.words if ruling.decision else None


def _standing_words(record: PhaseRecord) -> str | None:
    if record.state != "done":
        return VERDICT_WORDS[record.state]
    deciders = sorted({ruling.decision.who for ruling in record.rulings if ruling.decision})
    counts = sum_counts(verdict.counts for verdict in record.verdicts)
    return f"let pass by {' and '.join(deciders)}" if deciders else counts.standing_words


def run_summary(resolved: Resolved) -> dict[str, Any]:
    """The whole recipe in the shape of `phasewise run --json`. `bits_per_byte_over`: see `flows.macro_mean`."""
    recipe = resolved.recipe
    report = report_path(resolved)
    records = read_records(resolved)
    verdicts = [verdict for record in records for verdict in record.verdicts]
    counts = [verdict.counts for verdict in verdicts]
    shared = shared_components([record.evaluation for record in records])
    return {
        "recipe": recipe.name,
        "scale": recipe.scale,
        "phases": [phase_summary(record, shared) for record in records],
        "bits_per_byte_over": list(shared) or None,
        "told": f"{verdicts_in_words(counts)}: {sum_counts(counts).shares}",
        "checks": sum_counts(counts).model_dump(),
        "unused": [warning.words for warning in unused_of(verdicts)],
        "baselines": _baselines(resolved),
        "report": str(report) if report.exists() else None,
    }


def _baselines(resolved: Resolved) -> dict[str, float]:
    path = baselines_path(resolved.plan, resolved.home, resolved.recipe.phases[0].evaluation.held_out_tokens)
    return read_baselines(path) or {}


def build_report(resolved: Resolved, records: Sequence[PhaseRecord]) -> Report:
    """The report's contents, from what the home has."""
    recipe = resolved.recipe
    shared = shared_components([record.evaluation for record in records])
    return Report(
        recipe=recipe.name,
        scale=recipe.scale,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        status=status_of(records),
        headline=headline(records),
        parameters=_count_parameters(recipe.phases[-1]),
        phases=tuple(_phase_report(resolved, record, shared) for record in records),
        macro_over=shared,
        baselines=_baselines(resolved),
        unused=tuple(warning.words for warning in unused_of(verdict for record in records for verdict in record.verdicts)),
        facts=_facts(resolved),
    )


def write_recipe_report(resolved: Resolved) -> None:
    """Write the report of a recipe again, with the Data Docs of every verdict that holds."""
    from phasewise.tasks.report.task import publish_report  # it imports Prefect, which `phasewise show` does without

    records = read_records(resolved)
    verdicts = [verdict for record in records for verdict in record.verdicts]
    publish_report(build_report(resolved, records), resolved.home.report(resolved.recipe.run_name), verdicts)
    seal_report(resolved, records)
    resolved.digests.keep()


def refresh_report(resolved: Resolved) -> None:
    """Write the report again where it is not one of what is there now: a decision changes what it says, and trains nothing."""
    records = read_records(resolved)
    if why_no_report(resolved, records):
        write_recipe_report(resolved)


def _phase_report(resolved: Resolved, record: PhaseRecord, shared: Sequence[Component]) -> PhaseReport:
    recipe = resolved.recipe
    home = resolved.home
    trace = f"phasewise trace {resolved.recipe_name}/{record.phase.name} {resolved.options}"
    phase = record.phase
    result = record.result or {}
    evaluation = record.evaluation or {}
    macro = macro_mean(record.evaluation, shared)
    rows = read_metrics(RunFolder.at(record.run.output).metrics) if record.run and record.result else []
    data_path, health_path, model_path = (str(home.verdict(recipe.run_name, phase.name, gate)) for gate in ("data", "health", "model"))
    verdicts = (
        ("data", record.data_verdict, data_path),
        ("training", record.health_verdict, health_path),
        ("gate", record.model_verdict, model_path),
    )
    rulings = dict(zip(map(id, record.verdicts), record.rulings, strict=True))
    return PhaseReport(
        name=phase.name,
        start_step=phase.start_step,
        stop_step=phase.stop_step,
        tokens=phase.tokens,
        batch_sequences=phase.batch.within(phase.start_step, phase.stop_step),
        learning_rate_turns=turns_of(phase.learning_rate, phase.start_step, phase.stop_step),
        learning_rate=tuple((row["step"], row["learning_rate"]) for row in rows),
        loss=tuple((row["step"], row["loss"]) for row in rows if row["loss"] is not None),
        routing=routing_of(rows, phase.gates.health.max_violation),
        final_loss=result.get("final_loss"),
        mixture=_realised_mixture(recipe, phase),
        reads=_reads(recipe, phase),
        bits_per_byte=evaluation.get("bits_per_byte", {}),
        macro_bits_per_byte=macro.trained,
        ema_macro_bits_per_byte=macro.averaged,
        benchmarks=tuple(_benchmark_report(found) for found in evaluation.get("results", [])),
        measured=measured_of(record, home.verdict(recipe.run_name, phase.name, "model").with_suffix("")),
        declares=phase.start.declares if isinstance(phase.start, HandOff) else (),
        parent=phase.parent,
        verdicts=tuple(_verdict_report(name, verdict, rulings[id(verdict)], path, trace) for name, verdict, path in verdicts if verdict),
        state=record.state,
        params_digest=result.get("params_digest"),
        reported=reported_by_the_record(recipe, phase.name),
        roll_backs=_roll_backs(record),
        computed=computed_of(record),
        spent=words_of(spent) if (spent := read_time_breakdown(home.run(recipe.run_name, phase.name))) else "",
    )


def _roll_backs(record: PhaseRecord) -> tuple[RollBackReport, ...]:
    found = read_roll_backs(record.run) if record.run else []
    return tuple(
        RollBackReport(steps=str(one.window), sequences=one.sequences or 0, why=one.why, decided_by=one.decided_by) for one in found
    )


def reported_by_the_record(recipe: Recipe, phase: str) -> tuple[RecordReport, ...]:
    """What the record reported of a phase, whose run was at full scale. Of a smaller run its scores and losses: the report says that they
    are not to be compared. A recipe with sizes of its own has no record."""
    if recipe.scale == "own":
        return ()
    found = (
        RecordReport(what=one.what, value=one.in_words, source=one.source, is_measure=one.kind in MEASURES)
        for one in results_of(recipe).get(phase, ())
    )
    return tuple(one for one in found if one.is_measure or recipe.scale == "full")


def _realised_mixture(recipe: Recipe, phase: Phase) -> tuple[tuple[int, dict[str, float]], ...]:
    schedule = recipe.mixture_schedule(phase)
    starts = [step for step, _ in phase.mixture.within(phase.start_step, phase.stop_step)]
    stages: list[tuple[int, dict[str, float]]] = []
    for start, stop in zip(starts, [*starts[1:], phase.stop_step], strict=True):
        drawn = schedule.realised(start, stop)
        stages.append((start, {name: 100 * count / sum(drawn.values()) for name, count in drawn.items()}))
    return tuple(stages)


def _benchmark_report(found: dict[str, Any]) -> BenchmarkReport:
    return BenchmarkReport(**{name: found[name] for name in ("benchmark", "metric", "value", "baseline", "stderr")})


def _verdict_report(name: str, verdict: Verdict, ruling: Ruling, path: str, trace: str) -> VerdictReport:
    decided = decided_of(ruling) or ""
    reasons = tuple(f"{reason.sentence}{what_trained_there(reason, trace)}" for reason in verdict.reasons)
    accepted = tuple(finding.sentence for check in verdict.checks for finding in check.accepted)
    said = (f"{decided[:1].upper()}{decided[1:]}.",) if decided else ()
    fields = {"counts": verdict.counts, "reasons": (*said, *reasons), "accepted": accepted, "path": path}
    return VerdictReport.model_validate({"name": name, **fields, "ruling": ruling.state, "decided": decided})


def what_trained_there(reason: Reason, trace: str) -> str:
    """For a spike: the command that shows the batch of its worst step."""
    step = AT_STEP.fullmatch(reason.where) if reason.expectation in AT_A_BATCH else None
    return f" What trained there: {trace} --step {step[1]}" if step else ""


def _facts(resolved: Resolved) -> dict[str, str]:
    recipe = resolved.recipe
    components = len(resolved.plan.components)
    tokenizer = recipe.tokenizer.name or f"byte-level BPE, {recipe.tokenizer.vocab_size:,} entries, trained on the training split"
    first = recipe.phases[0]
    order = f"{first.order.permutation} permutation, seed {first.order.seed}, blocks of {first.order.block_sequences} sequences"
    with_buffer = [(phase.name, phase.order.buffer_documents) for phase in recipe.phases if phase.order.buffer_documents]
    buffered = [f"{name} from buffers of {documents:,} documents" for name, documents in with_buffer]
    return {
        "tokenizer": tokenizer,
        "data order": "; ".join([order, *buffered]),
        "held-out text": _held_out(first, components),
        "home": str(resolved.home.root),
        "python": platform.python_version(),
        **{package: version(package) for package in PACKAGES},
    }


def _reads(recipe: Recipe, phase: Phase) -> tuple[str, ...]:
    taken = [(name, bias) for name, bias in sorted(recipe.length_bias.items()) if name in phase.components]
    by_length = [f"documents of {name} by their length: {bias_in_words(bias.model_dump(mode='json'))}" for name, bias in taken]
    return tuple(filter(None, [rows_in_words(phase.packing, phase.loss_on), *by_length]))


def _held_out(phase: Phase, components: int) -> str:
    """How much text of each component is measured on."""
    limit = phase.evaluation.held_out_tokens
    return f"{f'at most {limit:,}' if limit else 'all'} tokens of each of {plural(components, 'component')}"


def _count_parameters(phase: Phase) -> int:
    from phasewise.trainer.model.params import count_parameters

    return count_parameters(phase.model)
