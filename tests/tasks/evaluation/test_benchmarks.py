import re
import shutil
from collections import Counter
from itertools import product
from pathlib import Path

import pytest

from phasewise.flows.recipes.benchmarks import MADE_BENCHMARKS
from phasewise.tasks.evaluation import made_benchmarks
from phasewise.tasks.evaluation.held_out import HeldOutDocument
from phasewise.tasks.evaluation.made_benchmarks import build_next_word, build_word_order, read_benchmark_folder, word_order_baseline
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.identity import read_sealed, write_sealed
from tests.tasks.evaluation.conftest import HeldOut


def shuffled(held_out: HeldOut) -> dict[str, list[HeldOutDocument]]:
    return {component: list(reversed(documents)) for component, documents in reversed(list(held_out.items()))}


def test_items_are_of_their_documents_alone_and_keep_their_ids(held_out_texts: HeldOut):
    assert build_word_order(shuffled(held_out_texts)) == build_word_order(held_out_texts)
    assert build_next_word(shuffled(held_out_texts)) == build_next_word(held_out_texts)
    fewer = {component: documents[1:] for component, documents in held_out_texts.items()}
    for build in (build_word_order, build_next_word):
        before, after = ({item.id: item.text for item in build(held_out)} for held_out in (held_out_texts, fewer))
        assert after
        assert after.keys() < before.keys()
        assert all(before[item] == text for item, text in after.items())
    texts = {document.id: document.text for documents in held_out_texts.values() for document in documents}
    items = [*build_word_order(held_out_texts), *build_next_word(held_out_texts)]
    assert all(re.fullmatch("[A-Za-z]{1,12}", item.answer) for item in build_next_word(held_out_texts))
    assert {item.component for item in items} == set(held_out_texts)
    assert len({item.id for item in items}) == len(items)
    for item in items:
        assert item.text in texts[item.document]
        assert len(item.text.split()) >= 20


def test_choices_have_the_same_words_and_only_the_gold_one_follows(held_out_texts: HeldOut):
    texts = {document.id: document.text for documents in held_out_texts.values() for document in documents}
    items = build_word_order(held_out_texts)
    for item in items:
        assert len(set(item.choices)) == 4
        assert len({tuple(sorted(choice.split())) for choice in item.choices}) == 1
        for position, choice in enumerate(item.choices):
            assert (f"{item.opening} {choice}" in texts[item.document]) == (position == item.gold)
        words = [choice.split() for choice in item.choices]
        for one in words:  # two words exchanged, two others, or both
            assert sorted(sum(word != there for word, there in zip(one, other, strict=True)) for other in words) == [0, 2, 2, 4]
        assert len({tuple(sorted(re.findall(r"\s+\S+", f" {choice}"))) for choice in item.choices}) == 1  # as a tokenizer counts words
    assert any("\n" in item.choices[0] for item in items)
    golds = Counter(item.gold for item in items)
    assert max(golds.values()) - min(golds.values()) <= 1


def test_baselines_are_what_a_dumb_answer_scores(held_out_texts: HeldOut):
    items = build_word_order(held_out_texts)
    said = [item.model_copy(update={"gold": 2}) for item in items]
    assert (word_order_baseline(said).value, word_order_baseline(said).rule) == (1.0, "always position 2")
    assert 0.25 <= word_order_baseline(items).value <= 0.25 + 1 / len(items)
    words = build_next_word(held_out_texts)
    best = made_benchmarks.next_word_baseline(words)
    assert (best.rule, best.value) == (f"always '{best.answer}'", sum(item.answer == best.answer for item in words) / len(words))
    for answer in {item.answer for item in words}:
        assert sum(item.answer == answer for item in words) / len(words) <= best.value


def test_a_passage_whose_words_can_not_be_exchanged_is_no_item():
    words = ["".join(letters) for letters in product("abcdefghij", repeat=3)]
    documents = [HeldOutDocument(f"{n}", f"{' '.join(words[20 * n : 20 * n + 40])} {'same ' * 40}") for n in range(40)]
    items = build_word_order({"code": documents})
    assert 0 < len(items) < len(made_benchmarks.cut_passages({"code": documents}, made_benchmarks.WORD_ORDER))
    assert all(len(set(item.choices)) == 4 for item in items)
    assert {item.gold for item in items} == {0, 1, 2, 3}


