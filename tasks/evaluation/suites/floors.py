"""What answers score that no model gave: the floor under a benchmark's value, measured on its items by lm-eval's own comparison."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

import numpy as np

CHOSEN, NOT_CHOSEN = (0.0, True), (-1e9, False)
EMPTY, PHRASE = "", "I do not know."
COMMON_ANSWERS = 3


class Floors(TypedDict):
    """Values of the benchmark's metric. None where a benchmark has no choices.

    Attributes:
        random: of guessing, each choice as likely; the expected value.
        constant: of the same answer to every item, the one that scores best: a position among choices, or a text.
        longest_choice: of the choice with most characters, the first of them.
    """

    random: float | None
    constant: float
    longest_choice: float | None


def highest(floors: Floors) -> float:
    """The floor: what no model is needed for."""
    return max(value for value in (floors["random"], floors["constant"], floors["longest_choice"]) if value is not None)


def measure_floors(tasks: Mapping[str, Any], samples: Mapping[str, Sequence[Mapping[str, Any]]], metric: str) -> Floors:
    """The floors of a benchmark of one or several tasks.

    Args:
        tasks: lm-eval's tasks by name.
        samples: task → lm-eval's record of each of its items, once an item.
    """
    pairs = [(tasks[name], sample["doc"], sample["target"]) for name, found in samples.items() for sample in found]
    if all(task.OUTPUT_TYPE == "multiple_choice" for task, _, _ in pairs):
        return _of_choices([(task, doc) for task, doc, _ in pairs], metric)
    if all(task.OUTPUT_TYPE == "loglikelihood" for task, _, _ in pairs):
        targets = Counter(str(target).strip() for _, _, target in pairs)
        return Floors(random=None, constant=targets.most_common(1)[0][1] / len(pairs), longest_choice=None)
    return _of_texts(pairs, metric)


def _of_choices(pairs: Sequence[tuple[Any, Mapping[str, Any]]], metric: str) -> Floors:
    rights = [_right_by_choice(task, doc, metric) for task, doc in pairs]
    longest = [int(np.argmax([len(choice) for choice in task.doc_to_choice(doc)])) for task, doc in pairs]
    positions = range(max(map(len, rights)))
    constant = max(np.mean([right[position] if position < len(right) else 0.0 for right in rights]) for position in positions)
    return Floors(
        random=float(np.mean([np.mean(right) for right in rights])),
        constant=float(constant),
        longest_choice=float(np.mean([right[place] for right, place in zip(rights, longest, strict=True)])),
    )


def _right_by_choice(task: Any, doc: Mapping[str, Any], metric: str) -> list[float]:
    """The metric of one item for a model that finds this choice likeliest, for each choice."""
    count = len(task.doc_to_choice(doc))
    answers = ([CHOSEN if place == chosen else NOT_CHOSEN for place in range(count)] for chosen in range(count))
    return [float(task.process_results(doc, answer)[metric]) for answer in answers]


def _of_texts(pairs: Sequence[tuple[Any, Mapping[str, Any], Any]], metric: str) -> Floors:
    """Of the best of a few texts: the commonest right answers, nothing, and a phrase."""
    answers = Counter(answer for _, _, target in pairs for answer in set(_short_answers(target)))
    texts = [*(answer for answer, _ in answers.most_common(COMMON_ANSWERS)), EMPTY, PHRASE]
    values = [np.mean([float(task.process_results(doc, [text])[metric]) for task, doc, _ in pairs]) for text in dict.fromkeys(texts)]
    return Floors(random=None, constant=float(max(values)), longest_choice=None)


def _short_answers(target: Any) -> Iterable[str]:
    """What is compared of a right answer; of several, each. Behind `####` is the result of a sum that is done in words."""
    for one in target if isinstance(target, list) else [target]:
        yield str(one).rpartition("#### ")[2].strip()
