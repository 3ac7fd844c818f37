"""Which items stand in a sequence of words: the inner loops, compiled.

A rare run of four words makes an item a candidate. It is then looked for in a window around that place: every pair of words that
item and window share marks its words as found, in whatever order the runs come. A part's score is the weight of its words found.
What is decided by the scores stands in `rules`.
"""

# pyright: basic
# Compiled functions take their types from their arguments.

import numpy as np

from validations.evidence.leakage.compiled import compiled
from validations.evidence.leakage.index import GRAM_WORDS
from validations.evidence.leakage.rules import (
    ALIKE,
    COMPLETE,
    JOINED_EXTRA,
    MIN_EACH,
    MIN_NUMBERS,
    MIN_NUMBERS_SHARE,
    MIN_OWN_GRAMS,
    MIN_OWN_SHARE,
    VERBATIM,
)
from validations.evidence.leakage.seeds import has_seeds, in_line
from validations.evidence.leakage.segments import ANSWER, CHOICE, NUM_KINDS, PASSAGE, QUESTION, SOLUTION
from validations.evidence.leakage.segments import GRAM_FACTOR as _FACTOR
from validations.evidence.leakage.words import NUMBER_MARK

SLACK_WORDS, WINDOW_PER_ITEM = 16, 1.3
SAME_LINE_WORDS = 4
MIN_HELD_SHARE = 0.2
COUNTS = 8
FOUND, NUMBER_THERE, GRAM_FOUND = np.uint8(1), np.uint8(2), np.uint8(4)
"""Of a word of an item: it stands in the window beside its neighbour; it is a number, and stands there anywhere."""
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


@compiled()
def _sketch(hashes, grams, first_word, end_word, sketch):
    """A bit for every gram and number of an item: what has none in a text can't be one of them."""
    sketch[:] = 0
    for word in range(first_word, end_word):
        at, bit = _sketch_place(grams[word])
        sketch[at] |= bit
        if hashes[word] & NUMBER_MARK != np.uint64(0):
            at, bit = _sketch_place(hashes[word])
            sketch[at] |= bit


@compiled()
def _mark(bounds, segment_starts, hashes, grams, text, scratch, stamp, flags, spans, segments):
    """Mark the item's words that stand in the window, and note for each segment the first and last place of what was found of it."""
    low, anchor, high = bounds
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
    first_word = segment_starts[first_segment]
    for segment in range(first_segment, end_segment):
        start, end = segment_starts[segment], segment_starts[segment + 1]
        length = min(GRAM_WORDS, end - start)
        spans[segment - first_segment, 0], spans[segment - first_segment, 1] = high, -1
        for word in range(start, end):
            if hashes[word] & NUMBER_MARK != np.uint64(0) and stamps[_slot(hashes[word], keys, stamps, stamp)] == stamp:
                flags[word - first_word] |= NUMBER_THERE
        for word in range(start, end - length + 1):
            at = _slot(grams[word], keys, stamps, stamp)
            if stamps[at] == stamp:
                flags[word - first_word : word - first_word + length] |= FOUND
                flags[word - first_word] |= GRAM_FOUND
                spans[segment - first_segment, 0] = min(spans[segment - first_segment, 0], places[at])
                spans[segment - first_segment, 1] = max(spans[segment - first_segment, 1], places[at] + length - 1)


@compiled(inline="always")
def _count(flags, hashes, weights, own, start, end, first_word):
    """Weight found and in all, words found and in all, numbers found and in all, own grams found and in all."""
    counts = np.zeros(COUNTS)
    counts[3] = end - start
    for word in range(start, end):
        is_number = hashes[word] & NUMBER_MARK != np.uint64(0)
        counts[1] += weights[word]
        counts[5] += is_number
        counts[4] += flags[word - first_word] & NUMBER_THERE != 0
        counts[7] += own[word]
        counts[6] += own[word] and flags[word - first_word] & GRAM_FOUND != 0
        if flags[word - first_word] & FOUND:
            counts[0] += weights[word]
            counts[2] += 1
    return counts


