import random
from collections.abc import Sequence
from itertools import permutations
from typing import Any

import pytest

from experiments.leakage_recall.made_items import made_items
from phasewise.validations.evidence.leakage import scan as scan_module
from phasewise.validations.evidence.leakage.index import LeakageIndex
from phasewise.validations.evidence.leakage.items import BenchmarkItem
from phasewise.validations.evidence.leakage.match import score_candidates
from phasewise.validations.evidence.leakage.prefilter import find_seeds, group_seeds
from phasewise.validations.evidence.leakage.scan import Document, Hit, Scan, merge_scans, scan_documents, warm_up_jit
from phasewise.validations.limits import LeakageLimits

LIMITS = LeakageLimits(min_words=13, min_score=0.7, min_copy_share=0.5, max_items=0)
QUESTION = (
    "Several brown wrens built nests beneath the crumbling lighthouse while 42 gales battered every shutter "
    "along the northern coast during 19 stormy weeks, so which keeper finally climbed outside?"
)
HALVES = QUESTION[: QUESTION.index("while")], QUESTION[QUESTION.index("while") :]
WREN = BenchmarkItem("birds", "birds", "wren", QUESTION)
NEPHEW = "the harbour master's youngest nephew"
OTHERS = ("an elderly sailor carrying oil lanterns", "two fishermen looking for shelter", "a postman delivering winter parcels")
KEEPERS = BenchmarkItem("quiz", "quiz", "keepers", "Who climbed?", choices=(NEPHEW, *OTHERS), answer=NEPHEW)
SHORT = BenchmarkItem("short", "short", "lantern", "Which lantern fuel burned brightest inside coastal towers?", answer="rapeseed oil")
PAIR = BenchmarkItem("short", "short", "vane", "Why do copper weathervanes turn green?", answer="slow oxidation forms verdigris outdoors")
MILL = "The old watermill at Harrow Ford ground barley for nine parishes until floods tore its wooden wheel from the axle."
READING = BenchmarkItem("reading", "reading", "mill", "When did villagers abandon that mill?", passage=MILL)
INDEX = LeakageIndex.build([WREN, KEEPERS, SHORT, PAIR, READING])
FILLER_WORDS = ("meadow", "copper", "saddle", "winter", "engine", "violet", "harvest", "mirror", "tunnel", "pepper", "candle", "orbit")


def filler(words: int, seed: int = 0) -> str:
    return " ".join(random.Random(seed).choices(FILLER_WORDS, k=words))


def documents(*texts: str) -> list[Document]:
    return [Document("file", number, f"id-{number}", text.encode(), tokens=len(text)) for number, text in enumerate(texts)]


def scan(*texts: str, index: LeakageIndex = INDEX) -> tuple[Hit, ...]:
    return scan_documents(documents(*texts), index, LIMITS).hits


def found(*texts: str, index: LeakageIndex = INDEX) -> list[tuple[int, str, str]]:
    return [(hit.document, hit.item, hit.part) for hit in scan(*texts, index=index)]


def test_no_documents_are_no_hits() -> None:
    assert scan_documents([], INDEX, LIMITS) == Scan(documents=0, bytes=0, hits=())
    assert scan_documents(documents("", ""), INDEX, LIMITS) == Scan(documents=2, bytes=0, hits=())


def test_a_question_word_for_word_is_found_with_its_place() -> None:
    text = f"Žluťoučký kůň – {filler(200)}\n\n{QUESTION}.\n\n{filler(200, 1)}"
    [hit] = scan("nothing here", text)
    assert (hit.file, hit.document, hit.id, hit.tokens) == ("file", 1, "id-1", len(text))
    assert (hit.benchmark, hit.item, hit.part, hit.score) == ("birds", "wren", "question", 1.0)
    assert text.encode()[hit.start : hit.end].decode() == QUESTION.rstrip("?")
    assert QUESTION.startswith(hit.excerpt)
    assert len(hit.excerpt) > 100


