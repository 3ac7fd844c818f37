"""The status of a whole recipe: its phases, baselines and report."""

from collections.abc import Iterable, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from phasewise.flows.recipes.phase import Phase
from phasewise.flows.resolved import Resolved
from phasewise.flows.status.phase_status import Finding, PhaseRecord, read_record
from phasewise.tasks.evaluation.ngram_baselines import baselines_path, read_baselines
from phasewise.tasks.phase_state import JUDGED, State
from phasewise.tasks.training.execution import execution_summary
from phasewise.tasks.training.run_identity import read_run
from phasewise.trainer.base.errors import CheckpointError, PhasewiseError
from phasewise.trainer.base.identity import NotAsWritten, code_digest, digest_of_file, digest_of_json, files_of, read_sealed, write_sealed
from phasewise.trainer.base.storage import as_path
from phasewise.trainer.base.wording import name_some
from phasewise.trainer.skipped_steps import read_roll_backs


def status_of(records: Sequence[PhaseRecord]) -> Literal["passed", "stopped", "unfinished"]:
    """The status of all phases together. An untrained phase stops nothing."""
    states = {record.state for record in records}
    if states <= {State.DONE}:
        return "passed"
    return "stopped" if states & {State.REFUSED, State.WAITS_FOR_PERSON} else "unfinished"


def headline(records: Sequence[PhaseRecord]) -> str:
    """The status of all phases in a sentence."""
    done = [record for record in records if record.state == State.DONE]
    if len(done) == len(records):
        every = {1: "The phase", 2: "Both phases"}.get(len(records), f"All {len(records)} phases")
        return f"{every} trained on judged data and passed {'its gate' if len(records) == 1 else 'their gates'}."
    if waiting := [record.phase.name for record in records if record.state == State.WAITS_FOR_PERSON]:
        return f"{len(done)} of {len(records)} phases passed; waiting for a person: {', '.join(waiting)}."
    if refused := [record.phase.name for record in records if record.state == State.REFUSED]:
        return f"{len(done)} of {len(records)} phases passed; refused: {', '.join(refused)}."
    return f"{len(done)} of {len(records)} phases are done; next is {next(one.phase.name for one in records if one.state != State.DONE)}."


KEYS_NAME = "keys.json"
PACKAGES = ("phasewise", "jax", "optax", "orbax-checkpoint", "prefect", "dask", "great-expectations", "lm-eval")
"""Packages whose versions are in the report."""
REPORTING = (
    "flows/recipes/facts.py", "flows/show/words.py", "flows/status/recipe_status.py", "flows/status/summary.py", "tasks/report/*.py",
    "tasks/training/execution.py", "tasks/training/time_breakdown.py", "trainer/base/wording.py", "trainer/skipped_steps.py",
    "validations/failures.py", "validations/reevaluate.py",
)  # fmt: skip
LAID_OUT_BY = ("flows/recipes/*/*.yaml", "tasks/report/templates/*.html", "tasks/report/static/*.css")


def report_path(resolved: Resolved) -> Path:
    """The HTML report of a recipe."""
    return resolved.home.report(resolved.recipe.run_name) / "report.html"


def is_done(resolved: Resolved, phases: Iterable[Phase]) -> bool:
    """Whether all caches and results of these phases, the baselines and the report are current."""
    try:
        is_built = resolved.plan.is_built
    except PhasewiseError:
        return False
    records = [read_record(resolved, phase) for phase in phases]
    are_done = is_built and all(record.state == State.DONE for record in records)
    return are_done and all(one.holds for one in find_of_recipe(resolved, records))


def find_of_recipe(resolved: Resolved, records: Sequence[PhaseRecord]) -> tuple[Finding, ...]:
    """The findings on the baselines and the report."""
    baselines = baselines_path(resolved.plan, resolved.home, resolved.recipe.phases[0].evaluation.held_out_tokens)
    why_report = why_no_report(resolved, records)
    why_baselines = "" if read_baselines(baselines) else "the byte n-grams are not measured on the current text"
    return (
        Finding(what="baselines", holds=not why_baselines, again="evaluate" if why_baselines else None, why=why_baselines),
        Finding(what="report", holds=not why_report, again="report" if why_report else None, why=why_report),
    )


def seal_report(resolved: Resolved, records: Iterable[PhaseRecord]) -> None:
    """Write the digests of the report's inputs and files, after all files."""
    folder = report_path(resolved).parent
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != KEYS_NAME and not path.name.startswith(".")]
    files = {path.relative_to(folder).as_posix(): digest_of_file(path) for path in paths}
    write_sealed(folder / KEYS_NAME, {"phases": _keys(resolved, records), "files": files})


def why_no_report(resolved: Resolved, records: Sequence[PhaseRecord]) -> str:
    """The reason that the report is missing or out of date. Empty if it is current."""
    path = report_path(resolved)
    if not path.exists():
        return "there is no report"
    try:
        written = read_sealed(path.with_name(KEYS_NAME))
        phases, files = written["phases"], written["files"]
    except (FileNotFoundError, NotAsWritten, KeyError) as error:
        return f"the report does not name its inputs: {error}"
    if changed := resolved.digests.changed(path.parent, files, path.with_name(KEYS_NAME)):
        return f"the report is out of date: {name_some(changed, 3)} changed after it was written"
    try:
        others = [name for name, key in _keys(resolved, records).items() if phases.get(name) != key]
    except CheckpointError as error:
        return str(error)
    return f"the report is out of date: {KEYS_NAME} has other results of {', '.join(others)}" if others else ""


def _keys(resolved: Resolved, records: Iterable[PhaseRecord]) -> dict[str, str]:
    """Phase → digest of its part of the report, and of the code that writes it."""
    tokenizer = resolved.recipe.tokenizer
    makers = [tokenizer.name, tokenizer.vocab_size, _code(), {name: version(name) for name in PACKAGES}]
    keys: dict[str, str] = {}
    for record in records:
        results = [
            {name: value for name, value in (one or {}).items() if name != "checkpoint"} for one in (record.result, record.evaluation)
        ]
        shown = [
            record.state if record.state in JUDGED else None,  # an unfinished phase changes the report only by its results
            *(finding.decided for finding in record.findings if finding.decided),
            record.phase.model_dump(mode="json", exclude={"instrumentation", "execution", "discrepancies", "notes"}),
            [verdict.model_dump(mode="json", exclude={"evidence"}) for verdict in record.verdicts],
            *results,
            *(read_roll_backs(Path(record.run.output), record.run.batch) if record.run else ()),
            computed_of(record),
        ]
        keys[record.phase.name] = digest_of_json([*makers, *shown])
    return keys


def computed_of(record: PhaseRecord) -> str:
    """The hardware and execution of a phase as text. Empty without a run."""
    if record.run is None:
        return ""
    folder = as_path(record.run.output)
    written = read_run(folder)
    return execution_summary(folder, record.phase.slice.at((written or record.run).last_step - 1))


@cache
def _code() -> list[str]:
    pages = sorted(path.read_text(encoding="utf-8") for path in files_of(*LAID_OUT_BY))
    return [code_digest(*REPORTING), digest_of_json(pages)]
