"""Where rare runs of items stand in a sequence of words, and whether enough of one item's stand together: compiled."""

# pyright: basic
# Compiled functions take their types from their arguments.

import numpy as np

from validations.evidence.leakage.compiled import compiled
from validations.evidence.leakage.index import BUCKET_BITS, SEED_WORDS
from validations.evidence.leakage.rules import MAX_SEEDS_IN_LINE, MIN_SEEDS_IN_LINE
from validations.evidence.leakage.segments import GRAM_FACTOR as _FACTOR

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


@compiled(inline="always")
def has_seeds(found_places, documents, bounds, needed, until):
    """Whether so many seeds of one item stand one after the other from the first of these on, in its document and none beyond `until`."""
    count, last = 1, found_places[bounds[0]]
    for at in range(bounds[0] + 1, bounds[1]):
        if count >= needed or found_places[at] > until or documents[found_places[at]] != documents[last]:
            break
        if found_places[at] > last:
            count, last = count + 1, found_places[at]
    return count >= needed


@compiled(inline="always")
def has_seeds_beside(found_places, documents, bounds, needed):
    """Whether so many seeds of one item stand in the document of this one and in its neighbours, some in either."""
    at, first, stop = bounds
    document, last = documents[found_places[at]], -1
    while at > first and documents[found_places[at - 1]] >= document - 1:
        at -= 1
    here = beside = 0
    while at < stop and documents[found_places[at]] <= document + 1 and (here + beside < needed or here == 0 or beside == 0):
        if found_places[at] > last:
            last = found_places[at]
            here += documents[last] == document
            beside += documents[last] != document
        at += 1
    return here > 0 and beside > 0 and here + beside >= needed


@compiled(inline="always")
def in_line(found_words, found_places, bounds, segments, num_words):
    """Whether enough seeds of one item follow one another from the first of these on; letters before choices may stand between."""
    first, drift, count = found_places[bounds[0]] - found_words[bounds[0]], segments[1] - segments[0], 1
    last = found_places[bounds[0]]
    for at in range(bounds[0] + 1, bounds[1]):
        word, place = found_words[at], found_places[at]
        if place == last:
            continue
        if place > last + SEED_WORDS or not 0 <= (place - word) - first <= drift:
            break
        last, count = place, count + 1
    return count >= min(max(num_words // 3, MIN_SEEDS_IN_LINE), MAX_SEEDS_IN_LINE)