@compiled(inline="always")
def _share(found):
    """By weight or by number of words, the smaller; nothing where most numbers are others: a twin by template."""
    if found[3] == 0 or (found[5] >= MIN_NUMBERS and found[4] < MIN_NUMBERS_SHARE * found[5]):
        return 0.0
    if found[7] >= MIN_OWN_GRAMS and found[6] < MIN_OWN_SHARE * found[7]:
        return 0.0
    return min(found[0] / found[1], found[2] / found[3])


@compiled()
def _score(flags, hashes, weights, own, segment_starts, segment_kinds, segments, scores, founds):
    """Score each kind of part: the share of its words that was found, by weight or by number, the smaller. Of solutions the best counts.

    `founds` holds what `_count` counts. Gives the largest share of words, of a part that can count alone.
    """
    first_segment, end_segment = segments
    first_word = segment_starts[first_segment]
    scores[:] = 0
    founds[:] = 0
    for segment in range(first_segment, end_segment):
        kind = segment_kinds[segment]
        start, end = segment_starts[segment], segment_starts[segment + 1]
        counts = _count(flags, hashes, weights, own, start, end, first_word)
        if kind != SOLUTION:
            founds[kind] += counts
        elif _share(counts) > _share(founds[kind]) or founds[kind, 3] == 0:
            founds[kind] = counts
    for kind in range(NUM_KINDS):
        scores[kind] = _share(founds[kind])
    return (founds[:PASSAGE, 2] / np.maximum(founds[:PASSAGE, 3], 1.0)).max()


@compiled(inline="always")
def _middle(word, place, segment_starts, segments):
    """Where the middle of the segment of `word` stands, if its word is at `place`."""
    segment = segments[0]
    while segment_starts[segment + 1] <= word:
        segment += 1
    return place - word + (segment_starts[segment] + segment_starts[segment + 1]) // 2


@compiled(inline="always")
def _run(words, place, hashes, word, segment_starts, segment_kinds, segments):
    """The kind of the segment of `word`, and the share of it that stands in the text word for word around `place`, in one run."""
    segment = segments[0]
    while segment_starts[segment + 1] <= word:
        segment += 1
    start, end = segment_starts[segment], segment_starts[segment + 1]
    before = after = 0
    while word - before > start and place - before > 0 and words[place - before - 1] == hashes[word - before - 1]:
        before += 1
    while word + after < end and place + after < len(words) and words[place + after] == hashes[word + after]:
        after += 1
    return np.int64(segment_kinds[segment]), (before + after) / (end - start)


@compiled()
def _decide(scores, founds, rules, item, extra, run, is_in_line, parts):
    """Which parts count as found, with their scores: question, choices, answer or solution, the item as a whole. Gives whether any does.

    `run` is a kind of part, and the share of one of its segments that stands there in one run. `is_in_line` says that the choices stand
    there in their order.
    """
    alone, together, alone_scores, together_scores, _ = rules
    run_kind, run_share = run
    parts[:] = 0
    for kind in (QUESTION, CHOICE, ANSWER, SOLUTION):
        needed = alone_scores[item, kind]
        is_run = alone[item, kind] == VERBATIM and run_kind == kind and run_share >= needed
        is_complete = alone[item, kind] == COMPLETE and is_in_line and founds[kind, 2] == founds[kind, 3]
        if is_run or is_complete or (alone[item, kind] == ALIKE and scores[kind] >= needed + extra):
            part = min(kind, ANSWER)
            parts[part] = max(parts[part], run_share if is_run else scores[kind])
    if parts[0] == 0 and parts[1] == 0 and parts[2] == 0:
        for kind in (CHOICE, ANSWER, SOLUTION, PASSAGE):
            both = _share(founds[QUESTION] + founds[kind])
            is_alike = both >= together_scores[item, kind] + extra and min(scores[QUESTION], scores[kind]) >= MIN_EACH
            is_verbatim = run_kind == QUESTION and run_share == 1 and scores[kind] > 0.999
            if (together[item, kind] == ALIKE and is_alike) or (together[item, kind] == VERBATIM and is_verbatim):
                parts[3] = max(parts[3], both)
    return parts.max() > 0


