"""What a card claims of the data: each component's cache with its manifest, the source files that it was made of, and the tokenizer."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from phasewise.tasks.publication.card.home_files import HomeFiles
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.identity import digest_of_file
from phasewise.trainer.data.manifest import MANIFEST_NAME, Manifest, Split, read_manifest

FOUND_KINDS = ("sha256", "md5")


def data_claims(
    files: HomeFiles, judged: Mapping[str, str], order: Mapping[str, Any], source_folders: Mapping[str, Path]
) -> dict[str, Any]:
    """Component → its cache: the one whose manifest the verdict on the data judged, and whose content is what trained.

    Args:
        judged: component → digest of the manifest that was judged.
        order: the data order contract of the checkpoint.
        source_folders: component → folder of its source files, where that is not in the home.
    """
    trained: Mapping[str, Any] = order.get("components", {})
    claims: dict[str, Any] = {}
    for name in sorted({*judged, *trained}):
        if name not in judged:
            files.problem(f"data.{name}", "the component trained, and the verdict on the data did not judge it")
            continue
        digest = judged[name]
        found = find_cache(files, name, "train", lambda manifest, digest=digest: manifest.digest == digest)
        if found is None:
            files.problem(f"data.{name}.manifest_digest", f"no cache in the home has the manifest {judged[name][:16]} that was judged")
            continue
        where, manifest = found
        if name in trained:
            _check_trained(files, name, manifest, trained[name])
        check_shards(files, f"data.{name}", where, manifest)
        _check_sources(files, name, manifest, source_folders)
        claims[name] = {
            "manifest": manifest.as_written(),
            "manifest_digest": manifest.digest,
            "content": manifest.content,
            "where": where,
            "rests_on": files.ground(f"{where}/{MANIFEST_NAME}"),
        }
    return claims


def tokenizer_claims(files: HomeFiles, data: Mapping[str, Any]) -> dict[str, Any]:
    """The tokenizer that every cache was made with."""
    wanted = {cache["manifest"]["tokenizer_digest"] for cache in data.values()}
    if len(wanted) != 1:
        files.problem("tokenizer.digest", f"the caches were made with {len(wanted)} tokenizers")
        return {}
    (digest,) = wanted
    for path in sorted(files.place("tokenizers").glob("*/tokenizer.json")):
        if digest_of_file(path) == digest:
            where = f"tokenizers/{path.parent.name}/{path.name}"
            return {"digest": digest, "where": where, "rests_on": files.ground(where)}
    files.problem("tokenizer.digest", f"no tokenizer in the home has the digest {digest[:16]} that the caches name")
    return {"digest": digest}


def find_cache(files: HomeFiles, component: str, split: Split, is_wanted: Callable[[Manifest], bool]) -> tuple[str, Manifest] | None:
    """The cache of a component whose manifest is the one that is wanted, and its folder in the home. One that was edited is none."""
    for path in sorted(files.place(f"tokens/{component}").glob(f"{split}-*/{MANIFEST_NAME}")):
        try:
            manifest = read_manifest(path.parent)
        except DataError:
            continue
        if manifest.component == component and is_wanted(manifest):
            return f"tokens/{component}/{path.parent.name}", manifest
    return None


def check_shards(files: HomeFiles, field: str, where: str, manifest: Manifest) -> None:
    """Read every shard and its index, and compare with the digests that the manifest names."""
    for shard in manifest.shards:
        files.check(f"{field}.manifest.shards.{shard.name}.digest", f"{where}/{shard.name}.bin", shard.digest)
        files.check(f"{field}.manifest.shards.{shard.name}.index_digest", f"{where}/{shard.name}.parquet", shard.index_digest)
        if shard.spans_digest is not None:
            files.check(f"{field}.manifest.shards.{shard.name}.spans_digest", f"{where}/{shard.name}.spans", shard.spans_digest)


def _check_trained(files: HomeFiles, name: str, manifest: Manifest, trained: Mapping[str, Any]) -> None:
    """What trained is what was judged: by content where the contract has it, for code may have made the same bytes again."""
    if "content" in trained:
        files.agree(f"order.components.{name}.content", "the judged cache has", trained["content"], manifest.content)
    else:
        files.agree(f"order.components.{name}.manifest", "the judged cache has", trained.get("manifest"), manifest.digest)


def _check_sources(files: HomeFiles, name: str, manifest: Manifest, folders: Mapping[str, Path]) -> None:
    """Read the source files where they are in the home or in a folder that was given."""
    for source in manifest.sources:
        field = f"data.{name}.manifest.sources.{source.name}"
        place = folders.get(name, files.place(f"sources/{name}")) / source.name
        kind, _, said = source.digest.partition(":")
        if not place.is_file():
            files.skip(field, "its bytes are not in the home; --source NAME=FOLDER says where they are")
        elif kind not in FOUND_KINDS:
            files.skip(field, f"a digest of the kind {kind} was noted, which only its store can work out")
        else:
            files.agree(field, "the file's bytes have", said, digest_of_source(place, kind))


def digest_of_source(path: Path, kind: str) -> str:
    """SHA-256 or MD5 of a file, in hexadecimal; MD5 is what some stores note."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, kind).hexdigest()
