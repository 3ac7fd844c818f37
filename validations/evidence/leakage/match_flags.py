"""Which words of an item are in a window of a text beside the same neighbour: compiled."""

from typing import NamedTuple

import numpy as np

from phasewise.validations.evidence.leakage.index import GRAM_WORDS, OWN_RUN
from phasewise.validations.evidence.leakage.jit_cache import inlined, inner
from phasewise.validations.evidence.leakage.segments import GRAM_FACTOR as _FACTOR
from phasewise.validations.evidence.leakage.segments import RUN_WORDS
from phasewise.validations.evidence.leakage.words import NUMBER_MARK

# pyright: basic
# Compiled functions take their types from their arguments.


LOW, HIGH, STAMP, LAST_SLOT, LOOK, STATES = range(6)
"""Of a table's state: the stretch of text, the number of the table, its last slot, the number of the look at it for one anchor."""
_ENTRIES = 4
"""Places in `following` for each word: of the pair, the word, and the run that begin there."""
SKETCH_SIZE, SKETCH_SHIFT = 4096, np.uint64(52)
_NONE = np.uint64(0)


class Table(NamedTuple):
    """Slots with a key each, its first and last entry, and the number of the table that it is of; of each entry the next one with its key;
    of each slot the place nearest to an anchor, and the look that it was asked for in; where some pair has the same first bits; the state.
    """

    keys: np.ndarray
    ends: np.ndarray
    stamps: np.ndarray
    following: np.ndarray
    places: np.ndarray
    looks: np.ndarray
    sketch: np.ndarray
    state: np.ndarray


def build_table(max_words: int) -> Table:
    """An empty table for stretches of up to so many words."""
    slots = 1 << (2 * _ENTRIES * max_words).bit_length()
    return Table(
        keys=np.empty(slots, np.uint64),
        ends=np.empty((slots, 2), np.int64),
        stamps=np.zeros(slots, np.int64),
        following=np.empty(_ENTRIES * max_words, np.int64),
        places=np.empty(slots, np.int64),
        looks=np.zeros(slots, np.int64),
        sketch=np.zeros(SKETCH_SIZE, np.uint8),
        state=np.zeros(STATES, np.int64),
    )


@inlined()
def run_of(words, place):
    """The hash of the run of words from a place on."""
    run = np.uint64(0)
    for offset in range(RUN_WORDS):
        run = run * _FACTOR + words[place + offset]
    return run


@inlined()
def _slot(key, keys, stamps, stamp, last_slot):
    """Where a key is, or the free slot that it would take."""
    at = np.int64(key ^ (key >> np.uint64(31))) & last_slot
    while stamps[at] == stamp and keys[at] != key:
        at = (at + 1) & last_slot
    return at


@inner()
def fill_table(words, low, high, table):
    """Make the table that of the words from `low` to `high`. Entries with the same key are linked in the order of the text."""
    keys, ends, stamps, following, state = table.keys, table.ends, table.stamps, table.following, table.state
    last_slot = 63
    while last_slot < 6 * (high - low):
        last_slot = 2 * last_slot + 1
    stamp = state[STAMP] + 1
    state[STAMP], state[LOW], state[HIGH], state[LAST_SLOT] = stamp, low, high, last_slot
    for at in range(SKETCH_SIZE):
        table.sketch[at] = 0
    for place in range(high - 1, low - 1, -1):
        for entry in range(3):
            key = words[place]
            if entry == 0:
                key = (key + words[place + 1]) * _FACTOR if place + 1 < len(words) else _NONE
                table.sketch[key >> SKETCH_SHIFT] = 1
            elif entry == 2:
                key = run_of(words, place) if place + RUN_WORDS <= high else _NONE
            if key == _NONE:
                continue
            at, number = _slot(key, keys, stamps, stamp, last_slot), _ENTRIES * (place - low) + entry
            if stamps[at] == stamp:
                following[number] = ends[at, 0]
            else:
                keys[at], stamps[at], ends[at, 1], following[number] = key, stamp, number, -1
            ends[at, 0] = number


@inner()
def find(key, table):
    """The slot of a key; minus one where the stretch of text hasn't got it."""
    at = _slot(key, table.keys, table.stamps, table.state[STAMP], table.state[LAST_SLOT])
    return at if table.stamps[at] == table.state[STAMP] and key != _NONE else -1


@inlined()
def first_and_last(slot, table):
    """The first and last place of what is in a slot."""
    low = table.state[LOW]
    return low + table.ends[slot, 0] // _ENTRIES, low + table.ends[slot, 1] // _ENTRIES


@inlined()
def nearest(slot, anchor, low, high, table):
    """Of the places of what is in a slot, from `low` to before `high`, the nearest to the anchor, the first of two; minus one where
    there is none. `LOOK` is raised for each anchor: what was said once is remembered.
    """
    places, looks, state = table.places, table.looks, table.state
    if looks[slot] == state[LOOK]:
        return places[slot]
    best, number = np.int64(-1), table.ends[slot, 0]
    while number >= 0:
        place = state[LOW] + number // _ENTRIES
        if place >= high:
            break
        if place >= low and (best < 0 or abs(place - anchor) < abs(best - anchor)):
            best = place
        number = table.following[number]
    places[slot], looks[slot] = best, state[LOOK]
    return best


# pyright: basic
# Compiled functions take their types from their arguments.


FOUND, NUMBER_THERE, GRAM_FOUND, RUN_FOUND = np.uint8(1), np.uint8(2), np.uint8(4), np.uint8(8)
"""Of a word of an item: it is in the window beside its neighbour; it is a number, and is there anywhere; its gram is there,
and so does the own run that begins with it."""
NEAR_WORDS = 4
_NOTHING = np.uint8(0)


