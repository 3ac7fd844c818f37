"""What the marked words of an item's parts come to, and what counts as found by the rules: compiled."""

# pyright: basic
# Compiled functions take their types from their arguments.

import numpy as np

from phasewise.validations.evidence.leakage.index import OWN_GRAM, OWN_RUN, TELLING_NUMBER
from phasewise.validations.evidence.leakage.jit_cache import inlined, inner
from phasewise.validations.evidence.leakage.match_flags import FOUND, GRAM_FOUND, NUMBER_THERE, RUN_FOUND
from phasewise.validations.evidence.leakage.rules import (
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
    MIN_VERBATIM_SCORE,
    OTHER_NUMBERS_EXTRA,
    ROUNDING,
    VERBATIM,
)
from phasewise.validations.evidence.leakage.segments import ANSWER, CHOICE, MIN_OWN_GRAMS, NUM_KINDS, PASSAGE, QUESTION, SOLUTION
from phasewise.validations.evidence.leakage.words import NUMBER_MARK

WEIGHT, WORDS, NUMBERS, OWN, TELLING, RUNS, COUNTS = 0, 2, 4, 6, 8, 10, 12
_GRAM_BIT = 2
IN_ALL = 1
"""Places in what is counted of a part: how much of each was found, and behind it how much there is."""


@inlined()
def _count(flags, of_words, words, first_word, counts):
    """Weight found and in all, words, numbers, own grams, telling numbers and own runs found and in all."""
    hashes, weights, marks = of_words
    weight = all_weight = 0.0
    found = numbers = all_numbers = own = all_own = telling = all_telling = runs = all_runs = 0
    for word in range(words[0], words[1]):
        flag, marked = flags[word - first_word], marks[word]
        all_weight += weights[word]
        if flag & FOUND:
            weight += weights[word]
            found += 1
        all_numbers += hashes[word] & NUMBER_MARK != np.uint64(0)
        numbers += flag & NUMBER_THERE != 0
        all_own += marked & OWN_GRAM != 0
        own += marked & OWN_GRAM != 0 and flag & GRAM_FOUND != 0
        all_telling += marked & TELLING_NUMBER != 0
        telling += marked & TELLING_NUMBER != 0 and flag & NUMBER_THERE != 0
        all_runs += marked & OWN_RUN != 0
        runs += flag & RUN_FOUND != 0
    counts[WEIGHT], counts[WEIGHT + IN_ALL] = weight, all_weight
    counts[WORDS], counts[WORDS + IN_ALL] = found, words[1] - words[0]
    counts[NUMBERS], counts[NUMBERS + IN_ALL] = numbers, all_numbers
    counts[OWN], counts[OWN + IN_ALL] = own, all_own
    counts[TELLING], counts[TELLING + IN_ALL] = telling, all_telling
    counts[RUNS], counts[RUNS + IN_ALL] = runs, all_runs


@inlined()
def _found_share(found, what, fewest):
    """The share of the numbers or grams of a part that is there; all where there are fewer than can be judged by."""
    return found[what] / found[what + IN_ALL] if found[what + IN_ALL] >= fewest else 1.0


@inlined()
def _share(found):
    """By weight or by number of words, the smaller; nothing where most numbers or own grams are others: a twin by template."""
    is_other = _found_share(found, NUMBERS, MIN_NUMBERS) < MIN_NUMBERS_SHARE or _found_share(found, OWN, MIN_OWN_GRAMS) < MIN_OWN_SHARE
    if is_other or found[WORDS + IN_ALL] == 0:
        return 0.0
    return min(found[WEIGHT] / found[WEIGHT + IN_ALL], found[WORDS] / found[WORDS + IN_ALL])


@inlined()
def _has_own(found):
    """Whether what few other items say is there, of a part with too few grams of its own to be judged by them: its own runs then count."""
    if found[OWN + IN_ALL] >= MIN_OWN_GRAMS:
        return True
    if found[RUNS + IN_ALL] >= MIN_OWN_GRAMS:
        return found[OWN] + found[RUNS] >= max(MIN_OWN_RUNS_SHARE * found[RUNS + IN_ALL], MIN_OWN_FOUND)
    return found[OWN] + found[RUNS] > 0


@inlined()
def _extra(found):
    """What must be said more where no more than half of the numbers that tell are there."""
    return OTHER_NUMBERS_EXTRA if _found_share(found, TELLING, MIN_NUMBERS) <= MIN_NUMBERS_SHARE else 0.0


@inner()
def score_parts(flags, of_words, segment_starts, segment_kinds, segments, scores, founds):
    """Score each kind of part: the share of its words that was found, by weight or by number, the smaller. Of solutions the best counts.

    `founds` holds what `_count` counts, and behind the kinds of part room for a sum of two. Gives the largest share of words, of a part
    that can count alone.
    """
    first_word, counts = segment_starts[segments[0]], founds[NUM_KINDS]
    for kind in range(NUM_KINDS):
        for what in range(COUNTS):
            founds[kind, what] = 0.0
    for segment in range(segments[0], segments[1]):
        found = founds[segment_kinds[segment]]
        _count(flags, of_words, (segment_starts[segment], segment_starts[segment + 1]), first_word, counts)
        is_better = False
        if segment_kinds[segment] == SOLUTION:
            is_better = found[WORDS + IN_ALL] == 0 or _share(counts) > _share(found)
            if not is_better:
                continue
        for what in range(COUNTS):
            found[what] = counts[what] if is_better else found[what] + counts[what]
    largest = 0.0
    for kind in range(NUM_KINDS):
        scores[kind] = _share(founds[kind])
        if kind < PASSAGE:
            largest = max(largest, founds[kind, WORDS] / max(founds[kind, WORDS + IN_ALL], 1.0))
    return largest


