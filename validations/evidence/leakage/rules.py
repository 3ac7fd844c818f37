"""Rules that decide whether an item is found, and their compiled evaluation on the words found of its parts.

| found text | words | distinct words without signs | required |
|---|---|---|---|
| the question, a solution, a long answer | 13 or more | 5 or more | alike |
| the choices together | 13 or more | 8 or more | alike |
| the choices together | 13 or more | fewer, but 4 with signs | all of them, in their order |
| the question, a solution, a long answer | 13 or more | fewer, but 6 with signs | word for word |
| only the question | 8 to 12 | 6 or more | word for word |
| an excerpt of ordinary text, such as a held-out document | 13 or more | | `min_copy_share` of it, in one run |
| the question with its choices, answer, solution or passage near | 13 or more | 5 or more | alike, each in part |
| the question with its choices, answer, solution or passage near | 6 to 12 | 5 or more | both word for word |

13 is the limit's `min_words`. Signs are numbers and single letters. "Alike" requires the limit's `min_score`, half of the numbers and half
of the own word pairs. The score is higher for parts with little weight (see `_needed`), and if most of the telling numbers are missing.
Items that no rule covers are out of reach, and counted.
"""

# pyright: basic
# Compiled functions take their types from their arguments.

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int32, UInt8

from phasewise.validations.evidence.leakage.index import MIN_DISTINCT_CHOICES, OWN_GRAM, OWN_RUN, SEED_WORDS, TELLING_NUMBER, LeakageIndex
from phasewise.validations.evidence.leakage.jit_cache import inlined, inner
from phasewise.validations.evidence.leakage.match_flags import FOUND, GRAM_FOUND, NUMBER_THERE, RUN_FOUND
from phasewise.validations.evidence.leakage.segments import (
    ANSWER,
    CHOICE,
    COMMON_CHOICES,
    MIN_OWN_GRAMS,
    NUM_KINDS,
    PASSAGE,
    QUESTION,
    SAME_CHOICES,
    SOLUTION,
)
from phasewise.validations.evidence.leakage.words import NUMBER_MARK
from phasewise.validations.limits import LeakageLimits

NEVER, ALIKE, VERBATIM, COMPLETE, ALL = range(5)
PARTS = ("question", "choices", "answer", "item")
MIN_VERBATIM_WORDS, MIN_TOGETHER_WORDS = 8, 6
MIN_DISTINCT, MIN_DISTINCT_VERBATIM, MIN_DISTINCT_COMPLETE = 5, 6, 4
LITTLE_WEIGHT, MUCH_WEIGHT, MAX_NEEDED = 6.0, 15.0, 0.85
LITTLE_SOLUTION_WEIGHT, MUCH_SOLUTION_WEIGHT, MAX_SOLUTION_NEEDED = 15.0, 50.0, 0.85
"""Weight of a part, in average words, up to which nearly all of it is required, and from which `min_score` is enough. Solutions need more:
programs share the same few phrases."""
MIN_OWN_OF_CHOICES = 0.25  # own grams per word that identify choices in any order: `I and II only` has none
MIN_CHOICES_NEEDED, MIN_EACH, MIN_ALL, MIN_VERBATIM_SCORE = 0.8, 0.4, 0.97, 0.999
MIN_SEEDS_IN_LINE, MAX_SEEDS_IN_LINE = 6, 10
"""Consecutive rare runs that prove the order of choices: one per three words, within these bounds."""
MIN_NUMBERS, MIN_NUMBERS_SHARE = 2, 0.5
OTHER_NUMBERS_EXTRA = 0.1  # addition to the required score if at most half of the telling numbers are found
MIN_OWN_SHARE, MIN_OWN_RUNS_SHARE, MIN_OWN_FOUND = 0.5, 0.05, 2.0
"""Required shares of a part's own grams, and of the own runs of a part with few own grams, with a minimum number of runs."""
WORDS_PER_SEED, MIN_SEEDS, MAX_SEEDS = 8, 2, 6
JOINED_EXTRA = 0.1  # addition to the required score of two halves from neighbouring documents
ROUNDING = 1e-6
WEIGHT, WORDS, NUMBERS, OWN, TELLING, RUNS, COUNTS = 0, 2, 4, 6, 8, 10, 12
"""Columns of a part's counts: the found amount. The next column has the total."""
IN_ALL = 1
_GRAM_BIT = 2


