"""The results of a recipe: the JSON of `phasewise run`, and the contents of the report."""

import math
import platform
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from phasewise.flows.recipes.facts import results_of
from phasewise.flows.recipes.phase import HandOff, Pretrained
from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.resolved import Resolved
from phasewise.flows.show.words import bias_in_words, rows_in_words
from phasewise.flows.status.phase_status import PhaseRecord, read_records
from phasewise.flows.status.recipe_status import PACKAGES, computed_of, headline, report_path, seal_report, status_of
from phasewise.tasks.evaluation.ngram_baselines import baselines_path, read_baselines
from phasewise.tasks.phase_state import State
from phasewise.tasks.report import contents
from phasewise.tasks.report.sections import routing_of
from phasewise.tasks.training.time_breakdown import read_goodput, read_time_breakdown, words_of
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.wording import plural
from phasewise.trainer.config import Component, turns_of
from phasewise.trainer.metrics import read_metrics
from phasewise.trainer.skipped_steps import read_roll_backs
from phasewise.validations.expectations.judging import Reason
from phasewise.validations.limits import MACRO
from phasewise.validations.verdict import sum_counts, unused_of, verdicts_in_words

COMPARISONS = ("rises", "falls")
"""Evidence tables with a row per benchmark that was measured with the same settings in the parent. Both have the same difference."""
NOT_ALIKE = "measured otherwise than its parent"
AT_A_BATCH = {"expect_only_finite_numbers", "expect_spikes_within_limit", "expect_no_spike_to_be_led_by_updates"}
"""Checks whose failure may come from the batch of one step."""
AT_STEP = re.compile(r"step (\d+)")
MEASURES = ("score", "loss")  # kinds of published results that measure a model
VERDICT_WORDS = {State.DONE: "passed", State.REFUSED: "failed", State.WAITS_FOR_PERSON: State.WAITS_FOR_PERSON}
Row = Mapping[str, Any]


def shared_components(evaluations: Sequence[Mapping[str, Any] | None]) -> tuple[Component, ...]:
    """The common components of all evaluations. Empty if all evaluations have the same components."""
    measured = [set(evaluation["bits_per_byte"]) for evaluation in evaluations if evaluation and evaluation.get("bits_per_byte")]
    if not measured or all(names == measured[0] for names in measured):
        return ()
    return tuple(sorted(set.intersection(*measured)))


def macro_mean(evaluation: Mapping[str, Any] | None, shared: Sequence[Component]) -> tuple[float | None, float | None]:
    """Macro bits per byte of trained and averaged weights over the shared components, or over all. None without a measurement."""
    if not evaluation:
        return None, None
    values = evaluation.get("bits_per_byte", {})
    if not shared or set(shared) == set(values):
        return evaluation.get("macro_bits_per_byte"), evaluation.get("ema_macro_bits_per_byte")
    return sum(values[name] for name in shared) / len(shared), None


