"""The batch of any step by random access: mixture → position in the component → permutation → row of the cache."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from jaxtyping import Int

from trainer.config import RunConfig
from trainer.data.cache import TokenCache
from trainer.data.mixture import MixtureSchedule
from trainer.data.permutation import PERMUTATION_VERSION, derive_key, permute
from trainer.errors import DataError


class Loader:
    """Batches for one run. It holds no state but its caches: `batch(step)` is the same whenever and wherever it is asked."""

    def __init__(self, run: RunConfig):
        self._run = run
        self._schedule = MixtureSchedule(batch=run.batch, mixture=run.mixture, order=run.order)
        self._names = self._schedule.components()
        needed = self._schedule.realised(run.start_step, run.stop_step)
        self._caches = {name: TokenCache.open(run.caches[name]) for name in needed}
        self._rows = {name: cache.num_rows(run.model.seq_len) for name, cache in self._caches.items()}
        for name, rows in self._rows.items():
            if not rows:
                raise DataError(f"component {name} has {self._caches[name].manifest.tokens} tokens, not one row of {run.model.seq_len}.")

    def batch(self, step: int) -> Int[np.ndarray, "b t"]:
        """The tokens of update `step`, int32."""
        components, positions = self._schedule.batch(step)
        tokens = np.empty((len(components), self._run.model.seq_len), np.int32)
        for number in np.unique(components):
            name, chosen = self._names[number], components == number
            tokens[chosen] = self._caches[name].rows(self._row_numbers(name, positions[chosen]), self._run.model.seq_len)
        return tokens

    def batches(self, start_step: int, stop_step: int) -> Iterator[Int[np.ndarray, "b t"]]:
        """The batches of `[start_step, stop_step)`, each prepared while the one before it is used."""
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="loader") as pool:
            upcoming = pool.submit(self.batch, start_step)
            for step in range(start_step, stop_step):
                current = upcoming.result()
                if step + 1 < stop_step:
                    upcoming = pool.submit(self.batch, step + 1)
                yield current

    def contract(self) -> dict[str, Any]:
        """Everything that decides the order of the data. It goes into every checkpoint, and a resume compares it."""
        run = self._run
        return {
            "seed": run.order.seed,
            "permutation": {"kind": run.order.permutation, "version": PERMUTATION_VERSION},
            "block_sequences": run.order.block_sequences,
            "seq_len": run.model.seq_len,
            "batch": run.batch.model_dump(mode="json"),
            "mixture": run.mixture.model_dump(mode="json"),
            "components": {
                name: {"manifest": cache.manifest.digest, "rows": self._rows[name]} for name, cache in sorted(self._caches.items())
            },
        }

    def _row_numbers(self, name: str, positions: np.ndarray) -> np.ndarray:
        """Each pass over a component has a permutation of its own, keyed by the component's name."""
        rows, order = self._rows[name], self._run.order
        epochs, within = np.divmod(positions, rows)
        numbers = np.empty_like(positions)
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            key = derive_key("component", order.seed, name, int(epoch))
            numbers[chosen] = permute(order.permutation, within[chosen], length=rows, key=key).astype(np.int64)
        return numbers
