"""Which run a folder is of: the same settings and starting weights, and for each component the same cache, by its name or by its content.

Code that prepares data may change and give the very same bytes: caches then have other names and the same content, and nothing is trained
again. What the caches of a run held is in `caches.json` beside its `run.json`. A run of before has none; then the caches' manifests are
asked, which are in the home for as long as nobody deletes them.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from phasewise.tasks.data.plan import DataPlan
from phasewise.tasks.data.verify import differs_in_code_alone
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.identity import NotAsWritten, read_sealed, write_sealed
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.storage import as_path
from phasewise.trainer.config import RunConfig
from phasewise.trainer.data.manifest import Manifest, read_manifest
from phasewise.trainer.result import read_result


def read_run(folder: Path) -> RunConfig | None:
    """The run that was written down in the folder; None if there is none, or it was changed after it was written."""
    try:
        return RunConfig.model_validate(read_sealed(RunFolder(folder).run_file, may_lack_seal=True))
    except (FileNotFoundError, ValueError):
        return None


def has_result_of(folder: Path, run: RunConfig) -> bool:
    """Whether the folder's result, which is sealed, is that of this run: then a `run.json` that says otherwise was changed."""
    return (read_result(folder) or {}).get("run_digest") == run.digest


def note_caches(run: RunConfig, written: RunConfig | None = None) -> None:
    """Write down the content of the run's caches, before they can be deleted. One that cannot be read is passed over: the code
    that reads its tokens reports it.

    Args:
        written: the run that `run.json` says, where that is the same run with caches of other names; None is the run itself.
    """
    contents = {name: manifest.content for name, folder in run.caches.items() if (manifest := _manifest(as_path(folder)))}
    write_sealed(RunFolder.at(run.output).caches, {"run_digest": (written or run).digest, "contents": contents})


def is_same(written: RunConfig, run: RunConfig) -> bool:
    """Whether what was trained as `written`, in the folder of `run`, is what `run` would train."""
    return _is_same(written, run, _content_now(run))


def is_same_so_far(written: RunConfig, run: RunConfig, plan: DataPlan) -> bool:
    """The same, where caches that are still to be prepared again for a change of their code are taken to have the same content.

    Whether they have is seen when they are there.
    """
    content_now = _content_now(run)

    def is_to_be(component: str) -> str | None:
        if plan.components[component].train.is_built:
            return content_now(component)
        before = _manifest_as_written(written, run, component)
        return before.content if before and differs_in_code_alone(plan.components[component], before) else None

    return _is_same(written, run, is_to_be)


def _is_same(written: RunConfig, run: RunConfig, content_now: Callable[[str], str | None]) -> bool:
    if written.digest == run.digest:
        return True
    with_caches_of_run = {**written.model_dump(mode="json"), "caches": run.caches, "cache_digests": run.cache_digests}
    if written.caches.keys() != run.caches.keys() or RunConfig.model_validate(with_caches_of_run).digest != run.digest:
        return False
    noted = noted_caches(as_path(run.output), written)

    def is_same_cache(component: str) -> bool:
        if written.cache_name(component) == run.cache_name(component):
            return True
        manifest = None if component in noted else _manifest_as_written(written, run, component)
        content = noted.get(component) or (manifest.content if manifest else None)
        return content is not None and content == content_now(component)

    return all(is_same_cache(component) for component in run.caches)


def _content_now(run: RunConfig) -> Callable[[str], str | None]:
    """The content of a component's cache as it is now; None where there is none."""

    def content(component: str) -> str | None:
        manifest = _manifest(as_path(run.caches[component]))
        return manifest.content if manifest else None

    return content


def noted_caches(folder: Path, written: RunConfig) -> dict[str, str]:
    """Component → content of its cache, as noted when the run began; nothing if the note is of another run or was changed."""
    try:
        noted = read_sealed(RunFolder(folder).caches, may_lack_seal=True)
    except (FileNotFoundError, NotAsWritten):
        return {}
    return noted["contents"] if noted.get("run_digest") == written.digest else {}


def _manifest_as_written(written: RunConfig, run: RunConfig, component: str) -> Manifest | None:
    """The manifest of the cache that a run was trained on: beside the cache as it is now, wherever the home was moved, or where it was."""
    name = written.caches[component].rstrip("/").rpartition("/")[2]
    for folder in (as_path(run.caches[component]).parent / name, as_path(written.caches[component])):
        manifest = _manifest(folder)
        if manifest and _is_named(manifest, written, component):
            return manifest
    return None


def _is_named(manifest: Manifest, written: RunConfig, component: str) -> bool:
    """Whether a manifest is of the cache that the run names, by its digest or by the key in the folder's name."""
    name = written.cache_name(component)
    return manifest.component == component and name in (manifest.digest, f"{manifest.split}-{manifest.key[:16]}", written.caches[component])


def _manifest(folder: Path) -> Manifest | None:
    with suppress(DataError):
        return read_manifest(folder)
    return None
