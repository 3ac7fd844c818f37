"""Which files of a cache were changed since its manifest was written: what looks changed is read, and nothing else.

A manifest is written last, so a file of its cache with a later time of change was written to, or was copied without its times. Who sets the
time back is not noticed: `phasewise data verify` reads every file. On a store an object can only be replaced, and its size is compared when
a cache is opened: nothing is looked at here.
"""

from pathlib import Path

from tasks.data.digests import KnownDigests
from trainer.base.errors import DataError
from trainer.base.storage import file_system_of
from trainer.data.manifest import MANIFEST_NAME, read_manifest

SHA256 = "sha256:"


def changed_files(folder: Path, digests: KnownDigests) -> list[str]:
    """Names of the files of a finished cache that are not what its manifest says, as far as their times show it.

    Args:
        digests: what is known of the content of files; what is read is remembered there.
    """
    if file_system_of(folder) is not None:
        return []
    try:
        manifest = read_manifest(folder)
    except DataError:
        return [MANIFEST_NAME]
    written_ns = (folder / MANIFEST_NAME).stat().st_mtime_ns
    files = [named for shard in manifest.shards for named in shard.files.items()]
    return [name for name, digest in files if not _is_as_written(folder / name, digest, written_ns, digests)]


def _is_as_written(path: Path, digest: str, written_ns: int, digests: KnownDigests) -> bool:
    try:
        if path.stat().st_mtime_ns <= written_ns:
            return True
        return digests.content(path).digest.removeprefix(SHA256) == digest
    except FileNotFoundError:
        return False
