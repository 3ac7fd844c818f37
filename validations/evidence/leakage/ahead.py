"""Compile the loops that look for items before there is an index: `python -m phasewise.validations.evidence.leakage.ahead`.

What numba compiles is kept for other processes. So one process can compile these loops while another one compiles those that read words,
and builds the index.
"""

import numpy as np

from phasewise.validations.evidence.leakage.matching.match import IndexWords, build_scratch, score_candidates
from phasewise.validations.evidence.leakage.matching.pairs import PAIR_COLUMNS, group_seeds
from phasewise.validations.evidence.leakage.matching.rules import Rules
from phasewise.validations.evidence.leakage.matching.seeds import find_seeds
from phasewise.validations.evidence.leakage.segments import NUM_KINDS

_INDEX_TYPES = (np.uint64, np.uint64, np.uint8, np.float32, np.int32, np.uint8, np.int32)
_RULE_TYPES = (
    *((np.uint8, 2), (np.uint8, 2), (np.float32, 2), (np.float32, 2), (np.uint8, 1)),
    *((np.float32, 2), (np.bool_, 1), (np.int32, 1), (np.bool_, 1)),
)
_OUT_TYPES = (np.int32, np.uint8, np.float64, np.int64, np.int64, np.int64)


def compile_ahead() -> None:
    """Call each loop with nothing to do, with arguments of the types that a scan has."""
    words, places = np.empty(0, np.uint64), np.empty(0, np.int32)
    seeds = (_kept(np.uint64), _kept(np.int32), np.zeros(2**20 + 1, np.int32), _kept(np.uint8))
    seeds[2].flags.writeable = False
    find_seeds(words, *seeds, places, places)
    pairs, last_pair = np.empty((0, PAIR_COLUMNS), np.int32), np.empty(0, np.int64)
    group_seeds((places, places), places, (_kept(np.int32), _kept(np.int32), _kept(np.int32)), last_pair, pairs, (places, places, places))
    rules = Rules(*(_kept(kind, dimensions) for kind, dimensions in _RULE_TYPES))
    out = tuple(np.empty(0, kind) for kind in _OUT_TYPES)
    text = (words, np.zeros(1, np.int64))
    held = np.empty((2, 1), np.uint8)
    index = IndexWords(*map(_kept, _INDEX_TYPES))
    score_candidates(0, pairs, (places, places), text, index, rules, build_scratch(1, 1), held, out)


def _kept(kind: type[np.generic], dimensions: int = 1) -> np.ndarray:
    """An empty array that nobody writes to, as those of an index are."""
    array = np.empty((0, NUM_KINDS) if dimensions == 2 else 0, kind)
    array.flags.writeable = False
    return array


if __name__ == "__main__":
    compile_ahead()
