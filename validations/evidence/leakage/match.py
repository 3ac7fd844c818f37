"""Matching of items in a sequence of words: the inner loops, compiled.

A rare run of four words makes an item a candidate. In a window around the run, every pair of words in both item and window marks its words
as found, in any order of the runs. A part's score is the weight of its found words. `rules` decides by the scores.

A short document has one table for all items. The words of an item anywhere in it bound the words in any window, so most candidates end
before the first look (`prefilter`) or after it: no score grows with fewer words.
"""

# pyright: basic
# Compiled functions take their types from their arguments.

from typing import NamedTuple

import numpy as np

from phasewise.validations.evidence.leakage.jit_cache import compiled, inlined, inner
from phasewise.validations.evidence.leakage.match_flags import (
    FOUND,
    HIGH,
    LOW,
    SKETCH_SIZE,
    Noted,
    Table,
    build_table,
    fill_table,
    mark,
    note,
)
from phasewise.validations.evidence.leakage.prefilter import (
    ALONE,
    BEFORE,
    CANDIDATE,
    DOCUMENT,
    FIRST,
    IS_HELD,
    ITEM,
    JOINED,
    MAX_TABLE_WORDS,
    MAY,
    MIN_HELD_SHARE,
    OFFSET,
    OPEN,
    SLACK_WORDS,
    STOP,
    WANTED,
    WINDOW_PER_ITEM,
    foresee,
    has_seeds,
    has_seeds_beside,
    in_line,
    is_next_to,
)
from phasewise.validations.evidence.leakage.rules import COUNTS, JOINED_EXTRA, count_words, decide, may_decide, score_parts
from phasewise.validations.evidence.leakage.segments import NUM_KINDS, SOLUTION

SAME_LINE_WORDS = 4
MIN_COMPLEMENT = 0.1  # share of the words found in two documents that each document must add


class IndexWords(NamedTuple):
    """Arrays of an index that describe its items."""

    hashes: np.ndarray
    grams: np.ndarray
    marks: np.ndarray
    weights: np.ndarray
    segment_starts: np.ndarray
    segment_kinds: np.ndarray
    item_segments: np.ndarray


class Scratch(NamedTuple):
    """Scratch arrays. `joined`: flags of two documents together."""

    table: Table
    noted: Noted
    flags: np.ndarray
    joined: np.ndarray
    spans: np.ndarray
    scores: np.ndarray
    founds: np.ndarray
    parts: np.ndarray
    counted: np.ndarray
    sketch: np.ndarray


def build_scratch(max_words: int, max_segments: int) -> Scratch:
    """Allocate scratch arrays for items of up to this number of words and segments."""
    return Scratch(
        table=build_table(max(MAX_TABLE_WORDS, 2 * (int(max_words * WINDOW_PER_ITEM) + SLACK_WORDS))),
        noted=Noted(np.empty(max_words, np.uint8), np.empty((max_words, 2), np.int32), np.empty((max_segments, 2), np.int64)),
        flags=np.empty(max_words, np.uint8),
        joined=np.empty(max_words, np.uint8),
        spans=np.empty((max_segments, 2), np.int64),
        scores=np.zeros(NUM_KINDS),
        founds=np.zeros((NUM_KINDS + 1, COUNTS)),
        parts=np.zeros(4),
        counted=np.zeros((NUM_KINDS, 4), np.int64),
        sketch=np.zeros((2, SKETCH_SIZE), np.uint8),
    )


@compiled()
def score_candidates(num_pairs, pairs, seeds, text, index, rules, scratch, held, out):
    """Match each candidate item around its seeds. Fill `out` and return the number of found parts, which may exceed its room.

    Args:
        pairs, seeds: from `group_seeds`.
        text: words, first word of each document, and the end of the last.
        held: flags of the items of two documents in turn.
        out: item, part, score, place of the seed, first place, last place.
    """
    scratch.table.state[HIGH] = -1
    foresee(num_pairs, pairs, seeds, text, index, rules, scratch, held)
    count = np.int64(0)
    for number in range(num_pairs):
        count = _score_item(number, pairs, seeds, text, index, rules, scratch, held, out, count)
    return count


@inlined()
def _run(words, place, hashes, word, start, end):
    """Return the share of a segment in one run of the text around `place`."""
    before = after = 0
    while word - before > start and place - before > 0 and words[place - before - 1] == hashes[word - before - 1]:
        before += 1
    while word + after < end and place + after < len(words) and words[place + after] == hashes[word + after]:
        after += 1
    return (before + after) / (end - start)


