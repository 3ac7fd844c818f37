"""Prefilter: the rare runs of items in a text, and their pairs of document and item: compiled."""

import numpy as np

from phasewise.validations.evidence.leakage.index import BUCKET_BITS, FILTER_BITS, FILTER_SHIFTS, SEED_WORDS
from phasewise.validations.evidence.leakage.jit_cache import compiled
from phasewise.validations.evidence.leakage.match_flags import run_of
from phasewise.validations.evidence.leakage.segments import GRAM_FACTOR as _FACTOR

# pyright: basic
# Compiled functions take their types from their arguments.

ITEM, DOCUMENT, FIRST, STOP, BEFORE, NEXT, PLACES, OFFSET, IS_HELD, MAY, PAIR_COLUMNS = range(11)
"""Columns of a pair of item and document. `FIRST` to `STOP`: its seeds. `BEFORE`, `NEXT`: neighbouring pairs of the item, or -1. `PLACES`:
distinct places of its seeds. `OFFSET`: first word among the words of all items of the document. `IS_HELD`: its found words are kept for the
next document. `MAY`: possible outcomes (see `match.foresee`)."""
_BUCKET_SHIFT = np.uint64(64 - BUCKET_BITS)
_ONE, _LAST_BIT, _FILTER_SHIFT = np.uint64(1), np.uint64(63), np.uint64(64 - FILTER_BITS)
_FIRST_BITS, _SECOND_BITS = map(np.uint64, FILTER_SHIFTS)


@compiled()
def find_seeds(words, seed_hashes, seed_words, seed_buckets, seed_filter, found_words, found_places, scratch):
    """Fill index word and place of each rare run of an item in the text. Return their number, which may exceed the room.

    Lookups miss the processor's caches, so a first loop makes them for a block of words without branches, and the processor overlaps them.
    `scratch`: hashes and results of a block.
    """
    hashes, passes = scratch
    count, room, last = 0, len(found_words), len(words) - SEED_WORDS + 1
    for block in range(0, last, len(hashes)):
        stop = min(block + len(hashes), last)
        for place in range(block, stop):
            run = run_of(words, place, SEED_WORDS)
            key = run * _FACTOR
            bits = _ONE << ((key >> _FIRST_BITS) & _LAST_BIT) | _ONE << ((key >> _SECOND_BITS) & _LAST_BIT)
            hashes[place - block], passes[place - block] = run, (seed_filter[key >> _FILTER_SHIFT] & bits) == bits
        for place in range(block, stop):
            if not passes[place - block]:
                continue
            run = hashes[place - block]
            bucket = run >> _BUCKET_SHIFT
            for seed in range(seed_buckets[bucket], seed_buckets[bucket + _ONE]):
                if seed_hashes[seed] > run:
                    break
                if seed_hashes[seed] == run:
                    if count < room:
                        found_words[count], found_places[count] = seed_words[seed], place
                    count += 1
    return count


@compiled()
def group_seeds(seeds, documents, index, last_pair, pairs, grouped):
    """Sort the seeds by document, item and place. Return the number of pairs, and the largest number of item words in a document.

    Args:
        seeds: index words, and places in text order.
        index: item of each word, first segment of each item, first word of each segment.
        last_pair: -1 for each item. Changed.
        pairs, grouped: filled. The third array of `grouped` is scratch.
    """
    words, places = seeds
    item_of_word, item_segments, segment_starts = index
    count, first_of_document, document, offset, most_words = 0, 0, -1, 0, 0
    for at in range(len(words)):
        if documents[places[at]] != document:
            document, first_of_document, offset = documents[places[at]], count, 0
        item = item_of_word[words[at]]
        number = last_pair[item]
        if number < first_of_document:
            pair = pairs[count]
            pair[ITEM], pair[DOCUMENT], pair[FIRST], pair[STOP], pair[BEFORE], pair[NEXT] = item, document, -1, 0, number, -1
            pair[PLACES], pair[OFFSET], pair[IS_HELD], pair[MAY] = 0, offset, 0, 0
            if number >= 0:
                pairs[number, NEXT] = count
            number = last_pair[item] = count
            count += 1
            offset += segment_starts[item_segments[item + 1]] - segment_starts[item_segments[item]]
            most_words = max(most_words, offset)
        pair = pairs[number]
        if pair[FIRST] != places[at]:  # the last place, until all are counted
            pair[FIRST], pair[PLACES] = places[at], pair[PLACES] + 1
        pair[STOP] += 1
        grouped[2][at] = number
    first = 0
    for number in range(count):
        pairs[number, FIRST], pairs[number, STOP], first = first, first, first + pairs[number, STOP]
    for at in range(len(words)):
        pair = pairs[grouped[2][at]]
        grouped[0][pair[STOP]], grouped[1][pair[STOP]] = words[at], places[at]
        pair[STOP] += 1
    return count, most_words
