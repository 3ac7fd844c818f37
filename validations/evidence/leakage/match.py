"""Matching of items in a sequence of words: the inner loops, compiled.

A rare run of four words makes an item a candidate. In a window around the run, every pair of words in both item and window marks its words
as found, in any order of the runs. A part's score is the weight of its found words. `rules` decides by the scores.

A sketch of a document tells that a pair of words is missing, or may be found. It bounds the share of each part for a tenth of the cost of
matching (`foresee`). A short document has one table for all items. The words of an item anywhere in it bound the words in any window, so
most candidates end before the first look or after it: no score grows with fewer words. The next document needs the words found of an item
only if both documents together may count.
"""

# pyright: basic
# Compiled functions take their types from their arguments.

from typing import NamedTuple

import numpy as np

from phasewise.validations.evidence.leakage.index import SEED_WORDS
from phasewise.validations.evidence.leakage.jit_cache import compiled, inlined, inner
from phasewise.validations.evidence.leakage.match_flags import (
    FOUND,
    GRAM_FOUND,
    HIGH,
    LOW,
    NUMBER_THERE,
    RUN_FOUND,
    SKETCH_SHIFT,
    Noted,
    Table,
    build_table,
    fill_table,
    mark,
    note,
)
from phasewise.validations.evidence.leakage.prefilter import BEFORE, DOCUMENT, FIRST, IS_HELD, ITEM, MAY, NEXT, OFFSET, PLACES, STOP
from phasewise.validations.evidence.leakage.rules import COUNTS, JOINED_EXTRA, count_words, decide, may_decide, score_parts
from phasewise.validations.evidence.leakage.segments import GRAM_FACTOR as _FACTOR
from phasewise.validations.evidence.leakage.segments import NUM_KINDS, SOLUTION

