"""Which items stand in a sequence of words: the inner loops, compiled.

A rare run of four words makes an item a candidate. It is then looked for in a window around that place: every pair of words that
item and window share marks its words as found, in whatever order the runs come. A part's score is the weight of its words found.
What is decided by the scores stands in `rules`.
"""

# pyright: basic
# Compiled functions take their types from their arguments.

import numpy as np

from validations.evidence.leakage.compiled import compiled
from validations.evidence.leakage.marking import FOUND, mark, sketch_of
from validations.evidence.leakage.rules import COMPLETE, JOINED_EXTRA
from validations.evidence.leakage.scoring import COUNTS, IN_ALL, WORDS, decide, score_parts
from validations.evidence.leakage.seeds import has_seeds, has_seeds_beside, in_line
from validations.evidence.leakage.segments import CHOICE, NUM_KINDS, SOLUTION

SLACK_WORDS, WINDOW_PER_ITEM = 16, 1.3
SAME_LINE_WORDS = 4
MIN_HELD_SHARE, MIN_COMPLEMENT = 0.2, 0.1
"""Share of a part that must stand in a document to be held for the next one, and share of what both have that only one of them may have."""


@compiled()
def score_candidates(candidates, text, index, rules, scratch, out):
    """Look for each candidate item around its seeds; fills `out` with what counts as found and gives how many, found or not stored.

    Args:
        candidates: (words of the index, places in the text), sorted by item, then place.
        text: words, their grams, document of each word.
        index: hashes, weights, grams, marks, segment_starts, segment_kinds, item_segments, item_of_word.
        rules: as `rules.Rules`.
        scratch: keys, places, stamps of a hash table with at least twice the grams of the largest window.
        out: item, part, score, place of the seed, first place, last place.
    """
    found_words, item_of_word = candidates[0], index[7]
    stamp, count, first = scratch[2].max(), 0, 0
    while first < len(found_words):
        item, stop = item_of_word[found_words[first]], first + 1
        while stop < len(found_words) and item_of_word[found_words[stop]] == item:
            stop += 1
        stamp, count = _score_item(item, (first, stop), candidates, text, index, rules, scratch, stamp, out, count)
        first = stop
    return count


@compiled(inline="always")
def _segment_of(word, segment_starts, segments):
    segment = segments[0]
    while segment_starts[segment + 1] <= word:
        segment += 1
    return segment


@compiled(inline="always")
def _run(words, place, hashes, word, start, end):
    """The share of a segment that stands in the text word for word around `place`, in one run."""
    before = after = 0
    while word - before > start and place - before > 0 and words[place - before - 1] == hashes[word - before - 1]:
        before += 1
    while word + after < end and place + after < len(words) and words[place + after] == hashes[word + after]:
        after += 1
    return (before + after) / (end - start)


@compiled(inline="always")
def _table(scratch, reach):
    """As much of the hash table as the grams of a window need."""
    fit = 64
    while fit < 12 * reach:  # grams, numbers and own runs of both sides
        fit *= 2
    return scratch[0][:fit], scratch[1][:fit], scratch[2][:fit], scratch[3]


@compiled(inline="always")
def _complement(flags, held):
    """Whether each of two documents has enough of the words found which the other one has not."""
    only_here = only_there = both = 0
    for word in range(len(flags)):
        is_here, is_there = flags[word] & FOUND != 0, held[word] & FOUND != 0
        both += is_here and is_there
        only_here += is_here and not is_there
        only_there += is_there and not is_here
    return min(only_here, only_there) >= MIN_COMPLEMENT * (both + only_here + only_there)


@compiled(inline="always")
def _goes_on(words, seam, hashes, segment_starts, segments):
    """Whether two words that end at a seam between documents and two that begin there follow one another in one part of the item."""
    if seam < 2 or seam + 2 > len(words):
        return False
    for segment in range(segments[0], segments[1]):
        for word in range(segment_starts[segment] + 2, segment_starts[segment + 1] - 1):
            is_here = hashes[word] == words[seam] and hashes[word - 1] == words[seam - 1]
            if is_here and hashes[word - 2] == words[seam - 2] and hashes[word + 1] == words[seam + 1]:
                return True
    return False


