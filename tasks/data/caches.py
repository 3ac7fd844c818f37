"""Token caches: a part of a component's documents becomes a shard for every split."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field

from phasewise.tasks.data.conversation_text import COMPOSER, NO_SPANS, Encoded, encode_conversations, ids_of_tokens
from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.data.documents import DIGEST, DOCUMENTS, HashedFile, read_documents, read_documents_manifest, read_model, write_model
from phasewise.tasks.data.filters import NORMALIZER, REASON, LengthBias, Normalization, normalize
from phasewise.tasks.data.reading import READER
from phasewise.tasks.data.template import ChatTemplate, chat_of
from phasewise.tasks.data.tokenizer import load_tokenizer, refused, special_tokens
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import code_digest, digest_of_bytes, digest_of_file, digest_of_json
from phasewise.trainer.base.storage import remove_strays, writing
from phasewise.trainer.data.cache import sizes_in_bytes
from phasewise.trainer.data.manifest import FORMAT_VERSION, MANIFEST_NAME, SPAN, Manifest, Shard, Split, write_manifest

ENCODER_CODE = tuple(f"tasks/data/{name}.py" for name in ("caches", "conversation_text", "documents", "filters", "tokenizer"))
LENGTH_BIAS = "length_bias"
ENCODER = f"begin-end-3+{code_digest(*ENCODER_CODE)}+tokenizers-{version('tokenizers')}"
INDEX_SCHEMA = pa.schema({"id": pa.string(), "source_file": pa.string(), "offset": pa.int64(), "length": pa.int64()})
INDEX_ROWS = 1 << 13
_tokenizer = lru_cache(maxsize=4)(load_tokenizer)
_documents_manifest = lru_cache(maxsize=4)(read_documents_manifest)


def ids_of_text(text: str, manifest: Manifest) -> tuple[str, ...]:
    """The possible document ids of a text: unchanged, without the last line end, and without surrounding white space."""
    texts = (text, text.removesuffix("\n").removesuffix("\r"), text.strip())
    return tuple(dict.fromkeys(digest_of_bytes(normalized(one, manifest).encode()) for one in texts))


def normalized(text: str, manifest: Manifest) -> str:
    """Normalise a text like the documents of a component."""
    return normalize(text, Normalization.model_validate(manifest.source.get("normalization", {})))


def shards_with(folder: Path, prefix: str, cache: Manifest, digests: KnownDigests) -> list[int]:
    """The shards of a cache that may have a document whose id has the prefix. Raises DataError if the documents are damaged."""
    manifest = read_documents_manifest(folder)
    files = {f"{part.name}.digests": part.ids_digest for part in manifest.parts}
    if changed := digests.changed(folder, files, folder / MANIFEST_NAME):
        raise DataError(f"{folder / changed[0]} was changed after it was written. Delete {folder} and prepare the data again.")
    shards = {shard.name: number for number, shard in enumerate(cache.shards)}
    found: list[int] = []
    for number, part in enumerate(manifest.parts):
        shard = shards.get(shard_name(number))
        if shard is None or not part.documents:
            continue
        ids: Any = np.memmap(folder / f"{part.name}.digests", DIGEST, "r")["digest"]
        row = bisect_left(ids, prefix, key=lambda one: one.tobytes().hex())
        if row < len(ids) and ids[row].tobytes().hex().startswith(prefix):
            found.append(shard)
    return found


def read_by(source: Mapping[str, Any]) -> str:
    """The versions of the code that makes documents of a source. Conversations include the version of the rendering code."""
    return f"{READER} {DOCUMENTS}" if source.get("conversation") is None else f"{READER} {COMPOSER} {DOCUMENTS}"


def cache_key(documents_key: str, split: Split, tokenizer_key: str, length_bias: LengthBias | None = None) -> str:
    """Digest of all inputs of a cache."""
    decisive = {"format": FORMAT_VERSION, "encoder": ENCODER, "documents": documents_key, "split": split, "tokenizer": tokenizer_key}
    return digest_of_json(decisive | described(length_bias))


def described(length_bias: LengthBias | None) -> dict[str, Any]:
    """The entry of a length bias in a key and in a manifest's `source`. No bias means no entry."""
    return {} if length_bias is None else {LENGTH_BIAS: length_bias.model_dump(mode="json")}