def test_a_question_split_over_neighbours_is_found_and_over_others_is_not() -> None:
    first, second = f"{filler(150)}\n{HALVES[0]}", f"{HALVES[1]}\n{filler(150, 1)}"
    hits = scan(first, second)
    assert {hit.item for hit in hits} == {"wren"}
    for hit in hits:
        text = (first, second)[hit.document].encode()
        assert 0 <= hit.start < hit.end <= len(text)
        assert text[hit.start : hit.end].decode() in QUESTION
    assert scan(first) == scan(second) == scan(first, filler(300, 2), second) == ()


@pytest.mark.parametrize(("texts", "documents"), [
    ((filler(40, 2), f"{filler(60)}\n{HALVES[0].strip()}", f"{HALVES[1]}\n{filler(60, 1)}", filler(40, 3)), [1, 2]),
    ((f"{HALVES[0]}\n{filler(80)}", f"{filler(80, 1)}\n{HALVES[1]}"), [1]),  # with text between
    (tuple(f"{HALVES[0]} {filler(40, number)}" for number in range(3)), []),  # the same half
])  # fmt: skip
def test_each_side_of_a_cut_is_a_hit_where_they_are_two_halves(texts: tuple[str, ...], documents: list[int]) -> None:
    assert [hit.document for hit in scan(*texts)] == documents


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2), (2, 3, 1, 0)])
def test_choices_are_found_in_any_order(order: Sequence[int]) -> None:
    listed = "\n".join(f"{letter}. {KEEPERS.choices[number]}" for letter, number in zip("ABCD", order, strict=True))
    hits = found(f"{filler(60)}\nWho climbed?\n{listed}\n{filler(60, 1)}")
    assert ("keepers", "choices") in {(item, part) for _, item, part in hits}


EDITED = QUESTION.replace("so which keeper finally climbed outside?", "")
RUNS = [" ".join(QUESTION.split()[start : start + 5]) for start in range(0, len(QUESTION.split()), 5)]


@pytest.mark.parametrize(("text", "item"), [
    (SHORT.question, ("lantern", "question")),
    (SHORT.question.replace("brightest", "longest"), None),  # eight words are found only word for word
    (PAIR.question, None),  # a shorter question is found only beside its answer
    (PAIR.answer, None), (f"{PAIR.question}\nAnswer: {PAIR.answer}.", ("vane", "item")),
    (QUESTION.replace("42", "57").replace("19", "23"), None),  # other numbers are another item
    (QUESTION.replace("42", "57"), ("wren", "question")), (EDITED, ("wren", "question")),
    (EDITED.replace("42", "57"), None),  # with half of its numbers more of the rest must be there
    ("\n".join(RUNS), ("wren", "question")),
    ("\n".join(f"{run} {filler(20, number)}" for number, run in enumerate(RUNS)), None),  # runs all over a page
    (READING.passage, None),  # a passage never counts without its question
    (f"{READING.passage}\n{READING.question}", ("mill", "item")),
])  # fmt: skip
def test_what_counts_as_an_item_within_a_text(text: str, item: tuple[str, str] | None) -> None:
    assert found(f"{filler(60)}. {text} {filler(60, 1)}") == ([(0, *item)] if item else [])


def test_one_word_in_ten_may_be_another() -> None:
    words = QUESTION.split()
    words[4], words[14], words[24 - 1] = "sheds", "knocked", "single"
    [hit] = scan(f"{filler(60)}. {' '.join(words)} {filler(60, 1)}")
    assert (hit.item, hit.part) == ("wren", "question")
    assert 0.5 < hit.score < 1


def test_a_hit_between_neighbours_that_share_words_stays_in_its_document() -> None:
    tail = "which keeper finally climbed outside"
    texts = (f"{filler(40)} {tail}", QUESTION, f"{tail} along the northern coast {filler(40, 1)}")
    [hit] = scan(*texts)
    assert (hit.document, hit.part) == (1, "question")
    assert (hit.start, hit.end) == (0, len(QUESTION) - 1)
    assert QUESTION.startswith(hit.excerpt)


