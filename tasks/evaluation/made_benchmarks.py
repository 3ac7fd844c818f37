"""Two benchmarks that are built from a recipe's held-out text: word order and next word."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, combinations, pairwise, zip_longest
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
from phasewise.trainer.data.manifest import read_manifest
from phasewise.validations.limits import LeakageLimits

STRIDE_WORDS = 80
MIN_WORDS = 20
MIN_DISTINCT_WORDS = 15
MAX_CHARACTERS = 420
MAX_WORD_CHARACTERS = 40
WORD = re.compile(r"\S+")
HAS_LETTER_OR_DIGIT = re.compile(r"[^\W_]")
HAS_TWO_LETTERS = re.compile(r"[^\W\d_]{2}")
NUM_WORD_ORDER_ITEMS = 96
NUM_NEXT_WORD_ITEMS = 128
NUM_CHOICES = 4
ANSWER = re.compile(r"[A-Za-z]{1,12}")
CHOICE_WORDS = (8, 12)
MIN_FOLLOWER_COUNT, MIN_FOLLOWER_SHARE = 3, 0.3
MAX_ITEMS_PER_ANSWER = 8
FORMAT_VERSION = 2
REPEATED = LeakageLimits(min_words=13, min_score=0.7, min_copy_share=0.7, max_items=0)
"""Slightly stricter than a recipe's limits, so that their check of the data rarely finds an item."""
SEARCHED_TOKENS = 64_000_000
MANIFEST_NAME = "manifest.json"
HeldOut = Mapping[str, Sequence[HeldOutDocument]]


def write_missing_benchmarks(plan: DataPlan) -> bool:
    """Build the benchmarks unless they exist, from the first documents of each component. Return whether they were built."""
    if (plan.benchmarks / MANIFEST_NAME).exists():
        return False
    with held(plan.lock):
        if (plan.benchmarks / MANIFEST_NAME).exists():
            return False
        folders = {name: plan.components[name].held_out.folder for name in plan.benchmark_components}
        train = {name: plan.components[name].train.folder for name in plan.benchmark_components}
        held_out = read_held_out_texts(folders, load_tokenizer(plan.tokenizer))
        write_benchmarks(plan.benchmarks, held_out, partial(find_repeated, train, plan.tokenizer))
    say("built the benchmarks from held-out documents")
    return True


Texts = Mapping[str, Collection[str]]  # component → texts of passages
Search = Callable[[Texts], Collection[str]]  # a function that returns those texts that training text of their component repeats


def find_repeated(caches: Mapping[str, Path], tokenizer: Path, texts: Texts) -> set[str]:
    """Return the texts that training caches contain in their first tokens, `SEARCHED_TOKENS` in total: such a text is no test."""
    from phasewise.tasks.validation.scan_pieces import find_tokenizer, open_detokenizer  # Numba
    from phasewise.validations.evidence.leakage.index import LeakageIndex
    from phasewise.validations.evidence.leakage.items import BenchmarkItem
    from phasewise.validations.evidence.leakage.scan import cache_documents, scan_documents

    found: set[str] = set()
    for component, of_component in texts.items():
        ids = {digest_of_json(text): text for text in of_component}
        index = LeakageIndex.build([BenchmarkItem(component, component, name, text, is_excerpt=True) for name, text in ids.items()])
        manifest = read_manifest(caches[component])
        detokenize = open_detokenizer(find_tokenizer(caches[component], manifest, tokenizer.parents[2:3]))
        before = accumulate((shard.tokens for shard in manifest.shards), initial=0)
        for shard in [
            number for number, tokens in zip(range(len(manifest.shards)), before, strict=False) if tokens < SEARCHED_TOKENS // len(texts)
        ]:
            scan = scan_documents(cache_documents(caches[component], detokenize, shard), index, REPEATED)
            found.update(ids[hit.item] for hit in scan.hits)
    return found


