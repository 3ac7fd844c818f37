"""The batch of any step by random access: mixture → position in the component → permutation → row of the cache.

Where the order has a document buffer: mixture → position in the component → row that the buffer fills.
"""

from collections import deque
from collections.abc import Container, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from trainer.base.errors import ConfigError, DataError
from trainer.config import Component, DataOrder, RunConfig
from trainer.data.buffered import BufferedComponent
from trainer.data.cache import TokenCache
from trainer.data.document_buffer import BUFFER_VERSION
from trainer.data.mixture import MixtureSchedule
from trainer.data.permutation import PERMUTATION_VERSIONS, Permutation, derive_key
from trainer.data.segments import positions, segment_ids
from trainer.data.shards import TokenRange, build_maps, fetch

SPAN_SEQUENCES = 2048
"""The order is computed for so many sequences at once, and kept for `SPANS_KEPT` such spans."""
SPANS_KEPT = 16


@dataclass(frozen=True, eq=False)
class Batch:
    """One host's rows of a batch. Which document of its row a token belongs to, and its place there, are computed when asked for."""

    tokens: Int[np.ndarray, "b t"]
    begin_of_text: int
    begins: Bool[np.ndarray, "b t"] | None = None
    """Where a document begins or goes on, if the tokens do not show it: a row of a document buffer may go on with one in its middle."""

    @cached_property
    def segment_ids(self) -> Int[np.ndarray, "b t"]:
        """The number of the token's document in its row."""
        if self.begins is not None:
            return np.cumsum(self.begins, axis=1, dtype=np.int32)
        return segment_ids(self.tokens, self.begin_of_text)

    @cached_property
    def positions(self) -> Int[np.ndarray, "b t"]:
        """The token's place in its document."""
        return positions(self.segment_ids)


