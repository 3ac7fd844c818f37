"""Two benchmarks built from held-out documents: find the true word order, and say the next word.

Everything is decided by digests: the same documents give the same items, positions and distractors, in any order of reading.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, combinations, pairwise, zip_longest

from tasks.evaluation.held_out import HeldOutDocument
from tasks.evaluation.passages import Cut, Passage, cut_passages, first_words, pick
from trainer.config import Frozen
from trainer.errors import DataError
from trainer.storage import digest_of_json

NUM_WORD_ORDER_ITEMS = 96
NUM_NEXT_WORD_ITEMS = 128
NUM_CHOICES = 4
ANSWER = re.compile(r"[A-Za-z]{1,12}")
LONE_ANSWER = re.compile(r"(?<!\S)[A-Za-z]{1,12}(?!\S)")
CHOICE_WORDS = (8, 12)
MIN_FOLLOWER_COUNT, MIN_FOLLOWER_SHARE = 3, 0.3
MAX_ITEMS_PER_ANSWER = 8
WORD_ORDER = Cut("word_order", opening_words=(30, 40), following_words=CHOICE_WORDS[1], max_shift_words=8, fits=lambda _before, _text: True)

HeldOut = Mapping[str, Sequence[HeldOutDocument]]


class WordOrderItem(Frozen):
    """An opening and four continuations of the same words; `choices[gold]` has them as they were, the others have two exchanged."""

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


def build_word_order(held_out: HeldOut) -> list[WordOrderItem]:
    """`NUM_WORD_ORDER_ITEMS` items, spread over the components.

    Raises:
        DataError: the held-out documents give no passage.
    """
    passages = _spread(_cut(held_out, WORD_ORDER))[:NUM_WORD_ORDER_ITEMS]
    if not passages:
        shortest, longest = (words + WORD_ORDER.following_words for words in WORD_ORDER.opening_words)
        raise DataError(
            f"the word_order benchmark needs running text of {shortest} to {longest} words, found none in {_describe(held_out)}."
        )
    return [_word_order_item(passage, position % NUM_CHOICES) for position, passage in enumerate(sorted(passages))]


def build_next_word(held_out: HeldOut) -> list[NextWordItem]:
    """`NUM_NEXT_WORD_ITEMS` items, spread over the components, whose answer can be known.

    It follows the opening's last word more often than any other word does, in all held-out text; it is a plain word after one space, and
    the answer of at most `MAX_ITEMS_PER_ANSWER` items.

    Raises:
        DataError: the held-out documents give no passage.
    """
    follower = commonest_followers(document.text for documents in held_out.values() for document in documents)
    cut = Cut(
        "next_word", opening_words=(30, 38), following_words=1, max_shift_words=30, fits=lambda before, word: follower.get(before) == word
    )
    answers: Counter[str] = Counter()
    chosen: list[Passage] = []
    for passage in _spread(_cut(held_out, cut)):
        answers[passage.following] += 1
        if answers[passage.following] <= MAX_ITEMS_PER_ANSWER:
            chosen.append(passage)
    if not chosen:
        raise DataError(_no_next_word(held_out, cut, len(follower)))
    return [
        NextWordItem(
            id=_item_id(cut.name, passage),
            component=passage.component,
            document=passage.document,
            opening=passage.opening,
            answer=passage.following,
        )
        for passage in sorted(chosen[:NUM_NEXT_WORD_ITEMS])
    ]


def _no_next_word(held_out: HeldOut, cut: Cut, predictable: int) -> str:
    """What the benchmark needs, and how much of it is there: long passages, or only no words that can be known."""
    passages = sum(map(len, _cut(held_out, cut._replace(fits=lambda _before, _word: True)).values()))
    return (
        f"the next_word benchmark needs running text of {cut.opening_words[0]} words and more before a word that can be known: one that "
        f"follows the word before it {MIN_FOLLOWER_COUNT} times or more, and {MIN_FOLLOWER_SHARE:.0%} of the time, in all held-out text. "
        f"Found {passages} passages of that length and {predictable} words that tell the next one, none of them where a passage can end, "
        f"in {_describe(held_out)}, or text in which words come again."
    )


def commonest_followers(texts: Iterable[str]) -> dict[str, str]:
    """Word → the plain word that follows it most often, where that is often enough to be known. Ties go by the alphabet."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for text in texts:
        for before, word in pairwise(text.split()):
            counts[before][word] += 1
    best = {before: min(after, key=lambda word: (-after[word], word)) for before, after in counts.items()}
    return {
        before: word
        for before, word in best.items()
        if ANSWER.fullmatch(word) and counts[before][word] >= max(MIN_FOLLOWER_COUNT, MIN_FOLLOWER_SHARE * counts[before].total())
    }


def word_order_baseline(items: Sequence[WordOrderItem]) -> Baseline:
    """The better of chance and always the same position; the choices have the same words and so the same length."""
    position, count = Counter(item.gold for item in items).most_common(1)[0]
    always = Baseline(value=count / len(items), rule=f"always position {position}")
    return max(Baseline(value=1 / NUM_CHOICES, rule="chance"), always, key=lambda baseline: baseline.value)


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


def _cut(held_out: HeldOut, cut: Cut) -> dict[str, list[Passage]]:
    return {component: cut_passages(documents, component, cut) for component, documents in sorted(held_out.items())}


def _spread(passages: Mapping[str, Sequence[Passage]]) -> list[Passage]:
    """One of each component in turn, until all are taken."""
    return [passage for turn in zip_longest(*passages.values()) for passage in turn if passage is not None]


def _word_order_item(passage: Passage, gold: int) -> WordOrderItem:
    item_id = _item_id(WORD_ORDER.name, passage)
    truth = first_words(passage.following, pick(passage.key, 2, CHOICE_WORDS))
    choices = _exchanged(item_id, truth)
    choices.insert(gold, truth)
    return WordOrderItem(
        id=item_id, component=passage.component, document=passage.document, opening=passage.opening, choices=tuple(choices), gold=gold
    )


def _exchanged(item_id: str, truth: str) -> list[str]:
    """The text with two different words exchanged, in `NUM_CHOICES - 1` ways that digests choose; the spaces stay where they are."""
    parts = re.split(r"(\s+)", truth)
    pairs = [pair for pair in combinations(range(0, len(parts), 2), 2) if parts[pair[0]] != parts[pair[1]]]
    found: list[str] = []
    for first, second in sorted(pairs, key=lambda pair: digest_of_json([item_id, *pair])):
        changed = list(parts)
        changed[first], changed[second] = changed[second], changed[first]
        if (text := "".join(changed)) not in found:
            found.append(text)
    return found[: NUM_CHOICES - 1]


def _item_id(benchmark: str, passage: Passage) -> str:
    """Names the item by its content: it stays the same whatever else is in the benchmark."""
    return digest_of_json([benchmark, passage.component, passage.document, passage.opening, passage.following])[:16]


def _describe(held_out: HeldOut) -> str:
    documents = sum(map(len, held_out.values()))
    return f"{documents} held-out documents of {len(held_out)} components. Give the components more source files"
