"""Token caches: what decides one, and how its finished shards become a cache. The manifest comes last."""

from collections import Counter
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from phasewise.tasks.data import documents, encode, hashed_file, tokenizer
from phasewise.tasks.data import length_bias as length_bias_code
from phasewise.tasks.data.conversations import tokens
from phasewise.tasks.data.conversations.compose import COMPOSER
from phasewise.tasks.data.conversations.template import chat_of
from phasewise.tasks.data.documents import DOCUMENTS, DocumentsManifest, read_documents_manifest
from phasewise.tasks.data.encode import ShardRecord, encoding_of, read_record, shard_name
from phasewise.tasks.data.length_bias import REASON, LengthBias
from phasewise.tasks.data.normalize import NORMALIZER
from phasewise.tasks.data.reading import READER
from phasewise.tasks.data.tokenizer import tokenizer_digest
from phasewise.trainer.base.code_digest import code_digest
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.identity import digest_of_json
from phasewise.trainer.base.storage import remove_strays
from phasewise.trainer.data.manifest import FORMAT_VERSION, Manifest, Split, write_manifest

ENCODER_CODE = (encode, documents, hashed_file, length_bias_code, tokenizer, tokens)
LENGTH_BIAS = "length_bias"
ENCODER = f"begin-end-3+{code_digest(*ENCODER_CODE)}+tokenizers-{version('tokenizers')}"


def read_by(source: Mapping[str, Any]) -> str:
    """Versions of the code that makes documents of a source; of conversations also of what makes text of them."""
    return f"{READER} {DOCUMENTS}" if source.get("conversation") is None else f"{READER} {COMPOSER} {DOCUMENTS}"


def cache_key(documents_key: str, split: Split, tokenizer_key: str, length_bias: LengthBias | None = None) -> str:
    """Digest of everything that decides a cache's bytes."""
    decisive = {"format": FORMAT_VERSION, "encoder": ENCODER, "documents": documents_key, "split": split, "tokenizer": tokenizer_key}
    return digest_of_json(decisive | described(length_bias))


def described(length_bias: LengthBias | None) -> dict[str, Any]:
    """What a key and a manifest's `source` say of it: nothing where all documents are taken."""
    return {} if length_bias is None else {LENGTH_BIAS: length_bias.model_dump(mode="json")}


def finish_cache(
    component: str, split: Split, documents: Path, tokenizer_path: Path, key: str, folder: Path, *, length_bias: LengthBias | None = None
) -> Manifest:
    """Collect the records of all shards, clear away what no record names, and write the manifest.

    Raises:
        DataError: a shard is not whole, or no document was taken.
    """
    read = read_documents_manifest(documents)
    records = [_record(folder, number) for number in range(len(read.parts))]
    filled = [record for record in records if record.shard.documents]
    if length_bias is not None and not filled:
        many = sum(record.left_out for record in records)
        raise DataError(
            f"{component} must have a document to train on, and its length_bias takes none of {many:,}: they are shorter than its "
            f"full_tokens of {length_bias.full_tokens:,}. Lower that, or raise its floor of {length_bias.floor:g}."
        )
    begin, end, dtype = encoding_of(tokenizer_path)
    chat = chat_of(read.source)
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        component=component,
        split=split,
        key=key,
        source=read.source | described(length_bias),
        sources=read.sources,
        reader=read_by(read.source),
        normalizer=NORMALIZER,
        encoder=ENCODER,
        tokenizer_digest=tokenizer_digest(tokenizer_path),
        begin_of_text=begin,
        end_of_text=end,
        dtype="uint16" if dtype.itemsize == 2 else "uint32",
        shards=tuple(record.shard for record in filled),
        documents=sum(record.shard.documents for record in filled),
        tokens=sum(record.shard.tokens for record in filled),
        text_bytes=sum(record.text_bytes for record in filled),
        left_out=_left_out(read) | ({} if length_bias is None else {REASON: sum(record.left_out for record in records)}),
        template=None if chat is None else chat.digest,
    )
    kept = {name for record in filled for name in record.shard.files}
    remove_strays(folder, kept | {f"{shard_name(number)}.json" for number in range(len(records))})
    write_manifest(folder, manifest)
    return manifest


def _left_out(read: DocumentsManifest) -> dict[str, int]:
    """What was not taken, by reason; files of which the rest could not be read are counted as files."""
    files = Counter(f"{reason} (files)" for reason in read.tally.bad_files.values())
    return {**read.tally.left_out, **read.tally.bad_documents, **dict(sorted(files.items())), "copy": sum(read.copies)}


def _record(folder: Path, number: int) -> ShardRecord:
    record = read_record(folder, number)
    if record is None:
        raise DataError(f"{folder / shard_name(number)} is not whole though it was built: somebody else changes {folder}. Prepare again.")
    return record
