"""Two benchmarks built from held-out documents: choose the continuation, and say the next word.

Everything is decided by digests: the same documents give the same items, positions and distractors, in any order of reading.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, zip_longest

from tasks.evaluation.held_out import HeldOutDocument
from tasks.evaluation.passages import Cut, Passage, cut_passages, first_words, pick
from trainer.config import Frozen
from trainer.errors import DataError
from trainer.storage import digest_of_json

NUM_CONTINUATION_ITEMS = 96
NUM_NEXT_WORD_ITEMS = 128
NUM_CHOICES = 4
MAX_DISTRACTOR_POOL = 64
ANSWER = re.compile(r"[A-Za-z]{1,12}")
LONE_ANSWER = re.compile(r"(?<!\S)[A-Za-z]{1,12}(?!\S)")
CHOICE_WORDS = (10, 16)
CONTINUATION = Cut("continuation", opening_words=(30, 40), following_words=CHOICE_WORDS[1], following=re.compile(r".*", re.DOTALL))
NEXT_WORD = Cut("next_word", opening_words=(38, 42), following_words=1, following=ANSWER)
LENGTH_STEP_CHARACTERS = 8

HeldOut = Mapping[str, Sequence[HeldOutDocument]]
Accepts = Callable[[str], bool]


class ContinuationItem(Frozen):
    """An opening and four continuations, of which `choices[gold]` is the true one."""

    id: str
    component: str
    document: str
    opening: str
    choices: tuple[str, ...]
    gold: int

    @property
    def text(self) -> str:
        """What must not be trained on: the passage as it stands in the document."""
        return f"{self.opening} {self.choices[self.gold]}"


class NextWordItem(Frozen):
    """An opening and the word that follows it."""

    id: str
    component: str
    document: str
    opening: str
    answer: str

    @property
    def text(self) -> str:
        """What must not be trained on: the passage as it stands in the document."""
        return f"{self.opening} {self.answer}"


class Baseline(Frozen):
    """What the best dumb answer scores; a model below it has shown nothing."""

    value: float
    rule: str


def build_continuation(held_out: HeldOut, *, accepts: Accepts | None = None) -> list[ContinuationItem]:
    """`NUM_CONTINUATION_ITEMS` items, spread over the components; distractors continue other documents of the same component.

    Args:
        accepts: given an item's text, whether it may be used; refuse what the training split also holds.

    Raises:
        DataError: the held-out documents give fewer than `NUM_CHOICES` passages.
    """
    passages = _cut(held_out, CONTINUATION, accepts)
    everywhere = _spread(passages)
    if len({first_words(passage.following, CHOICE_WORDS[0]) for passage in everywhere}) < NUM_CHOICES:
        raise DataError(f"the continuation benchmark needs {NUM_CHOICES} passages, found {len(everywhere)} in {_describe(held_out)}.")
    chosen = sorted(everywhere[:NUM_CONTINUATION_ITEMS])
    return [
        _continuation_item(
            passage, position % NUM_CHOICES, [*passages[passage.component][:MAX_DISTRACTOR_POOL], *everywhere[:MAX_DISTRACTOR_POOL]]
        )
        for position, passage in enumerate(chosen)
    ]


def build_next_word(held_out: HeldOut, *, accepts: Accepts | None = None) -> list[NextWordItem]:
    """`NUM_NEXT_WORD_ITEMS` items, spread over the components. The answer is a plain word of at most 12 letters after one space.

    Raises:
        DataError: the held-out documents give no passage.
    """
    passages = _spread(_cut(held_out, NEXT_WORD, accepts))[:NUM_NEXT_WORD_ITEMS]
    if not passages:
        raise DataError(f"the next-word benchmark needs passages of 40 words, found none in {_describe(held_out)}.")
    return [
        NextWordItem(
            id=_item_id(NEXT_WORD, passage),
            component=passage.component,
            document=passage.document,
            opening=passage.opening,
            answer=passage.following,
        )
        for passage in sorted(passages)
    ]


def continuation_baseline(items: Sequence[ContinuationItem]) -> Baseline:
    """The best of chance, always the same position, always the longest and always the shortest choice."""
    rules: dict[str, Callable[[ContinuationItem], int]] = {
        "always the longest choice": lambda item: max(range(NUM_CHOICES), key=lambda i: len(item.choices[i])),
        "always the shortest choice": lambda item: min(range(NUM_CHOICES), key=lambda i: len(item.choices[i])),
    }
    scores = {rule: sum(answer(item) == item.gold for item in items) / len(items) for rule, answer in rules.items()}
    position, count = Counter(item.gold for item in items).most_common(1)[0]
    scores |= {f"always position {position}": count / len(items), "chance": 1 / NUM_CHOICES}
    rule = max(scores, key=lambda name: scores[name])
    return Baseline(value=scores[rule], rule=rule)


def next_word_baseline(items: Sequence[NextWordItem], word: str) -> Baseline:
    """Always answer `word`, the training split's commonest."""
    return Baseline(value=sum(item.answer == word for item in items) / len(items), rule=f"always '{word}'")


def commonest_word(texts: Iterable[str]) -> str:
    """The commonest word that could be an answer.

    Raises:
        DataError: there is none.
    """
    counts = Counter(chain.from_iterable(LONE_ANSWER.findall(text) for text in texts))
    if not counts:
        raise DataError("the training split must hold words, found none. Check that its caches are not empty.")
    return min(counts, key=lambda word: (-counts[word], word))


def _cut(held_out: HeldOut, cut: Cut, accepts: Accepts | None) -> dict[str, list[Passage]]:
    return {
        component: [passage for passage in cut_passages(documents, component, cut) if accepts is None or accepts(passage.text)]
        for component, documents in sorted(held_out.items())
    }


def _spread(passages: Mapping[str, Sequence[Passage]]) -> list[Passage]:
    """One of each component in turn, until all are taken."""
    return [passage for turn in zip_longest(*passages.values()) for passage in turn if passage is not None]


def _continuation_item(passage: Passage, gold: int, others: Sequence[Passage]) -> ContinuationItem:
    item_id = _item_id(CONTINUATION, passage)
    num_words = pick(passage.key, 2, CHOICE_WORDS)
    truth = first_words(passage.following, num_words)
    choices = _distractors(item_id, passage, truth, {first_words(other.following, num_words): other for other in reversed(others)})
    choices.insert(gold, truth)
    return ContinuationItem(
        id=item_id, component=passage.component, document=passage.document, opening=passage.opening, choices=tuple(choices), gold=gold
    )


def _distractors(item_id: str, passage: Passage, truth: str, others: Mapping[str, Passage]) -> list[str]:
    """Continuations of other passages: same component before another, other documents before the same, like lengths before unlike
    (or the longest choice would tell), then as digests say."""

    def preference(choice: str) -> tuple[bool, bool, int, str]:
        other = others[choice]
        unlike = abs(len(choice) - len(truth)) // LENGTH_STEP_CHARACTERS
        return other.component != passage.component, other.document == passage.document, unlike, digest_of_json([item_id, other.key])

    return sorted((choice for choice in others if choice != truth), key=preference)[: NUM_CHOICES - 1]


def _item_id(cut: Cut, passage: Passage) -> str:
    """Names the item by its content: it stays the same whatever else is in the benchmark."""
    return digest_of_json([cut.name, passage.component, passage.document, passage.opening, passage.following])[:16]


def _describe(held_out: HeldOut) -> str:
    documents = sum(map(len, held_out.values()))
    return f"{documents} held-out documents of {len(held_out)} components. Give the components more source files"
