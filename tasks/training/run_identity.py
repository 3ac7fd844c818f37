"""The identity of the run in a folder: whether it equals another run, is finished, or differs.

Equal runs have the same settings and starting weights, and for each component the same cache, by name or by content: changed code may
prepare the same bytes under other names. `caches.json` has the contents of the caches. An older run lacks it, so manifests are read.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.data.plan import DataPlan
from phasewise.tasks.data.verify import differs_in_code_alone
from phasewise.tasks.progress import say
from phasewise.trainer.base.identity import digest_of_bytes, find_sealed, read_sealed, write_sealed
from phasewise.trainer.base.run_folder import RunFolder, append_event, read_result
from phasewise.trainer.base.storage import as_path, read_json
from phasewise.trainer.base.wording import name_some
from phasewise.trainer.checkpoints.files import find_damage, is_committed, saved_steps
from phasewise.trainer.config import DECIDES_BITS, RunConfig, first_changed_rate
from phasewise.trainer.config.run import BIND_THE_RESULT, NOTHING, Difference, differences_between
from phasewise.trainer.data.manifest import find_manifest
from phasewise.trainer.metrics import read_metrics, rows_digest


def read_run(folder: Path) -> RunConfig | None:
    """Return the run of `run.json`, or None if the file is missing or was changed."""
    with suppress(FileNotFoundError, ValueError):
        return RunConfig.model_validate(read_sealed(RunFolder(folder).run_file))
    return None


def has_result_of(folder: Path, run: RunConfig) -> bool:
    """Return whether the sealed result in the folder belongs to this run. Then a different `run.json` was changed."""
    return (read_result(folder) or {}).get("run_digest") == run.digest


def last_saved_step(run: RunConfig | Path) -> int | None:
    """Return the step of the newest committed checkpoint of a run, or of a run's folder."""
    folder = RunFolder(run if isinstance(run, Path) else as_path(run.output)).checkpoints
    return next((step for step in reversed(saved_steps(folder)) if is_committed(folder / str(step))), None)


def finished_result(run: RunConfig, plan: DataPlan | None = None, digests: KnownDigests | None = None) -> dict[str, Any] | None:
    """Return the valid result of this run, if any. A deleted checkpoint is not damage, a damaged last checkpoint is.

    With `plan`, caches that wait for a rebuild by changed code don't invalidate a result. `digests` None reads the files that look changed.
    """
    folder = as_path(run.output)
    result, written = read_result(folder), read_run(folder)
    if result is None:
        return None
    digest = result.get("run_digest")
    if written is not None and digest != written.digest:
        return None
    if digest != run.digest and (written is None or not is_same(written, run, plan)):
        return None
    if damage_of_finished(run, digests):
        return None
    return {**result, "checkpoint": str(RunFolder(run.output).checkpoint(run.stop_step))}


def damage_of_finished(run: RunConfig, digests: KnownDigests | None = None) -> str | None:
    """Return the damage of a finished run's last checkpoint, metrics or `run.json`. Nothing is compared if the checkpoint was deleted."""
    folder = RunFolder(run.output)
    checkpoint = folder.checkpoint(run.stop_step)
    if not checkpoint.exists():
        return None
    written = read_run(folder.path)
    if written is None or (has_result_of(folder.path, run) and not is_same(written, run)):
        return f"is whole, and {folder.run_file} is missing or was changed after the run ended"
    known = digests or KnownDigests()
    if damage := find_damage(checkpoint, lambda files: known.changed(checkpoint, files, folder.result)):
        return damage
    if known.changed(folder.path, {folder.metrics.name: ""}, folder.result):  # without a digest, only the time counts
        said = read_json(checkpoint / "about" / "metadata").get("rows")
        if said is not None and not (folder.metrics.exists() and rows_digest(read_metrics(folder.metrics)) == said):
            return f"was saved with other rows than {folder.metrics} has"
    return None


def is_begun(run: RunConfig, plan: DataPlan | None = None) -> bool:
    """Return whether the run's folder has exactly this run, with `plan` as in `finished_result`."""
    folder = as_path(run.output)
    written = read_run(folder)
    return has_result_of(folder, run) or (written is not None and is_same(written, run, plan))


def note_caches(run: RunConfig, written: RunConfig | None = None) -> None:
    """Write the contents of the run's caches to `caches.json`, before a cache can be deleted. `written` is the equal run of `run.json`."""
    contents = {name: manifest.content for name, folder in run.caches.items() if (manifest := find_manifest(as_path(folder)))}
    write_sealed(RunFolder(run.output).caches, {"run_digest": (written or run).digest, "contents": contents})


def noted_caches(folder: Path, written: RunConfig) -> dict[str, str]:
    """Return component → content of its cache when the run started, or nothing if `caches.json` is of another run or was changed."""
    noted = find_sealed(RunFolder(folder).caches)
    return noted["contents"] if noted and noted.get("run_digest") == written.digest else {}