def test_a_group_scores_each_of_its_answers_after_each_of_its_openings(held_out_texts: HeldOut, monkeypatch: pytest.MonkeyPatch):
    items = build_next_word(held_out_texts)
    groups = {group: [item for item in items if item.group == group] for group in {item.group for item in items}}
    assert len(groups) == len(items) // 4
    for members in groups.values():
        assert len(members) in {4, 5}
        assert {item.choices for item in members} == {members[0].choices}
        assert sorted(item.gold for item in members) == list(range(len(members)))
        assert all(item.choices[item.gold] == item.answer for item in members)
        assert len(set(members[0].choices)) == len(members)
    for num_items in (1, 3, 7, 8, 11):  # a few are one group or two
        monkeypatch.setattr(made_benchmarks, "NUM_NEXT_WORD_ITEMS", num_items)
        sizes = Counter(item.group for item in build_next_word(held_out_texts))
        assert (sizes.total(), sorted(sizes)) == (num_items, list(range(max(1, num_items // 4))))
        assert max(sizes.values()) <= 7


def test_too_little_text_is_refused_with_what_was_found():
    held_out = {"code": [HeldOutDocument("a", "too short to cut")]}
    with pytest.raises(DataError, match=r"running text of 42 to 52 words, found none in 1 .* of 1 components.*The last 8 to 12 words"):
        build_word_order(held_out)
    with pytest.raises(DataError, match=r"Found 0 passages of that length, 0 words .* in 1 held-out documents"):
        build_next_word(held_out)
    unique = HeldOutDocument("a", " ".join(f"w{chr(97 + number // 26)}{chr(97 + number % 26)}" for number in range(400)))
    assert len(build_word_order({"code": [unique]})) == 5
    with pytest.raises(DataError, match="Found 5 passages of that length, 0 words that tell the next one"):
        build_next_word({"code": [unique]})
    table = HeldOutDocument("table", " ".join(str(number) for number in range(400)))
    with pytest.raises(DataError):
        build_next_word({"code": [table, HeldOutDocument("chorus", "again and again " * 200)]})


def test_the_same_documents_write_the_same_files_anywhere(benchmarks: Path, tmp_path: Path, held_out_texts: HeldOut):
    again = made_benchmarks.write_benchmarks(tmp_path / "again", held_out_texts)
    other = made_benchmarks.write_benchmarks(tmp_path / "other", {"code": held_out_texts["code"]})
    assert again == read_benchmark_folder(benchmarks)
    assert again.digest != other.digest
    assert tuple(benchmark.name for benchmark in again.benchmarks) == MADE_BENCHMARKS
    for file in benchmarks.iterdir():
        assert file.read_bytes() == (tmp_path / "again" / file.name).read_bytes()
        assert str(tmp_path.parent).encode() not in file.read_bytes()
    manifest = read_benchmark_folder(benchmarks)
    items = made_benchmarks.benchmark_items(benchmarks)
    counts = [(name, sum(item.benchmark == name for item in items)) for name in ("word_order", "next_word")]
    assert [(benchmark.name, benchmark.items) for benchmark in manifest.benchmarks] == counts
    everything = "\n".join(document.text for documents in held_out_texts.values() for document in documents)
    assert all(item.text in everything for item in items)
    assert len({item.id for item in items}) == len(items)
    assert manifest.only(("next_word", "word_order")).digest == manifest.digest
    assert [benchmark.name for benchmark in manifest.only(("next_word",)).benchmarks] == ["next_word"]
    assert len({manifest.digest, manifest.only(("next_word",)).digest, manifest.only(("word_order",)).digest}) == 3
    with pytest.raises(DataError, match="bananas are not made here"):
        manifest.only(("bananas", "next_word"))


def test_a_changed_or_missing_file_and_a_missing_broken_or_newer_manifest_are_refused(benchmarks: Path, tmp_path: Path):
    copied = Path(shutil.copytree(benchmarks, tmp_path / "copied"))
    for name in ("word_order.jsonl", "next_word.yaml"):
        before = (copied / name).read_bytes()
        (copied / name).write_bytes(before + b"\n")
        with pytest.raises(DataError, match=rf"{name} was changed after it was written: expected the digest \w+, found \w+"):
            made_benchmarks.benchmark_items(copied)
        (copied / name).unlink()
        with pytest.raises(DataError, match="found nothing"):
            read_benchmark_folder(copied)
        (copied / name).write_bytes(before)
    path = copied / "manifest.json"
    newer = {**read_sealed(path), "format_version": 99}
    for content in ("{", '{"format_version": 1}', "[]"):
        path.write_text(content)
        with pytest.raises(DataError, match="is not a manifest of benchmarks"):
            read_benchmark_folder(copied)
    write_sealed(path, newer)
    with pytest.raises(DataError, match="format version 99"):
        read_benchmark_folder(copied)
    path.unlink()
    with pytest.raises(DataError, match="holds no benchmarks"):
        read_benchmark_folder(copied)
