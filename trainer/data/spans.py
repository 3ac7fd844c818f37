"""Which tokens of conversations count: runs `[start, stop)` of them, the assistant's turns, each with the token that ends it.

A file `{shard}.spans` holds little-endian int64 pairs, in token numbers of its shard: ascending, apart from each other, none empty.
"""

from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int

from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.identity import digest_of_bytes
from phasewise.trainer.base.storage import as_path
from phasewise.trainer.data.manifest import Manifest, Shard

SPAN = np.dtype("<i8")
SPAN_BYTES = 2 * SPAN.itemsize


def read_spans(folder: Path, shard: Shard) -> Int[np.ndarray, "n 2"]:
    """The spans of a shard.

    Raises:
        DataError: the file is missing, is not the one that was written, or holds no such spans.
    """
    path = as_path(folder) / f"{shard.name}.spans"
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path} is missing, which says what tokens count. Delete {folder} and prepare the data again.") from None
    if (found := digest_of_bytes(content)) != shard.spans_digest:
        raise DataError(
            f"{path} must have the digest {str(shard.spans_digest)[:16]} that the manifest names, found {found[:16]}: it is not the file "
            f"that was written. Delete {folder} and prepare the data again."
        )
    if len(content) != SPAN_BYTES * (shard.spans or 0):
        raise DataError(f"{path} must hold {shard.spans} spans, found {len(content)} bytes. Delete {folder} and prepare the data again.")
    spans = np.frombuffer(content, SPAN).reshape(-1, 2).astype(np.int64)
    if not are_spans(spans, shard.tokens):
        raise DataError(f"{path} holds no ascending spans of {shard.tokens} tokens. Delete {folder} and prepare the data again.")
    return spans


def are_spans(spans: Int[np.ndarray, "n 2"], tokens: int) -> bool:
    """Whether they ascend, do not overlap, are not empty, and lie within so many tokens."""
    edges = spans.reshape(-1)
    within = not len(edges) or (edges[0] >= 0 and edges[-1] <= tokens)
    return bool(within and (np.diff(edges) >= 0).all() and (spans[:, 0] < spans[:, 1]).all())


def counted(spans: Int[np.ndarray, "n 2"], first: int, length: int) -> Bool[np.ndarray, " length"]:
    """Which of the tokens `[first, first + length)` lie in a span. Spans ascend and do not overlap, as `TokenCache.spans` has them."""
    return counted_in_rows(spans, np.array([first]), length)[0]


def counted_in_rows(spans: Int[np.ndarray, "n 2"], firsts: Int[np.ndarray, " b"], length: int) -> Bool[np.ndarray, "b length"]:
    """The same for rows of one length that begin at these tokens.

    Of all edges of spans up to a token, an odd number means that it is inside one: where one ends and the next begins, both are passed.
    """
    edges = spans.reshape(-1)
    numbers = np.asarray(firsts, np.int64)[:, None] + np.arange(length)
    return np.searchsorted(edges, numbers, side="right") % 2 == 1


def answers_of(manifest: Manifest, spans: Int[np.ndarray, "n 2"] | None) -> Int[np.ndarray, "n 2"]:
    """The spans of a cache, where only answers are asked for.

    Args:
        spans: what `TokenCache.spans` says.

    Raises:
        DataError: it has none: it is plain text, or its chat template does not say what an answer is.
    """
    if spans is not None:
        return spans
    if manifest.template is None:
        raise DataError(
            f"component {manifest.component} must be of conversations where only answers count, found plain text: give its source a "
            "`conversation`, or let every token count."
        )
    raise DataError(
        f"component {manifest.component} must say what an answer is where only answers count, and its chat template does not: put "
        "{% generation %} … {% endgeneration %} around what the assistant writes, with the token that ends its turn."
    )