class Cut(NamedTuple):
    """Lengths of passages by words. An opening's end moves by up to `max_shift_words` until `fits(its last word, following text)`."""

    name: str
    opening_words: tuple[int, int]
    following_words: int
    max_shift_words: int
    fits: Callable[[str, str], bool]


WORD_ORDER = Cut("word_order", opening_words=(30, 40), following_words=CHOICE_WORDS[1], max_shift_words=8, fits=lambda _before, _text: True)


class Passage(NamedTuple):
    """An opening and the following text, with one space between them. `key` orders passages and depends only on the passage."""

    key: str
    component: str
    document: str
    opening: str
    following: str

    def item_id(self, benchmark: str) -> str:
        """Return an id that depends only on the content."""
        return digest_of_json([benchmark, self.component, self.document, self.opening, self.following])[:16]


def cut_passages(held_out: HeldOut, cut: Cut) -> list[Passage]:
    """Cut the readable passages of the components in turns, the first of every document before any second. Equal openings count once."""
    passages: list[list[Passage]] = []
    for component, documents in sorted(held_out.items()):
        seen: set[str] = set()
        ranked: list[tuple[int, Passage]] = []
        for document in sorted(documents):
            for rank, passage in enumerate(sorted(_passages_of(document, component, cut))):
                if passage.opening not in seen:
                    seen.add(passage.opening)
                    ranked.append((rank, passage))
        passages.append([passage for _, passage in sorted(ranked)])
    return [passage for turn in zip_longest(*passages) for passage in turn if passage is not None]


def _without_repeated(candidates: Sequence[tuple[Passage, str]], count: int, repeated: Search | None) -> list[Passage]:
    """Return the first `count` passages whose text is not repeated."""
    chosen: list[Passage] = []
    for start in range(0, len(candidates), 4 * count):
        some = candidates[start : start + 4 * count]
        texts: defaultdict[str, list[str]] = defaultdict(list)
        for passage, text in some:
            texts[passage.component].append(text)
        found = repeated(texts) if repeated else ()
        chosen += [passage for passage, text in some if text not in found]
        if len(chosen) >= count:
            break
    return chosen[:count]


def _pick(digest: str, field: int, bounds: tuple[int, int]) -> int:
    """Derive a number within inclusive bounds from the `field`-th eight digits of the digest."""
    low, high = bounds
    return low + int(digest[8 * field : 8 * field + 8], 16) % (high - low + 1)


