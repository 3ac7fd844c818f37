"""Benchmarks on disk: JSON lines and lm-eval's YAML in one folder, the manifest written last."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, pairwise, zip_longest
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field, ValidationError

from phasewise.tasks.data.plan import DataPlan
from phasewise.tasks.data.tokenizer import load_tokenizer
from phasewise.tasks.evaluation.held_out import HeldOutDocument, read_held_out_texts
from phasewise.tasks.locks import held
from phasewise.tasks.progress import say
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.frozen import Frozen, in_one_line
from phasewise.trainer.base.identity import check_file, digest_of_bytes, digest_of_json, read_sealed, write_sealed
from phasewise.trainer.base.storage import as_path, write_atomically


def write_missing_benchmarks(plan: DataPlan) -> bool:
    """Make the benchmarks from held-out documents unless they are there; whether they were made.

    Only the beginning of each component is looked at, so that it takes no longer however large they are.
    """
    if plan.has_benchmarks:
        return False
    with held(plan.lock):
        if plan.has_benchmarks:
            return False
        asked_of = {name: plan.components[name].held_out.folder for name in plan.benchmark_components}
        write_benchmarks(plan.benchmarks, read_held_out_texts(asked_of, load_tokenizer(plan.tokenizer)))
    say("made the benchmarks from held-out documents")
    return True


STRIDE_WORDS = 80
MIN_WORDS = 20
MIN_DISTINCT_WORDS = 15
MAX_CHARACTERS = 420
MAX_WORD_CHARACTERS = 40
WORD = re.compile(r"\S+")
HAS_LETTER_OR_DIGIT = re.compile(r"[^\W_]")
HAS_TWO_LETTERS = re.compile(r"[^\W\d_]{2}")


class Cut(NamedTuple):
    """How passages are cut: words in the opening, from–to, and in what follows.

    `fits` is asked of the last word of the opening and of what follows; the cut moves on by at most `max_shift_words` until it does.
    """

    name: str
    opening_words: tuple[int, int]
    following_words: int
    max_shift_words: int
    fits: Callable[[str, str], bool]


class Passage(NamedTuple):
    """An opening, and what follows it after exactly one space. `key` orders passages and depends on nothing but the passage."""

    key: str
    component: str
    document: str
    opening: str
    following: str

    @property
    def text(self) -> str:
        """Both parts, as they are in the document."""
        return f"{self.opening} {self.following}"


def cut_passages(documents: Sequence[HeldOutDocument], component: str, cut: Cut) -> list[Passage]:
    """Passages of a component that read as words; every document gives one before any gives its second. Equal openings count once."""
    seen: set[str] = set()
    ranked: list[tuple[int, Passage]] = []
    for document in sorted(documents):
        found = [passage for passage in _passages_of(document, component, cut) if _reads_as_words(passage)]
        for rank, passage in enumerate(sorted(found)):
            if passage.opening not in seen:
                seen.add(passage.opening)
                ranked.append((rank, passage))
    return [passage for _, passage in sorted(ranked)]


def pick(digest: str, field: int, bounds: tuple[int, int]) -> int:
    """A number within bounds, both included, from the digest's `field`-th eight digits."""
    low, high = bounds
    return low + int(digest[8 * field : 8 * field + 8], 16) % (high - low + 1)