class ShardRecord(Frozen):
    """The record of a complete shard. A later run skips the part. Sizes in bytes. `left_out`: documents that the length bias rejected."""

    shard: Shard
    text_bytes: int = Field(ge=0)
    left_out: int = Field(default=0, ge=0)
    tokens_size: int = Field(ge=0)
    index_size: int = Field(ge=0)
    spans_size: int | None = Field(default=None, ge=0)

    @property
    def sizes(self) -> dict[str, int]:
        """File name → bytes."""
        named = {"bin": self.tokens_size, "parquet": self.index_size, "spans": self.spans_size}
        return {f"{self.shard.name}.{ending}": size for ending, size in named.items() if size is not None}


def finish_cache(
    component: str, split: Split, documents: Path, tokenizer_path: Path, key: str, folder: Path, *, length_bias: LengthBias | None = None
) -> Manifest:
    """Write the manifest from the records. Raises DataError if a shard is incomplete, or the length bias rejects all documents."""
    read = read_documents_manifest(documents)
    records: list[ShardRecord] = []
    for number in range(len(read.parts)):
        record = _read_record(folder, number)
        if record is None:
            raise DataError(f"{folder / shard_name(number)} is incomplete: another process changed {folder}. Prepare the data again.")
        records.append(record)
    filled = [record for record in records if record.shard.documents]
    files = Counter(f"{reason} (files)" for reason in read.tally.bad_files.values())
    left_out = {**read.tally.left_out, **read.tally.bad_documents, **dict(sorted(files.items())), "copy": sum(read.copies)}
    if length_bias is not None:
        rejected = left_out[REASON] = sum(record.left_out for record in records)
        if not filled:
            raise DataError(
                f"{component} must have a document to train on, and its length_bias takes none of {rejected:,}: they are shorter than its "
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
        tokenizer_digest=digest_of_file(tokenizer_path),
        begin_of_text=begin,
        end_of_text=end,
        dtype="uint16" if dtype.itemsize == 2 else "uint32",
        shards=tuple(record.shard for record in filled),
        documents=sum(record.shard.documents for record in filled),
        tokens=sum(record.shard.tokens for record in filled),
        text_bytes=sum(record.text_bytes for record in filled),
        left_out=left_out,
        template=None if chat is None else digest_of_bytes(chat.text.encode()),
    )
    kept = {name for record in filled for name in record.shard.files}
    remove_strays(folder, kept | {f"{shard_name(number)}.json" for number in range(len(records))})
    write_manifest(folder, manifest)
    return manifest


def shard_name(number: int) -> str:
    """The shard of the part with this number."""
    return f"shard-{number:05d}"


def _read_record(folder: Path, number: int) -> ShardRecord | None:
    """The record of a complete shard, whose files have the recorded sizes."""
    path = folder / f"{shard_name(number)}.json"
    record = read_model(ShardRecord, path) if path.exists() else None
    if record is None or not record.shard.documents:  # the files of an empty shard are removed when the cache is finished
        return record
    return record if sizes_in_bytes(folder, list(record.sizes)) == list(record.sizes.values()) else None


def encoding_of(tokenizer_path: Path) -> tuple[int | None, int | None, np.dtype]:
    """The BOS token, the EOS token, and the smallest dtype that holds the vocabulary."""
    tokenizer = _tokenizer(tokenizer_path)
    begin, end = special_tokens(tokenizer, tokenizer_path)
    return begin, end, np.dtype("<u2" if tokenizer.get_vocab_size() <= 2**16 else "<u4")


def encode_part(
    documents: Path, number: int, tokenizer_path: Path, targets: Mapping[Split, Path], length_bias: LengthBias | None = None
) -> None:
    """Write the missing shards of one part, split by split: BOS, the tokens of the text, EOS. `length_bias` is for the training split."""
    missing: dict[Split, Path] = {split: folder for split, folder in targets.items() if _read_record(folder, number) is None}
    if not missing:
        return
    manifest = _documents_manifest(documents)
    chat = chat_of(manifest.source)
    writers: dict[Split, ShardWriter] = {}
    with ExitStack() as stack:
        for split, folder in missing.items():
            files: dict[str, HashedFile] = {}
            for ending in ("bin", "parquet", "spans") if chat is not None and chat.marks_answers else ("bin", "parquet"):
                path = folder / f"{shard_name(number)}.{ending}"
                files[ending] = HashedFile(stack.enter_context(writing(path)))  # appears if the block ends without an error
            index = stack.enter_context(pq.ParquetWriter(pa.PythonFile(files["parquet"], "w"), INDEX_SCHEMA, compression="zstd"))
            writers[split] = ShardWriter(files, index, tokenizer_path, chat, length_bias if split == "train" else None)
        for table in read_documents(documents, manifest, number):
            for split, writer in writers.items():
                writer.add(table.filter(pc.field("split") == split))
        for writer in writers.values():
            writer.flush()
    for split, folder in missing.items():
        write_model(folder / f"{shard_name(number)}.json", writers[split].record(shard_name(number)))


