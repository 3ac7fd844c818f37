from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from phasewise.trainer.base.errors import DataError
from phasewise.validations.evidence.leakage.index import OWN_GRAM, LeakageIndex, index_digest
from phasewise.validations.evidence.leakage.items import BenchmarkItem
from phasewise.validations.evidence.leakage.scan import Document, scan_documents
from phasewise.validations.evidence.leakage.words import split_words
from phasewise.validations.limits import LeakageLimits

LIMITS = LeakageLimits(min_words=13, min_score=0.7, min_copy_share=0.5, max_items=0)
WREN = BenchmarkItem(
    "birds",
    "birds",
    "wren",
    "Seven brown wrens built nests beneath the crumbling lighthouse while gales battered every shutter along the northern coast.",
    choices=("a rusty bucket", "an old pulpit"),
    answer="an old pulpit",
    solutions=("Count shutters first, then nests.",),
    passage="Wrens are small.",
)
FROG = BenchmarkItem("ponds", "ponds", "frog", "Which green frog sang beside the mill pond before the third bell rang on Sunday morning?")


def test_a_saved_index_comes_back_whole(tmp_path: Path) -> None:
    index = LeakageIndex.build([WREN, FROG])
    index.save(tmp_path / "index")
    loaded = LeakageIndex.load(tmp_path / "index")
    for field in fields(LeakageIndex):
        built, read = getattr(index, field.name), getattr(loaded, field.name)
        if isinstance(built, np.ndarray):
            assert isinstance(read, np.memmap)
            assert built.dtype == read.dtype
            np.testing.assert_array_equal(built, read)
        else:
            assert built == read
    assert loaded.items_per_benchmark == {"birds": 1, "ponds": 1}
    assert loaded.num_bytes == index.num_bytes


def test_a_loaded_index_finds_what_the_built_one_finds(tmp_path: Path) -> None:
    index = LeakageIndex.build([WREN, FROG])
    index.save(tmp_path)
    documents = [Document("f", number, str(number), item.question.encode()) for number, item in enumerate((FROG, WREN))]
    found = scan_documents(documents, index, LIMITS)
    assert [hit.item for hit in found.hits] == ["frog", "wren"]
    assert scan_documents(documents, LeakageIndex.load(tmp_path), LIMITS) == found


@pytest.mark.parametrize(
    "changed",
    [
        {"id": "robin"},
        {"question": WREN.question + " Why?"},
        {"choices": ("a rusty bucket",)},
        {"answer": "a rusty bucket"},
        {"solutions": ()},
        {"passage": ""},
        {"task": "coast"},
        {"is_excerpt": True},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_the_digest_changes_with_each_field_of_an_item(changed: dict[str, object]) -> None:
    assert index_digest([WREN, FROG]) == LeakageIndex.build([WREN, FROG]).digest
    assert index_digest([WREN._replace(**changed), FROG]) != index_digest([WREN, FROG])


def test_the_digest_tells_where_one_part_ends() -> None:
    one, two = (WREN._replace(choices=choices) for choices in (("a b", "c"), ("a", "b c")))
    assert index_digest([one]) != index_digest([two])


@pytest.mark.parametrize("is_missing", [True, False])
@pytest.mark.parametrize("name", ["index.json", "hashes.npy", "seed_filter.npy"])
def test_a_missing_or_damaged_file_is_refused(tmp_path: Path, name: str, is_missing: bool) -> None:
    LeakageIndex.build([WREN]).save(tmp_path)
    path = tmp_path / name
    path.unlink() if is_missing else path.write_bytes(path.read_bytes()[:10])
    with pytest.raises(DataError, match=r"no whole benchmark index|was changed after it was written"):
        LeakageIndex.load(tmp_path)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], "at least one item"),
        ([BenchmarkItem("birds", "birds", "empty", "…")], "needs at least one word, found none in 1 items"),
        ([WREN, WREN._replace(question="another")], "found wren twice in birds"),
    ],
)
def test_what_cannot_be_indexed_is_refused(items: list[BenchmarkItem], message: str) -> None:
    with pytest.raises(DataError, match=message):
        LeakageIndex.build(items)


def test_two_benchmarks_may_have_items_of_one_id() -> None:
    assert LeakageIndex.build([WREN, WREN._replace(benchmark="ponds")]).items_per_benchmark == {"birds": 1, "ponds": 1}


def test_the_words_of_a_tasks_template_weigh_less_than_rare_words() -> None:
    names = ("heron", "magpie", "osprey", "plover", "curlew", "dunnock", "fulmar", "gannet", "kestrel", "linnet")
    templated = [BenchmarkItem("b", "calls", name, f"Describe the usual call of the {name} in spring") for name in names]
    others = [BenchmarkItem("b", "other", str(number), f"unrelated words number{number} follow this line") for number in range(40)]
    index = LeakageIndex.build([*templated, *others])
    weight = dict(zip(index.hashes.tolist(), index.weights.tolist(), strict=True))

    def weight_of(word: str) -> float:
        return weight[int(split_words(word.encode()).hashes[0])]

    for template in ("describe", "usual", "call", "spring"):
        assert weight_of(template) < 0.2 * min(weight_of(name) for name in names)


