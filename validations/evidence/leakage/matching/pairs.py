"""The rare runs that were found in a text, put together by document and item, and whether enough of them are together: compiled."""

# pyright: basic
# Compiled functions take their types from their arguments.

from phasewise.validations.evidence.leakage.compiled import compiled, inlined
from phasewise.validations.evidence.leakage.index import SEED_WORDS

ITEM, DOCUMENT, FIRST, STOP, BEFORE, NEXT, PLACES, OFFSET, IS_HELD, MAY, PAIR_COLUMNS = range(11)
"""Of an item in a document: which; its seeds, from the first to before the stop; the pairs before and behind of the same item, minus one
where there is none; at how many places its seeds are; where its words begin among those of all items of its document; whether what was
found of it is held for the next document; what may become of it (see `foresight`).
"""


@compiled()
def group_seeds(seeds, documents, index, last_pair, pairs, grouped):
    """Put the seeds in the order of document, item, place. Gives the number of pairs of document and item, and how many words the items
    of one document have at most.

    Args:
        seeds: words of the index, places in the text, in the order of the text.
        index: item of each word, first segment of each item, first word of each segment.
        last_pair: of each item minus one; is changed.
        pairs: is filled, a row for each.
        grouped: is filled with words and places; its third array is scratch.
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
    """Whether so many seeds follow one another from the first of these on, none beyond `until`."""
    count, last = 1, found_places[bounds[0]]
    for at in range(bounds[0] + 1, bounds[1]):
        if count >= needed or found_places[at] > until:
            break
        if found_places[at] > last:
            count, last = count + 1, found_places[at]
    return count >= needed


@inlined()
def is_next_to(pairs, number, other):
    """Whether the documents of two pairs are neighbours; minus one is no pair."""
    return other >= 0 and abs(pairs[number, DOCUMENT] - pairs[other, DOCUMENT]) == 1


@inlined()
def has_seeds_beside(pairs, number, needed):
    """Whether so many seeds of the item are in the document and in its neighbours, some in either."""
    before, behind, beside = pairs[number, BEFORE], pairs[number, NEXT], 0
    if is_next_to(pairs, number, before):
        beside += pairs[before, PLACES]
    if is_next_to(pairs, number, behind):
        beside += pairs[behind, PLACES]
    return beside > 0 and beside + pairs[number, PLACES] >= needed


@inlined()
def in_line(seeds, pairs, number, at, drift):
    """How many seeds of one item follow one another from this one on; letters before choices may come between, and a document's end."""
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