@dataclass(frozen=True)
class Order:
    """Which row of which component each sequence of a lineage is.

    Attributes:
        rows: component → rows of its cache; the rows of other components are not known.
    """

    schedule: MixtureSchedule
    rows: dict[Component, int]

    def span(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Component number and row number of the sequences of span `number`."""
        components, places = self.schedule.draw(number * SPAN_SEQUENCES, (number + 1) * SPAN_SEQUENCES)
        rows = np.zeros_like(places)
        for component, name in enumerate(self.schedule.components()):
            chosen = np.flatnonzero(components == component)
            if chosen.size and name in self.rows:
                rows[chosen] = self._row_numbers(name, places[chosen])
        return components, rows

    def _row_numbers(self, name: Component, places: np.ndarray) -> np.ndarray:
        """Each pass over a component has a permutation of its own, keyed by the component's name.

        Where rows come from a document buffer, they are numbered as they are drawn, on through the passes.
        """
        order = self.schedule.order
        if order.buffer_documents is not None:
            return places
        epochs, within = np.divmod(places, self.rows[name])
        numbers = np.empty_like(places)
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            key = derive_key("component", order.seed, name, int(epoch))
            numbers[chosen] = Permutation.build(order.permutation, length=self.rows[name], key=key)(within[chosen])
        return numbers


class Loader:
    """Batches for one run. It holds no state but its caches: `batch(step)` is the same whenever and wherever it is asked.

    Each of `hosts` reads only its own rows of the batch: the `host`-th of as many equal parts, or all those that a tuple names.
    """

    def __init__(self, run: RunConfig, *, host: int | tuple[int, ...] = 0, hosts: int = 1):
        self._run, self._parts, self._hosts = run, (host,) if isinstance(host, int) else host, hosts
        for part in self._parts:
            _check_hosts(run, part, hosts)
        self._schedule = MixtureSchedule(batch=run.batch, mixture=run.mixture, order=run.order)
        self._names = self._schedule.components()
        maps = build_maps()
        needed = self._schedule.realised(run.start_step, run.stop_step)
        self._caches = {name: TokenCache.open(run.caches[name], maps) for name in needed}
        self._rows = {name: cache.num_rows(run.model.seq_len) for name, cache in self._caches.items()}
        for name, rows in self._rows.items():
            if not rows:
                raise DataError(f"component {name} has {self._caches[name].manifest.tokens} tokens, not one row of {run.model.seq_len}.")
        self._begin_of_text = _begin_of_text(self._caches)
        self._buffered = {} if run.order.buffer_documents is None else self._buffers()
        self._order_of_span = lru_cache(maxsize=SPANS_KEPT)(Order(self._schedule, self._rows).span)

    def batch(self, step: int) -> Batch:
        """This host's rows of update `step`; tokens are int32."""
        size = self._run.batch.at(step) // self._hosts
        firsts = [self._schedule.sequences_before(step) + part * size for part in self._parts]
        components, rows = np.concatenate([self._order_between(first, first + size) for first in firsts], axis=1)
        tokens = np.empty((len(rows), self._run.model.seq_len), np.int32)
        begins = np.zeros(tokens.shape, bool) if self._buffered else None
        to_fetch: list[TokenRange] = []
        for number in np.flatnonzero(np.bincount(components)):
            name, places = self._names[number], np.flatnonzero(components == number)
            if begins is None:
                to_fetch += self._caches[name].read_rows(rows[places], tokens, places)
            else:
                to_fetch += self._buffered[name].read(rows[places], tokens, begins, places)
        fetch(to_fetch)
        return Batch(tokens, self._begin_of_text, begins)

    def batches(
        self, start_step: int, stop_step: int, *, left_out: Container[int] = (), threads: int = 2, ahead: int = 4
    ) -> Generator[Batch, None, None]:
        """The batches of `[start_step, stop_step)` in order, but for those `left_out`; `threads` prepare up to `ahead` of them while one is
        used.

        An error is raised where its batch would come. The threads end with the iterator.
        """
        steps = (step for step in range(start_step, stop_step) if step not in left_out)
        with ThreadPoolExecutor(max_workers=threads, thread_name_prefix="loader") as pool:
            upcoming = deque(pool.submit(self.batch, step) for step in islice(steps, ahead))
            try:
                while upcoming:
                    current = upcoming.popleft().result()
                    upcoming.extend(pool.submit(self.batch, step) for step in islice(steps, 1))
                    yield current
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def contract(self) -> dict[str, Any]:
        """Everything that decides the order of the data. It goes into every checkpoint, and a resume compares it."""
        run = self._run
        return {
            "seed": run.order.seed,
            "permutation": {"kind": run.order.permutation, "version": PERMUTATION_VERSIONS[run.order.permutation]},
            **packing_of(run.order),
            "block_sequences": run.order.block_sequences,
            "rounding": run.order.rounding,
            "first_step": run.order.first_step,
            "seq_len": run.model.seq_len,
            "batch": run.batch.model_dump(mode="json"),
            "mixture": run.mixture.model_dump(mode="json"),
            "components": {
                name: {"manifest": cache.manifest.digest, "content": cache.manifest.content, "rows": self._rows[name]}
                for name, cache in sorted(self._caches.items())
            },
        }

    def _buffers(self) -> dict[Component, BufferedComponent]:
        run = self._run
        return {name: BufferedComponent(name, cache, run.order, run.model.seq_len) for name, cache in self._caches.items()}

    def _order_between(self, first: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Component number and row number of the sequences `[first, stop)`, counted from the lineage's first."""
        start = first // SPAN_SEQUENCES
        spans = [self._order_of_span(number) for number in range(start, -(-stop // SPAN_SEQUENCES))]
        components, rows = spans[0] if len(spans) == 1 else np.concatenate(spans, axis=1)
        inside = slice(first - start * SPAN_SEQUENCES, stop - start * SPAN_SEQUENCES)
        return components[inside], rows[inside]


def packing_of(order: DataOrder) -> dict[str, Any]:
    """What a contract says of how documents become rows."""
    if order.buffer_documents is None:
        return {"packing": "chunk"}
    return {"packing": "buffer", "buffer": {"documents": order.buffer_documents, "version": BUFFER_VERSION}}


def _check_hosts(run: RunConfig, host: int, hosts: int) -> None:
    """Refuse a batch that does not fall into equal parts."""
    if not 0 <= host < hosts:
        raise ConfigError(f"the number of a host must be below that of all hosts, found host {host} of {hosts}.")
    for step, size in run.batch.within(run.start_step, run.stop_step):
        if size % hosts:
            raise ConfigError(
                f"the batch from step {step} must fall into equal parts, found {size} sequences for {hosts} hosts: "
                f"take a batch that {hosts} divides, or other hosts."
            )


def _begin_of_text(caches: dict[str, TokenCache]) -> int:
    """The token that every document of every cache begins with."""
    found = {cache.manifest.begin_of_text: name for name, cache in caches.items()}
    if len(found) > 1:
        named = ", ".join(f"{token} in {name}" for token, name in found.items())
        raise DataError(f"the documents of all caches must begin with the same token, found {named}: prepare the data with one tokenizer.")
    return next(iter(found))