@compiled()
def _score_item(item, bounds, candidates, text, index, rules, scratch, stamp, out, count):
    """Look for one item around each of its seeds, in the order of the text. Gives the last stamp used and how many was found so far.

    Each document is looked at by itself. The best find that is not yet the item is held: with the rest in the next one it may be.
    """
    found_words, found_places = candidates
    words, text_runs, documents = text
    hashes, weights, grams, marks, segment_starts, segment_kinds, item_segments, _ = index
    segments = (item_segments[item], item_segments[item + 1])
    size = segment_starts[segments[1]] - segment_starts[segments[0]]
    reach = int(size * WINDOW_PER_ITEM) + SLACK_WORDS
    scores, founds, parts = np.zeros(NUM_KINDS), np.zeros((NUM_KINDS, COUNTS)), np.zeros(4)
    flags, best, held = np.zeros(size, np.uint8), np.zeros(size, np.uint8), np.zeros(size, np.uint8)
    spans = np.zeros((segments[1] - segments[0], 2), np.int64)
    best_share, document, held_document = 0.0, -2, -2
    line, until, explained = -(10**9), -1, -1
    low, high, is_bounded, is_sketched, has_runs = 0, 0, False, False, False
    table = _table(scratch, reach)
    for at in range(bounds[0], bounds[1]):
        word, place = found_words[at], found_places[at]
        if documents[place] != document:
            if best_share >= MIN_HELD_SHARE:
                held[:] = best | held if held_document == document - 1 and _complement(best, held) else best
                held_document = document
            document, best_share, until, explained, is_bounded = documents[place], 0.0, -1, -1, False
        if place <= explained or (abs((place - word) - line) <= SAME_LINE_WORDS and place <= until):
            continue
        has_enough = has_seeds(found_places, documents, (at, bounds[1]), rules[4][item], place + reach)
        if not has_enough and not has_seeds_beside(found_places, documents, (at, bounds[0], bounds[1]), rules[4][item]):
            continue
        if not is_bounded:
            first, end = np.searchsorted(documents, document), np.searchsorted(documents, document + 1)
            low = 0 if _goes_on(words, first, hashes, segment_starts, segments) else first
            high = len(words) if _goes_on(words, end, hashes, segment_starts, segments) else end
            is_bounded = True
        line, until, stamp = place - word, place + size, stamp + 1
        flags[:] = 0
        if not is_sketched:
            has_runs = sketch_of(hashes, grams, marks, segment_starts[segments[0]], segment_starts[segments[1]], scratch[3])
            is_sketched = True
        segment = _segment_of(word, segment_starts, segments)
        start, stop = segment_starts[segment], segment_starts[segment + 1]
        window = (max(low, place - reach), segment, place - word + (start + stop) // 2, min(high, place + reach))
        mark(window, segment_starts, (hashes, grams, marks), (words, text_runs), table, stamp, flags, spans, segments, has_runs)
        share = score_parts(flags, hashes, weights, marks, segment_starts, segment_kinds, segments, scores, founds)
        run_kind, run_share = np.int64(segment_kinds[segment]), _run(words, place, hashes, word, start, stop)
        is_in_line = rules[0][item, CHOICE] == COMPLETE and in_line(
            found_words, found_places, (at, bounds[1]), segments, founds[CHOICE, WORDS + IN_ALL]
        )
        is_found = decide(scores, founds, rules, item, 0.0, (run_kind, run_share), is_in_line, parts)
        if share > best_share:
            best_share = share
            best[:] = flags
        if not is_found and held_document == document - 1 and _complement(flags, held):
            score_parts(flags | held, hashes, weights, marks, segment_starts, segment_kinds, segments, scores, founds)
            is_found = decide(scores, founds, rules, item, JOINED_EXTRA, (run_kind, 0.0), False, parts)
        if is_found:
            count = _emit((item, place), parts, spans, segment_kinds, segments, out, count)
            explained = max(explained, spans[segment - segments[0], 1])
    return stamp, count


@compiled()
def _emit(what, parts, spans, segment_kinds, segments, out, count):
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