def measured_of(record: PhaseRecord, folder: Path) -> tuple[contents.MeasuredReport, ...]:
    """A row for each benchmark and for macro bits per byte. `folder`: evidence of the gate, if the values equal the evaluation's."""
    evaluation = record.evaluation
    if evaluation is None:
        return ()
    tables: dict[str, dict[str, Row]] = {}
    for name in ("benchmarks", "bits_per_byte", "needles", "comparable", *COMPARISONS):
        path = folder / f"{name}.parquet"
        tables[name] = {}
        has_parent = record.phase.parent is not None or isinstance(record.phase.start, Pretrained)
        if record.model_verdict and has_parent and path.exists():
            import pandas as pd  # slow to import

            rows: list[dict[Any, Any]] = pd.read_parquet(path).to_dict("records")
            tables[name] = {str(row["name"]): row for row in rows}
    compared = {name: row for table in COMPARISONS for name, row in tables[table].items()}
    measured: list[contents.MeasuredReport] = []
    for result in evaluation.get("results", []):
        what, value = f"{result['benchmark']} {result['metric']}", float(result["value"])
        needle, row = tables["needles"].get(what), tables["benchmarks"].get(what)
        fields: dict[str, Any] = {}
        if needle and needle["value"] == value:
            fields = {"not_compared": str(needle["why_not"])} if needle["why_not"] else _against(value, needle)
        elif row and row["value"] == value and what in compared:
            fields = _against(value, compared[what])
        elif row and row["value"] == value:
            comparable = tables["comparable"].get(what, {})
            fields = {"not_compared": str(comparable.get("differs") or comparable.get("why_not") or NOT_ALIKE)}
        known = {"stderr": _known(result.get("stderr")), "floor": _known(result.get("baseline"))}
        measured.append(contents.MeasuredReport.model_validate({"what": what, "higher_is_better": True, "value": value, **known, **fields}))
    if "macro_bits_per_byte" in evaluation:
        macro: dict[str, Any] = {"what": MACRO, "higher_is_better": False, "value": float(evaluation["macro_bits_per_byte"])}
        row, components = tables["bits_per_byte"].get(MACRO), evaluation.get("bits_per_byte", {})
        if row is not None and _known(row["parent"]) is not None:
            shared = [name for name in str(row["components"]).split(", ") if name in components]
            value = sum(components[name] for name in shared) / len(shared) if shared else math.nan
            if math.isclose(value, row["value"], rel_tol=1e-9):  # else the table is of another evaluation
                only = (
                    "" if len(shared) == len(components) else f", of the {plural(len(shared), 'component')} that its parent was measured on"
                )
                macro |= {"what": f"{MACRO}{only}", "value": value, **_against(value, row)}
        measured.append(contents.MeasuredReport.model_validate(macro))
    return tuple(measured)


def curves_of(evaluation: Mapping[str, Any], stop_step: int) -> dict[str, contents.Points]:
    """The scores and the macro bits per byte of the kept checkpoints and the end, or nothing if only the end is measured."""
    curves: dict[str, contents.Points] = {}
    points: list[Mapping[str, Any]] = [point for point in evaluation.get("curve", ()) if "results" in point]
    end: list[Mapping[str, Any]] = [{**evaluation, "step": stop_step}] if points else []
    for point in [*points, *end]:
        found = {f"{one['benchmark']} {one['metric']}": one["value"] for one in point["results"]}
        for name, value in {MACRO: point["macro_bits_per_byte"], **found}.items():
            curves[name] = (*curves.get(name, ()), (point["step"], float(value)))
    return curves


def _against(value: float, row: Row) -> dict[str, Any]:
    parent, difference, low, high, smallest = (
        _known(row.get(name)) for name in ("parent", "difference", "low", "high", "smallest_detectable")
    )
    if difference is None and parent is not None:
        difference = value - parent
    interval = (low, high) if low is not None and high is not None else None
    return {"parent": parent, "difference": difference, "interval": interval, "smallest_effect": smallest}


def _known(value: Any) -> float | None:
    return None if value is None or value != value else float(value)


def phase_summary(record: PhaseRecord, shared: Sequence[Component] = ()) -> dict[str, Any]:
    """A phase in the shape of `phasewise run --json`. Values without a measurement are null.

    `steps` counts updates, also updates that a roll-back skipped. `passed_over` lists skipped updates, from 0. `bits_per_byte` is the mean
    over components of held-out text. `state` is the state by the results, and `standing` is `verdict` with its warnings.
    """
    phase = record.phase
    result = record.result or {}
    bits_per_byte, ema_bits_per_byte = macro_mean(record.evaluation, shared)
    counts = sum_counts(verdict.counts for verdict in record.verdicts)
    deciders = sorted({ruling.decision.who for ruling in record.rulings if ruling.decision})
    standing = VERDICT_WORDS.get(record.state)
    if record.state == State.DONE:
        standing = f"let pass by {' and '.join(deciders)}" if deciders else counts.standing_words
    return {
        "name": phase.name, "start_step": phase.start_step, "stop_step": phase.stop_step, "steps": phase.stop_step - phase.start_step,
        "tokens": result.get("tokens", phase.tokens) if result.get("passed_over") else phase.tokens,
        "passed_over": result.get("passed_over", []), "learning_rate": turns_of(phase.learning_rate, phase.start_step, phase.stop_step),
        "final_loss": result.get("final_loss"), "bits_per_byte": bits_per_byte, "ema_bits_per_byte": ema_bits_per_byte,
        "state": record.state, "verdict": VERDICT_WORDS.get(record.state), "standing": standing, "checks": counts.model_dump(),
        "verdicts": [
            {
                "subject": verdict.subject,
                "told": verdict.counts.words,
                "decided": ruling.decision.words if ruling.decision else None,
                **verdict.counts.model_dump(),
            }
            for verdict, ruling in zip(record.verdicts, record.rulings, strict=True)
        ],
        "checkpoint": result.get("checkpoint"), "params_digest": result.get("params_digest"),
    }  # fmt: skip