def test_numbers_and_single_letters_never_weigh_much() -> None:
    items = [BenchmarkItem("b", "b", str(number), f"word{'abcdefghij'[number]} then {number + 100} cats") for number in range(10)]
    index = LeakageIndex.build(items)
    weight = dict(zip(index.hashes.tolist(), index.weights.tolist(), strict=True))
    assert weight[int(split_words(b"103").hashes[0])] < 0.5 * weight[int(split_words(b"wordc").hashes[0])]


def test_one_item_alone_is_indexed_and_found() -> None:
    found = scan_documents([Document("f", 0, "d", f"Before. {WREN.question} After.".encode())], LeakageIndex.build([WREN]), LIMITS)
    assert [(hit.benchmark, hit.item, hit.part) for hit in found.hits] == [("birds", "wren", "question")]


def test_items_without_words_are_indexed_and_never_found() -> None:
    index = LeakageIndex.build([WREN, BenchmarkItem("birds", "birds", "empty", "…"), BenchmarkItem("birds", "birds", "none", "")])
    found = scan_documents([Document("f", 0, "d", f"… {WREN.question} …".encode())], index, LIMITS)
    assert index.items_per_benchmark == {"birds": 3}
    assert [hit.item for hit in found.hits] == ["wren"]


def shared_grams(index: LeakageIndex, item: int) -> list[bool]:
    start, end = index.segment_starts[index.item_segments[item]], index.segment_starts[index.item_segments[item] + 1]
    return [bool(mark & OWN_GRAM) for mark in index.marks[start : end - 1]]


def test_what_a_tasks_items_say_alike_is_not_their_own() -> None:
    birds = ("heron", "magpie", "osprey", "plover", "curlew")
    items = [BenchmarkItem("calls", "calls", bird, f"write a function that calls the {bird}") for bird in birds]
    index = LeakageIndex.build([*items, WREN])
    assert shared_grams(index, 0) == [False, False, False, False, False, True]
    assert all(shared_grams(index, len(birds)))


def test_of_few_items_every_gram_is_their_own() -> None:
    index = LeakageIndex.build([BenchmarkItem("calls", "calls", str(number), "write a function that calls") for number in range(3)])
    assert shared_grams(index, 0) == [True] * 4


def test_short_choices_are_found_by_runs_over_their_ends() -> None:
    asked = BenchmarkItem("pets", "pets", "1", "", choices=("dog", "grey cat", "newt"))
    index = LeakageIndex.build([asked, WREN])
    for text in ("dog grey cat newt", "a dog b grey cat c newt"):
        hashes = split_words(text.encode()).hashes
        runs = [
            LeakageIndex.build([BenchmarkItem("one", "one", "1", " ".join(text.split()[at : at + 4]))]) for at in range(len(hashes) - 3)
        ]
        assert {int(run.seed_hashes[0]) for run in runs} <= {int(seed) for seed in index.seed_hashes}


@pytest.mark.parametrize(("choices", "seeds"), [(("2", "4", "6", "8", "10"), 0), (("2", "4", "7", "8", "10"), 2)])
def test_numbers_that_count_on_find_nothing(choices: tuple[str, ...], seeds: int) -> None:
    asked = BenchmarkItem("sums", "sums", "1", "", choices=choices)
    index = LeakageIndex.build([asked, WREN])
    plain = [words for words in index.seed_words if index.item_of_word[words] == 0]
    lettered = 2 * len(choices) - 3
    assert len(plain) - lettered == seeds


def test_an_item_is_found_without_its_punctuation_and_counted_once() -> None:
    code = BenchmarkItem(
        "code", "code", "1", "Return the largest prime_factor of n_items.",
        solutions=("def prime_factor(n_items):\n    return max(p for p in range(2, n_items) if n_items%p==0 and is_prime(p))",),
    )  # fmt: skip
    index = LeakageIndex.build([WREN, code])
    assert index.items_per_benchmark == {"birds": 1, "code": 1}
    assert index.names.count(("code", "1")) == 2
    assert index.names.count(("birds", "wren")) == 1
    bare = "def primefactornitems\n    return maxp for p in range2 nitems if nitemsp0 and isprimep"
    found = scan_documents([Document("f", 0, "d", f"{bare}\nmore".encode())], index, LIMITS)
    assert [(hit.benchmark, hit.item, hit.part) for hit in found.hits] == [("code", "1", "answer")]
    both = scan_documents([Document("f", 0, "d", f"{code.solutions[0]}\n{bare}".encode())], index, LIMITS)
    assert [(hit.item, hit.part, hit.score) for hit in both.hits] == [("1", "answer", 1.0)]