class ShardWriter:
    """Append documents to a shard with bounded memory: token ids, a row in the index, and the spans of trained tokens."""

    def __init__(
        self,
        files: dict[str, HashedFile],
        index: pq.ParquetWriter,
        tokenizer_path: Path,
        chat: ChatTemplate | None,
        length_bias: LengthBias | None,
    ):
        self._files, self._index, self._path, self._length_bias = files, index, tokenizer_path, length_bias
        self._tokenizer = _tokenizer(tokenizer_path)
        begin, end, self._dtype = encoding_of(tokenizer_path)
        self._before, self._after = ([] if token is None else [token] for token in (begin, end))
        self._special = None if chat is None else ids_of_tokens(self._tokenizer, chat, tokenizer_path)
        self._rows: list[pa.Table] = []
        self._num_tokens = self._num_documents = self._text_bytes = self._num_spans = self._left_out = 0

    def add(self, documents: pa.Table) -> None:
        """Encode documents and append them."""
        texts = [str(text) for text in documents["text"].to_pylist()]
        if not texts:
            return
        with refused(self._path):
            if self._special is None:
                batch = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
                encoded = [Encoded(encoding.ids, NO_SPANS) for encoding in batch]
            else:
                spans = [spans or [] for spans in documents["spans"].to_pylist()]
                encoded = list(encode_conversations(self._tokenizer, self._special, texts, spans))
        if bias := self._length_bias:
            names = [str(name) for name in documents["id"].to_pylist()]
            taken = [row for row, name in enumerate(names) if bias.takes(name, len(encoded[row].ids))]
            self._left_out += len(texts) - len(taken)
            documents = documents.take(pa.array(taken, pa.int64()))
            texts = [texts[row] for row in taken]
            encoded = [encoded[row] for row in taken]
        if not texts:
            return
        lengths = np.array([len(self._before) + len(one.ids) + len(self._after) for one in encoded], np.int64)
        offsets = self._num_tokens + np.cumsum([0, *lengths[:-1]])
        rows = documents.select(["id", "source_file"])
        self._rows.append(rows.append_column("offset", pa.array(offsets)).append_column("length", pa.array(lengths)))
        for one, offset in zip(encoded, offsets.tolist(), strict=True):
            self._files["bin"].write(np.array([*self._before, *one.ids, *self._after], self._dtype).tobytes())
            if "spans" in self._files:
                self._files["spans"].write((one.spans + offset + len(self._before)).astype(SPAN).tobytes())
                self._num_spans += len(one.spans)
        self._num_tokens += int(lengths.sum())
        self._num_documents += len(texts)
        self._text_bytes += sum(len(text.encode()) for text in texts)
        if sum(map(len, self._rows)) >= INDEX_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write the pending rows of the index."""
        if self._rows:
            self._index.write_table(pa.concat_tables(self._rows).cast(INDEX_SCHEMA).combine_chunks())
        self._rows = []

    def record(self, name: str) -> ShardRecord:
        """The record of the finished shard."""
        tokens, index, spans = self._files["bin"], self._files["parquet"], self._files.get("spans")
        shard = Shard(
            name=name,
            tokens=self._num_tokens,
            documents=self._num_documents,
            digest=tokens.hash.hexdigest(),
            index_digest=index.hash.hexdigest(),
            spans=None if spans is None else self._num_spans,
            spans_digest=None if spans is None else spans.hash.hexdigest(),
        )
        return ShardRecord(
            shard=shard,
            text_bytes=self._text_bytes,
            left_out=self._left_out,
            tokens_size=tokens.size,
            index_size=index.size,
            spans_size=None if spans is None else spans.size,
        )
