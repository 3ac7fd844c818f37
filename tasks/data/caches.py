"""From one part of a component's documents to one shard of its token caches."""

import mmap
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field

from phasewise.tasks.data.conversation_text import COMPOSER, NO_SPANS, ConversationEncoder, Encoded, ids_of_tokens
from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.data.documents import DOCUMENTS, DocumentsManifest, read_documents, read_documents_manifest
from phasewise.tasks.data.filters import NORMALIZER, REASON, LengthBias, Normalization, normalize
from phasewise.tasks.data.parts import DIGEST, HashedFile, read_model, write_model
from phasewise.tasks.data.reading import READER
from phasewise.tasks.data.template import ChatTemplate, chat_of
from phasewise.tasks.data.tokenizer import load_tokenizer, refused, special_tokens, tokenizer_digest
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import code_digest, digest_of_bytes, digest_of_json
from phasewise.trainer.base.storage import remove_strays, writing
from phasewise.trainer.data.cache import sizes_in_bytes
from phasewise.trainer.data.manifest import FORMAT_VERSION, MANIFEST_NAME, SPAN, Manifest, Shard, Split, write_manifest

if TYPE_CHECKING:
    from tokenizers import Tokenizer

DIGEST_BYTES = 32
ENCODER_CODE = tuple(f"tasks/data/{name}.py" for name in ("caches", "conversation_text", "documents", "filters", "parts", "tokenizer"))
LENGTH_BIAS = "length_bias"
ENCODER = f"begin-end-3+{code_digest(*ENCODER_CODE)}+tokenizers-{version('tokenizers')}"
INDEX_SCHEMA = pa.schema({"id": pa.string(), "source_file": pa.string(), "offset": pa.int64(), "length": pa.int64()})
INDEX_ROWS = 1 << 13


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
    files = Counter(f"{reason} (files)" for reason in read.tally.bad_files.values())
    return {**read.tally.left_out, **read.tally.bad_documents, **dict(sorted(files.items())), "copy": sum(read.copies)}


class ShardRecord(Frozen):
    """Written when a shard is whole: a part that has one is not encoded again. Sizes are in bytes.

    Attributes:
        left_out: documents of the part that a length bias did not take.
    """

    shard: Shard
    text_bytes: int = Field(ge=0)
    left_out: int = Field(default=0, ge=0)
    tokens_size: int = Field(ge=0)
    index_size: int = Field(ge=0)
    spans_size: int | None = Field(default=None, ge=0)

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of its files by name."""
        named = {"bin": self.tokens_size, "parquet": self.index_size, "spans": self.spans_size}
        return {f"{self.shard.name}.{ending}": size for ending, size in named.items() if size is not None}


def _record(folder: Path, number: int) -> ShardRecord:
    record = read_record(folder, number)
    if record is None:
        raise DataError(f"{folder / shard_name(number)} is not whole though it was built: somebody else changes {folder}. Prepare again.")
    return record


class Encoding(NamedTuple):
    """How texts become token ids."""

    begin: int
    end: int
    dtype: np.dtype


def shard_name(number: int) -> str:
    """The shard of a part, by its number."""
    return f"shard-{number:05d}"


def read_record(folder: Path, number: int) -> ShardRecord | None:
    """The record of a shard that is finished: its files are there, as long as they were."""
    path = folder / f"{shard_name(number)}.json"
    record = read_model(ShardRecord, path) if path.exists() else None
    if record is None or not record.shard.documents:  # the files of an empty shard go when the cache is finished
        return record
    return record if sizes_in_bytes(folder, list(record.sizes)) == list(record.sizes.values()) else None


def encoding_of(tokenizer_path: Path) -> Encoding:
    """The special tokens and the smallest width that holds the vocabulary."""
    tokenizer = _tokenizer(tokenizer_path)
    width = "<u2" if tokenizer.get_vocab_size() <= 2**16 else "<u4"
    begin, end = special_tokens(tokenizer, tokenizer_path)
    return Encoding(begin, end, np.dtype(width))


def encode_part(
    documents: Path, number: int, tokenizer_path: Path, targets: Mapping[Split, Path], length_bias: LengthBias | None = None
) -> None:
    """Write the shards of one part, for each split that is not done. Each document becomes begin-of-text, its tokens, end-of-text.

    Args:
        length_bias: which documents of the training split are taken, by their tokens; None is all.
    """
    missing = {split: folder for split, folder in targets.items() if read_record(folder, number) is None}
    if not missing:
        return
    manifest = _documents_manifest(documents)
    chat = chat_of(manifest.source)
    done: dict[Path, ShardRecord] = {}
    with ExitStack() as stack:
        writers = {
            split: stack.enter_context(
                _shard(folder, number, Making(tokenizer_path, chat, length_bias if split == "train" else None), done)
            )
            for split, folder in missing.items()
        }
        for table in read_documents(documents, manifest, number):
            for split, writer in writers.items():
                writer.add(table.filter(pc.field("split") == split))
    for folder, record in done.items():
        write_model(folder / f"{shard_name(number)}.json", record)


class ShardFiles(NamedTuple):
    """What a shard's writer writes to; `spans` where its documents say which tokens count."""

    tokens: HashedFile
    rows: pq.ParquetWriter
    spans: HashedFile | None