class Rules(NamedTuple):
    """Rule and required score of each part of each item, without other parts and together with the question."""

    alone: UInt8[np.ndarray, "i 5"]
    together: UInt8[np.ndarray, "i 5"]
    alone_scores: Float32[np.ndarray, "i 5"]
    together_scores: Float32[np.ndarray, "i 5"]
    seeds: UInt8[np.ndarray, "i"]  # neighbouring rare runs that make an item a candidate
    runs: Float32[np.ndarray, "i 5"]  # share of a segment of each kind that counts as one run
    has_runs: Bool[np.ndarray, "i"]  # items with a rule about runs
    in_line: Int32[np.ndarray, "i"]  # consecutive rare runs that prove the order of choices, 0 if the order does not matter
    has_solutions: Bool[np.ndarray, "i"]  # items with several solutions

    @property
    def out_of_reach(self) -> Bool[np.ndarray, "i"]:
        """Items that are too similar to ordinary text."""
        return (self.alone == NEVER).all(axis=1) & (self.together == NEVER).all(axis=1)


def build_rules(index: LeakageIndex, limits: LeakageLimits) -> Rules:
    """Apply the table above to every item of the index."""
    words, telling = np.asarray(index.part_words), np.asarray(index.telling_words)
    alone = np.full(words.shape, NEVER, np.uint8)
    long = words >= limits.min_words
    alone[long & (index.distinct_words >= MIN_DISTINCT_VERBATIM)] = VERBATIM
    alone[long & (telling >= MIN_DISTINCT)] = ALIKE
    is_complete = long[:, CHOICE] & (index.distinct_words[:, CHOICE] >= MIN_DISTINCT_COMPLETE)
    few_telling = telling[:, CHOICE] < MIN_DISTINCT_CHOICES
    alone[few_telling, CHOICE] = np.where(is_complete[few_telling], COMPLETE, NEVER)
    alone[:, PASSAGE] = NEVER
    question = words[:, QUESTION]
    is_short = (question >= MIN_VERBATIM_WORDS) & (question < limits.min_words) & (telling[:, QUESTION] >= MIN_DISTINCT_VERBATIM)
    alone[is_short, QUESTION] = VERBATIM
    together = np.full(words.shape, NEVER, np.uint8)
    for kind in (CHOICE, ANSWER, SOLUTION, PASSAGE):
        total = question + words[:, kind]
        is_pair = (question > 0) & (words[:, kind] > 0) & (index.telling_words_with_question[:, kind] >= MIN_DISTINCT)
        together[is_pair & (total >= MIN_TOGETHER_WORDS) & (question >= SEED_WORDS), kind] = VERBATIM
        together[is_pair & (total >= limits.min_words), kind] = ALIKE
    _require_own_words(index, alone, together)
    num_seeds = np.bincount(index.item_of_word[index.seed_words], minlength=len(words))
    alone[num_seeds == 0], together[num_seeds == 0] = NEVER, NEVER
    weights = np.asarray(index.part_weights)
    needed = _needed(weights, limits.min_score, LITTLE_WEIGHT, MUCH_WEIGHT, MAX_NEEDED)
    solutions = _needed(weights, limits.min_score, LITTLE_SOLUTION_WEIGHT, MUCH_SOLUTION_WEIGHT, MAX_SOLUTION_NEEDED)
    needed[:, SOLUTION] = solutions[:, SOLUTION]
    needed[:, CHOICE] = np.maximum(needed[:, CHOICE], MIN_CHOICES_NEEDED)
    needed[alone == VERBATIM] = 1.0
    excerpt = np.asarray(index.is_excerpt)
    alone[excerpt, QUESTION] = np.where(long[excerpt, QUESTION], VERBATIM, NEVER)
    longest = np.maximum(question[excerpt], 1)
    needed[excerpt, QUESTION] = np.minimum(np.maximum(limits.min_copy_share, limits.min_words / longest), 1.0)
    pairs = _needed(weights + weights[:, [QUESTION]], limits.min_score, LITTLE_WEIGHT, MUCH_WEIGHT, MAX_NEEDED)
    runs = np.where(alone == VERBATIM, needed, np.inf)
    runs[:, QUESTION] = np.where((together == VERBATIM).any(axis=1), np.minimum(runs[:, QUESTION], 1.0), runs[:, QUESTION])
    in_line = np.where(alone[:, CHOICE] == COMPLETE, np.clip(words[:, CHOICE] // 3, MIN_SEEDS_IN_LINE, MAX_SEEDS_IN_LINE), 0)
    of_solutions = np.asarray(index.item_of_word)[np.asarray(index.segment_starts)[:-1][np.asarray(index.segment_kinds) == SOLUTION]]
    # One seed per eight words of the smallest part or pair that counts as the item
    none = np.iinfo(np.int32).max
    sizes = np.where(alone != NEVER, words, np.where(together != NEVER, words[:, [QUESTION]] + words, none)).min(axis=1)
    return Rules(
        alone=alone,
        together=together,
        alone_scores=needed,
        together_scores=pairs,
        seeds=np.minimum(np.clip(sizes // WORDS_PER_SEED, MIN_SEEDS, MAX_SEEDS), num_seeds).astype(np.uint8),
        runs=runs,
        has_runs=np.asarray(np.isfinite(runs).any(axis=1)),
        in_line=in_line.astype(np.int32),
        has_solutions=np.bincount(of_solutions, minlength=len(words)) > 1,
    )


def _require_own_words(index: LeakageIndex, alone: UInt8[np.ndarray, "i 5"], together: UInt8[np.ndarray, "i 5"]) -> None:
    """Turn off parts without own grams and runs, and require nearly all of choices with few."""
    marked = np.flatnonzero(np.asarray(index.marks) & (OWN_GRAM | OWN_RUN))
    item = np.asarray(index.item_of_word)[marked].astype(np.int64)
    kind = np.asarray(index.segment_kinds)[np.searchsorted(index.segment_starts, marked, side="right") - 1]
    own = np.bincount(item * NUM_KINDS + kind, minlength=index.part_words.size).reshape(index.part_words.shape)
    excerpt = np.asarray(index.is_excerpt)[:, None]
    is_poor = own[:, CHOICE] < np.maximum(MIN_OWN_GRAMS, MIN_OWN_OF_CHOICES * np.asarray(index.part_words)[:, CHOICE])
    alone[is_poor & (alone[:, CHOICE] == ALIKE), CHOICE] = ALL
    alone[((alone == VERBATIM) | (alone == ALIKE)) & (own == 0) & ~excerpt] = NEVER
    alone[(alone[:, CHOICE] != NEVER) & (index.shared_choices == COMMON_CHOICES), CHOICE] = COMPLETE
    alone[index.shared_choices == SAME_CHOICES, CHOICE] = NEVER
    together[own + own[:, [QUESTION]] == 0] = NEVER


def _needed(weights: Float32[np.ndarray, "i 5"], min_score: float, little: float, much: float, most: float) -> Float32[np.ndarray, "i 5"]:
    """Return the required score of "alike", which falls from `most` to `min_score` as the weight grows."""
    missing = np.clip((much - weights) / (much - little), 0, 1)
    return (min_score + missing * max(most - min_score, 0)).astype(np.float32)


@inlined()
def _count(flags, of_words, words, first_word, counts):
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
    """Return the found share of numbers or grams, 1 if the part has too few to judge."""
    return found[what] / found[what + IN_ALL] if found[what + IN_ALL] >= fewest else 1.0


@inlined()
def _share(found):
    """Return the found share by weight or by words, the smaller. 0 if most numbers or own grams differ, as in a sibling by template."""
    is_other = _found_share(found, NUMBERS, MIN_NUMBERS) < MIN_NUMBERS_SHARE or _found_share(found, OWN, MIN_OWN_GRAMS) < MIN_OWN_SHARE
    if is_other or found[WORDS + IN_ALL] == 0:
        return 0.0
    return min(found[WEIGHT] / found[WEIGHT + IN_ALL], found[WORDS] / found[WORDS + IN_ALL])


@inlined()
def _has_own(found):
    """Return whether own words are found in a part with too few own grams for a share. Own runs count as well."""
    if found[OWN + IN_ALL] >= MIN_OWN_GRAMS:
        return True
    if found[RUNS + IN_ALL] >= MIN_OWN_GRAMS:
        return found[OWN] + found[RUNS] >= max(MIN_OWN_RUNS_SHARE * found[RUNS + IN_ALL], MIN_OWN_FOUND)
    return found[OWN] + found[RUNS] > 0


@inlined()
def _extra(found):
    """Return the addition to the required score if at most half of the telling numbers are found."""
    return OTHER_NUMBERS_EXTRA if _found_share(found, TELLING, MIN_NUMBERS) <= MIN_NUMBERS_SHARE else 0.0


@inner()
def score_parts(flags, of_words, segment_starts, segment_kinds, segments, scores, founds):
    """Fill the score (`_share`) and the counts of each kind of part, with the best solution.

    `founds` has a further row for a sum of two parts. Return the largest share of words among parts that can count without others.
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
    """Fill found words, words, found own grams and own grams of each kind of part, with the best solution and without its own grams.

    Return the largest share of words like `score_parts`, for items with at most one solution.
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
    """Return whether the counts allow a score, which is never above the share of words."""
    return (all_own < MIN_OWN_GRAMS or own / all_own >= MIN_OWN_SHARE) and words > 0 and found / words >= needed - ROUNDING


@inner()
def may_decide(counted, rules, item, extra):
    """Return whether the counts of `count_words` allow `decide` to find a part, apart from runs."""
    of_question = counted[QUESTION]
    for kind in range(NUM_KINDS):
        of_kind = counted[kind]
        if kind != PASSAGE:
            rule = rules.alone[item, kind]
            needed = rules.alone_scores[item, kind] + extra if rule == ALIKE else MIN_ALL if rule == ALL else 1.0
            is_alone = rule in (ALIKE, ALL)
            if is_alone and _reaches(of_kind[0], of_kind[1], of_kind[2], of_kind[3], needed):
                return True
            if rule == COMPLETE and extra == 0 and of_kind[0] == of_kind[1]:  # `decide` needs them in line, thus in one document
                return True
        if kind != QUESTION and rules.together[item, kind] == ALIKE:
            is_each = of_question[0] >= (MIN_EACH - ROUNDING) * of_question[1] and of_kind[0] >= (MIN_EACH - ROUNDING) * of_kind[1]
            found, words, own, all_own = (
                of_question[0] + of_kind[0], of_question[1] + of_kind[1], of_question[2] + of_kind[2], of_question[3] + of_kind[3],
            )  # fmt: skip
            if is_each and _reaches(found, words, own, all_own, rules.together_scores[item, kind] + extra):
                return True
    return False


@inner()
def decide(scores, founds, rules, item, extra, run, is_in_line, parts):
    """Fill the scores of found parts: question, choices, answer or solution, whole item. Return whether any part is found.

    `run`: a kind of part, and the share of one of its segments found in one run. `is_in_line`: the choices are found in their order.
    """
    alone, together, alone_scores, together_scores = rules.alone, rules.together, rules.alone_scores, rules.together_scores
    run_kind, run_share = run
    parts[0] = parts[1] = parts[2] = parts[3] = 0.0
    for kind in range(PASSAGE):
        found, rule, needed = founds[kind], alone[item, kind], alone_scores[item, kind] + extra
        of_run = run_share if run_kind == kind else 0.0
        if rule == VERBATIM:
            is_found = of_run > 0 and of_run >= needed
        elif rule == ALL:
            is_found = scores[kind] >= MIN_ALL
        elif rule == COMPLETE:
            is_found = is_in_line != 0 and found[WORDS] == found[WORDS + IN_ALL]
        else:
            is_found = rule == ALIKE and scores[kind] >= needed + _extra(found) and _has_own(found)
        if is_found:
            part = min(kind, ANSWER)
            parts[part] = max(parts[part], of_run if rule == VERBATIM else scores[kind])
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
