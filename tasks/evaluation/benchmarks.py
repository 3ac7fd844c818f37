"""Two benchmarks built from held-out documents: find the true word order, and say the next word.

Everything is decided by digests: the same documents give the same items, positions and distractors, in any order of reading.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, pairwise, zip_longest

from phasewise.tasks.evaluation.held_out import HeldOutDocument
from phasewise.tasks.evaluation.passages import Cut, Passage, cut_passages, first_words, pick
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import digest_of_json

NUM_WORD_ORDER_ITEMS = 96
NUM_NEXT_WORD_ITEMS = 128
NUM_CHOICES = 4
ANSWER = re.compile(r"[A-Za-z]{1,12}")
CHOICE_WORDS = (8, 12)
MIN_FOLLOWER_COUNT, MIN_FOLLOWER_SHARE = 3, 0.3
MAX_ITEMS_PER_ANSWER = 8
WORD_ORDER = Cut("word_order", opening_words=(30, 40), following_words=CHOICE_WORDS[1], max_shift_words=8, fits=lambda _before, _text: True)

HeldOut = Mapping[str, Sequence[HeldOutDocument]]


class WordOrderItem(Frozen):
    """An opening and four continuations of the same words; `choices[gold]` has them as they were.

    Among the others one has two words exchanged, one has two other words exchanged, and one has both. So each choice is as like the other
        three as any other choice is: a model that knows nothing has no reason to put the true one first, last or between.
    """

    id: str
    component: str
    document: str
    opening: str
    choices: tuple[str, ...]
    gold: int

    @property
    def text(self) -> str:
        """What must not be trained on: the passage as it is in the document."""
        return f"{self.opening} {self.choices[self.gold]}"


class NextWordItem(Frozen):
    """An opening and the word that follows it.

    Attributes:
        group: number of a few items whose answers are scored after the opening of each; so over the group a word is the right one as often
            as it is another's, and a model that does not read the opening has nothing to gain from its liking for a word.
        choices: the answers of the group's items, the same in each of them; `choices[gold]` is this item's own.
    """

    id: str
    component: str
    document: str
    opening: str
    answer: str
    group: int
    choices: tuple[str, ...]
    gold: int

    @property
    def text(self) -> str:
        """What must not be trained on: the passage as it is in the document."""
        return f"{self.opening} {self.answer}"


class Baseline(Frozen):
    """What the best dumb answer scores; a model below it has shown nothing.

    Attributes:
        answer: the word that it answers to every item; None where it guesses or always takes a position.
    """

    value: float
    rule: str
    answer: str | None


def build_word_order(held_out: HeldOut) -> list[WordOrderItem]:
    """`NUM_WORD_ORDER_ITEMS` items, spread over the components.

    Raises:
        DataError: the held-out documents give no passage.
    """
    passages = [passage for passage in _spread(_cut(held_out, WORD_ORDER)) if _orders(passage)][:NUM_WORD_ORDER_ITEMS]
    if not passages:
        shortest, longest = (words + WORD_ORDER.following_words for words in WORD_ORDER.opening_words)
        raise DataError(
            f"the word_order benchmark needs running text of {shortest} to {longest} words, found none in {_describe(held_out)}. "
            f"The last {CHOICE_WORDS[0]} to {CHOICE_WORDS[1]} words must hold two pairs that can change places."
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
    return _next_word_items(sorted(chosen[:NUM_NEXT_WORD_ITEMS]))


def _next_word_items(passages: Sequence[Passage]) -> list[NextWordItem]:
    """An item of each passage, dealt into groups of `NUM_CHOICES` or a few more.

    Items of one answer lie together when they are dealt, so a group has no answer twice unless there are more of it than groups.
    """
    dealt = sorted(passages, key=lambda passage: (digest_of_json(passage.following), passage.key))
    num_groups = max(1, len(dealt) // NUM_CHOICES)
    places = {passage: divmod(place, num_groups) for place, passage in enumerate(dealt)}
    return [
        NextWordItem(
            id=_item_id("next_word", passage),
            component=passage.component,
            document=passage.document,
            opening=passage.opening,
            answer=passage.following,
            group=places[passage][1],
            choices=tuple(member.following for member in dealt[places[passage][1] :: num_groups]),
            gold=places[passage][0],
        )
        for passage in passages
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
    always = Baseline(value=count / len(items), rule=f"always position {position}", answer=None)
    return max(Baseline(value=1 / NUM_CHOICES, rule="chance", answer=None), always, key=lambda baseline: baseline.value)


def next_word_baseline(items: Sequence[NextWordItem]) -> Baseline:
    """Always answer the word that is right most often: no other word does better, so none that a model is fond of can."""
    counts = Counter(item.answer for item in items)
    word = min(counts, key=lambda word: (-counts[word], word))
    return Baseline(value=counts[word] / len(items), rule=f"always '{word}'", answer=word)


def _cut(held_out: HeldOut, cut: Cut) -> dict[str, list[Passage]]:
    return {component: cut_passages(documents, component, cut) for component, documents in sorted(held_out.items())}


def _spread(passages: Mapping[str, Sequence[Passage]]) -> list[Passage]:
    """One of each component in turn, until all are taken."""
    return [passage for turn in zip_longest(*passages.values()) for passage in turn if passage is not None]


def _word_order_item(passage: Passage, gold: int) -> WordOrderItem:
    truth, *choices = _orders(passage)
    choices.insert(gold, truth)
    return WordOrderItem(
        id=_item_id(WORD_ORDER.name, passage),
        component=passage.component,
        document=passage.document,
        opening=passage.opening,
        choices=tuple(choices),
        gold=gold,
    )


def _orders(passage: Passage) -> list[str]:
    """The true order, the one with two words exchanged, the one with two others exchanged, the one with both; none where there are too few.

    Digests choose the words. Two that change places come after the same space or line break, which stays: a tokenizer reads the same
    words in each order.
    """
    parts = re.split(r"(\s+)", first_words(passage.following, pick(passage.key, 2, CHOICE_WORDS)))
    before = [" ", *parts[1::2]]
    words = parts[::2]
    pairs = [(i, j) for i, j in combinations(range(len(words)), 2) if words[i] != words[j] and before[i] == before[j]]
    ranked = sorted(pairs, key=lambda pair: digest_of_json([_item_id(WORD_ORDER.name, passage), *pair]))
    found = next(((one, other) for one, other in combinations(ranked, 2) if not {*one} & {*other}), None)
    if found is None:
        return []
    one, other = found
    return [_exchange(parts, pairs) for pairs in ((), (one,), (other,), (one, other))]


def _exchange(parts: Sequence[str], pairs: Iterable[tuple[int, int]]) -> str:
    """The text with the words of each pair in each other's place; words are every second part, the spaces between them stay."""
    changed = list(parts)
    for i, j in pairs:
        changed[2 * i], changed[2 * j] = parts[2 * j], parts[2 * i]
    return "".join(changed)


def _item_id(benchmark: str, passage: Passage) -> str:
    """Names the item by its content: it stays the same whatever else is in the benchmark."""
    return digest_of_json([benchmark, passage.component, passage.document, passage.opening, passage.following])[:16]


def _describe(held_out: HeldOut) -> str:
    documents = sum(map(len, held_out.values()))
    return f"{documents} held-out documents of {len(held_out)} components. Give the components more source files"
