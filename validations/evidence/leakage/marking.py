"""Which words of an item stand in a window of a text beside the same neighbour: compiled."""

# pyright: basic
# Compiled functions take their types from their arguments.

import numpy as np

from validations.evidence.leakage.compiled import compiled
from validations.evidence.leakage.index import GRAM_WORDS, OWN_RUN
from validations.evidence.leakage.own import RUN_WORDS
from validations.evidence.leakage.segments import GRAM_FACTOR as _FACTOR
from validations.evidence.leakage.word_hashes import NUMBER_MARK

FOUND, NUMBER_THERE, GRAM_FOUND, RUN_FOUND = np.uint8(1), np.uint8(2), np.uint8(4), np.uint8(8)
"""Of a word of an item: it stands in the window beside its neighbour; it is a number, and stands there anywhere; its gram stands there,
and so does the own run that begins with it."""
NEAR_WORDS = 4
SKETCH_BITS = 14
SKETCH_SIZE = (1 << SKETCH_BITS) // 64
_SKETCH_SHIFT = np.uint64(64 - SKETCH_BITS)


@compiled()
def text_grams(words, grams):
    """Hash of each word and the next, whichever comes first, as `index` makes it; 0 at the end."""
    for place in range(len(words)):
        grams[place] = (words[place] + words[place + 1]) * _FACTOR if place + 1 < len(words) else np.uint64(0)


@compiled(inline="always")
def _slot(gram, keys, stamps, stamp):
    """Where a gram stands among the window's, or the free slot that it would take."""
    mask = np.uint64(len(keys) - 1)
    at = (gram ^ (gram >> np.uint64(31))) & mask
    while stamps[at] == stamp and keys[at] != gram:
        at = (at + np.uint64(1)) & mask
    return at


@compiled(inline="always")
def _put(gram, place, anchor, keys, places, stamps, stamp):
    """Remember where a gram stands; of several places the one nearest to the anchor."""
    if gram == np.uint64(0):
        return
    at = _slot(gram, keys, stamps, stamp)
    if stamps[at] != stamp or abs(place - anchor) < abs(places[at] - anchor):
        keys[at], places[at], stamps[at] = gram, place, stamp


@compiled(inline="always")
def _sketch_place(gram):
    bit = gram >> _SKETCH_SHIFT
    return bit >> np.uint64(6), np.uint64(1) << (bit & np.uint64(63))


@compiled(inline="always")
def _run(words, place):
    """The hash of the run of words from a place on."""
    run = np.uint64(0)
    for offset in range(RUN_WORDS):
        run = run * _FACTOR + words[place + offset]
    return run


@compiled()
def sketch_of(hashes, grams, marks, first_word, end_word, sketch):
    """A bit for every gram, number and own run of an item: what has none in a text can't be one of them. Gives whether it has own runs."""
    sketch[:] = 0
    has_runs = False
    for word in range(first_word, end_word):
        at, bit = _sketch_place(grams[word])
        sketch[at] |= bit
        if hashes[word] & NUMBER_MARK != np.uint64(0):
            at, bit = _sketch_place(hashes[word])
            sketch[at] |= bit
        if marks[word] & OWN_RUN != 0:
            at, bit = _sketch_place(_run(hashes, word))
            sketch[at] |= bit
            has_runs = True
    return has_runs


@compiled(inline="always")
def _are_equal(hashes, first, other):
    if first[1] - first[0] != other[1] - other[0]:
        return False
    is_equal = True
    for offset in range(first[1] - first[0]):
        is_equal = is_equal and hashes[first[0] + offset] == hashes[other[0] + offset]
    return is_equal


@compiled()
def mark(bounds, segment_starts, of_index, text, scratch, stamp, flags, spans, segments, has_runs):
    """Mark the item's words that stand in the window, and note for each segment the first and last place of what was found of it.

    `bounds`: of the window; the segment of which a rare run was found, and where its middle would stand. Of that segment, and of one
    that says the same, as the answer says a choice, counts what stands no further from there than it is long.
    """
    low, own_segment, anchor, high = bounds
    hashes, grams, marks = of_index
    words, text_runs = text
    keys, places, stamps, sketch = scratch
    first_segment, end_segment = segments
    shortest = GRAM_WORDS
    for segment in range(first_segment, end_segment):
        shortest = min(shortest, segment_starts[segment + 1] - segment_starts[segment])
    for place in range(low, high):
        at, bit = _sketch_place(text_runs[place])
        if sketch[at] & bit:
            _put(text_runs[place], place, anchor, keys, places, stamps, stamp)
        if shortest < GRAM_WORDS or words[place] & NUMBER_MARK != np.uint64(0):
            at, bit = _sketch_place(words[place])
            if sketch[at] & bit:
                _put(words[place], place, anchor, keys, places, stamps, stamp)
        if has_runs and place + RUN_WORDS <= high:
            run = _run(words, place)
            at, bit = _sketch_place(run)
            if sketch[at] & bit:
                _put(run, place, anchor, keys, places, stamps, stamp)
    first_word = segment_starts[first_segment]
    for segment in range(first_segment, end_segment):
        start, end = segment_starts[segment], segment_starts[segment + 1]
        length, room = min(GRAM_WORDS, end - start), high - low
        if _are_equal(hashes, (start, end), (segment_starts[own_segment], segment_starts[own_segment + 1])):
            room = end - start + NEAR_WORDS
        spans[segment - first_segment, 0], spans[segment - first_segment, 1] = high, -1
        for word in range(start, end):
            if hashes[word] & NUMBER_MARK != np.uint64(0) and stamps[_slot(hashes[word], keys, stamps, stamp)] == stamp:
                flags[word - first_word] |= NUMBER_THERE
            if marks[word] & OWN_RUN != 0:
                at = _slot(_run(hashes, word), keys, stamps, stamp)
                if stamps[at] == stamp and abs(places[at] - anchor) <= room:
                    flags[word - first_word] |= RUN_FOUND
        for word in range(start, end - length + 1):
            at = _slot(grams[word], keys, stamps, stamp)
            if stamps[at] == stamp and abs(places[at] - anchor) <= room:
                flags[word - first_word : word - first_word + length] |= FOUND
                flags[word - first_word] |= GRAM_FOUND
                spans[segment - first_segment, 0] = min(spans[segment - first_segment, 0], places[at])
                spans[segment - first_segment, 1] = max(spans[segment - first_segment, 1], places[at] + length - 1)
