"""Where rare runs of items are in a sequence of words: compiled."""

# pyright: basic
# Compiled functions take their types from their arguments.

import numpy as np

from phasewise.validations.evidence.leakage.compiled import compiled
from phasewise.validations.evidence.leakage.index import BUCKET_BITS, SEED_WORDS
from phasewise.validations.evidence.leakage.segments import GRAM_FACTOR as _FACTOR

_BUCKET_SHIFT = np.uint64(64 - BUCKET_BITS)


@compiled()
def find_seeds(words, seed_hashes, seed_words, seed_buckets, seed_filter, found_words, found_places):
    """Places at which a rare run of an item starts: fills word of the index and place in the text. Gives their number."""
    shift = np.uint64(64)
    size = len(seed_filter) * 8
    while size > 1:
        size >>= 1
        shift -= np.uint64(1)
    count, room = 0, len(found_words)
    for place in range(len(words) - SEED_WORDS + 1):
        run = np.uint64(0)
        for offset in range(SEED_WORDS):
            run = run * _FACTOR + words[place + offset]
        bit = (run * _FACTOR) >> shift
        if not (seed_filter[bit >> np.uint64(3)] >> np.uint8(bit & np.uint64(7))) & np.uint8(1):
            continue
        bucket = run >> _BUCKET_SHIFT
        for seed in range(seed_buckets[bucket], seed_buckets[bucket + np.uint64(1)]):
            if seed_hashes[seed] > run:
                break
            if seed_hashes[seed] == run:
                if count < room:
                    found_words[count], found_places[count] = seed_words[seed], place
                count += 1
    return count
