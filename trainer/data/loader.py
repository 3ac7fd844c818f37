"""The batch of any step by random access: mixture → position in the component → permutation → row of the component.

Where the order has a document buffer: mixture → position in the component → row that the buffer fills.
"""

from collections import deque
from collections.abc import Container, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from phasewise.trainer.base.errors import ConfigError, DataError
from phasewise.trainer.base.storage import as_path
from phasewise.trainer.config import Component, RunConfig
from phasewise.trainer.data.cache import TokenCache, TokenRange, build_maps, fetch
from phasewise.trainer.data.document_buffer import BUFFER_VERSION, BufferedComponent
from phasewise.trainer.data.manifest import MANIFEST_NAME, Manifest, read_manifest
from phasewise.trainer.data.mixture import MixtureSchedule
from phasewise.trainer.data.packing import PACKING_VERSION, ComponentRows, RowRule, positions, segment_ids
from phasewise.trainer.data.permutation import PERMUTATION_VERSIONS, Permutation, derive_key
from phasewise.trainer.skipped_steps import CONTRACT_NAME

Contract = Mapping[str, Any]

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
    packed: Int[np.ndarray, "b t"] | None = None
    """The segment ids of packed rows, whose padding the tokens do not show either."""
    targets: Bool[np.ndarray, "b t"] | None = None
    """Which tokens are predicted, each from the one before it; None is all behind the first of a row."""

    @cached_property
    def segment_ids(self) -> Int[np.ndarray, "b t"]:
        """The number of the token's document in its row, 0 for padding."""
        if self.packed is not None:
            return self.packed
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
        rows: component → how many rows it has; those of other components are not known.
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
            if not 0 <= part < hosts:
                raise ConfigError(f"the number of a host must be below that of all hosts, found host {part} of {hosts}.")
            for step, size in run.batch.within(run.start_step, run.stop_step):
                if size % hosts:
                    raise ConfigError(
                        f"the batch from step {step} must fall into equal parts, found {size} sequences for {hosts} hosts: "
                        f"take a batch that {hosts} divides, or other hosts."
                    )
        self._schedule = MixtureSchedule(batch=run.batch, mixture=run.mixture, order=run.order)
        self._names = self._schedule.components()
        maps = build_maps()
        needed = self._schedule.realised(run.start_step, run.stop_step)
        self._caches = {name: TokenCache.open(run.caches[name], maps) for name in needed}
        rule = RowRule(run.packing, run.loss_on)
        self._laid = {name: ComponentRows(cache, rule, run.model.seq_len) for name, cache in self._caches.items()}
        self._rows = {name: laid.num_rows for name, laid in self._laid.items()}
        for name, rows in self._rows.items():
            if not rows:
                raise DataError(f"component {name} has {self._caches[name].manifest.tokens} tokens, not one row of {run.model.seq_len}.")
        self._chooses_targets, self._packs = rule.chooses_targets, rule.packing != "chunk"
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
        packed = np.zeros(tokens.shape, np.int32) if self._packs else None
        targets = np.zeros(tokens.shape, bool) if self._chooses_targets else None
        to_fetch: list[TokenRange] = []
        for number in np.flatnonzero(np.bincount(components)):
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
        return Batch(tokens, self._begin_of_text, begins, packed, targets)

    def check_targets(self) -> None:
        """Refuse a run of which a batch has nothing to predict: its loss would be no number. No token is read for it.

        Raises:
            DataError: the first such step of the run.
        """
        if not self._chooses_targets:
            return
        of_rows = {name: laid.targets_of(np.arange(laid.num_rows)) for name, laid in self._laid.items()}
        if all(targets.all() for targets in of_rows.values()):
            return
        for step in range(self._run.start_step, self._run.stop_step):
            first = self._schedule.sequences_before(step)
            components, rows = self._order_between(first, first + self._run.batch.at(step))
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

    def _buffers(self) -> dict[Component, BufferedComponent]:
        run = self._run
        return {name: BufferedComponent(name, cache, run.order, run.model.seq_len) for name, cache in self._caches.items()}

    def _order_between(self, first: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        start = first // SPAN_SEQUENCES
        spans = [self._order_of_span(number) for number in range(start, -(-stop // SPAN_SEQUENCES))]
        components, rows = spans[0] if len(spans) == 1 else np.concatenate(spans, axis=1)
        inside = slice(first - start * SPAN_SEQUENCES, stop - start * SPAN_SEQUENCES)
        return components[inside], rows[inside]


CONTRACT_OF_ROWS = ("packing", "packing_version", "loss_on", "buffer")
"""What `packing_of` may say."""


def with_contents(contract: Contract, run: RunConfig) -> dict[str, Any]:
    """The contract with the content of each cache, where that can be known."""
    components: dict[str, dict[str, Any]] = {}
    for name, cache in contract["components"].items():
        found = None if "content" in cache or name not in run.caches else _find_manifest(run.caches[name], cache["manifest"])
        components[name] = {**cache, "content": found.content} if found else cache
    return {**contract, "components": components}


def compared_by(was: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """By which name two contracts' accounts of a cache are compared."""
    return "content" if "content" in was and "content" in now else "manifest"


def changed_since(was: Contract, now: Contract, run: RunConfig) -> list[str]:
    """What of its contract has changed since a checkpoint of the run was written, by name.

    What the run passed over since is no change of its order; `trainer.skipped_steps` compares that.
    """
    if was == now:
        return []
    was = with_contents(was, run)
    return sorted(name for name in {*was, *now} - {CONTRACT_NAME} if _as_compared(was, now, name) != _as_compared(now, was, name))


def _as_compared(contract: Contract, other: Contract, name: str) -> Any:
    if name != "components" or name not in contract or name not in other:
        return contract.get(name)
    return {
        component: (cache[compared_by(cache, other[name].get(component, {}))], cache["rows"]) for component, cache in contract[name].items()
    }


def _find_manifest(folder: str, digest: str) -> Manifest | None:
    for path in sorted(as_path(folder).parent.glob(f"*/{MANIFEST_NAME}")):
        with suppress(DataError):
            manifest = read_manifest(path.parent)
            if manifest.digest == digest:
                return manifest
    return None


def packing_of(run: RunConfig) -> dict[str, Any]:
    """What a contract says of how documents become rows, and of what in them is predicted where that is not everything."""
    answers = {} if run.loss_on == "all" else {"loss_on": run.loss_on}
    if run.order.buffer_documents is not None:
        return {"packing": "buffer", "buffer": {"documents": run.order.buffer_documents, "version": BUFFER_VERSION}}
    if run.packing == "chunk":
        return {"packing": "chunk", **answers}
    return {"packing": run.packing, "packing_version": PACKING_VERSION, **answers}


def _begin_of_text(caches: dict[str, TokenCache]) -> int:
    found = {cache.manifest.begin_of_text: name for name, cache in caches.items()}
    if len(found) > 1:
        named = ", ".join(f"{token} in {name}" for token, name in found.items())
        raise DataError(f"the documents of all caches must begin with the same token, found {named}: prepare the data with one tokenizer.")
    return next(iter(found))
