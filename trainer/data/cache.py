"""Reading a token cache: memory-mapped shards, rows by number, documents by index."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
from jaxtyping import Int

from trainer.data.manifest import Manifest, read_manifest
from trainer.errors import DataError


class Document(NamedTuple):
    """One document of a cache: its content digest, the file it came from, and its token ids with the begin and end tokens."""

    id: str
    source_file: str
    tokens: np.ndarray


@dataclass(frozen=True)
class TokenCache:
    """A component's tokens, concatenated over its shards in order."""

    folder: Path
    manifest: Manifest
    shards: tuple[np.ndarray, ...]
    starts: np.ndarray
    """Token offset at which each shard starts, and the total at the end."""

    @classmethod
    def open(cls, folder: str | Path) -> "TokenCache":
        """Map the shards that the manifest names.

        Raises:
            DataError: the manifest is missing, or a shard is missing or has another length than it says.
        """
        folder = Path(folder)
        manifest = read_manifest(folder)
        shards: list[np.ndarray] = []
        for shard in manifest.shards:
            path = folder / f"{shard.name}.bin"
            expected = shard.tokens * np.dtype(manifest.dtype).itemsize
            found = path.stat().st_size if path.exists() else None
            if found != expected:
                raise DataError(f"{path}: the manifest says {expected} bytes, found {found}. Delete {folder} and prepare the data again.")
            shards.append(np.memmap(path, dtype=manifest.dtype, mode="r") if expected else np.empty(0, manifest.dtype))
        starts = np.cumsum([0, *(shard.tokens for shard in manifest.shards)])
        return cls(folder, manifest, tuple(shards), starts)

    def num_rows(self, seq_len: int) -> int:
        """Whole rows of `seq_len` tokens; the tail that doesn't fill one is not used."""
        return self.manifest.tokens // seq_len

    def rows(self, numbers: np.ndarray, seq_len: int) -> Int[np.ndarray, "b t"]:
        """Rows by number: row n is tokens `[n · seq_len, (n + 1) · seq_len)` of the concatenation, as int32."""
        return np.stack([self._tokens(int(number) * seq_len, seq_len) for number in numbers])

    def documents(self) -> Iterator[Document]:
        """Every document, in order, with its tokens."""
        for shard, tokens in zip(self.manifest.shards, self.shards, strict=True):
            index = pq.read_table(self.folder / f"{shard.name}.parquet")
            for row in index.to_pylist():
                yield Document(row["id"], row["source_file"], tokens[row["offset"] : row["offset"] + row["length"]])

    def _tokens(self, offset: int, count: int) -> np.ndarray:
        """A range of the concatenation, across shard boundaries where it must."""
        tokens = np.empty(count, np.int32)
        filled = 0
        shard = int(np.searchsorted(self.starts, offset, side="right")) - 1
        while filled < count:
            within = offset + filled - int(self.starts[shard])
            piece = self.shards[shard][within : within + count - filled]
            tokens[filled : filled + len(piece)] = piece
            filled += len(piece)
            shard += 1
        return tokens