ALONE, JOINED, WANTED, OPEN, CANDIDATE = 1, 2, 4, 8, 16
"""Possible outcomes of an item in a document: it counts, it counts together with the document before, the next document needs its words, it
may extend beyond the document (nothing is known), it has enough rare runs."""
SLACK_WORDS, WINDOW_PER_ITEM, SAME_LINE_WORDS = 16, 1.3, 4
MIN_HELD_SHARE = 0.2  # minimum share of a part to be kept for the next document
MAX_TABLE_WORDS, MAX_SKETCH_WORDS = 1024, 2048  # longer documents are matched window by window, with a sketch of an item's windows
_ALL, _UNKNOWN = FOUND | GRAM_FOUND, NUMBER_THERE | RUN_FOUND  # flags that a sketch tells, and others, which it takes as set
_WORDS, _PAIRS = 0, 1
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
    table = build_table(max(MAX_TABLE_WORDS, 2 * (int(max_words * WINDOW_PER_ITEM) + SLACK_WORDS)))
    return Scratch(
        table=table,
        noted=Noted(np.empty(max_words, np.uint8), np.empty((max_words, 2), np.int32), np.empty((max_segments, 2), np.int64)),
        flags=np.empty(max_words, np.uint8),
        joined=np.empty(max_words, np.uint8),
        spans=np.empty((max_segments, 2), np.int64),
        scores=np.zeros(NUM_KINDS),
        founds=np.zeros((NUM_KINDS + 1, COUNTS)),
        parts=np.zeros(4),
        counted=np.zeros((NUM_KINDS, 4), np.int64),
        sketch=np.zeros((2, len(table.sketch)), np.uint8),
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
def has_seeds(found_places, bounds, needed, until):
    """Return whether `needed` distinct seeds start from the first bound up to `until`."""
    count, last = 1, found_places[bounds[0]]
    for at in range(bounds[0] + 1, bounds[1]):
        if count >= needed or found_places[at] > until:
            break
        if found_places[at] > last:
            count, last = count + 1, found_places[at]
    return count >= needed


@inlined()
def is_next_to(pairs, number, other):
    """Return whether the documents of two pairs are neighbours. -1 is no pair."""
    return other >= 0 and abs(pairs[number, DOCUMENT] - pairs[other, DOCUMENT]) == 1


@inlined()
def has_seeds_beside(pairs, number, needed):
    """Return whether the document and its neighbours hold `needed` seeds of the item, with some in a neighbour."""
    before, behind, beside = pairs[number, BEFORE], pairs[number, NEXT], 0
    if is_next_to(pairs, number, before):
        beside += pairs[before, PLACES]
    if is_next_to(pairs, number, behind):
        beside += pairs[behind, PLACES]
    return beside > 0 and beside + pairs[number, PLACES] >= needed


@inlined()
def in_line(seeds, pairs, number, at, drift):
    """Count consecutive seeds of an item in line, across letters before choices and the end of a document."""
    words, places = seeds
    first, last, count = places[at] - words[at], places[at], 1
    stop, goes_on = pairs[number, STOP], True
    while goes_on:
        at += 1
        if at == stop:
            number = pairs[number, NEXT]
            if number < 0:
                break
            at, stop = pairs[number, FIRST], pairs[number, STOP]
        if places[at] != last:
            goes_on = places[at] <= last + SEED_WORDS and 0 <= (places[at] - words[at]) - first <= drift
            if goes_on:
                last, count = places[at], count + 1
    return count


@inner()
def foresee(num_pairs, pairs, seeds, text, index, rules, scratch, held):
    """Fill the possible outcomes of each pair. `score_candidates` explains the arguments."""
    words, starts, sketch, document = text[0], text[1], scratch.sketch, np.int64(-1)
    seams = (np.uint64(0), np.uint64(0))
    for number in range(num_pairs):
        pair = pairs[number]
        if pair[DOCUMENT] != document:
            document = np.int64(pair[DOCUMENT])
            first, stop = starts[document], starts[document + 1]
            # Pairs of words across the seams to the neighbours, 0 without a neighbour
            before = (words[first - 1] + words[first]) * _FACTOR if 0 < first < len(words) else np.uint64(0)
            behind = (words[stop - 1] + words[stop]) * _FACTOR if 0 < stop < len(words) else np.uint64(0)
            seams = (before, behind)
            if stop - first <= MAX_TABLE_WORDS:
                sketch[:] = 0
                draw(words, first, stop, sketch)
        _foresee_item(number, pairs, seeds, text, seams, index, rules, scratch, held)
    for number in range(num_pairs - 1, -1, -1):
        pair, following = pairs[number], pairs[number, NEXT]
        if is_next_to(pairs, number, following) and pairs[following, MAY] & (JOINED | WANTED) != 0 and pair[IS_HELD] != 0:
            pair[MAY] |= WANTED
        pair[IS_HELD] = 0


@inner()
def draw(words, first, stop, sketch):
    """Add the words in a range of the text and their pairs to the sketch."""
    for place in range(first, stop):
        sketch[_WORDS, words[place] >> SKETCH_SHIFT] = 1
        if place + 1 < len(words):
            sketch[_PAIRS, ((words[place] + words[place + 1]) * _FACTOR) >> SKETCH_SHIFT] = 1


@inner()
def may_score(flags, index, segments, rules, item, extra, scratch):
    """Return whether an item with at most these flags may count, apart from runs. `scratch.counted` has its words from `count_words`."""
    is_open = may_decide(scratch.counted, rules, item, extra)
    if is_open and not rules.has_solutions[item]:
        of_words, scores, founds = (index.hashes, index.weights, index.marks), scratch.scores, scratch.founds
        score_parts(flags, of_words, index.segment_starts, index.segment_kinds, segments, scores, founds)
        is_open = decide(scores, founds, rules, item, extra, (np.int64(-1), 0.0), np.int64(extra == 0), scratch.parts)
    return is_open


@inlined()
def _foresee_item(number, pairs, seeds, text, seams, index, rules, scratch, held):
    """Fill the possible outcomes of one item in one document, and keep its maximal flags for the next document."""
    pair, item = pairs[number], pairs[number, ITEM]
    words, low, high = text[0], text[1][pairs[number, DOCUMENT]], text[1][pairs[number, DOCUMENT] + 1]
    segments = (index.item_segments[item], index.item_segments[item + 1])
    starts, kinds = index.segment_starts, index.segment_kinds
    size = starts[segments[1]] - starts[segments[0]]
    needed, reach = rules.seeds[item], np.int64(size * WINDOW_PER_ITEM) + SLACK_WORDS
    has_beside, at = has_seeds_beside(pairs, number, needed), pair[FIRST]
    while at < pair[STOP] and not has_beside and not has_seeds(seeds[1], (at, pair[STOP]), needed, seeds[1][at] + reach):
        at += 1
    if at == pair[STOP]:
        return
    before, row, offset = pair[BEFORE], pair[DOCUMENT] % 2, pair[OFFSET]
    has_before = is_next_to(pairs, number, before) and pairs[before, IS_HELD] != 0
    most, may = held[row, offset : offset + size], CANDIDATE
    is_open, sketch, grams = rules.has_solutions[item], scratch.sketch, index.grams
    if high - low > MAX_TABLE_WORDS and not is_open:  # sketch the windows of the item, which may reach into the neighbours
        sketch[:] = 0
        end, room = np.int64(0), MAX_SKETCH_WORDS
        for seed in range(at, pair[STOP]):
            place = np.int64(seeds[1][seed])
            if place + reach > end and (has_beside or has_seeds(seeds[1], (seed, pair[STOP]), needed, place + reach)):
                first, end = max(end, place - reach), min(place + reach, len(words))
                may |= OPEN if first < low or end > high else 0
                room -= end - first
                is_open = room < 0
                if is_open:
                    break
                draw(words, first, end, sketch)
    for segment in range(segments[0], segments[0] if is_open else segments[1]):
        # Flag the words that the document may hold next to their neighbour. A pair may be across a seam.
        start, last = starts[segment], starts[segment + 1] - 1
        if start == last:
            most[start - starts[segments[0]]] = sketch[_WORDS, grams[start] >> SKETCH_SHIFT] * _ALL | _UNKNOWN
            continue
        carried, some, of_part = np.uint8(0), grams[start:last], most[start - starts[segments[0]] : last - starts[segments[0]] + 1]
        for word in range(len(some)):
            is_there = sketch[_PAIRS, some[word] >> SKETCH_SHIFT]
            of_part[word] = is_there * _ALL | carried | _UNKNOWN
            carried = is_there
            is_open |= high - low <= MAX_TABLE_WORDS and (some[word] == seams[0] or some[word] == seams[1])
        of_part[len(some)] = carried | _UNKNOWN
    if is_open:
        most[:] = _ALL | _UNKNOWN
        pair[IS_HELD] = 1
        pair[MAY] = may | OPEN | ALONE | (JOINED if has_before else 0)
        return
    pair[IS_HELD] = count_words(most, index.marks, starts, kinds, segments, scratch.counted) >= MIN_HELD_SHARE
    if may_score(most, index, segments, rules, item, 0.0, scratch):
        may |= ALONE
    if has_before:
        of_before = held[1 - row, pairs[before, OFFSET] : pairs[before, OFFSET] + size]
        for word in range(size):
            most[word] |= of_before[word]
        count_words(most, index.marks, starts, kinds, segments, scratch.counted)
        if may_score(most, index, segments, rules, item, JOINED_EXTRA, scratch):
            may |= JOINED
    pair[MAY] = may


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
    flags, joined = scratch.noted.flags, scratch.joined
    marks, starts, kinds, counted = index.marks, index.segment_starts, index.segment_kinds, scratch.counted
    most = count_words(flags, marks, starts, kinds, segments, counted)
    is_alone = may_score(flags, index, segments, rules, item, 0.0, scratch)
    if len(of_before) == 0:
        return most, is_alone, False
    for word in range(len(of_before)):
        joined[word] = flags[word] | of_before[word]
    count_words(joined, marks, starts, kinds, segments, counted)
    return most, is_alone, may_score(joined, index, segments, rules, item, JOINED_EXTRA, scratch)


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
    if may_be == 0 or (may_be & (ALONE | JOINED | WANTED) == 0 and not has_runs):
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
        back, ahead, hashes = 0, 0, index.hashes  # words of the segment in one run of the text around `place`
        while word - back > start and place - back > 0 and words[place - back - 1] == hashes[word - back - 1]:
            back += 1
        while word + ahead < stop and place + ahead < len(words) and words[place + ahead] == hashes[word + ahead]:
            ahead += 1
        run = (np.int64(index.segment_kinds[segment]), (back + ahead) / (stop - start))
        is_run = run[1] >= rules.runs[item, run[0]]
        if not is_run and may_be & (ALONE | JOINED | WANTED) == 0:
            continue
        window_low, window_high = max(low, place - reach), min(high, place + reach)
        table_low, table_high = scratch.table.state[LOW], scratch.table.state[HIGH]
        is_short = high - low <= MAX_TABLE_WORDS
        if (table_low != low or table_high != high) if is_short else (table_low > window_low or table_high < window_high):
            # One table for all windows of the item, if they are close together
            last = min(high, np.int64(seeds[1][pair[STOP] - 1]) + reach, window_low + MAX_TABLE_WORDS)
            table_low, table_high = (low, high) if is_short else (window_low, max(window_high, last))
            fill_table(words, table_low, table_high, scratch.table)
            is_ready = False
        if not is_ready:
            note(index, segments, scratch.table, scratch.noted)
            most, is_alone, may_join = _may_count(of_before, index, segments, rules, item, scratch)
            is_ready = True
        may = (most, is_alone or is_run, may_join)
        if not may[1] and not may_join and (not is_kept or best_share >= most):
            if not has_runs and is_short:  # no other place of this document has more
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