def test_an_item_in_every_document_is_a_hit_of_each_and_twice_in_one_a_hit_at_its_best_place() -> None:
    hits = scan(*[QUESTION] * 20)
    assert [(hit.document, hit.start, hit.end) for hit in hits] == [(number, 0, len(QUESTION) - 1) for number in range(20)]
    worse = QUESTION.replace("finally climbed outside", "left then")
    text = f"{worse}\n{filler(300)}\n{QUESTION}\n{filler(300, 1)}\n{QUESTION}"
    assert [hit.start for hit in scan(text)] == [text.index(QUESTION)]


@pytest.mark.parametrize("batch_bytes", [500, 1_777, 4_096, 9_999])
def test_batches_do_not_show(monkeypatch: pytest.MonkeyPatch, batch_bytes: int) -> None:
    items = enumerate([WREN, SHORT] * 12)
    texts = [f"{filler(30 + 7 * number, number)}\n{item.question}\n{filler(40, number + 1)}" for number, item in items]
    texts[5:5] = [f"{filler(80)} {HALVES[0]}", f"{HALVES[1]} {filler(80)}"]
    whole = scan_documents(documents(*texts), INDEX, LIMITS)
    assert len({hit.document for hit in whole.hits}) >= 25
    monkeypatch.setattr(scan_module, "BATCH_BYTES", batch_bytes)
    monkeypatch.setattr(scan_module, "CARRIED_BYTES", 3_000)
    in_batches = scan_documents((document for document in documents(*texts)), INDEX, LIMITS)
    assert (in_batches.documents, in_batches.bytes) == (whole.documents, whole.bytes)
    assert [(hit.document, hit.item, hit.part) for hit in in_batches.hits] == [(hit.document, hit.item, hit.part) for hit in whole.hits]


def test_a_long_document_has_the_same_hits_in_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    questions = (filler(20, 9), SHORT.question, QUESTION)
    text = "\n".join(f"{filler(400, number)}\n{question}" for number, question in enumerate(questions))
    whole = scan(text)
    assert [hit.item for hit in whole] == ["wren", "lantern"]
    monkeypatch.setattr(scan_module, "BATCH_BYTES", text.index(SHORT.question) - 200)
    monkeypatch.setattr(scan_module, "CARRIED_BYTES", 2_000)
    assert scan(text) == whole


def test_an_item_across_the_seam_of_a_long_document_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"{filler(300)}\n{QUESTION}\n{filler(300, 1)}"
    monkeypatch.setattr(scan_module, "BATCH_BYTES", text.index("gales") + 2)
    monkeypatch.setattr(scan_module, "CARRIED_BYTES", 1_000)
    hits = scan(text)
    assert {(hit.document, hit.item) for hit in hits} == {(0, "wren")}
    assert all(text[hit.start : hit.end] in QUESTION for hit in hits)


def hit(document: int, *, item: str = "wren", part: str = "question", score: float = 1.0, start: int = 0, file: str = "file") -> Hit:
    return Hit(
        file=file, document=document, id=str(document), tokens=10, benchmark="birds", item=item, part=part,
        score=score, start=start, end=start + 5, excerpt="wrens",
    )  # fmt: skip


def test_scans_merge_in_any_order_to_the_same_and_parts_of_a_corpus_to_the_whole() -> None:
    scans = [
        Scan(documents=2, bytes=20, hits=(hit(1), hit(3, score=0.8, start=9))),
        Scan(documents=3, bytes=30, hits=(hit(3, start=4), hit(3, part="item"))),
        Scan(documents=0, bytes=0, hits=()),
        Scan(documents=1, bytes=10, hits=(hit(3, start=2), hit(0, file="earlier"), hit(1, item="owl"))),
    ]
    expected = Scan(documents=6, bytes=60, hits=(hit(0, file="earlier"), hit(1, item="owl"), hit(1), hit(3, part="item"), hit(3, start=2)))
    assert all(merge_scans(order) == expected for order in permutations(scans))
    assert merge_scans([]) == Scan(documents=0, bytes=0, hits=())
    every = documents(*(f"{filler(200, n)}\n{item.question}\n{filler(200, n + 1)}" for n, item in enumerate([WREN, SHORT] * 4)))
    whole = scan_documents(every, INDEX, LIMITS)
    assert merge_scans([scan_documents(every[4:], INDEX, LIMITS), scan_documents(every[:4], INDEX, LIMITS)]) == whole