def run_summary(resolved: Resolved) -> dict[str, Any]:
    """A recipe in the shape of `phasewise run --json`. `bits_per_byte_over` has the components of `shared_components`."""
    recipe, first = resolved.recipe, resolved.recipe.phases[0]
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
        "baselines": read_baselines(baselines_path(resolved.plan, resolved.home, first.evaluation.held_out_tokens)) or {},
        "report": str(report) if report.exists() else None,
    }


def write_recipe_report(resolved: Resolved) -> None:
    """Write the report of a recipe, with the Data Docs of all current verdicts."""
    from phasewise.tasks.report.task import publish_report  # it imports Prefect

    records = read_records(resolved)
    verdicts = [verdict for record in records for verdict in record.verdicts]
    publish_report(build_report(resolved, records), resolved.home.report(resolved.recipe.run_name), verdicts)
    seal_report(resolved, records)
    resolved.digests.keep()


def build_report(resolved: Resolved, records: Sequence[PhaseRecord]) -> contents.Report:
    """The contents of the report."""
    from phasewise.trainer.model.params import count_parameters  # it imports JAX

    recipe, first = resolved.recipe, resolved.recipe.phases[0]
    start = first.start
    shared = shared_components([record.evaluation for record in records])
    order = f"{first.order.permutation} permutation, seed {first.order.seed}, blocks of {first.order.block_sequences} sequences"
    orders = [(phase.name, phase.order) for phase in recipe.phases if phase.order.buffer_documents]
    fills = [f"{name} from buffers of {one.buffer_documents:,} documents, one per {one.buffer_over}" for name, one in orders]
    limit = first.evaluation.held_out_tokens
    held_out = f"{f'at most {limit:,}' if limit else 'all'} tokens"
    facts = {
        "tokenizer": recipe.tokenizer.name or f"byte-level BPE, {recipe.tokenizer.vocab_size:,} entries, trained on the training split",
        "data order": "; ".join([order, *fills]),
        "held-out text": f"{held_out} of each of {plural(len(resolved.plan.components), 'component')}",
        **({"weights at the start": f"of {start.pretrained}, whose training text is unknown"} if isinstance(start, Pretrained) else {}),
        "home": str(resolved.home.root),
        "python": platform.python_version(),
        **{package: version(package) for package in PACKAGES},
    }
    return contents.Report(
        recipe=recipe.name,
        scale=recipe.scale,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        status=status_of(records),
        headline=headline(records),
        parameters=count_parameters(recipe.phases[-1].model),
        phases=tuple(_phase_report(resolved, record, shared) for record in records),
        macro_over=shared,
        baselines=read_baselines(baselines_path(resolved.plan, resolved.home, limit)) or {},
        unused=tuple(warning.words for warning in unused_of(verdict for record in records for verdict in record.verdicts)),
        facts=facts,
    )