class Noted(NamedTuple):
    """Of an item: the flags of its words; the slots of its pairs and own runs; first and last place of its segments."""

    flags: np.ndarray
    slots: np.ndarray
    hulls: np.ndarray


def build_noted(max_words: int, max_segments: int) -> Noted:
    """Room for what is noted of an item."""
    return Noted(np.empty(max_words, np.uint8), np.empty((max_words, 2), np.int32), np.empty((max_segments, 2), np.int64))


@inner()
def note(index, segments, table, noted):
    """Look an item up in the whole table, for every anchor at once: the flags that its words have at most; the slots of its pairs and own
    runs, minus one where they are not there; of each segment the first and last place of any of these.
    """
    hashes, grams, marks, segment_starts = index.hashes, index.grams, index.marks, index.segment_starts
    flags, slots, hulls = noted.flags, noted.slots, noted.hulls
    first_word = segment_starts[segments[0]]
    for segment in range(segments[0], segments[1]):
        start, end = segment_starts[segment], segment_starts[segment + 1]
        length = min(GRAM_WORDS, end - start)
        hull_first, hull_last, carried = np.int64(2**62), np.int64(-1), _NOTHING
        for word in range(start, end):
            flag, carried, gram, run = carried, _NOTHING, -1, -1
            if word <= end - length and (length == 1 or table.sketch[grams[word] >> SKETCH_SHIFT] != 0):
                gram = find(grams[word], table)
            if gram >= 0:
                flag |= FOUND | GRAM_FOUND
                carried = FOUND if length > 1 else _NOTHING
                first, last = first_and_last(gram, table)
                hull_first, hull_last = min(hull_first, first), max(hull_last, last)
                if marks[word] & OWN_RUN != 0:
                    run = find(run_of(hashes, word), table)
            if run >= 0:
                flag |= RUN_FOUND
                first, last = first_and_last(run, table)
                hull_first, hull_last = min(hull_first, first), max(hull_last, last)
            if hashes[word] & NUMBER_MARK != np.uint64(0) and find(hashes[word], table) >= 0:
                flag |= NUMBER_THERE
            flags[word - first_word], slots[word - first_word, 0], slots[word - first_word, 1] = flag, gram, run
        hulls[segment - segments[0], 0], hulls[segment - segments[0], 1] = hull_first, hull_last


@inlined()
def _are_equal(hashes, first, other):
    if first[1] - first[0] != other[1] - other[0]:
        return False
    is_equal = True
    for offset in range(first[1] - first[0]):
        is_equal = is_equal and hashes[first[0] + offset] == hashes[other[0] + offset]
    return is_equal


@inner()
def mark(bounds, hashes, segment_starts, segments, table, noted, flags, spans, exactly):
    """Flag the item's words that are in the window. Gives whether these are all that the whole table has.

    `bounds`: of the window; the segment of which a rare run was found, and where its middle would be. Of that segment, and of one
    that says the same, as the answer says a choice, counts what is no further from there than it is long. `exactly`: also note for
    each segment the first and last place of what was found of it.
    """
    low, own_segment, anchor, high = bounds
    state = table.state
    state[LOOK] += 1
    first_word = segment_starts[segments[0]]
    own = (segment_starts[own_segment], segment_starts[own_segment + 1])
    is_whole, is_all = low <= state[LOW] and high >= state[HIGH], True
    for segment in range(segments[0], segments[1]):
        start, end = segment_starts[segment], segment_starts[segment + 1]
        room = end - start + NEAR_WORDS if _are_equal(hashes, (start, end), own) else high - low
        first, last = noted.hulls[segment - segments[0], 0], noted.hulls[segment - segments[0], 1]
        if is_whole and exactly == 0 and (last < 0 or (anchor - first <= room and last - anchor <= room)):
            for word in range(start - first_word, end - first_word):
                flags[word] = noted.flags[word]
        else:
            is_all = False
            spans[segment - segments[0], 0], spans[segment - segments[0], 1] = _mark_segment(
                (start, end), (low, anchor, high, room), hashes, first_word, table, noted, flags
            )
    return is_all


@inlined()
def _mark_segment(words, bounds, hashes, first_word, table, noted, flags):
    """Flag the words of one segment, each by the place of its pair that is nearest to the anchor. Gives the first and last of these."""
    low, anchor, high, room = bounds
    slots = noted.slots
    start, end = words[0] - first_word, words[1] - first_word
    length = min(GRAM_WORDS, end - start)
    span_first, span_last, carried = high, np.int64(-1), _NOTHING
    for word in range(start, end):
        flag, carried = carried, _NOTHING
        if slots[word, 0] >= 0:
            place = nearest(slots[word, 0], anchor, low, high, table)
            if place >= 0 and abs(place - anchor) <= room:
                flag |= FOUND | GRAM_FOUND
                carried = FOUND if length > 1 else _NOTHING
                span_first, span_last = min(span_first, place), max(span_last, place + length - 1)
        if noted.flags[word] & NUMBER_THERE != 0 and nearest(find(hashes[first_word + word], table), anchor, low, high, table) >= 0:
            flag |= NUMBER_THERE
        if slots[word, 1] >= 0:
            place = nearest(slots[word, 1], anchor, low, high - RUN_WORDS + 1, table)
            if place >= 0 and abs(place - anchor) <= room:
                flag |= RUN_FOUND
        flags[word] = flag
    return span_first, span_last