def _passages_of(document: HeldOutDocument, component: str, cut: Cut) -> Iterator[Passage]:
    text = document.text
    spans = [match.span() for match in WORD.finditer(text)]
    for block in range(0, len(spans), STRIDE_WORDS):
        digest = digest_of_json([cut.name, component, document.id, block])
        start = block + _pick(digest, 0, (0, STRIDE_WORDS // 4))
        earliest = start + _pick(digest, 1, cut.opening_words)
        for middle in range(earliest, min(earliest + cut.max_shift_words, len(spans) - cut.following_words + 1)):
            opening_to = spans[middle - 1][1]
            following_from = spans[middle][0]
            following = text[following_from : spans[middle + cut.following_words - 1][1]]
            if text[opening_to:following_from] == " " and cut.fits(text[slice(*spans[middle - 1])], following):
                passage = Passage(digest, component, document.id, text[spans[start][0] : opening_to], following)
                words = f"{passage.opening} {following}".split()
                solid = [word for word in words if HAS_LETTER_OR_DIGIT.search(word)]
                # Skip tables, number listings and repetitions, and texts that are too short for a 13-gram search
                if (
                    len(f"{passage.opening} {following}") <= MAX_CHARACTERS
                    and max(map(len, words)) <= MAX_WORD_CHARACTERS
                    and len(solid) >= MIN_WORDS
                    and len(set(solid)) >= MIN_DISTINCT_WORDS
                    and 2 * sum(bool(HAS_TWO_LETTERS.search(word)) for word in words) >= len(words)
                ):
                    yield passage
                break


class _Item(Frozen):
    id: str
    component: str
    document: str
    opening: str


class WordOrderItem(_Item):
    """An opening and four word orders of its continuation, each equally similar to the others. `choices[gold]` is the original."""

    choices: tuple[str, ...]
    gold: int

    @property
    def text(self) -> str:
        """The original passage, which must not be in the training data."""
        return f"{self.opening} {self.choices[self.gold]}"


class NextWordItem(_Item):
    """An opening and the word after it. All openings of a group get the same `choices`: a preference for a word gains no score."""

    answer: str
    group: int
    choices: tuple[str, ...]
    gold: int

    @property
    def text(self) -> str:
        """The original passage, which must not be in the training data."""
        return f"{self.opening} {self.answer}"


class Baseline(Frozen):
    """The score of the best constant rule. `answer` is the constant word, or None for a guess or a constant position."""

    value: float
    rule: str
    answer: str | None


def build_word_order(held_out: HeldOut, repeated: Search | None = None) -> list[WordOrderItem]:
    """Build up to `NUM_WORD_ORDER_ITEMS` items over all components. Exchanged words follow equal white space, so tokens are equal."""
    orders: dict[Passage, list[str]] = {}
    for passage in cut_passages(held_out, WORD_ORDER):
        following = passage.following
        ends = [match.end() for match in WORD.finditer(following)]
        parts = re.split(r"(\s+)", following[: ends[: _pick(passage.key, 2, CHOICE_WORDS)][-1]])
        before, words, item_id = [" ", *parts[1::2]], parts[::2], passage.item_id(WORD_ORDER.name)
        pairs = [(i, j) for i, j in combinations(range(len(words)), 2) if words[i] != words[j] and before[i] == before[j]]
        ranked = sorted(pairs, key=lambda pair, item_id=item_id: digest_of_json([item_id, *pair]))
        chosen = next(((one, other) for one, other in combinations(ranked, 2) if not {*one} & {*other}), None)
        for exchanged in ((), chosen[:1], chosen[1:], chosen) if chosen else ():
            changed = list(parts)
            for i, j in exchanged:
                changed[2 * i], changed[2 * j] = parts[2 * j], parts[2 * i]
            orders.setdefault(passage, []).append("".join(changed))
    candidates = [(passage, f"{passage.opening} {truth}") for passage, (truth, *_) in orders.items()]
    passages = _without_repeated(candidates, NUM_WORD_ORDER_ITEMS, repeated)
    if not passages:
        found = f"only {len(candidates)} that training text repeats," if candidates else "none"
        shortest, longest = (words + WORD_ORDER.following_words for words in WORD_ORDER.opening_words)
        raise DataError(
            f"the word_order benchmark needs running text of {shortest} to {longest} words, found {found} in "
            f"{sum(map(len, held_out.values()))} held-out documents of {len(held_out)} components. Give the components more source files. "
            f"The last {CHOICE_WORDS[0]} to {CHOICE_WORDS[1]} words must have two pairs of words to exchange."
        )
    items: list[WordOrderItem] = []
    for number, passage in enumerate(sorted(passages)):
        truth, *choices = orders[passage]
        gold = number % NUM_CHOICES
        choices.insert(gold, truth)
        items.append(
            WordOrderItem(
                id=passage.item_id(WORD_ORDER.name), component=passage.component, document=passage.document, opening=passage.opening,
                choices=tuple(choices), gold=gold,
            )
        )  # fmt: skip
    return items


def build_next_word(held_out: HeldOut, repeated: Search | None = None) -> list[NextWordItem]:
    """Build up to `NUM_NEXT_WORD_ITEMS` items over all components. The answer is the most frequent follower of the opening's last word."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for document in [document for documents in held_out.values() for document in documents]:
        for before, word in pairwise(document.text.split()):
            counts[before][word] += 1
    follower: dict[str, str] = {}
    for before, after in counts.items():
        word = min(after, key=lambda word: (-after[word], word))  # the alphabet decides ties
        if ANSWER.fullmatch(word) and after[word] >= max(MIN_FOLLOWER_COUNT, MIN_FOLLOWER_SHARE * after.total()):
            follower[before] = word
    cut = Cut(
        "next_word", opening_words=(30, 38), following_words=1, max_shift_words=30, fits=lambda before, word: follower.get(before) == word
    )
    answers: Counter[str] = Counter()
    candidates: list[tuple[Passage, str]] = []
    for passage in cut_passages(held_out, cut):
        answers[passage.following] += 1
        if answers[passage.following] <= MAX_ITEMS_PER_ANSWER:
            candidates.append((passage, f"{passage.opening} {passage.following}"))
    passages = sorted(_without_repeated(candidates, NUM_NEXT_WORD_ITEMS, repeated))
    if not passages:
        found = (
            f"{len(candidates)} passages that end there, all repeated in training text," if candidates else "no passage that ends there,"
        )
        num_passages = len(cut_passages(held_out, cut._replace(fits=lambda _before, _word: True)))
        raise DataError(
            f"the next_word benchmark needs running text of {cut.opening_words[0]} words and more before a predictable word, which "
            f"follows its predecessor {MIN_FOLLOWER_COUNT} times or more, and {MIN_FOLLOWER_SHARE:.0%} of the time, in all held-out text. "
            f"Found {num_passages} passages of that length, {len(follower)} words that tell the next one, and {found} "
            f"in {sum(map(len, held_out.values()))} held-out documents of {len(held_out)} components. "
            "Give the components more source files, or text with repeated words."
        )
    # Deal the passages into groups of NUM_CHOICES or a few more
    dealt = sorted(passages, key=lambda passage: (digest_of_json(passage.following), passage.key))
    num_groups = max(1, len(dealt) // NUM_CHOICES)
    numbers = {passage: number for number, passage in enumerate(dealt)}
    items: list[NextWordItem] = []
    for passage in passages:
        gold, group = divmod(numbers[passage], num_groups)
        choices = tuple(member.following for member in dealt[group::num_groups])
        items.append(
            NextWordItem(
                id=passage.item_id(cut.name), component=passage.component, document=passage.document, opening=passage.opening,
                answer=passage.following, group=group, choices=choices, gold=gold,
            )
        )  # fmt: skip
    return items


def word_order_baseline(items: Sequence[WordOrderItem]) -> Baseline:
    """Return the better of chance and a constant position. The choices of an item have equal length."""
    position, count = Counter(item.gold for item in items).most_common(1)[0]
    always = Baseline(value=count / len(items), rule=f"always position {position}", answer=None)
    return max(Baseline(value=1 / NUM_CHOICES, rule="chance", answer=None), always, key=lambda baseline: baseline.value)


def next_word_baseline(items: Sequence[NextWordItem]) -> Baseline:
    """Return the score of the most frequent answer, the best score without reading the opening."""
    counts = Counter(item.answer for item in items)
    word = min(counts, key=lambda word: (-counts[word], word))
    return Baseline(value=counts[word] / len(items), rule=f"always '{word}'", answer=word)


class Benchmark(Frozen):
    """A benchmark of the folder: items in `{name}.jsonl`, lm-eval's definition in `{name}.yaml`."""

    name: Literal["word_order", "next_word"]
    metric: Literal["acc", "exact_match"]
    items: int = Field(gt=0)
    baseline: Baseline
    items_digest: str
    definition_digest: str

    @property
    def files(self) -> dict[str, str]:
        """File name → digest."""
        return {f"{self.name}.jsonl": self.items_digest, f"{self.name}.yaml": self.definition_digest}


class BenchmarkManifest(Frozen):
    """The benchmarks of a folder. The manifest is written last."""

    format_version: int
    benchmarks: tuple[Benchmark, ...]

    @property
    def digest(self) -> str:
        """Digest of the manifest with the digests of its files."""
        return digest_of_json(self.model_dump(mode="json"))

    def only(self, names: Collection[str]) -> "BenchmarkManifest":
        """Select benchmarks, in the folder's order. All names give an equal manifest."""
        present = [benchmark.name for benchmark in self.benchmarks]
        if missing := sorted(set(names) - set(present)):
            raise DataError(f"the benchmarks {', '.join(missing)} are not made here, only {', '.join(present)}.")
        chosen = tuple(benchmark for benchmark in self.benchmarks if benchmark.name in names)
        return BenchmarkManifest(format_version=self.format_version, benchmarks=chosen)


class MadeItem(NamedTuple):
    """An item for the leakage index: its opening with the right continuation."""

    benchmark: str
    id: str
    text: str


def write_benchmarks(folder: str | Path, held_out: HeldOut, repeated: Search | None = None) -> BenchmarkManifest:
    """Build the benchmarks from held-out documents that training text does not repeat, and write the manifest last."""
    word_order = build_word_order(held_out, repeated)
    next_word = build_next_word(held_out, repeated)
    benchmarks: list[Benchmark] = []
    for name, metric, items, baseline in (
        ("word_order", "acc", word_order, word_order_baseline(word_order)),
        ("next_word", "exact_match", next_word, next_word_baseline(next_word)),
    ):
        lines = "".join(json.dumps(item.model_dump(mode="json"), ensure_ascii=False) + "\n" for item in items).encode()
        definition = Path(__file__).with_name(f"{name}.yaml").read_bytes()
        write_atomically(as_path(folder) / f"{name}.jsonl", lines)
        write_atomically(as_path(folder) / f"{name}.yaml", definition)
        fields = {"name": name, "metric": metric, "items": len(items), "baseline": baseline}
        digests = {"items_digest": digest_of_bytes(lines), "definition_digest": digest_of_bytes(definition)}
        benchmarks.append(Benchmark.model_validate(fields | digests))
    manifest = BenchmarkManifest(format_version=FORMAT_VERSION, benchmarks=tuple(benchmarks))
    write_sealed(as_path(folder) / MANIFEST_NAME, manifest.model_dump(mode="json"))
    return manifest


def read_benchmark_folder(folder: str | Path) -> BenchmarkManifest:
    """Read the manifest and check the digest of every file. A DataError reports missing or changed files."""
    path = as_path(folder) / MANIFEST_NAME
    try:
        manifest = BenchmarkManifest.model_validate(read_sealed(path))
    except FileNotFoundError:
        raise DataError(f"{folder} holds no benchmarks: it has no {MANIFEST_NAME}. Write them with `phasewise data prepare`.") from None
    except (ValidationError, ValueError) as error:
        raise DataError(
            f"{path} is not a manifest of benchmarks: {in_one_line(error)}. Delete {folder} and prepare the data again."
        ) from None
    if manifest.format_version != FORMAT_VERSION:
        raise DataError(f"{path} has format version {manifest.format_version}, this program reads {FORMAT_VERSION}: write it again.")
    for benchmark in manifest.benchmarks:
        for name, digest in benchmark.files.items():
            check_file(as_path(folder) / name, digest, f"Delete {folder} and prepare the data again.")
    return manifest


def benchmark_items(folder: str | Path) -> list[MadeItem]:
    """Read every item of every benchmark for the leakage index."""
    items: list[MadeItem] = []
    for benchmark in read_benchmark_folder(folder).benchmarks:
        kind = WordOrderItem if benchmark.name == "word_order" else NextWordItem
        lines = (as_path(folder) / f"{benchmark.name}.jsonl").read_text(encoding="utf-8").split("\n")
        read = [kind.model_validate_json(line) for line in lines if line]
        items.extend(MadeItem(benchmark.name, item.id, item.text) for item in read)
    return items