def _passages_of(document: HeldOutDocument, component: str, cut: Cut) -> Iterator[Passage]:
    text = document.text
    spans = [match.span() for match in WORD.finditer(text)]
    for block in range(0, len(spans), STRIDE_WORDS):
        digest = digest_of_json([cut.name, component, document.id, block])
        start = block + pick(digest, 0, (0, STRIDE_WORDS // 4))
        earliest = start + pick(digest, 1, cut.opening_words)
        for middle in range(earliest, min(earliest + cut.max_shift_words, len(spans) - cut.following_words + 1)):
            (opening_from, _), (_, opening_to) = spans[start], spans[middle - 1]
            following_from, _ = spans[middle]
            _, following_to = spans[middle + cut.following_words - 1]
            following = text[following_from:following_to]
            before = text[slice(*spans[middle - 1])]
            if text[opening_to:following_from] == " " and cut.fits(before, following):
                yield Passage(digest, component, document.id, text[opening_from:opening_to], following)
                break


def _reads_as_words(passage: Passage) -> bool:
    """Not a table, a listing of numbers or one word over and over, and long enough for a 13-gram search to find it."""
    words = passage.text.split()
    solid = [word for word in words if HAS_LETTER_OR_DIGIT.search(word)]
    return (
        len(passage.text) <= MAX_CHARACTERS
        and max(map(len, words)) <= MAX_WORD_CHARACTERS
        and len(solid) >= MIN_WORDS
        and len(set(solid)) >= MIN_DISTINCT_WORDS
        and 2 * sum(bool(HAS_TWO_LETTERS.search(word)) for word in words) >= len(words)
    )


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
    """`NUM_WORD_ORDER_ITEMS` items, spread over the components."""
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
    # An item of each passage, dealt into groups of `NUM_CHOICES` or a few more
    passages = sorted(chosen[:NUM_NEXT_WORD_ITEMS])
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
    parts = re.split(
        r"(\s+)", passage.following[: [match.end() for match in WORD.finditer(passage.following)][: pick(passage.key, 2, CHOICE_WORDS)][-1]]
    )
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


FORMAT_VERSION = 2
MANIFEST_NAME = "manifest.json"
Item = WordOrderItem | NextWordItem


class Benchmark(Frozen):
    """One benchmark of the folder: its items in `{name}.jsonl`, how lm-eval runs it in `{name}.yaml`."""

    name: Literal["word_order", "next_word"]
    metric: Literal["acc", "exact_match"]
    items: int = Field(gt=0)
    baseline: Baseline
    items_digest: str
    definition_digest: str

    @property
    def files(self) -> dict[str, str]:
        """Its files by name, and the digest of each."""
        return {f"{self.name}.jsonl": self.items_digest, f"{self.name}.yaml": self.definition_digest}


class BenchmarkManifest(Frozen):
    """Written last: a folder without one holds no benchmarks."""

    format_version: int
    benchmarks: tuple[Benchmark, ...]

    @property
    def digest(self) -> str:
        """Names these benchmarks by their content."""
        return digest_of_json(self.model_dump(mode="json"))

    def only(self, names: Collection[str]) -> "BenchmarkManifest":
        """Those of these names, in the folder's order: all of them are the folder itself."""
        there = [benchmark.name for benchmark in self.benchmarks]
        if missing := sorted(set(names) - set(there)):
            raise DataError(f"the benchmarks {', '.join(missing)} are not made here; there are {', '.join(there)}.")
        chosen = tuple(benchmark for benchmark in self.benchmarks if benchmark.name in names)
        return BenchmarkManifest(format_version=self.format_version, benchmarks=chosen)


class MadeItem(NamedTuple):
    """What a leakage search needs to know of an item."""

    benchmark: str
    id: str
    text: str


def write_benchmarks(folder: str | Path, held_out: HeldOut) -> BenchmarkManifest:
    """Build both benchmarks and write them into the folder, the manifest last.

    Args:
        held_out: component → its held-out documents.
    """
    word_order = build_word_order(held_out)
    next_word = build_next_word(held_out)
    contents: dict[str, bytes] = {}
    benchmarks = (
        _add(contents, "word_order", "acc", word_order, word_order_baseline(word_order)),
        _add(contents, "next_word", "exact_match", next_word, next_word_baseline(next_word)),
    )
    manifest = BenchmarkManifest(format_version=FORMAT_VERSION, benchmarks=benchmarks)
    for name, content in contents.items():
        write_atomically(as_path(folder) / name, content)
    write_sealed(as_path(folder) / MANIFEST_NAME, manifest.model_dump(mode="json"))
    return manifest


def read_benchmark_folder(folder: str | Path) -> BenchmarkManifest:
    """The manifest, once every file it names has the content it says.

    Raises:
        DataError: the manifest or a file is missing, or is not what the manifest says.
    """
    path = as_path(folder) / MANIFEST_NAME
    try:
        manifest = BenchmarkManifest.model_validate(read_sealed(path))
    except FileNotFoundError:
        raise DataError(f"{folder} holds no benchmarks: it has no {MANIFEST_NAME}. Write them with `phasewise data prepare`.") from None
    except (ValidationError, ValueError) as error:
        raise DataError(
            f"{path} does not read as a manifest of benchmarks: {in_one_line(error)}. Delete {folder} and prepare the data again."
        ) from None
    if manifest.format_version != FORMAT_VERSION:
        raise DataError(f"{path} has format version {manifest.format_version}, this program reads {FORMAT_VERSION}: write it again.")
    for benchmark in manifest.benchmarks:
        for name, digest in benchmark.files.items():
            check_file(as_path(folder) / name, digest, f"Delete {folder} and prepare the data again.")
    return manifest


def benchmark_items(folder: str | Path) -> list[MadeItem]:
    """Every item of every benchmark, for the leakage index: the opening with its true word_order or answer."""
    items: list[MadeItem] = []
    for benchmark in read_benchmark_folder(folder).benchmarks:
        kind = WordOrderItem if benchmark.name == "word_order" else NextWordItem
        lines = (as_path(folder) / f"{benchmark.name}.jsonl").read_text(encoding="utf-8").split("\n")
        read = [kind.model_validate_json(line) for line in lines if line]
        items.extend(MadeItem(benchmark.name, item.id, item.text) for item in read)
    return items


def _add(
    contents: dict[str, bytes],
    name: Literal["word_order", "next_word"],
    metric: Literal["acc", "exact_match"],
    items: Sequence[Item],
    baseline: Baseline,
) -> Benchmark:
    lines = "".join(json.dumps(item.model_dump(mode="json"), ensure_ascii=False) + "\n" for item in items).encode()
    definition = Path(__file__).with_name(f"{name}.yaml").read_bytes()
    contents |= {f"{name}.jsonl": lines, f"{name}.yaml": definition}
    return Benchmark(
        name=name,
        metric=metric,
        items=len(items),
        baseline=baseline,
        items_digest=digest_of_bytes(lines),
        definition_digest=digest_of_bytes(definition),
    )
