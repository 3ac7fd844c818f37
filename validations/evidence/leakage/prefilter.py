"""Prefilter: pairs of document and item that cannot count, not even together with neighbouring documents: compiled.

A sketch of a document tells that a pair of words is missing, or may be found. It bounds the share of each part for a tenth of the cost of
matching. The next document needs the words found of an item only if both documents together may count.
"""

import numpy as np

from phasewise.validations.evidence.leakage.index import BUCKET_BITS, SEED_WORDS
from phasewise.validations.evidence.leakage.jit_cache import compiled, inlined, inner
from phasewise.validations.evidence.leakage.match_flags import FOUND, GRAM_FOUND, SKETCH_SHIFT, SKETCH_SIZE
from phasewise.validations.evidence.leakage.rules import JOINED_EXTRA, count_words, may_decide
from phasewise.validations.evidence.leakage.segments import GRAM_FACTOR as _FACTOR

# pyright: basic
# Compiled functions take their types from their arguments.

ITEM, DOCUMENT, FIRST, STOP, BEFORE, NEXT, PLACES, OFFSET, IS_HELD, MAY, PAIR_COLUMNS = range(11)
"""Columns of a pair of item and document. `FIRST` to `STOP`: its seeds. `BEFORE`, `NEXT`: neighbouring pairs of the item, or -1. `PLACES`:
distinct places of its seeds. `OFFSET`: first word among the words of all items of the document. `IS_HELD`: its found words are kept for the
next document. `MAY`: possible outcomes (see `foresee`)."""
ALONE, JOINED, WANTED, OPEN, CANDIDATE = 1, 2, 4, 8, 16
"""Possible outcomes of an item in a document: it counts, it counts together with the document before, the next document needs its words, it
may extend beyond the document (nothing is known), it has enough rare runs."""
SLACK_WORDS, WINDOW_PER_ITEM = 16, 1.3
MIN_HELD_SHARE = 0.2  # minimum share of a part to be kept for the next document
MAX_TABLE_WORDS = 1024  # longer documents are matched window by window
_ALL = FOUND | GRAM_FOUND
_WORDS, _PAIRS = 0, 1
_BUCKET_SHIFT = np.uint64(64 - BUCKET_BITS)


@compiled()
def find_seeds(words, seed_hashes, seed_words, seed_buckets, seed_filter, found_words, found_places):
    """Fill index word and place of each rare run of an item in the text. Return their number, which may exceed the room."""
    shift = np.uint64(64)
    size = len(seed_filter) * 8
    while size > 1:
        size >>= 1
        shift -= np.uint64(1)
    count, room = 0, len(found_words)
    for place in range(len(words) - SEED_WORDS + 1):
        run = np.uint64(0)
        for offset in range(SEED_WORDS):
            run = run * _FACTOR + words[place + offset]
        bit = (run * _FACTOR) >> shift
        if not (seed_filter[bit >> np.uint64(3)] >> np.uint8(bit & np.uint64(7))) & np.uint8(1):
            continue
        bucket = run >> _BUCKET_SHIFT
        for seed in range(seed_buckets[bucket], seed_buckets[bucket + np.uint64(1)]):
            if seed_hashes[seed] > run:
                break
            if seed_hashes[seed] == run:
                if count < room:
                    found_words[count], found_places[count] = seed_words[seed], place
                count += 1
    return count