@inlined()
def _complement(flags, held):
    """Return whether each of two documents adds enough words."""
    only_here = only_there = both = 0
    for word in range(len(held)):
        is_here, is_there = flags[word] & FOUND, held[word] & FOUND
        both += is_here & is_there
        only_here += is_here & ~is_there
        only_there += is_there & ~is_here
    return min(only_here, only_there) >= MIN_COMPLEMENT * (both + only_here + only_there)


@inner()
def _goes_on(words, seam, hashes, segment_starts, segments):
    """Return whether the words on both sides of a seam between documents are consecutive in one part of the item."""
    if seam < 2 or seam + 2 > len(words):
        return False
    is_there = False
    for word in range(segment_starts[segments[0]] + 1, segment_starts[segments[1]]):
        is_there |= (hashes[word] == words[seam]) & (hashes[word - 1] == words[seam - 1])
    if not is_there:
        return False
    for segment in range(segments[0], segments[1]):
        for word in range(segment_starts[segment] + 2, segment_starts[segment + 1] - 1):
            is_here = hashes[word] == words[seam] and hashes[word - 1] == words[seam - 1]
            if is_here and hashes[word - 2] == words[seam - 2] and hashes[word + 1] == words[seam + 1]:
                return True
    return False


@inner()
def _may_count(of_before, index, segments, rules, item, scratch):
    """Return the largest share of words, and whether an item may count at all, and together with the document before, apart from runs."""
    flags, joined, run = scratch.noted.flags, scratch.joined, (np.int64(-1), 0.0)
    marks, starts, kinds, counted = index.marks, index.segment_starts, index.segment_kinds, scratch.counted
    of_words, scores, founds, parts = (index.hashes, index.weights, index.marks), scratch.scores, scratch.founds, scratch.parts
    most = count_words(flags, marks, starts, kinds, segments, counted)
    is_alone = may_decide(counted, rules, item, 0.0)
    if is_alone and not rules.has_solutions[item]:
        score_parts(flags, of_words, starts, kinds, segments, scores, founds)
        is_alone = decide(scores, founds, rules, item, 0.0, run, np.int64(1), parts)
    if len(of_before) == 0:
        return most, is_alone, False
    for word in range(len(of_before)):
        joined[word] = flags[word] | of_before[word]
    count_words(joined, marks, starts, kinds, segments, counted)
    may_join = may_decide(counted, rules, item, JOINED_EXTRA)
    if may_join and not rules.has_solutions[item]:
        score_parts(joined, of_words, starts, kinds, segments, scores, founds)
        may_join = decide(scores, founds, rules, item, JOINED_EXTRA, run, np.int64(0), parts)
    return most, is_alone, may_join


@inner()
def _look(window, item, segments, run, may, is_in_line, of_before, index, rules, scratch):
    """Flag the item in a window and decide. Return the largest share of words, and whether the item is found.

    `may`: the result of `_may_count`, or True for a window with a run.
    """
    most, is_alone, may_join = may
    flags, joined, starts, kinds = scratch.flags, scratch.joined, index.segment_starts, index.segment_kinds
    of_words, scores, founds, parts = (index.hashes, index.weights, index.marks), scratch.scores, scratch.founds, scratch.parts
    is_all = mark(window, index.hashes, starts, segments, scratch.table, scratch.noted, flags, scratch.spans, np.int64(0))
    share, is_found = most, False
    if is_alone or rules.has_solutions[item]:
        share = score_parts(flags, of_words, starts, kinds, segments, scores, founds)
    elif not is_all:
        share = count_words(flags, index.marks, starts, kinds, segments, scratch.counted)
    if is_alone:
        is_found = decide(scores, founds, rules, item, 0.0, run, np.int64(is_in_line), parts)
    if not is_found and may_join and _complement(flags, of_before):
        for word in range(len(of_before)):
            joined[word] = flags[word] | of_before[word]
        score_parts(joined, of_words, starts, kinds, segments, scores, founds)
        is_found = decide(scores, founds, rules, item, JOINED_EXTRA, (run[0], 0.0), np.int64(0), parts)
    if is_found:
        mark(window, index.hashes, starts, segments, scratch.table, scratch.noted, flags, scratch.spans, np.int64(1))
    return share, is_found


