"""Which items need no look in which documents, because all that they may have there can't count, nor with the neighbours: compiled.

A sketch of a document says of a pair of words that it is not there, or that it may be. It bounds the share of each part for a tenth of
what a look costs. What a document has of an item is wanted by the next only where both together, or with those behind, may count.
"""

# pyright: basic
# Compiled functions take their types from their arguments.

import numpy as np

from phasewise.validations.evidence.leakage.compiled import inlined, inner
from phasewise.validations.evidence.leakage.matching.marking import FOUND, GRAM_FOUND
from phasewise.validations.evidence.leakage.matching.pairs import (
    BEFORE,
    DOCUMENT,
    FIRST,
    IS_HELD,
    ITEM,
    MAY,
    NEXT,
    OFFSET,
    STOP,
    has_seeds,
    has_seeds_beside,
    is_next_to,
)
from phasewise.validations.evidence.leakage.matching.rules import JOINED_EXTRA
from phasewise.validations.evidence.leakage.matching.scoring import count_words, may_decide
from phasewise.validations.evidence.leakage.matching.window import SKETCH_SHIFT, SKETCH_SIZE
from phasewise.validations.evidence.leakage.segments import GRAM_FACTOR as _FACTOR

ALONE, JOINED, WANTED, OPEN, CANDIDATE = 1, 2, 4, 8, 16
"""What may become of an item in a document: it counts there; it counts with what the document before has; a document behind wants what is
found of it; it may go on beyond the document, or that is long: nothing is known; it has rare runs enough.
"""
SLACK_WORDS, WINDOW_PER_ITEM = 16, 1.3
MIN_HELD_SHARE = 0.2
"""Share of a part that must be in a document to be held for the next one."""
MAX_TABLE_WORDS = 1024
"""A longer document is looked at window by window."""
_ALL = FOUND | GRAM_FOUND
_WORDS, _PAIRS = 0, 1


def build_sketch():
    """Room for the sketch of a document: which first bits the hashes of its words have, and those of its pairs."""
    return np.zeros((2, SKETCH_SIZE), np.uint8)


@inner()
def foresee(num_pairs, pairs, seeds, text, index, rules, scratch, held):
    """Note of each pair of document and item what may become of it; see `score_candidates` for the arguments."""
    words, starts, document = text[0], text[1], np.int64(-1)
    seams = (np.uint64(0), np.uint64(0))
    for number in range(num_pairs):
        pair = pairs[number]
        if pair[DOCUMENT] != document:
            document = np.int64(pair[DOCUMENT])
            seams = (_pair_over(words, starts[document]), _pair_over(words, starts[document + 1]))
            if starts[document + 1] - starts[document] <= MAX_TABLE_WORDS:
                _fill_sketch(words, starts[document], starts[document + 1], scratch.sketch)
        _foresee_item(number, pairs, seeds, starts[document + 1] - starts[document], seams, index, rules, scratch, held)
    for number in range(num_pairs - 1, -1, -1):
        pair, behind = pairs[number], pairs[number, NEXT]
        if is_next_to(pairs, number, behind) and pairs[behind, MAY] & (JOINED | WANTED) != 0 and pair[IS_HELD] != 0:
            pair[MAY] |= WANTED
        pair[IS_HELD] = 0


@inlined()
def _pair_over(words, seam):
    """The pair of words over a seam between two documents; 0 where a word is missing."""
    return (words[seam - 1] + words[seam]) * _FACTOR if 0 < seam < len(words) else np.uint64(0)


@inlined()
def _fill_sketch(words, low, high, sketch):
    for at in range(SKETCH_SIZE):
        sketch[_WORDS, at] = sketch[_PAIRS, at] = 0
    for place in range(low, high):
        sketch[_WORDS, words[place] >> SKETCH_SHIFT] = 1
        if place + 1 < len(words):
            sketch[_PAIRS, ((words[place] + words[place + 1]) * _FACTOR) >> SKETCH_SHIFT] = 1


@inlined()
def _is_candidate(number, pairs, seeds, needed, reach):
    """Whether so many rare runs of the item are near one another anywhere in the document, or in it and its neighbours."""
    if has_seeds_beside(pairs, number, needed):
        return True
    first, stop = pairs[number, FIRST], pairs[number, STOP]
    is_one = False
    for at in range(first, stop):
        is_one = has_seeds(seeds[1], (at, stop), needed, seeds[1][at] + reach)
        if is_one:
            break
    return is_one


@inlined()
def _foresee_item(number, pairs, seeds, document_words, seams, index, rules, scratch, held):
    """What may become of one item in one document; what it has at most is held for the next document."""
    pair, item = pairs[number], pairs[number, ITEM]
    segments = (index.item_segments[item], index.item_segments[item + 1])
    starts, kinds = index.segment_starts, index.segment_kinds
    size = starts[segments[1]] - starts[segments[0]]
    if not _is_candidate(number, pairs, seeds, rules.seeds[item], np.int64(size * WINDOW_PER_ITEM) + SLACK_WORDS):
        return
    before, row, offset = pair[BEFORE], pair[DOCUMENT] % 2, pair[OFFSET]
    has_before = is_next_to(pairs, number, before) and pairs[before, IS_HELD] != 0
    most, may = held[row, offset : offset + size], CANDIDATE
    if document_words > MAX_TABLE_WORDS or rules.has_solutions[item] or _bound(index, segments, seams, scratch.sketch, most):
        for word in range(size):
            most[word] = _ALL
        pair[IS_HELD] = 1
        pair[MAY] = may | OPEN | ALONE | (JOINED if has_before else 0)
        return
    pair[IS_HELD] = count_words(most, index.marks, starts, kinds, segments, scratch.counted) >= MIN_HELD_SHARE
    if may_decide(scratch.counted, rules, item, 0.0):
        may |= ALONE
    if has_before:
        of_before = held[1 - row, pairs[before, OFFSET] : pairs[before, OFFSET] + size]
        for word in range(size):
            most[word] |= of_before[word]
        count_words(most, index.marks, starts, kinds, segments, scratch.counted)
        if may_decide(scratch.counted, rules, item, JOINED_EXTRA):
            may |= JOINED
    pair[MAY] = may


@inner()
def _bound(index, segments, seams, sketch, most):
    """Flag the item's words that may be in the document beside their neighbour. Gives whether a pair of it is over a seam."""
    grams, starts = index.grams, index.segment_starts
    first_word, is_over = starts[segments[0]], False
    for segment in range(segments[0], segments[1]):
        start, last = starts[segment], starts[segment + 1] - 1
        if start == last:
            most[start - first_word] = sketch[_WORDS, grams[start] >> SKETCH_SHIFT] * _ALL
            continue
        before, some, of_part = np.uint8(0), grams[start:last], most[start - first_word : last - first_word + 1]
        for word in range(len(some)):
            is_there = sketch[_PAIRS, some[word] >> SKETCH_SHIFT]
            of_part[word] = is_there * _ALL | before
            before = is_there
            is_over |= (some[word] == seams[0]) | (some[word] == seams[1])
        of_part[len(some)] = before
    return is_over