def test_of_one_item_the_first_hits_are_kept_in_any_order_and_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "MAX_HITS_PER_ITEM", 5)
    hits = [hit(number) for number in range(40)] + [hit(number, item="owl") for number in range(3)]
    orders = [random.Random(seed).sample(hits, len(hits)) for seed in range(20)]
    [only] = {merge_scans([Scan(documents=1, bytes=1, hits=(each,)) for each in order]).hits for order in orders}
    found = [[each.document for each in only if each.item == item] for item in ("wren", "owl")]
    assert found == [[0, 1, 2, 3, 4], [0, 1, 2]]
    monkeypatch.setattr(scan_module, "BATCH_BYTES", 1_000)
    monkeypatch.setattr(scan_module, "CARRIED_BYTES", 300)
    result = scan_documents(documents(*[QUESTION] * 40, SHORT.question), INDEX, LIMITS)
    assert [each.document for each in result.hits] == [0, 1, 2, 3, 4, 40]
    assert result.documents == 41


def test_only_the_sibling_that_is_there_is_found() -> None:
    names = ("heron", "magpie", "osprey", "plover", "curlew", "dunnock", "fulmar", "gannet", "kestrel", "linnet", "merlin", "pipit")
    foods = ("barley", "snails", "minnows", "acorns", "beetles", "cherries", "thistles", "mussels", "voles", "clover", "midges", "rye")
    ask = "During spring surveys we count how often the {0} eats {1} near {0} ponds; what does that tell us?"
    siblings = [BenchmarkItem("calls", "calls", name, ask.format(name, food)) for name, food in zip(names, foods, strict=True)]
    index = LeakageIndex.build([*siblings, WREN])
    for sibling in siblings:
        assert found(f"{filler(60)} {sibling.question} {filler(60, 1)}", index=index) == [(0, sibling.id, "question")]
    pair = f"{siblings[2].question}\n{siblings[7].question}"
    assert {item for _, item, _ in found(pair, index=index)} == {siblings[2].id, siblings[7].id}


def test_choices_that_say_little_are_found_in_their_order_alone() -> None:
    choices = ("17.38 ohms", "16.39 ohms", "18.27 ohms", "13.17 ohms", "14.25 ohms", "21.74 ohms")
    index = LeakageIndex.build([BenchmarkItem("volts", "volts", "1", "", choices=choices), WREN])
    assert found(f"{filler(60)}\n{' '.join(choices)}\n{filler(60, 1)}", index=index) == [(0, "1", "choices")]
    lettered = "\n".join(f"{letter}. {choice}" for letter, choice in zip("ABCDEF", choices, strict=True))
    assert found(lettered, index=index) == [(0, "1", "choices")]
    assert found(" ".join(sorted(choices)), index=index) == []
    assert found(" ".join(choices[:5]), index=index) == []


def test_a_twin_that_only_has_the_tasks_turns_of_phrase_is_another_item() -> None:
    ask = "Write a function to find the {} from a given list of values using the heap queue algorithm."
    wanted = ("smallest integers", "longest words", "oldest dates", "rarest letters", "widest rows")
    index = LeakageIndex.build([*(BenchmarkItem("calls", "calls", what, ask.format(what)) for what in wanted), WREN])
    assert found(ask.format("smallest integers"), index=index) == [(0, "smallest integers", "question")]
    assert found(ask.format("largest floats"), index=index) == []


