"""Words of an item that a window of text holds next to the same neighbour: compiled."""

from typing import NamedTuple

import numpy as np

from phasewise.validations.evidence.leakage.index import GRAM_WORDS, OWN_RUN
from phasewise.validations.evidence.leakage.jit_cache import inlined, inner
from phasewise.validations.evidence.leakage.segments import GRAM_FACTOR as _FACTOR
from phasewise.validations.evidence.leakage.segments import RUN_WORDS
from phasewise.validations.evidence.leakage.words import NUMBER_MARK

# pyright: basic
# Compiled functions take their types from their arguments.

FOUND, NUMBER_THERE, GRAM_FOUND, RUN_FOUND = np.uint8(1), np.uint8(2), np.uint8(4), np.uint8(8)
"""Flags of an item's word: it is found next to its neighbour, it is a number and found, its gram is found, its own run is found."""
NEAR_WORDS = 4
LOW, HIGH, STAMP, LAST_SLOT, LOOK, STATES = range(6)
"""State of a table: its stretch of text, its number, its last slot, and the number of the current anchor."""
_ENTRIES = 4  # entries in `following` per word: the pair, the word, and the run that begin there
SKETCH_SIZE, SKETCH_SHIFT = 16384, np.uint64(50)
_NONE = np.uint64(0)
_NOTHING = np.uint8(0)


class Table(NamedTuple):
    """Hash table from pairs, words and runs to their places in a stretch of text."""

    keys: np.ndarray
    ends: np.ndarray  # first and last entry of each slot
    stamps: np.ndarray  # number of the table that each slot belongs to
    following: np.ndarray  # next entry with the same key
    places: np.ndarray  # place of each slot nearest to the anchor
    looks: np.ndarray  # anchor of each place
    sketch: np.ndarray  # first bits of the pairs
    state: np.ndarray


def build_table(max_words: int) -> Table:
    """Allocate a table for stretches of up to this number of words."""
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
def run_of(words, place, length):
    """Hash a run of words from a place."""
    run = np.uint64(0)
    for offset in range(length):
        run = run * _FACTOR + words[place + offset]
    return run


@inlined()
def _slot(key, keys, stamps, stamp, last_slot):
    """Return the slot of a key, or the free slot for it."""
    at = np.int64(key ^ (key >> np.uint64(31))) & last_slot
    while stamps[at] == stamp and keys[at] != key:
        at = (at + 1) & last_slot
    return at


@inner()
def fill_table(words, low, high, table):
    """Fill the table with the words from `low` to `high`. Entries of a key are linked in text order."""
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
                key = run_of(words, place, RUN_WORDS) if place + RUN_WORDS <= high else _NONE
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
    """Return the slot of a key, or -1."""
    at = _slot(key, table.keys, table.stamps, table.state[STAMP], table.state[LAST_SLOT])
    return at if table.stamps[at] == table.state[STAMP] and key != _NONE else -1


@inlined()
def nearest(slot, anchor, low, high, table):
    """Return the place of a slot in `[low, high)` nearest to the anchor, or -1. Results are cached per anchor (`LOOK`)."""
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


class Noted(NamedTuple):
    """Notes on an item: flags of its words, slots of its pairs and own runs, first and last place of its segments."""

    flags: np.ndarray
    slots: np.ndarray
    hulls: np.ndarray


@inner()
def note(index, segments, table, noted):
    """Look up an item in the whole table, for all anchors.

    Fills the maximal flags of its words, the slots of its pairs and own runs (-1 if missing), and the range of places of each segment.
    """
    hashes, grams, marks, segment_starts = index.hashes, index.grams, index.marks, index.segment_starts
    flags, slots, hulls = noted.flags, noted.slots, noted.hulls
    first_word, low = segment_starts[segments[0]], table.state[LOW]
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
                if marks[word] & OWN_RUN != 0:
                    run = find(run_of(hashes, word, RUN_WORDS), table)
            if run >= 0:
                flag |= RUN_FOUND
            for slot in (gram, run):
                if slot >= 0:
                    hull_first = min(hull_first, low + table.ends[slot, 0] // _ENTRIES)
                    hull_last = max(hull_last, low + table.ends[slot, 1] // _ENTRIES)
            if hashes[word] & NUMBER_MARK != np.uint64(0) and find(hashes[word], table) >= 0:
                flag |= NUMBER_THERE
            flags[word - first_word], slots[word - first_word, 0], slots[word - first_word, 1] = flag, gram, run
        hulls[segment - segments[0], 0], hulls[segment - segments[0], 1] = hull_first, hull_last


@inner()
def mark(bounds, hashes, segment_starts, segments, table, noted, flags, spans, exactly):
    """Flag the words of an item in a window. Return whether all flags of the whole table are set.

    `bounds`: low, the segment of the found rare run, the expected middle of this segment, high. Words of this segment, or of an equal
    segment such as the answer of a choice, count within its length from the middle. `exactly`: fill the range of each segment in `spans`.
    """
    low, own_segment, anchor, high = bounds
    state, slots = table.state, noted.slots
    state[LOOK] += 1
    first_word = segment_starts[segments[0]]
    own_start, own_length = segment_starts[own_segment], segment_starts[own_segment + 1] - segment_starts[own_segment]
    is_whole, is_all = low <= state[LOW] and high >= state[HIGH], True
    for segment in range(segments[0], segments[1]):
        start, end = segment_starts[segment], segment_starts[segment + 1]
        is_own = end - start == own_length
        for offset in range(own_length if is_own else 0):
            is_own = is_own and hashes[start + offset] == hashes[own_start + offset]
        room = end - start + NEAR_WORDS if is_own else high - low
        first, last = noted.hulls[segment - segments[0], 0], noted.hulls[segment - segments[0], 1]
        if is_whole and exactly == 0 and (last < 0 or (anchor - first <= room and last - anchor <= room)):
            for word in range(start - first_word, end - first_word):
                flags[word] = noted.flags[word]
            continue
        # By the places of the segment's pairs nearest to the anchor
        is_all, length = False, min(GRAM_WORDS, end - start)
        span_first, span_last, carried = high, np.int64(-1), _NOTHING
        for word in range(start - first_word, end - first_word):
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
        spans[segment - segments[0], 0], spans[segment - segments[0], 1] = span_first, span_last
    return is_all
