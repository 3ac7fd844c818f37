"""The batch of any step by random access: mixture → position in the component → permutation → row of the component.

If the order has a document buffer: mixture → position in the component → row that the buffer fills. One over the mixture fills all rows.
"""

from collections import deque
from collections.abc import Container, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from phasewise.trainer.base.errors import ConfigError, DataError
from phasewise.trainer.config import Component, RunConfig
from phasewise.trainer.data.cache import TokenCache, TokenRange, build_maps, fetch
from phasewise.trainer.data.document_buffer import BUFFER_VERSION, BufferedComponent, BufferedMixture
from phasewise.trainer.data.mixture import MixtureSchedule
from phasewise.trainer.data.packing import PACKING_VERSION, PLAIN, ComponentRows, RowRule
from phasewise.trainer.data.permutation import PERMUTATION_VERSIONS, Permutation, derive_key
from phasewise.trainer.skipped_steps import CONTRACT_NAME

Contract = Mapping[str, Any]
SPAN_SEQUENCES = 2048  # the order is computed and cached in spans of so many sequences
SPANS_KEPT = 16


@dataclass(frozen=True, eq=False)
class Batch:
    """One host's rows of a batch. Segment ids are computed on first use."""

    tokens: Int[np.ndarray, "b t"]
    begin_of_text: int | None
    begins: Bool[np.ndarray, "b t"] | None = None  # first tokens of pieces in rows of a document buffer, which the tokens do not show
    packed: Int[np.ndarray, "b t"] | None = None  # segment ids of packed rows, whose tokens do not show the padding
    # which tokens are predicted, each from the token before it. None is all but a row's first
    targets: Bool[np.ndarray, "b t"] | None = None
    end_of_text: int | None = None  # separates the documents of a tokenizer without BOS

    @cached_property
    def segment_ids(self) -> Int[np.ndarray, "b t"]:
        """The number of the token's document in its row from 1 on, 0 for padding, as int32.

        In a full row, a segment starts at each BOS token, or without one after each EOS token, and at the row's start.
        """
        if self.packed is not None:
            return self.packed
        if self.begins is not None:
            return np.cumsum(self.begins, axis=1, dtype=np.int32)
        if self.begin_of_text is not None:
            begins = self.tokens == self.begin_of_text
        else:
            begins = np.zeros(self.tokens.shape, bool)
            begins[:, 1:] = self.tokens[:, :-1] == self.end_of_text
        ids = np.cumsum(begins, axis=1, dtype=np.int32)
        ids += ~begins[:, :1]
        return ids


