"""Which items are in a sequence of words: the inner loops, compiled.

A rare run of four words makes an item a candidate. It is then looked for in a window around that place: every pair of words that
item and window share marks its words as found, in whatever order the runs come. A part's score is the weight of its words found.
What is decided by the scores is in `rules`.

A document that is short has one table for all items. What of an item is anywhere in it bounds what any window can have, so most
candidates are done with before the first look (`foresight`) or after it: nothing that counts grows when fewer words are found.
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
    Noted,
    Table,
    build_noted,
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
    build_sketch,
    foresee,
    has_seeds,
    has_seeds_beside,
    in_line,
    is_next_to,
)
from phasewise.validations.evidence.leakage.rules import JOINED_EXTRA
from phasewise.validations.evidence.leakage.scoring import COUNTS, count_words, decide, may_decide, score_parts
from phasewise.validations.evidence.leakage.segments import NUM_KINDS, SOLUTION

SAME_LINE_WORDS = 4
MIN_COMPLEMENT = 0.1
"""Share of what two documents have of a part together that each of them alone must have."""


class IndexWords(NamedTuple):
    """The arrays of an index that say what its items are."""

    hashes: np.ndarray
    grams: np.ndarray
    marks: np.ndarray
    weights: np.ndarray
    segment_starts: np.ndarray
    segment_kinds: np.ndarray
    item_segments: np.ndarray


class Scratch(NamedTuple):
    """What every look for an item uses again. `joined`: flags of two documents together."""

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
    """For items of up to so many words and segments."""
    return Scratch(
        table=build_table(max(MAX_TABLE_WORDS, 2 * (int(max_words * WINDOW_PER_ITEM) + SLACK_WORDS))),
        noted=build_noted(max_words, max_segments),
        flags=np.empty(max_words, np.uint8),
        joined=np.empty(max_words, np.uint8),
        spans=np.empty((max_segments, 2), np.int64),
        scores=np.zeros(NUM_KINDS),
        founds=np.zeros((NUM_KINDS + 1, COUNTS)),
        parts=np.zeros(4),
        counted=np.zeros((NUM_KINDS, 4), np.int64),
        sketch=build_sketch(),
    )


@compiled()
def score_candidates(num_pairs, pairs, seeds, text, index, rules, scratch, held, out):
    """Look for each candidate item around its seeds; fills `out` with what counts as found and gives how many, found or not stored.

    Args:
        num_pairs, pairs, seeds: from `group_seeds`: words of the index and places in the text.
        text: words, first word of each document and the end of the last.
        index: `IndexWords`.
        rules: `Rules`.
        scratch: `Scratch`.
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
def _segment_of(word, segment_starts, segments):
    segment = segments[0]
    while segment_starts[segment + 1] <= word:
        segment += 1
    return segment


@inlined()
def _run(words, place, hashes, word, start, end):
    """The share of a segment that is in the text word for word around `place`, in one run."""
    before = after = 0
    while word - before > start and place - before > 0 and words[place - before - 1] == hashes[word - before - 1]:
        before += 1
    while word + after < end and place + after < len(words) and words[place + after] == hashes[word + after]:
        after += 1
    return (before + after) / (end - start)


@inlined()
def _complement(flags, held):
    """Whether each of two documents has enough of the words found which the other one has not."""
    only_here = only_there = both = 0
    for word in range(len(held)):
        is_here, is_there = flags[word] & FOUND, held[word] & FOUND
        both += is_here & is_there
        only_here += is_here & ~is_there
        only_there += is_there & ~is_here
    return min(only_here, only_there) >= MIN_COMPLEMENT * (both + only_here + only_there)


@inner()
def _goes_on(words, seam, hashes, segment_starts, segments):
    """Whether two words that end at a seam between documents and two that begin there follow one another in one part of the item."""
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


@inlined()
def _bounds(text, document, index, segments):
    """The words in which an item of a document may be: the document's, or all up to that end where the item goes on beyond it."""
    words, low, high = text[0], text[1][document], text[1][document + 1]
    is_open = _goes_on(words, low, index.hashes, index.segment_starts, segments)
    goes_on = _goes_on(words, high, index.hashes, index.segment_starts, segments)
    return np.int64(0) if is_open else low, np.int64(len(words)) if goes_on else high