@compiled()
def group_seeds(seeds, documents, index, last_pair, pairs, grouped):
    """Sort the seeds by document, item and place. Return the number of pairs, and the largest number of item words in a document.

    Args:
        seeds: index words, and places in text order.
        index: item of each word, first segment of each item, first word of each segment.
        last_pair: -1 for each item. Changed.
        pairs, grouped: filled. The third array of `grouped` is scratch.
    """
    words, places = seeds
    item_of_word, item_segments, segment_starts = index
    count, first_of_document, document, offset, most_words = 0, 0, -1, 0, 0
    for at in range(len(words)):
        if documents[places[at]] != document:
            document, first_of_document, offset = documents[places[at]], count, 0
        item = item_of_word[words[at]]
        number = last_pair[item]
        if number < first_of_document:
            pair = pairs[count]
            pair[ITEM], pair[DOCUMENT], pair[FIRST], pair[STOP], pair[BEFORE], pair[NEXT] = item, document, -1, 0, number, -1
            pair[PLACES], pair[OFFSET], pair[IS_HELD], pair[MAY] = 0, offset, 0, 0
            if number >= 0:
                pairs[number, NEXT] = count
            number = last_pair[item] = count
            count += 1
            offset += segment_starts[item_segments[item + 1]] - segment_starts[item_segments[item]]
            most_words = max(most_words, offset)
        pair = pairs[number]
        if pair[FIRST] != places[at]:  # the last place, until all are counted
            pair[FIRST], pair[PLACES] = places[at], pair[PLACES] + 1
        pair[STOP] += 1
        grouped[2][at] = number
    first = 0
    for number in range(count):
        pairs[number, FIRST], pairs[number, STOP], first = first, first, first + pairs[number, STOP]
    for at in range(len(words)):
        pair = pairs[grouped[2][at]]
        grouped[0][pair[STOP]], grouped[1][pair[STOP]] = words[at], places[at]
        pair[STOP] += 1
    return count, most_words


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
                for at in range(SKETCH_SIZE):
                    sketch[_WORDS, at] = sketch[_PAIRS, at] = 0
                for place in range(first, stop):
                    sketch[_WORDS, words[place] >> SKETCH_SHIFT] = 1
                    if place + 1 < len(words):
                        sketch[_PAIRS, ((words[place] + words[place + 1]) * _FACTOR) >> SKETCH_SHIFT] = 1
        _foresee_item(number, pairs, seeds, starts[document + 1] - starts[document], seams, index, rules, scratch, held)
    for number in range(num_pairs - 1, -1, -1):
        pair, following = pairs[number], pairs[number, NEXT]
        if is_next_to(pairs, number, following) and pairs[following, MAY] & (JOINED | WANTED) != 0 and pair[IS_HELD] != 0:
            pair[MAY] |= WANTED
        pair[IS_HELD] = 0


@inlined()
def _foresee_item(number, pairs, seeds, document_words, seams, index, rules, scratch, held):
    """Fill the possible outcomes of one item in one document, and keep its maximal flags for the next document."""
    pair, item = pairs[number], pairs[number, ITEM]
    segments = (index.item_segments[item], index.item_segments[item + 1])
    starts, kinds = index.segment_starts, index.segment_kinds
    size = starts[segments[1]] - starts[segments[0]]
    needed, reach = rules.seeds[item], np.int64(size * WINDOW_PER_ITEM) + SLACK_WORDS
    is_candidate = has_seeds_beside(pairs, number, needed)
    for at in range(pair[FIRST], pair[STOP]):
        if is_candidate:
            break
        is_candidate = has_seeds(seeds[1], (at, pair[STOP]), needed, seeds[1][at] + reach)
    if not is_candidate:
        return
    before, row, offset = pair[BEFORE], pair[DOCUMENT] % 2, pair[OFFSET]
    has_before = is_next_to(pairs, number, before) and pairs[before, IS_HELD] != 0
    most, may = held[row, offset : offset + size], CANDIDATE
    is_open, sketch, grams = document_words > MAX_TABLE_WORDS or rules.has_solutions[item], scratch.sketch, index.grams
    for segment in range(segments[0], segments[0] if is_open else segments[1]):
        # Flag the words that the document may hold next to their neighbour. A pair may be across a seam.
        start, last = starts[segment], starts[segment + 1] - 1
        if start == last:
            most[start - starts[segments[0]]] = sketch[_WORDS, grams[start] >> SKETCH_SHIFT] * _ALL
            continue
        carried, some, of_part = np.uint8(0), grams[start:last], most[start - starts[segments[0]] : last - starts[segments[0]] + 1]
        for word in range(len(some)):
            is_there = sketch[_PAIRS, some[word] >> SKETCH_SHIFT]
            of_part[word] = is_there * _ALL | carried
            carried = is_there
            is_open |= (some[word] == seams[0]) | (some[word] == seams[1])
        of_part[len(some)] = carried
    if is_open:
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