class Order:
    """The component and row of each sequence of a lineage. `rows` has the number of rows of each component, others get row 0."""

    def __init__(self, schedule: MixtureSchedule, rows: Mapping[Component, int]):
        self._schedule, self._rows = schedule, rows
        self._cached_span = lru_cache(maxsize=SPANS_KEPT)(self._span)

    def between(self, first: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return component number and row number of the sequences `[first, stop)`."""
        start = first // SPAN_SEQUENCES
        spans = [self._cached_span(number) for number in range(start, -(-stop // SPAN_SEQUENCES))]
        components, rows = spans[0] if len(spans) == 1 else np.concatenate(spans, axis=1)
        inside = slice(first - start * SPAN_SEQUENCES, stop - start * SPAN_SEQUENCES)
        return components[inside], rows[inside]

    def _span(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        order = self._schedule.order
        components, places = self._schedule.draw(number * SPAN_SEQUENCES, (number + 1) * SPAN_SEQUENCES)
        rows = np.zeros_like(places)
        for component, name in enumerate(self._schedule.components()):
            mine = np.flatnonzero(components == component)
            if not mine.size or name not in self._rows:
                continue
            if order.buffer_documents is not None:  # the buffer's rows are numbered in the order of training, through all passes
                rows[mine] = places[mine]
                continue
            epochs, within = np.divmod(places[mine], self._rows[name])
            for epoch in np.unique(epochs):  # each pass has another permutation
                key = derive_key("component", order.seed, name, int(epoch))
                permutation = Permutation(order.permutation, length=self._rows[name], key=key)
                rows[mine[epochs == epoch]] = permutation(within[epochs == epoch])
        return components, rows


class Loader:
    """Batches for one run. The state is only its caches: `batch(step)` does not depend on earlier calls.

    Each of `hosts` reads only its own rows of the batch: the `host`-th of `hosts` equal parts, or all parts in a tuple.
    """

    def __init__(self, run: RunConfig, *, host: int | tuple[int, ...] = 0, hosts: int = 1):
        self._run, self._parts, self._hosts = run, (host,) if isinstance(host, int) else host, hosts
        for part in self._parts:
            if not 0 <= part < hosts:
                raise ConfigError(f"the number of a host must be below the number of hosts, found host {part} of {hosts}.")
            for step, size in run.batch.within(run.start_step, run.stop_step):
                if size % hosts:
                    raise ConfigError(
                        f"the batch from step {step} must fall into equal parts, found {size} sequences for {hosts} hosts: "
                        f"take a batch that {hosts} divides, or other hosts."
                    )
        self._schedule = MixtureSchedule.of_run(run)
        self._names = self._schedule.components()
        maps = build_maps()
        is_mixed = run.order.buffer_over == "mixture"
        needed = self._schedule.components_from(run.start_step) if is_mixed else self._schedule.realised(run.start_step, run.stop_step)
        self._caches = {name: TokenCache.open(run.caches[name], maps) for name in needed}
        self._rule = RowRule(run.packing, run.loss_on)
        self._laid = {name: ComponentRows(cache, self._rule, run.model.seq_len) for name, cache in self._caches.items()}
        self._rows = {name: laid.num_rows for name, laid in self._laid.items()}
        for name, rows in self._rows.items():
            if not rows:
                raise DataError(f"component {name} has {self._caches[name].manifest.tokens} tokens, not one row of {run.model.seq_len}.")
        around = {(cache.manifest.begin_of_text, cache.manifest.end_of_text): name for name, cache in self._caches.items()}
        if len(around) > 1:
            named = ", ".join(f"{begin} and {end} in {name}" for (begin, end), name in around.items())
            raise DataError(
                f"the documents of all caches must begin and end with the same tokens, found {named}: prepare the data with one tokenizer."
            )
        self._begin_of_text, self._end_of_text = next(iter(around))
        self._buffered: dict[Component, BufferedComponent] = {}
        self._mixed: BufferedMixture | None = None
        if is_mixed:
            self._mixed = BufferedMixture(self._schedule, self._caches, run.model.seq_len, run.start_step, run.stop_step)
        elif run.order.buffer_documents is not None:
            self._buffered = {name: BufferedComponent(name, cache, run.order, run.model.seq_len) for name, cache in self._caches.items()}
        self._order = Order(self._schedule, self._rows)

    def batch(self, step: int) -> Batch:
        """Return this host's rows of update `step`, with int32 tokens."""
        size = self._run.batch.at(step) // self._hosts
        firsts = [self._schedule.sequences_before(step) + part * size for part in self._parts]
        components, rows = np.concatenate([self._order.between(first, first + size) for first in firsts], axis=1)
        tokens = np.empty((len(rows), self._run.model.seq_len), np.int32)
        begins = np.zeros(tokens.shape, bool) if self._run.order.buffer_documents is not None else None
        packed = np.zeros(tokens.shape, np.int32) if self._rule.packing != "chunk" else None
        targets = np.zeros(tokens.shape, bool) if self._rule != PLAIN else None
        to_fetch: list[TokenRange] = []
        if self._mixed and begins is not None:
            numbers = np.concatenate([np.arange(first, first + size) for first in firsts]) - self._mixed.first
            to_fetch += self._mixed.read(numbers, tokens, begins)
        for number in () if self._mixed else np.flatnonzero(np.bincount(components)):
            name, places = self._names[number], np.flatnonzero(components == number)
            if begins is not None:
                to_fetch += self._buffered[name].read(rows[places], tokens, begins, places)
                continue
            laid = self._laid[name]
            to_fetch += laid.read(rows[places], tokens, places)
            if packed is not None and (segments := laid.segment_ids(rows[places])) is not None:
                packed[places] = segments
            if targets is not None:
                targets[places] = laid.targets(rows[places])
        fetch(to_fetch)
        if tokens.max(initial=0) >= (vocab_size := self._run.model.vocab_size):
            row = int(tokens.max(axis=1).argmax())
            place = "one of the caches" if self._mixed else self._caches[self._names[components[row]]].folder
            raise DataError(
                f"{place}: expected token ids below the model's vocab_size {vocab_size:,}, "
                f"found {tokens[row].max():,} at step {step + 1}. Prepare the data with the tokenizer of the model."
            )
        return Batch(tokens, self._begin_of_text, begins, packed, targets, self._end_of_text)

    def check_targets(self) -> None:
        """Raise DataError for the first step whose batch predicts nothing: its loss would be NaN. Reads no token."""
        if self._rule == PLAIN:
            return
        of_rows = {name: laid.targets_of(np.arange(laid.num_rows)) for name, laid in self._laid.items()}
        if all(targets.all() for targets in of_rows.values()):
            return
        for step in range(self._run.start_step, self._run.stop_step):
            first = self._schedule.sequences_before(step)
            components, rows = self._order.between(first, first + self._run.batch.at(step))
            drawn = ((of_rows[self._names[number]], rows[components == number]) for number in np.unique(components))
            if not any(targets[numbers].any() for targets, numbers in drawn):
                raise DataError(
                    f"every batch must have a token that is predicted, found none in the {len(rows)} rows of step {step + 1} of phase "
                    f"{self._run.phase}, with packing {self._run.packing} and loss_on {self._run.loss_on}: take larger batches, or leave "
                    "out the conversations whose answers lie beyond the row."
                )

    def batches(
        self, start_step: int, stop_step: int, *, left_out: Container[int] = (), threads: int = 2, ahead: int = 4
    ) -> Generator[Batch, None, None]:
        """Yield batches in order, without the steps `left_out`. `threads` prepare up to `ahead` of them, and end with the iterator."""
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
        """Return everything that decides the order of the data. Every checkpoint has it, and a resume compares it."""
        run = self._run
        return {
            "seed": run.order.seed,
            "permutation": {"kind": run.order.permutation, "version": PERMUTATION_VERSIONS[run.order.permutation]},
            **packing_of(run),
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


def packing_of(run: RunConfig) -> dict[str, Any]:
    """Return a contract's fields about packing, and about predicted tokens if not all are predicted."""
    answers = {} if run.loss_on == "all" else {"loss_on": run.loss_on}
    if run.order.buffer_documents is not None:
        over = {"over": "mixture"} if run.order.buffer_over == "mixture" else {}
        return {"packing": "buffer", "buffer": {"documents": run.order.buffer_documents, "version": BUFFER_VERSION, **over}}
    if run.packing == "chunk":
        return {"packing": "chunk", **answers}
    return {"packing": run.packing, "packing_version": PACKING_VERSION, **answers}


def changed_since(was: Contract, now: Contract) -> list[str]:
    """Return the names of the contract's fields that have changed since a checkpoint, with caches compared by content.

    Updates that the run has skipped since do not change the order (`trainer.skipped_steps` compares them).
    """
    if was == now:
        return []
    changed = {name for name in {*was, *now} - {CONTRACT_NAME, "components"} if was.get(name) != now.get(name)}
    before, after = ({name: (cache["rows"], cache.get("content")) for name, cache in one["components"].items()} for one in (was, now))
    if before != after:
        changed.add("components")
    return sorted(changed)