@inlined()
def _lay_out(words, document, window, table):
    """Have the table of a short document, or of the window. Gives whether it is another one than before."""
    low, high = document if document[1] - document[0] <= MAX_TABLE_WORDS else window
    is_other = table.state[LOW] != low or table.state[HIGH] != high
    if is_other:
        fill_table(words, low, high, table)
    return is_other


@inlined()
def _of_before(pairs, number, size, held):
    """What the document before holds of the item; nothing where it holds none."""
    before = pairs[number, BEFORE]
    if not is_next_to(pairs, number, before) or pairs[before, IS_HELD] == 0:
        return held[0, :0]
    return held[pairs[before, DOCUMENT] % 2, pairs[before, OFFSET] : pairs[before, OFFSET] + size]


@inlined()
def _hold(pair, best, of_before):
    """Keep the best find of an item for the next document, with what the document before holds where each has what the other has not."""
    pair[IS_HELD] = 1
    if len(of_before) > 0 and _complement(best, of_before):
        for word in range(len(best)):
            best[word] |= of_before[word]


@inner()
def _may_count(of_before, index, segments, rules, item, scratch):
    """Whether an item may count where no more of it is found than is noted, runs aside. Gives the largest share of words, whether it may
    count alone, and whether it may together with what the document before holds of it.
    """
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
    """Mark the item in a window and decide. Gives the largest share of words, and whether it counts as found.

    `may`: what `_may_count` says, where the window's run counts.
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
    """Look for one item in one document, around each of its seeds in the order of the text. Gives how many was found so far.

    The best find that is not yet the item is held for the next document: with the rest, which may be there, it may be.
    """
    words, pair, item = text[0], pairs[number], pairs[number, ITEM]
    may_be, has_runs = pair[MAY], rules.has_runs[item]
    if may_be == 0 or (may_be == CANDIDATE and not has_runs):
        return count
    segments = (index.item_segments[item], index.item_segments[item + 1])
    size = index.segment_starts[segments[1]] - index.segment_starts[segments[0]]
    reach = np.int64(size * WINDOW_PER_ITEM) + SLACK_WORDS
    of_before, best = _of_before(pairs, number, size, held), held[pair[DOCUMENT] % 2, pair[OFFSET] : pair[OFFSET] + size]
    is_kept, has_beside = may_be & WANTED != 0, has_seeds_beside(pairs, number, rules.seeds[item])
    best_share, most, is_ready, is_alone, may_join = 0.0, 0.0, False, False, False
    low, high = text[1][pair[DOCUMENT]], text[1][pair[DOCUMENT] + 1]
    if may_be & OPEN != 0:
        low, high = _bounds(text, pair[DOCUMENT], index, segments)
    line, until, explained = np.int64(-(10**9)), np.int64(-1), np.int64(-1)
    for at in range(pair[FIRST], pair[STOP]):
        word, place = np.int64(seeds[0][at]), np.int64(seeds[1][at])
        if place <= explained or (abs((place - word) - line) <= SAME_LINE_WORDS and place <= until):
            continue
        if not has_beside and not has_seeds(seeds[1], (at, pair[STOP]), rules.seeds[item], place + reach):
            continue
        line, until = place - word, place + size
        segment = _segment_of(word, index.segment_starts, segments)
        start, stop = index.segment_starts[segment], index.segment_starts[segment + 1]
        run = (np.int64(index.segment_kinds[segment]), _run(words, place, index.hashes, word, start, stop))
        is_run = run[1] >= rules.runs[item, run[0]]
        if not is_run and may_be & (ALONE | JOINED | WANTED) == 0:
            continue
        window_low, window_high = max(low, place - reach), min(high, place + reach)
        if _lay_out(words, (low, high), (window_low, window_high), scratch.table) or not is_ready:
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
        _hold(pair, best, of_before)
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
            if belongs and spans[segment - segments[0], 1] >= 0:
                first = min(first, spans[segment - segments[0], 0])
                last = max(last, spans[segment - segments[0], 1])
        if last < 0:
            continue
        if count < len(out[0]):
            out[0][count], out[1][count], out[2][count] = what[0], part, parts[part]
            out[3][count], out[4][count], out[5][count] = what[1], first, last
        count += 1
    return count
