"""Where the pairs, words and runs of a stretch of text are: a hash table, compiled. One serves all items that are looked for there."""

# pyright: basic
# Compiled functions take their types from their arguments.

from typing import NamedTuple

import numpy as np

from phasewise.validations.evidence.leakage.compiled import inlined, inner
from phasewise.validations.evidence.leakage.own import RUN_WORDS
from phasewise.validations.evidence.leakage.segments import GRAM_FACTOR as _FACTOR

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