@compiled()
def score_candidates(candidates, text, index, rules, scratch, out):
    """Look for each candidate item around its seeds; fills `out` with what counts as found and gives how many, found or not stored.

    Args:
        candidates: (words of the index, places in the text), sorted by item, then place.
        text: words, their grams, document of each word.
        index: hashes, weights, grams, own_grams, segment_starts, segment_kinds, item_segments, item_of_word.
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


@compiled()
def _score_item(item, bounds, candidates, text, index, rules, scratch, stamp, out, count):
    """Look for one item around each of its seeds, in the order of the text. Gives the last stamp used and how many was found so far.

    The best find in a document is held: with what is found in the next one it may be the whole.
    """
    found_words, found_places = candidates
    words, text_runs, documents = text
    hashes, weights, grams, own, segment_starts, segment_kinds, item_segments, _ = index
    segments = (item_segments[item], item_segments[item + 1])
    size = segment_starts[segments[1]] - segment_starts[segments[0]]
    reach = int(size * WINDOW_PER_ITEM) + SLACK_WORDS
    scores, founds, parts = np.zeros(NUM_KINDS), np.zeros((NUM_KINDS, COUNTS)), np.zeros(4)
    flags, best, held = np.zeros(size, np.uint8), np.zeros(size, np.uint8), np.zeros(size, np.uint8)
    spans = np.zeros((segments[1] - segments[0], 2), np.int64)
    best_share, best_document, held_document = 0.0, -2, -2
    line, until, explained = -(10**9), -1, -1
    is_sketched, fit = False, 64
    while fit < 8 * reach:
        fit *= 2
    table = (scratch[0][:fit], scratch[1][:fit], scratch[2][:fit], scratch[3])
    for at in range(bounds[0], bounds[1]):
        word, place = found_words[at], found_places[at]
        if place <= explained or (abs((place - word) - line) <= SAME_LINE_WORDS and place <= until):
            continue
        if not has_seeds(found_places, (at, bounds[1]), rules[4][item], place + reach):
            continue
        line, until, stamp = place - word, place + size, stamp + 1
        flags[:] = 0
        if not is_sketched:
            _sketch(hashes, grams, segment_starts[segments[0]], segment_starts[segments[1]], scratch[3])
            is_sketched = True
        window = (max(0, place - reach), _middle(word, place, segment_starts, segments), min(len(words), place + reach))
        _mark(window, segment_starts, hashes, grams, (words, text_runs), table, stamp, flags, spans, segments)
        share = _score(flags, hashes, weights, own, segment_starts, segment_kinds, segments, scores, founds)
        run_kind, run_share = _run(words, place, hashes, word, segment_starts, segment_kinds, segments)
        is_in_line = rules[0][item, CHOICE] == COMPLETE and in_line(found_words, found_places, (at, bounds[1]), segments)
        is_found = _decide(scores, founds, rules, item, 0.0, (run_kind, run_share), is_in_line, parts)
        if documents[place] != best_document:
            if best_share >= MIN_HELD_SHARE:
                held[:], held_document = best, best_document
            best_share, best_document = 0.0, documents[place]
        if not is_found and share >= MIN_HELD_SHARE and held_document == documents[place] - 1:
            _score(flags | held, hashes, weights, own, segment_starts, segment_kinds, segments, scores, founds)
            is_found = _decide(scores, founds, rules, item, JOINED_EXTRA, (run_kind, 0.0), False, parts)
        if share > best_share:
            best_share = share
            best[:] = flags
        if is_found:
            count = _emit((item, place), parts, spans, segment_kinds, segments, out, count)
            explained = max(explained, spans[:, 1].max())
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
