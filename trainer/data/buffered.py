"""A component whose rows are filled from a buffer of documents: its plans, a pass each, and the tokens that they name."""

from functools import lru_cache

import numpy as np
from jaxtyping import Bool, Int

from phasewise.trainer.base.errors import DataError
from phasewise.trainer.config import Component, DataOrder
from phasewise.trainer.data.cache import TokenCache
from phasewise.trainer.data.document_buffer import DocumentBuffer
from phasewise.trainer.data.document_index import DocumentIndex
from phasewise.trainer.data.permutation import Permutation, derive_key
from phasewise.trainer.data.shards import TokenRange

PASSES_KEPT = 2


class BufferedComponent:
    """The rows of a component in the order in which they are drawn: position p is row p of the first pass, and so on through the passes.

    Raises:
        DataError: an index of the cache is not the one that was written, or the cache has no document.
    """

    def __init__(self, name: Component, cache: TokenCache, order: DataOrder, seq_len: int):
        self._name, self._cache, self._order, self._seq_len = name, cache, order, seq_len
        self._starts = DocumentIndex(cache).starts()
        if len(self._starts) < 2:
            raise DataError(f"component {name} must have a document, found none in {cache.folder}.")
        self.num_rows = cache.num_rows(seq_len)
        self.num_documents = len(self._starts) - 1
        self.of_pass = lru_cache(maxsize=PASSES_KEPT)(self._of_pass)

    def stream(self, epoch: int) -> Permutation:
        """The order in which the documents come to the buffer in a pass."""
        key = derive_key("documents", self._order.seed, self._name, epoch)
        return Permutation.build(self._order.permutation, length=self.num_documents, key=key)

    def read(
        self, positions: Int[np.ndarray, " n"], out: Int[np.ndarray, "b t"], begins: Bool[np.ndarray, "b t"], places: Int[np.ndarray, " n"]
    ) -> list[TokenRange]:
        """Fill `out[places]` with the rows at these positions, mark in `begins` where a document begins or goes on, and return what is
        still to be fetched."""
        ranges: list[TokenRange] = []
        for position, place in zip(positions.tolist(), places.tolist(), strict=True):
            epoch, number = divmod(position, self.num_rows)
            pieces = self.of_pass(epoch).row(number)
            begins[place, pieces.start] = True
            for start, first, length in zip(pieces.start.tolist(), pieces.first.tolist(), pieces.length.tolist(), strict=True):
                ranges += self._cache.read_piece(first, out[place, start : start + length])
        return ranges

    def _of_pass(self, epoch: int) -> DocumentBuffer:
        assert self._order.buffer_documents is not None
        return DocumentBuffer(
            self._starts,
            seq_len=self._seq_len,
            buffer_documents=self._order.buffer_documents,
            stream=self.stream(epoch),
            key=derive_key("buffer", self._order.seed, self._name, epoch),
        )