class Making(NamedTuple):
    """What decides a shard beside its documents: tokenizer, chat template, and which documents are taken by their length."""

    tokenizer: Path
    chat: ChatTemplate | None
    length_bias: LengthBias | None


class ShardWriter:
    """Appends documents to a shard: token ids to one file, a row a document to another, spans to a third. Memory does not grow with it."""

    def __init__(self, files: ShardFiles, making: Making):
        tokenizer_path, chat, self._length_bias = making
        self._files, self._path = files, tokenizer_path
        self._tokenizer = _tokenizer(tokenizer_path)
        self._encoding = encoding_of(tokenizer_path)
        special = {} if chat is None else ids_of_tokens(self._tokenizer, chat, tokenizer_path)
        self._chats = None if chat is None else ConversationEncoder(self._tokenizer, special)
        self._rows: list[pa.Table] = []
        self.num_tokens = self.num_documents = self.text_bytes = self.num_spans = self.left_out = 0

    def add(self, documents: pa.Table) -> None:
        """Encode documents and append them."""
        texts = [str(text) for text in documents["text"].to_pylist()]
        if not texts:
            return
        with refused(self._path):
            encoded = self._plain(texts) if self._chats is None else self._conversations(self._chats, documents, texts)
        if bias := self._length_bias:
            names = [str(name) for name in documents["id"].to_pylist()]
            taken = [place for place, (name, one) in enumerate(zip(names, encoded, strict=True)) if bias.takes(name, len(one.ids))]
            self.left_out += len(texts) - len(taken)
            documents, texts, encoded = (
                documents.take(pa.array(taken, pa.int64())),
                [texts[place] for place in taken],
                [encoded[place] for place in taken],
            )
        if texts:
            begin, end, dtype = self._encoding
            ids = [[begin, *one.ids, end] for one in encoded]
            lengths = np.array([len(tokens) for tokens in ids], np.int64)
            offsets = self.num_tokens + np.cumsum([0, *lengths[:-1]])
            rows = documents.select(["id", "source_file"])
            self._rows.append(rows.append_column("offset", pa.array(offsets)).append_column("length", pa.array(lengths)))
            for tokens in ids:
                self._files.tokens.write(np.array(tokens, dtype).tobytes())
            if self._files.spans is not None:
                for one, offset in zip(encoded, offsets.tolist(), strict=True):
                    self._files.spans.write((one.spans + offset + 1).astype(SPAN).tobytes())
                    self.num_spans += len(one.spans)
            self.num_tokens += int(lengths.sum())
            self.num_documents += len(texts)
            self.text_bytes += sum(len(text.encode()) for text in texts)
            if sum(map(len, self._rows)) >= INDEX_ROWS:
                self.flush()

    def flush(self) -> None:
        """Write the rows that wait."""
        if self._rows:
            self._files.rows.write_table(pa.concat_tables(self._rows).cast(INDEX_SCHEMA).combine_chunks())
        self._rows = []

    def _plain(self, texts: list[str]) -> list[Encoded]:
        return [Encoded(encoding.ids, NO_SPANS) for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    def _conversations(self, encoder: ConversationEncoder, documents: pa.Table, texts: list[str]) -> list[Encoded]:
        characters: list[list[int]] = [spans or [] for spans in documents["spans"].to_pylist()]
        return list(encoder.encode(texts, characters))


@contextmanager
def _shard(folder: Path, number: int, making: Making, done: dict[Path, ShardRecord]) -> Iterator[ShardWriter]:
    """A writer of one shard; its files appear, and its record is put into `done`, when the block ends without an error."""
    name = shard_name(number)
    with ExitStack() as stack:
        tokens, index = (HashedFile(stack.enter_context(writing(folder / f"{name}.{ending}"))) for ending in ("bin", "parquet"))
        marks = making.chat is not None and making.chat.marks_answers
        spans = HashedFile(stack.enter_context(writing(folder / f"{name}.spans"))) if marks else None
        with pq.ParquetWriter(pa.PythonFile(index, "w"), INDEX_SCHEMA, compression="zstd") as rows:
            writer = ShardWriter(ShardFiles(tokens, rows, spans), making)
            yield writer
            writer.flush()
    shard = Shard(
        name=name,
        tokens=writer.num_tokens,
        documents=writer.num_documents,
        digest=tokens.hexdigest(),
        index_digest=index.hexdigest(),
        spans=None if spans is None else writer.num_spans,
        spans_digest=None if spans is None else spans.hexdigest(),
    )
    done[folder] = ShardRecord(
        shard=shard,
        text_bytes=writer.text_bytes,
        left_out=writer.left_out,
        tokens_size=tokens.size,
        index_size=index.size,
        spans_size=None if spans is None else spans.size,
    )


@lru_cache(maxsize=4)
def _tokenizer(path: Path) -> "Tokenizer":
    return load_tokenizer(path)


@lru_cache(maxsize=4)
def _documents_manifest(folder: Path) -> DocumentsManifest:
    return read_documents_manifest(folder)
