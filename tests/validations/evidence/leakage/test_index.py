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
    "birds", "birds", "wren",
    "Seven brown wrens built nests beneath the crumbling lighthouse while gales battered every shutter along the northern coast.",
    choices=("a rusty bucket", "an old pulpit"), answer="an old pulpit", solutions=("Count shutters first, then nests.",),
    passage="Wrens are small.",
)  # fmt: skip
FROG = BenchmarkItem("ponds", "ponds", "frog", "Which green frog sang beside the mill pond before the third bell rang on Sunday morning?")


def hits(index: LeakageIndex, *texts: str) -> list[tuple[str, str, str]]:
    documents = [Document("f", number, str(number), text.encode()) for number, text in enumerate(texts)]
    return [(hit.benchmark, hit.item, hit.part) for hit in scan_documents(documents, index, LIMITS).hits]


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
    documents = [Document("f", number, str(number), item.question.encode()) for number, item in enumerate((FROG, WREN))]
    found = scan_documents(documents, index, LIMITS)
    assert [hit.item for hit in found.hits] == ["frog", "wren"]
    assert scan_documents(documents, loaded, LIMITS) == found


@pytest.mark.parametrize("changed", [
    {"id": "robin"}, {"question": WREN.question + " Why?"}, {"choices": ("a rusty bucket",)}, {"answer": "a rusty bucket"},
    {"solutions": ()}, {"passage": ""}, {"task": "coast"}, {"is_excerpt": True},
], ids=lambda changed: next(iter(changed)))  # fmt: skip
def test_the_digest_changes_with_each_field_of_an_item(changed: dict[str, object]) -> None:
    assert index_digest([WREN, FROG]) == LeakageIndex.build([WREN, FROG]).digest
    assert index_digest([WREN._replace(**changed), FROG]) != index_digest([WREN, FROG])
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


@pytest.mark.parametrize(("items", "message"), [
    ([], "at least one item"), ([BenchmarkItem("birds", "birds", "empty", "…")], "needs at least one word, found none in 1 items"),
    ([WREN, WREN._replace(question="another")], "found wren twice in birds"),
])  # fmt: skip
def test_what_cannot_be_indexed_is_refused(items: list[BenchmarkItem], message: str) -> None:
    with pytest.raises(DataError, match=message):
        LeakageIndex.build(items)


def test_words_of_a_tasks_template_numbers_and_single_letters_weigh_less_than_rare_words() -> None:
    names = ("heron", "magpie", "osprey", "plover", "curlew", "dunnock", "fulmar", "gannet", "kestrel", "linnet")
    templated = [BenchmarkItem("b", "calls", name, f"Describe the usual call of the {name} in spring") for name in names]
    others = [BenchmarkItem("b", "other", str(number), f"unrelated words number{number} follow this line") for number in range(40)]
    numbered = [BenchmarkItem("b", "b", str(number), f"word{'abcdefghij'[number]} then {number + 100} cats") for number in range(10)]

    def weights_in(items: list[BenchmarkItem], *words: str) -> list[float]:
        index = LeakageIndex.build(items)
        weight = dict(zip(index.hashes.tolist(), index.weights.tolist(), strict=True))
        return [weight[int(split_words(word.encode()).hashes[0])] for word in words]

    rare = min(weights_in([*templated, *others], *names))
    assert max(weights_in([*templated, *others], "describe", "usual", "call", "spring")) < 0.2 * rare
    number, word = weights_in(numbered, "103", "wordc")
    assert number < 0.5 * word


def test_items_alone_and_beside_items_without_words_are_indexed_and_found() -> None:
    assert hits(LeakageIndex.build([WREN]), f"Before. {WREN.question} After.") == [("birds", "wren", "question")]
    index = LeakageIndex.build([WREN, BenchmarkItem("birds", "birds", "empty", "…"), BenchmarkItem("birds", "birds", "none", "")])
    assert index.items_per_benchmark == {"birds": 3}
    assert hits(index, f"… {WREN.question} …") == [("birds", "wren", "question")]
    assert LeakageIndex.build([WREN, WREN._replace(benchmark="ponds")]).items_per_benchmark == {"birds": 1, "ponds": 1}


def own_grams(index: LeakageIndex, item: int) -> list[bool]:
    start, end = index.segment_starts[index.item_segments[item]], index.segment_starts[index.item_segments[item] + 1]
    return [bool(mark & OWN_GRAM) for mark in index.marks[start : end - 1]]


def test_what_five_of_a_tasks_items_say_alike_is_not_their_own() -> None:
    birds = ("heron", "magpie", "osprey", "plover", "curlew")
    index = LeakageIndex.build(
        [*(BenchmarkItem("calls", "calls", bird, f"write a function that calls the {bird}") for bird in birds), WREN]
    )
    assert own_grams(index, 0) == [False, False, False, False, False, True]
    assert all(own_grams(index, len(birds)))
    few = [BenchmarkItem("calls", "calls", str(number), "write a function that calls") for number in range(3)]
    assert own_grams(LeakageIndex.build(few), 0) == [True] * 4


def test_short_choices_are_found_by_runs_over_their_ends() -> None:
    index = LeakageIndex.build([BenchmarkItem("pets", "pets", "1", "", choices=("dog", "grey cat", "newt")), WREN])
    for words in (["dog", "grey", "cat", "newt"], ["a", "dog", "b", "grey", "cat", "c", "newt"]):
        runs = [" ".join(words[at : at + 4]) for at in range(len(words) - 3)]
        seeds = {int(LeakageIndex.build([BenchmarkItem("one", "one", "1", run)]).seed_hashes[0]) for run in runs}
        assert seeds <= {int(seed) for seed in index.seed_hashes}


@pytest.mark.parametrize(("choices", "seeds"), [(("2", "4", "6", "8", "10"), 0), (("2", "4", "7", "8", "10"), 2)])
def test_numbers_that_count_on_find_nothing(choices: tuple[str, ...], seeds: int) -> None:
    index = LeakageIndex.build([BenchmarkItem("sums", "sums", "1", "", choices=choices), WREN])
    lettered = 2 * len(choices) - 3
    assert sum(index.item_of_word[words] == 0 for words in index.seed_words) - lettered == seeds


def test_an_item_is_found_without_its_punctuation_and_counted_once() -> None:
    code = BenchmarkItem(
        "code", "code", "1", "Return the largest prime_factor of n_items.",
        solutions=("def prime_factor(n_items):\n    return max(p for p in range(2, n_items) if n_items%p==0 and is_prime(p))",),
    )  # fmt: skip
    index = LeakageIndex.build([WREN, code])
    assert index.items_per_benchmark == {"birds": 1, "code": 1}
    assert (index.names.count(("code", "1")), index.names.count(("birds", "wren"))) == (2, 1)
    bare = "def primefactornitems\n    return maxp for p in range2 nitems if nitemsp0 and isprimep"
    assert hits(index, f"{bare}\nmore") == [("code", "1", "answer")]
    both = scan_documents([Document("f", 0, "d", f"{code.solutions[0]}\n{bare}".encode())], index, LIMITS)
    assert [(hit.item, hit.part, hit.score) for hit in both.hits] == [("1", "answer", 1.0)]