@inner()
def count_words(flags, marks, starts, kinds, segments, counted):
    """Of each kind of part the words found and in all, and the own grams; of solutions the most of one, without own grams. Gives the
    largest share of words, of a part that can count alone: what `score_parts` gives where there is one solution at most.
    """
    first_word = starts[segments[0]]
    for kind in range(NUM_KINDS):
        counted[kind, 0] = counted[kind, 1] = counted[kind, 2] = counted[kind, 3] = 0
    largest, segment = 0.0, segments[0]
    while segment < segments[1]:
        kind, start = kinds[segment], starts[segment]
        segment += 1
        while segment < segments[1] and kinds[segment] == kind and kind != SOLUTION:
            segment += 1
        found = own = all_own = 0
        of_part, marked = flags[start - first_word : starts[segment] - first_word], marks[start : starts[segment]]
        for word in range(len(marked)):
            is_own = marked[word] & OWN_GRAM
            found += of_part[word] & FOUND
            all_own += is_own
            own += is_own & (of_part[word] >> _GRAM_BIT)
        if kind == SOLUTION:
            share, own, all_own = found / (starts[segment] - start), 0, 0
            if counted[kind, 1] > 0 and share <= counted[kind, 0] / counted[kind, 1]:
                continue
        counted[kind, 0], counted[kind, 1], counted[kind, 2], counted[kind, 3] = found, starts[segment] - start, own, all_own
        if kind != PASSAGE:
            largest = max(largest, found / max(starts[segment] - start, 1))
    return largest


@inlined()
def _reaches(found, words, own, all_own, needed):
    """Whether a score may be so high, by what is counted of the words: it is never above their share."""
    return (all_own < MIN_OWN_GRAMS or own / all_own >= MIN_OWN_SHARE) and words > 0 and found / words >= needed - ROUNDING


@inner()
def may_decide(counted, rules, item, extra):
    """Whether `decide` may find a part, runs aside, where `count_words` says this."""
    of_question = counted[QUESTION]
    for kind in range(NUM_KINDS):
        of_kind = counted[kind]
        if kind != PASSAGE:
            rule = rules.alone[item, kind]
            needed = rules.alone_scores[item, kind] + extra if rule == ALIKE else MIN_ALL if rule == ALL else 1.0
            is_alone = rule in (ALIKE, ALL)
            if is_alone and _reaches(of_kind[0], of_kind[1], of_kind[2], of_kind[3], needed):
                return True
            if rule == COMPLETE and of_kind[0] == of_kind[1]:
                return True
        if kind != QUESTION and rules.together[item, kind] == ALIKE:
            is_each = of_question[0] >= (MIN_EACH - ROUNDING) * of_question[1] and of_kind[0] >= (MIN_EACH - ROUNDING) * of_kind[1]
            found, words, own, all_own = (
                of_question[0] + of_kind[0], of_question[1] + of_kind[1], of_question[2] + of_kind[2], of_question[3] + of_kind[3],
            )  # fmt: skip
            if is_each and _reaches(found, words, own, all_own, rules.together_scores[item, kind] + extra):
                return True
    return False


@inlined()
def _is_alone(found, score, rule, needed, run_share, is_in_line):
    """Whether a part counts by its rule; `run_share` is zero where no run of it is there."""
    if rule == VERBATIM:
        return run_share > 0 and run_share >= needed
    if rule == ALL:
        return score >= MIN_ALL
    if rule == COMPLETE:
        return is_in_line != 0 and found[WORDS] == found[WORDS + IN_ALL]
    return rule == ALIKE and score >= needed + _extra(found) and _has_own(found)


@inner()
def decide(scores, founds, rules, item, extra, run, is_in_line, parts):
    """Which parts count as found, with their scores: question, choices, answer or solution, the item as a whole. Gives whether any does.

    `run` is a kind of part, and the share of one of its segments that is there in one run. `is_in_line` says that the choices are
    there in their order.
    """
    alone, together, alone_scores, together_scores = rules.alone, rules.together, rules.alone_scores, rules.together_scores
    run_kind, run_share = run
    parts[0] = parts[1] = parts[2] = parts[3] = 0.0
    for kind in range(PASSAGE):
        of_run = run_share if run_kind == kind else 0.0
        if _is_alone(founds[kind], scores[kind], alone[item, kind], alone_scores[item, kind] + extra, of_run, is_in_line):
            part = min(kind, ANSWER)
            parts[part] = max(parts[part], of_run if alone[item, kind] == VERBATIM else scores[kind])
    if parts[0] > 0 or parts[1] > 0 or parts[2] > 0:
        return True
    both = founds[NUM_KINDS]
    for kind in range(CHOICE, NUM_KINDS):
        rule = together[item, kind]
        if rule != ALIKE and rule != VERBATIM:
            continue
        for what in range(COUNTS):
            both[what] = founds[QUESTION, what] + founds[kind, what]
        share = _share(both)
        if rule == VERBATIM:
            is_found = run_kind == QUESTION and run_share == 1 and scores[kind] > MIN_VERBATIM_SCORE
        else:
            is_found = min(scores[QUESTION], scores[kind]) >= MIN_EACH and share >= together_scores[item, kind] + extra + _extra(both)
            is_found = is_found and _has_own(both)
        if is_found:
            parts[3] = max(parts[3], share)
    return parts[3] > 0
