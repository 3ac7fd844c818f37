"""What counts as finding an item: which of its parts alone, which beside its question, alike or word for word.

| what is in the text | words | of these distinct, and no signs | must be |
|---|---|---|---|
| the question, a solution, a long answer | 13 or more | 5 or more | alike |
| the choices together | 13 or more | 8 or more | alike |
| the choices together | 13 or more | fewer, but 4 with signs | all of them, in their order |
| the question, a solution, a long answer | 13 or more | fewer, but 6 with signs | word for word |
| the question alone | 8 to 12 | 6 or more | word for word |
| an excerpt of ordinary text, such as a held-out document | 13 or more | | `min_copy_share` of it, in one run |
| the question with its choices, answer, solution or passage near | 13 or more | 5 or more | alike, each in part |
| the question with its choices, answer, solution or passage near | 6 to 12 | 5 or more | both word for word |

13 is the limit's `min_words`. Signs are numbers and single letters. "Alike" is a score of at least the limit's `min_score`, and half of
the numbers and of the item's own word pairs; the less a part says, the higher the score must be (see `_needed`), and higher again where
most of its telling numbers are others. What none of this covers is out of reach, and counted.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int32, UInt8

from phasewise.validations.evidence.leakage.index import MIN_DISTINCT_CHOICES, OWN_GRAM, OWN_RUN, SEED_WORDS, LeakageIndex
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
from phasewise.validations.limits import LeakageLimits

NEVER, ALIKE, VERBATIM, COMPLETE, ALL = range(5)
PARTS = ("question", "choices", "answer", "item")
MIN_VERBATIM_WORDS, MIN_TOGETHER_WORDS = 8, 6
MIN_DISTINCT, MIN_DISTINCT_VERBATIM, MIN_DISTINCT_COMPLETE = 5, 6, 4
LITTLE_WEIGHT, MUCH_WEIGHT, MAX_NEEDED = 6.0, 15.0, 0.85
LITTLE_SOLUTION_WEIGHT, MUCH_SOLUTION_WEIGHT, MAX_SOLUTION_NEEDED = 15.0, 50.0, 0.85
"""Weight of a part, in average words, up to which nearly all of it must be there, and from which on `min_score` is enough. Of solutions,
programs above all, it takes more: they are made of the same few phrases."""
MIN_OWN_OF_CHOICES = 0.25
"""Grams of their own, for each word, that choices need to be known in any order: `I and II only` has none, whatever the others say."""
MIN_CHOICES_NEEDED, MIN_EACH, MIN_ALL, MIN_VERBATIM_SCORE = 0.8, 0.4, 0.97, 0.999
MIN_SEEDS_IN_LINE, MAX_SEEDS_IN_LINE = 6, 10
"""Rare runs, one after the other, that show choices to be in their order: one for every three words, within these bounds."""
MIN_NUMBERS, MIN_NUMBERS_SHARE = 2, 0.5
OTHER_NUMBERS_EXTRA = 0.1
"""What a part must say more where no more than half of its telling numbers are there."""
MIN_OWN_SHARE, MIN_OWN_RUNS_SHARE, MIN_OWN_FOUND = 0.5, 0.05, 2.0
"""Shares of a part's own grams, and of the own runs of a part with hardly a gram of its own, that must be there; of these never fewer."""
WORDS_PER_SEED, MIN_SEEDS, MAX_SEEDS = 8, 2, 6
JOINED_EXTRA = 0.1
"""Two halves from neighbouring documents must say more than one whole."""
ROUNDING = 1e-6


class Rules(NamedTuple):
    """What each part of each item needs, alone and together with the question: how, and which score."""

    alone: UInt8[np.ndarray, "i 5"]
    together: UInt8[np.ndarray, "i 5"]
    alone_scores: Float32[np.ndarray, "i 5"]
    together_scores: Float32[np.ndarray, "i 5"]
    seeds: UInt8[np.ndarray, "i"]
    """Rare runs that must be near one another before an item is looked for; no more than it has."""
    runs: Float32[np.ndarray, "i 5"]
    """The share of a segment of each kind that counts where it is one run."""
    has_runs: Bool[np.ndarray, "i"]
    """Whether some run counts."""
    in_line: Int32[np.ndarray, "i"]
    """Rare runs, one after the other, that show choices to be in their order; 0 where their order doesn't matter."""
    has_solutions: Bool[np.ndarray, "i"]
    """Whether there are several, of which one counts."""

    @property
    def out_of_reach(self) -> Bool[np.ndarray, "i"]:
        """Items that can't be distinguished from ordinary text."""
        return (self.alone == NEVER).all(axis=1) & (self.together == NEVER).all(axis=1)


def build_rules(index: LeakageIndex, limits: LeakageLimits) -> Rules:
    """The table above for every item of the index."""
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
    _take_shared(index, alone, together)
    without_seeds = np.bincount(index.item_of_word[index.seed_words], minlength=len(words)) == 0
    alone[without_seeds], together[without_seeds] = NEVER, NEVER
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
    return Rules(
        alone=alone,
        together=together,
        alone_scores=needed,
        together_scores=pairs,
        seeds=_seeds(index, words, alone, together),
        runs=runs,
        has_runs=np.asarray(np.isfinite(runs).any(axis=1)),
        in_line=in_line.astype(np.int32),
        has_solutions=np.bincount(of_solutions, minlength=len(words)) > 1,
    )


def _take_shared(index: LeakageIndex, alone: UInt8[np.ndarray, "i 5"], together: UInt8[np.ndarray, "i 5"]) -> None:
    """What has no gram or run of its own never counts; of choices with hardly one, nearly all must be there."""
    # Grams and runs of their own that the parts of each item have
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
    """The score that counts as alike: the less a part says, the more of it must be there."""
    missing = np.clip((much - weights) / (much - little), 0, 1)
    return (min_score + missing * max(most - min_score, 0)).astype(np.float32)


def _seeds(
    index: LeakageIndex, words: Int32[np.ndarray, "i 5"], alone: UInt8[np.ndarray, "i 5"], together: UInt8[np.ndarray, "i 5"]
) -> UInt8[np.ndarray, "i"]:
    """One for every eight words of the smallest thing that counts as the item, from two to six."""
    pairs, none = words[:, [QUESTION]] + words, np.iinfo(np.int32).max
    sizes = np.where(alone != NEVER, words, np.where(together != NEVER, pairs, none)).min(axis=1)
    there = np.bincount(index.item_of_word[index.seed_words], minlength=len(words))
    return np.minimum(np.clip(sizes // WORDS_PER_SEED, MIN_SEEDS, MAX_SEEDS), there).astype(np.uint8)