def is_same(written: RunConfig, run: RunConfig, plan: DataPlan | None = None) -> bool:
    """Return whether `run` would repeat the training of `written`, which is in the folder of `run`. `plan` as in `finished_result`."""
    if written.digest == run.digest:
        return True
    with_caches_of_run = {**written.model_dump(mode="json"), "caches": run.caches, "cache_digests": run.cache_digests}
    if written.caches.keys() != run.caches.keys() or RunConfig.model_validate(with_caches_of_run).digest != run.digest:
        return False
    noted = noted_caches(as_path(run.output), written)
    for component in run.caches:
        if written.cache_name(component) == run.cache_name(component):
            continue
        name, folder_name = written.cache_name(component), written.caches[component].rstrip("/").rpartition("/")[2]
        before = None  # the manifest of the training cache, in the current or the earlier home
        for place in (as_path(run.caches[component]).parent / folder_name, as_path(written.caches[component])):
            found = find_manifest(place)
            names = (found.digest, f"{found.split}-{found.key[:16]}", written.caches[component]) if found else ()
            if found and found.component == component and name in names:
                before = found
                break
        if plan is None or plan.components[component].train.is_built:
            now = find_manifest(as_path(run.caches[component]))
        else:
            now = before if before and differs_in_code_alone(plan.components[component], before) else None
        content = noted.get(component) or (before.content if before else None)
        if content is None or now is None or content != now.content:
            return False
    return True


def differences(run: RunConfig) -> tuple[Difference, ...]:
    """Return the differences that decide weights between a run and the run in its folder, which may be of an older version."""
    if (written := find_sealed(RunFolder(run.output).run_file)) is None:
        return ()
    try:
        before = RunConfig.model_validate(written).decisive
    except ValueError:
        before = {name: written.get(name, NOTHING) for name in run.decisive}
    return tuple(differences_between(before, run.decisive))


def why_not_extended(run: RunConfig) -> str:
    """Return the reason that the run in the folder of `run` cannot continue with more steps. Empty if it can."""
    written, saved = read_run(as_path(run.output)), last_saved_step(run)
    if written is None or saved is None:
        return f"expected a trained run to continue, found no checkpoint in {run.output}"
    if run.stop_step <= written.stop_step:
        return f"stop_step: expected more than the trained {written.stop_step:,}, found {run.stop_step:,}"
    if changed := first_changed_rate(written.learning_rate, run.learning_rate, run.start_step, saved):
        update, was, now = changed
        return f"learning_rate of update {update + 1:,}: expected {was:g} as trained, found {now:g}"
    continued = written.but(**{name: getattr(run, name) for name in BIND_THE_RESULT})
    if not is_same(continued, run):
        return name_some(differences_between(continued.decisive, run.decisive), 3, "; ") or "its caches have other content"
    return ""


def extend_run(run: RunConfig) -> None:
    """Make the run in the folder of `run` this run, which continues from the last checkpoint. Only if `why_not_extended` is empty."""
    folder, written, saved = RunFolder(run.output), read_run(as_path(run.output)), last_saved_step(run)
    text = f"continues from step {saved:,} to step {run.stop_step:,}"
    append_event(run.output, "extended", saved, text)
    write_sealed(folder.run_file, run.but(execution=written.execution if written else run.execution).model_dump(mode="json"))
    folder.result.unlink(missing_ok=True)
    note_caches(run)
    say(f"{run.phase}: {text}")


def note_changed_plan(run: RunConfig) -> str | None:
    """Report and log how the plan differs in bits from the plan of the last checkpoint, if any."""
    written = read_run(as_path(run.output))
    if written is None or not is_same(written, run) or finished_result(run):
        return None
    was, now = (one.execution.model_dump(mode="json", include=set(DECIDES_BITS)) for one in (written, run))
    saved, changed = last_saved_step(run), tuple(differences_between(was, now, "execution"))
    if saved is None or not changed:
        return None
    text = f"resuming from step {saved:,} by another plan, on the same batches, and no longer bit for bit: {name_some(changed, 3, '; ')}"
    say(f"{run.phase}: {text}")
    append_event(run.output, "replanned", saved, text)
    return text


def archive_another_run(run: RunConfig) -> None:
    """Rename the folder of `run` if it has a different run, or lost its `run.json`. It is never deleted."""
    folder = RunFolder(run.output)
    is_known = folder.run_file.exists()
    if not is_known and not folder.checkpoints.exists():
        return
    written = read_run(folder.path)
    if written and is_same(written, run):
        return
    if has_result_of(folder.path, run):
        say(f"{run.phase}: {folder.run_file} is missing or was changed after the run ended; it is written again")
        return
    digest = written.digest if written else digest_of_bytes(folder.run_file.read_bytes()) if is_known else "unknown"
    number = 1
    while (archived := folder.superseded(digest, number)).exists():
        number += 1
    folder.path.rename(archived)
    had = "had other data or settings" if is_known else "has lost its run.json"
    say(f"{run.phase}: what was trained before {had}; it is kept in {archived.name}")