def test_what_is_found_in_dense_text_does_not_depend_on_room_or_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    items = made_items(60, seed=8)
    index = LeakageIndex.build(items)
    texts = ["\n".join([item.question, *item.choices, item.answer, *item.solutions]) for item in items]
    expected = scan(*texts, index=index)
    assert {(number, item.id) for number, item in enumerate(items)} <= {(hit.document, hit.item) for hit in expected if hit.score > 0.99}
    assert len(expected) > len(items)
    for room in ("_OUT_ROOM", "_CANDIDATE_ROOM", "_HELD_ROOM"):
        monkeypatch.setattr(scan_module, room, 1)
    assert scan(*texts, index=index) == expected
    monkeypatch.setattr(scan_module, "BATCH_BYTES", 4096)
    monkeypatch.setattr(scan_module, "CARRIED_BYTES", 1024)
    assert set(found(*texts, index=index)) == {(hit.document, hit.item, hit.part) for hit in expected}


def test_warming_up_compiles_nothing_that_a_scan_has_not() -> None:
    assert scan(QUESTION)
    loops: tuple[Any, ...] = (find_seeds, group_seeds, score_candidates)
    scanned = [len(loop.signatures) for loop in loops]
    warm_up_jit()
    assert [len(loop.signatures) for loop in loops] == scanned


TEST = BenchmarkItem(
    "tasks", "tasks", "test:1",
    "Write a function to replace every comma of a sentence by one colon and give the sentence back.",
    solutions=("def replace_comma(sentence):\n    changed = re.sub(',', ':', sentence)\n    assert changed\n    return changed.lower()",),
)  # fmt: skip
TRAIN = BenchmarkItem(
    "tasks", "tasks", "train:1",
    "Write a function to replace every comma of a sentence by two dashes and give the sentence back.",
    solutions=("def dashes_for(sentence):\n    pieces = sentence.split(',')\n    assert pieces\n    return '--'.join(pieces).rstrip()",),
    is_example=True,
)  # fmt: skip


def text_of(item: BenchmarkItem) -> str:
    return f"Question: {item.question}\nAnswer: {item.solutions[0]}"


def found_of(items: Sequence[BenchmarkItem], *texts: str) -> list[tuple[int, str]]:
    return sorted({(document, item) for document, item, _ in found(*texts, index=LeakageIndex.build(items))})


@pytest.mark.parametrize("text", [text_of(TRAIN), TRAIN.question, f"Before it.\n{text_of(TRAIN)}\nAnd after it."])
def test_a_copy_of_an_example_is_no_edited_copy_of_a_test_item(text: str) -> None:
    assert found_of([TEST, WREN], text) == [(0, "test:1")]
    assert found_of([TEST, WREN, TRAIN], text) == []


def test_test_items_are_found_beside_examples_edited_or_not() -> None:
    edited = text_of(TEST).replace("give the sentence back", "return the whole sentence")
    assert found_of([TEST, WREN, TRAIN], text_of(TEST), edited, text_of(TRAIN)) == [(0, "test:1"), (1, "test:1")]


def test_a_question_of_both_splits_is_a_test_item_but_with_the_solution_of_the_example() -> None:
    copy = TEST._replace(id="train:2", is_example=True)
    assert found_of([TEST, WREN, copy], text_of(TEST), TEST.question) == [(0, "test:1"), (1, "test:1")]
    alike = TRAIN._replace(question=TEST.question)
    assert found_of([TEST, WREN, alike], text_of(alike), text_of(TEST), TEST.question) == [(1, "test:1"), (2, "test:1")]


def test_an_example_of_another_benchmark_hides_nothing_and_none_is_a_test_item() -> None:
    assert found_of([TEST, WREN, TRAIN._replace(benchmark="birds")], text_of(TRAIN)) == [(0, "test:1")]
    assert LeakageIndex.build([TEST, WREN, TRAIN]).items_per_benchmark == {"tasks": 1, "birds": 1}
