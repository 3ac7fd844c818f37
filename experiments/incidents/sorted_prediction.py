"""Loss predicted by token pairs from the caches only: without weights, gradients or look-ahead."""

import numpy as np

from experiments.incidents.sorted_runs import Losses, component_of
from phasewise.trainer.config import RunConfig
from phasewise.trainer.data.loader import Loader

PRIOR_PAIRS = 8.0
"""So many imagined pairs after each token, spread as all tokens are. Not fitted."""
PRIOR_TOKENS = 0.5


class Pairs:
    """Counts of tokens and of pairs. It learns by counting, in the order of the training, as a model would."""

    def __init__(self, vocab_size: int):
        self._tokens = np.full(vocab_size, PRIOR_TOKENS)
        self._pairs = np.zeros((vocab_size, vocab_size), np.float32)
        self._before = np.zeros(vocab_size)

    def losses(self, rows: np.ndarray) -> np.ndarray:
        first, second = rows[:, :-1], rows[:, 1:]
        common = self._tokens / self._tokens.sum()
        chance = (self._pairs[first, second] + PRIOR_PAIRS * common[second]) / (self._before[first] + PRIOR_PAIRS)
        return -np.log(chance).mean(axis=1)

    def learn(self, rows: np.ndarray) -> None:
        first, second = rows[:, :-1].ravel(), rows[:, 1:].ravel()
        np.add.at(self._tokens, rows.ravel(), 1)
        np.add.at(self._pairs, (first, second), 1)
        np.add.at(self._before, first, 1)


def predict(parents: list[RunConfig], branch: RunConfig) -> Losses:
    pairs = Pairs(branch.model.vocab_size)
    for run in parents:
        loader = Loader(run)
        for step in range(run.start_step, run.stop_step):
            pairs.learn(loader.batch(step).tokens)
    loader = Loader(branch)
    steps, mathematics, values = list[np.ndarray](), list[np.ndarray](), list[np.ndarray]()
    for step in range(branch.start_step, branch.stop_step):
        rows = loader.batch(step).tokens
        steps.append(np.full(len(rows), step))
        mathematics.append(component_of(branch, step))
        values.append(pairs.losses(rows))
        pairs.learn(rows)
    return Losses(np.concatenate(steps), np.concatenate(mathematics), np.concatenate(values))
