"""What the marked words of an item's parts come to, and what counts as found by the rules: compiled."""

# pyright: basic
# Compiled functions take their types from their arguments.

import numpy as np

from validations.evidence.leakage.compiled import compiled
from validations.evidence.leakage.index import OWN_GRAM, OWN_RUN, TELLING_NUMBER
from validations.evidence.leakage.marking import FOUND, GRAM_FOUND, NUMBER_THERE, RUN_FOUND
from validations.evidence.leakage.own import MIN_OWN_GRAMS
from validations.evidence.leakage.rules import (
    ALIKE,
    ALL,
    COMPLETE,
    MIN_ALL,
    MIN_EACH,
    MIN_NUMBERS,
    MIN_NUMBERS_SHARE,
    MIN_OWN_FOUND,
    MIN_OWN_RUNS_SHARE,
    MIN_OWN_SHARE,
    OTHER_NUMBERS_EXTRA,
    VERBATIM,
)
from validations.evidence.leakage.segments import ANSWER, CHOICE, NUM_KINDS, PASSAGE, QUESTION, SOLUTION
from validations.evidence.leakage.word_hashes import NUMBER_MARK

WEIGHT, WORDS, NUMBERS, OWN, TELLING, RUNS, COUNTS = 0, 2, 4, 6, 8, 10, 12
IN_ALL = 1
"""Places in what is counted of a part: how much of each was found, and behind it how much there is."""


@compiled(inline="always")
def _count(flags, hashes, weights, marks, start, end, first_word):
    """Weight found and in all, words, numbers, own grams, telling numbers and own runs found and in all."""
    counts = np.zeros(COUNTS)
    counts[WORDS + IN_ALL] = end - start
    for word in range(start, end):
        is_number = hashes[word] & NUMBER_MARK != np.uint64(0)
        counts[WEIGHT + IN_ALL] += weights[word]
        counts[NUMBERS + IN_ALL] += is_number
        counts[NUMBERS] += flags[word - first_word] & NUMBER_THERE != 0
        counts[OWN + IN_ALL] += marks[word] & OWN_GRAM != 0
        counts[OWN] += marks[word] & OWN_GRAM != 0 and flags[word - first_word] & GRAM_FOUND != 0
        counts[TELLING + IN_ALL] += marks[word] & TELLING_NUMBER != 0
        counts[TELLING] += marks[word] & TELLING_NUMBER != 0 and flags[word - first_word] & NUMBER_THERE != 0
        counts[RUNS + IN_ALL] += marks[word] & OWN_RUN != 0
        counts[RUNS] += flags[word - first_word] & RUN_FOUND != 0
        if flags[word - first_word] & FOUND:
            counts[WEIGHT] += weights[word]
            counts[WORDS] += 1
    return counts


@compiled(inline="always")
def _found_share(found, what, fewest):
    """The share of the numbers or grams of a part that is there; all where there are fewer than can be judged by."""
    return found[what] / found[what + IN_ALL] if found[what + IN_ALL] >= fewest else 1.0


@compiled(inline="always")
def _share(found):
    """By weight or by number of words, the smaller; nothing where most numbers or own grams are others: a twin by template."""
    is_other = _found_share(found, NUMBERS, MIN_NUMBERS) < MIN_NUMBERS_SHARE or _found_share(found, OWN, MIN_OWN_GRAMS) < MIN_OWN_SHARE
    if is_other or found[WORDS + IN_ALL] == 0:
        return 0.0
    return min(found[WEIGHT] / found[WEIGHT + IN_ALL], found[WORDS] / found[WORDS + IN_ALL])


@compiled(inline="always")
def _has_own(found):
    """Whether what few other items say is there, of a part with too few grams of its own to be judged by them: its own runs then count."""
    if found[OWN + IN_ALL] >= MIN_OWN_GRAMS:
        return True
    if found[RUNS + IN_ALL] >= MIN_OWN_GRAMS:
        return found[OWN] + found[RUNS] >= max(MIN_OWN_RUNS_SHARE * found[RUNS + IN_ALL], MIN_OWN_FOUND)
    return found[OWN] + found[RUNS] > 0


@compiled(inline="always")
def _extra(found):
    """What must be said more where no more than half of the numbers that tell are there."""
    return OTHER_NUMBERS_EXTRA if _found_share(found, TELLING, MIN_NUMBERS) <= MIN_NUMBERS_SHARE else 0.0


@compiled()
def score_parts(flags, hashes, weights, marks, segment_starts, segment_kinds, segments, scores, founds):
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
        counts = _count(flags, hashes, weights, marks, start, end, first_word)
        if kind != SOLUTION:
            founds[kind] += counts
        elif _share(counts) > _share(founds[kind]) or founds[kind, WORDS + IN_ALL] == 0:
            founds[kind] = counts
    for kind in range(NUM_KINDS):
        scores[kind] = _share(founds[kind])
    return (founds[:PASSAGE, WORDS] / np.maximum(founds[:PASSAGE, WORDS + IN_ALL], 1.0)).max()


@compiled()
def decide(scores, founds, rules, item, extra, run, is_in_line, parts):
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
        is_whole = alone[item, kind] == ALL and scores[kind] >= MIN_ALL
        is_complete = is_whole or (alone[item, kind] == COMPLETE and is_in_line and founds[kind, WORDS] == founds[kind, WORDS + IN_ALL])
        is_alike = alone[item, kind] == ALIKE and scores[kind] >= needed + extra + _extra(founds[kind]) and _has_own(founds[kind])
        if is_run or is_complete or is_alike:
            part = min(kind, ANSWER)
            parts[part] = max(parts[part], run_share if is_run else scores[kind])
    if parts[0] == 0 and parts[1] == 0 and parts[2] == 0:
        for kind in (CHOICE, ANSWER, SOLUTION, PASSAGE):
            both = _share(founds[QUESTION] + founds[kind])
            is_alike = (
                _has_own(founds[QUESTION] + founds[kind])
                and both >= together_scores[item, kind] + extra + _extra(founds[QUESTION] + founds[kind])
                and min(scores[QUESTION], scores[kind]) >= MIN_EACH
            )
            is_verbatim = run_kind == QUESTION and run_share == 1 and scores[kind] > 0.999
            if (together[item, kind] == ALIKE and is_alike) or (together[item, kind] == VERBATIM and is_verbatim):
                parts[3] = max(parts[3], both)
    return parts.max() > 0