def _phase_report(resolved: Resolved, record: PhaseRecord, shared: Sequence[Component]) -> contents.PhaseReport:
    recipe, home, phase = resolved.recipe, resolved.home, record.phase
    trace = f"phasewise trace {resolved.recipe_name}/{phase.name} {resolved.options}"
    result, evaluation = record.result or {}, record.evaluation or {}
    macro, ema_macro = macro_mean(record.evaluation, shared)
    rows = read_metrics(RunFolder(record.run.output).metrics) if record.run and record.result else []
    gates = (("data", "data"), ("training", "health"), ("gate", "model"))
    paths = {name: home.verdict(recipe.run_name, phase.name, gate) for name, gate in gates}
    verdicts = (record.data_verdict, record.health_verdict, record.model_verdict)
    found = [(name, verdict) for name, verdict in zip(paths, verdicts, strict=True) if verdict]
    judged: list[contents.VerdictReport] = []
    for (name, verdict), ruling in zip(found, record.rulings, strict=True):
        decided = ruling.decision.words if ruling.decision else ""
        reasons = [f"{reason.sentence}{what_trained_there(reason, trace)}" for reason in verdict.reasons]
        if decided:
            reasons.insert(0, f"{decided[:1].upper()}{decided[1:]}.")
        findings = [finding for check in verdict.checks for finding in check.accepted]
        accepted = tuple(f"{one.worst.what}. Accepted: {one.warning.reason} ({one.warning.source})" for one in findings)
        fields = {"name": name, "counts": verdict.counts, "reasons": tuple(reasons), "accepted": accepted, "path": str(paths[name])}
        judged.append(contents.VerdictReport.model_validate({**fields, "ruling": ruling.state, "decided": decided}))
    starts = [step for step, _ in phase.mixture.within(phase.start_step, phase.stop_step)]
    mixture: list[tuple[int, dict[str, float]]] = []
    for start, stop in zip(starts, [*starts[1:], phase.stop_step], strict=True):
        drawn = recipe.mixture_schedule(phase).realised(start, stop)
        mixture.append((start, {name: 100 * count / sum(drawn.values()) for name, count in drawn.items()}))
    spent, goodput = read_time_breakdown(home.run(recipe.run_name, phase.name)), read_goodput(home, recipe.run_name, phase.name)
    taken = [(name, bias) for name, bias in sorted(recipe.length_bias.items()) if name in phase.components]
    reads = [rows_in_words(phase.packing, phase.loss_on)]
    if isinstance(phase.start, Pretrained):
        reads.append(f"starts from the weights of {phase.start.pretrained}: whether they have seen test items is unknown")
    reads += [f"documents of {name} by their length: {bias_in_words(bias.model_dump(mode='json'))}" for name, bias in taken]
    return contents.PhaseReport(
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
        mixture=tuple(mixture),
        reads=tuple(filter(None, reads)),
        bits_per_byte=evaluation.get("bits_per_byte", {}),
        macro_bits_per_byte=macro,
        ema_macro_bits_per_byte=ema_macro,
        curves=curves_of(evaluation, phase.stop_step),
        benchmarks=tuple(
            contents.BenchmarkReport(**{name: found[name] for name in contents.BenchmarkReport.model_fields})
            for found in evaluation.get("results", [])
        ),
        measured=measured_of(record, paths["gate"].with_suffix("")),
        declares=phase.start.declares if isinstance(phase.start, HandOff) else (),
        parent=phase.parent,
        verdicts=tuple(judged),
        state=record.state,
        params_digest=result.get("params_digest"),
        reported=reported_by_the_record(recipe, phase.name),
        roll_backs=tuple(
            contents.RollBackReport(steps=str(one.window), sequences=one.sequences or 0, why=one.why, decided_by=one.decided_by)
            for one in (read_roll_backs(Path(record.run.output), record.run.batch) if record.run else [])
        ),
        computed=computed_of(record),
        spent=words_of(spent) if spent else "",
        time=goodput.seconds if goodput else {},
    )


def reported_by_the_record(recipe: Recipe, phase: str) -> tuple[contents.RecordReport, ...]:
    """The published results of a phase. Scales below `full` get only scores and losses, and recipes of scale `own` none."""
    if recipe.scale == "own":
        return ()
    found = (
        contents.RecordReport(what=one.what, value=one.in_words, source=one.source, is_measure=one.kind in MEASURES)
        for one in results_of(recipe).get(phase, ())
    )
    return tuple(one for one in found if one.is_measure or recipe.scale == "full")


def what_trained_there(reason: Reason, trace: str) -> str:
    """The command that shows the batch of a spike's worst step."""
    step = AT_STEP.fullmatch(reason.where) if reason.expectation in AT_A_BATCH else None
    return f" What trained there: {trace} --step {step[1]}" if step else ""
