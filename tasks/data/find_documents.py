"""Where a document is, by its id, in components too large for every index to be read: from the sorted digests beside its documents."""

import mmap
from pathlib import Path

from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.data.documents import DocumentsManifest, read_documents_manifest
from phasewise.tasks.data.encode import shard_name
from phasewise.tasks.data.normalize import normalize
from phasewise.tasks.data.parts import DIGEST
from phasewise.tasks.data.source import Normalization
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.identity import digest_of_bytes
from phasewise.trainer.data.manifest import MANIFEST_NAME, Manifest

DIGEST_BYTES = 32


def ids_of_text(text: str, manifest: Manifest) -> tuple[str, ...]:
    """The ids that a text has as a document of a component: as it is, without the line end at its end, without space around it."""
    texts = (text, text.removesuffix("\n").removesuffix("\r"), text.strip())
    return tuple(dict.fromkeys(digest_of_bytes(normalized(one, manifest).encode()) for one in texts))


def normalized(text: str, manifest: Manifest) -> str:
    """A text as the documents of a component are normalised."""
    return normalize(text, Normalization.model_validate(manifest.source.get("normalization", {})))


def shards_with(folder: Path, prefix: str, cache: Manifest, digests: KnownDigests) -> list[int]:
    """The shards of a cache that may have a document whose id begins so, from the digests of its component's documents.

    Raises:
        DataError: the documents are damaged.
    """
    manifest = read_documents_manifest(folder)
    files = {f"{part.name}.digests": part.ids_digest for part in manifest.parts}
    if changed := digests.changed(folder, files, folder / MANIFEST_NAME):
        raise DataError(f"{folder / changed[0]} was changed after it was written. Delete {folder} and prepare the data again.")
    numbers = {shard.name: number for number, shard in enumerate(cache.shards)}
    named = [(numbers.get(shard_name(part)), part) for part in range(len(manifest.parts))]
    return [shard for shard, part in named if shard is not None and _has(folder, manifest, part, prefix)]


def _has(folder: Path, manifest: DocumentsManifest, number: int, prefix: str) -> bool:
    """Whether a part has such a document, by bisection. Copies of other documents are among the digests."""
    part = manifest.parts[number]
    path = folder / f"{part.name}.digests"
    if not part.documents:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as table:

        def digest(row: int) -> str:
            return table[row * DIGEST.itemsize : row * DIGEST.itemsize + DIGEST_BYTES].hex()

        low, high = 0, part.documents
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if digest(middle) < prefix else (low, middle)
        return low < part.documents and digest(low).startswith(prefix)
