"""From documents to token caches: one shard a component and split, the manifest last."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.data.documents import NORMALIZER_VERSION, READER_VERSION, DocumentsManifest, read_documents
from tasks.data.source import Source
from tasks.data.tokenizer import BEGIN_OF_TEXT, END_OF_TEXT, load_tokenizer, tokenizer_digest
from trainer.data.manifest import FORMAT_VERSION, MANIFEST_NAME, Manifest, Shard, Split
from trainer.storage import digest_of_file, digest_of_json, read_json, write_atomically, write_json

ENCODER_VERSION = "begin-end-2"
BATCH_DOCUMENTS = 256
SHARD_NAME = "shard-00000"


def cache_key(documents_key: str, split: Split, tokenizer_key: str) -> str:
    """Digest of everything that decides a cache's bytes."""
    return digest_of_json(
        {"format": FORMAT_VERSION, "encoder": ENCODER_VERSION, "documents": documents_key, "split": split, "tokenizer": tokenizer_key}
    )


def build_cache(component: str, source: Source, split: Split, documents: Path, tokenizer_path: Path, key: str, folder: Path) -> Manifest:
    """Tokenize one split of a component. Each document becomes begin-of-text, its tokens, end-of-text."""
    table = read_documents(documents, split)
    tokenizer = load_tokenizer(tokenizer_path)
    begin, end = tokenizer.token_to_id(BEGIN_OF_TEXT), tokenizer.token_to_id(END_OF_TEXT)
    dtype = "uint16" if tokenizer.get_vocab_size() <= 2**16 else "uint32"
    encoded: list[np.ndarray] = []
    for batch in table.to_batches(BATCH_DOCUMENTS):
        texts = batch.column("text").to_pylist()
        encoded += [
            np.array([begin, *encoding.ids, end], dtype) for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        ]
    lengths = np.array([len(tokens) for tokens in encoded], np.int64)
    index = table.select(["id", "source_file"])
    index = index.append_column("offset", pa.array(np.cumsum([0, *lengths[:-1]]))).append_column("length", pa.array(lengths))
    folder.mkdir(parents=True, exist_ok=True)
    shard = _write_shard(folder, np.concatenate(encoded), index)
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        component=component,
        split=split,
        key=key,
        sources=DocumentsManifest.model_validate(read_json(documents / MANIFEST_NAME)).sources,
        include=source.include,
        exclude=source.exclude,
        reader=READER_VERSION,
        normalizer=NORMALIZER_VERSION,
        tokenizer_digest=tokenizer_digest(tokenizer_path),
        dtype=dtype,
        shards=(shard,),
        documents=len(encoded),
        tokens=int(lengths.sum()),
        text_bytes=sum(len(str(text).encode()) for text in table["text"].to_pylist()),
    )
    write_json(folder / MANIFEST_NAME, manifest.model_dump(mode="json"))
    return manifest


def _write_shard(folder: Path, tokens: np.ndarray, index: pa.Table) -> Shard:
    """The token ids, little-endian, and the index of documents."""
    tokens_path, index_path = folder / f"{SHARD_NAME}.bin", folder / f"{SHARD_NAME}.parquet"
    write_atomically(tokens_path, tokens.astype(tokens.dtype.newbyteorder("<")).tobytes())
    buffer = pa.BufferOutputStream()
    pq.write_table(index, buffer)
    write_atomically(index_path, buffer.getvalue().to_pybytes())
    return Shard(
        name=SHARD_NAME,
        tokens=len(tokens),
        documents=index.num_rows,
        digest=digest_of_file(tokens_path),
        index_digest=digest_of_file(index_path),
    )