@inlined()
def _score_item(number, pairs, seeds, text, index, rules, scratch, held, out, count):
    """Match one item in one document around each of its seeds in text order. Return the number of found parts so far.

    The best flags below the required score are kept for the next document.
    """
    words, pair, item = text[0], pairs[number], pairs[number, ITEM]
    may_be, has_runs = pair[MAY], rules.has_runs[item]
    if may_be == 0 or (may_be == CANDIDATE and not has_runs):
        return count
    segments = (index.item_segments[item], index.item_segments[item + 1])
    size = index.segment_starts[segments[1]] - index.segment_starts[segments[0]]
    reach = np.int64(size * WINDOW_PER_ITEM) + SLACK_WORDS
    before, of_before, best = pair[BEFORE], held[0, :0], held[pair[DOCUMENT] % 2, pair[OFFSET] : pair[OFFSET] + size]
    if is_next_to(pairs, number, before) and pairs[before, IS_HELD] != 0:
        of_before = held[pairs[before, DOCUMENT] % 2, pairs[before, OFFSET] : pairs[before, OFFSET] + size]
    is_kept, has_beside = may_be & WANTED != 0, has_seeds_beside(pairs, number, rules.seeds[item])
    best_share, most, is_ready, is_alone, may_join = 0.0, 0.0, False, False, False
    low, high = text[1][pair[DOCUMENT]], text[1][pair[DOCUMENT] + 1]
    if may_be & OPEN != 0:  # the item may cross the seam to a neighbour
        low = np.int64(0) if _goes_on(words, low, index.hashes, index.segment_starts, segments) else low
        high = np.int64(len(words)) if _goes_on(words, high, index.hashes, index.segment_starts, segments) else high
    line, until, explained = np.int64(-(10**9)), np.int64(-1), np.int64(-1)
    for at in range(pair[FIRST], pair[STOP]):
        word, place = np.int64(seeds[0][at]), np.int64(seeds[1][at])
        if place <= explained or (abs((place - word) - line) <= SAME_LINE_WORDS and place <= until):
            continue
        if not has_beside and not has_seeds(seeds[1], (at, pair[STOP]), rules.seeds[item], place + reach):
            continue
        line, until = place - word, place + size
        segment = segments[0]
        while index.segment_starts[segment + 1] <= word:
            segment += 1
        start, stop = index.segment_starts[segment], index.segment_starts[segment + 1]
        run = (np.int64(index.segment_kinds[segment]), _run(words, place, index.hashes, word, start, stop))
        is_run = run[1] >= rules.runs[item, run[0]]
        if not is_run and may_be & (ALONE | JOINED | WANTED) == 0:
            continue
        window_low, window_high = max(low, place - reach), min(high, place + reach)
        table_low, table_high = (low, high) if high - low <= MAX_TABLE_WORDS else (window_low, window_high)
        if scratch.table.state[LOW] != table_low or scratch.table.state[HIGH] != table_high:
            fill_table(words, table_low, table_high, scratch.table)
            is_ready = False
        if not is_ready:
            note(index, segments, scratch.table, scratch.noted)
            most, is_alone, may_join = _may_count(of_before, index, segments, rules, item, scratch)
            is_ready = True
        may = (most, is_alone or is_run, may_join)
        if not may[1] and not may_join and (not is_kept or best_share >= most):
            if not has_runs and high - low <= MAX_TABLE_WORDS:  # no other place of this document has more
                break
            continue
        is_in_line = rules.in_line[item] > 0 and in_line(seeds, pairs, number, at, segments[1] - segments[0]) >= rules.in_line[item]
        window = (window_low, segment, place - word + (start + stop) // 2, window_high)
        share, is_found = _look(window, item, segments, run, may, is_in_line, of_before, index, rules, scratch)
        if is_kept and share > best_share:
            best_share = share
            for word in range(size):
                best[word] = scratch.flags[word]
        if is_found:
            count = _emit((item, place), scratch, index.segment_kinds, segments, out, count)
            explained = max(explained, scratch.spans[segment - segments[0], 1])
    if best_share >= MIN_HELD_SHARE:
        pair[IS_HELD] = 1
        if len(of_before) > 0 and _complement(best, of_before):
            for word in range(size):
                best[word] |= of_before[word]
    return count


@inner()
def _emit(what, scratch, segment_kinds, segments, out, count):
    parts, spans = scratch.parts, scratch.spans
    for part in range(4):
        if parts[part] == 0:
            continue
        first, last = np.int64(2**62), np.int64(-1)
        for segment in range(segments[0], segments[1]):
            kind = segment_kinds[segment]
            belongs = part == 3 or part == kind or (part == 2 and kind == SOLUTION)
            if belongs:
                first = min(first, spans[segment - segments[0], 0])
                last = max(last, spans[segment - segments[0], 1])
        if last < 0:
            continue
        if count < len(out[0]):
            out[0][count], out[1][count], out[2][count] = what[0], part, parts[part]
            out[3][count], out[4][count], out[5][count] = what[1], first, last
        count += 1
    return count
