import random
from collections.abc import Sequence
from itertools import permutations

import pytest

from phasewise.validations.evidence.leakage import scan as scan_module
from phasewise.validations.evidence.leakage.index import LeakageIndex
from phasewise.validations.evidence.leakage.items import BenchmarkItem
from phasewise.validations.evidence.leakage.scan import Document, Hit, Scan, merge_scans, scan_documents
from phasewise.validations.limits import LeakageLimits

LIMITS = LeakageLimits(min_words=13, min_score=0.7, min_copy_share=0.5, max_items=0)
QUESTION = (
    "Several brown wrens built nests beneath the crumbling lighthouse while 42 gales battered every shutter "
    "along the northern coast during 19 stormy weeks, so which keeper finally climbed outside?"
)
WREN = BenchmarkItem("birds", "birds", "wren", QUESTION)
KEEPERS = BenchmarkItem(
    "quiz",
    "quiz",
    "keepers",
    "Who climbed?",
    choices=(
        "an elderly sailor carrying oil lanterns",
        "the harbour master's youngest nephew",
        "two fishermen looking for shelter",
        "a postman delivering winter parcels",
    ),
    answer="the harbour master's youngest nephew",
)
SHORT = BenchmarkItem("short", "short", "lantern", "Which lantern fuel burned brightest inside coastal towers?", answer="rapeseed oil")
PAIR = BenchmarkItem(
    "short", "short", "vane", "Why do copper weathervanes turn green?", answer="slow surface oxidation forms verdigris outdoors"
)
READING = BenchmarkItem(
    "reading",
    "reading",
    "mill",
    "When did villagers abandon that mill?",
    passage="The old watermill at Harrow Ford ground barley for nine parishes until floods tore its wooden wheel from the axle.",
)
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
    cut = QUESTION.index("while")
    first, second = filler(150) + "\n" + QUESTION[:cut], QUESTION[cut:] + "\n" + filler(150, 1)
    hits = scan(first, second)
    assert {hit.item for hit in hits} == {"wren"}
    for hit in hits:
        text = (first, second)[hit.document].encode()
        assert 0 <= hit.start < hit.end <= len(text)
        assert text[hit.start : hit.end].decode() in QUESTION
    assert scan(first) == scan(second) == ()
    assert scan(first, filler(300, 2), second) == ()
    assert scan(first, filler(300, 2), filler(300, 3), second) == ()


def test_each_side_of_a_cut_is_a_hit_of_its_own() -> None:
    cut = QUESTION.index("while")
    first, second = f"{filler(60)}\n{QUESTION[:cut].strip()}", f"{QUESTION[cut:]}\n{filler(60, 1)}"
    assert [hit.document for hit in scan(filler(40, 2), first, second, filler(40, 3))] == [1, 2]


def test_halves_with_text_between_are_found_together() -> None:
    cut = QUESTION.index("while")
    assert [hit.document for hit in scan(f"{QUESTION[:cut]}\n{filler(80)}", f"{filler(80, 1)}\n{QUESTION[cut:]}")] == [1]


def test_what_two_neighbours_both_say_is_not_counted_as_two_halves() -> None:
    half = QUESTION[: QUESTION.index("while")]
    assert scan(f"{half} {filler(40)}", f"{half} {filler(40, 1)}", f"{half} {filler(40, 2)}") == ()


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2), (2, 3, 1, 0)])
def test_choices_are_found_in_any_order(order: Sequence[int]) -> None:
    listed = "\n".join(f"{letter}. {KEEPERS.choices[number]}" for letter, number in zip("ABCD", order, strict=True))
    hits = found(f"{filler(60)}\nWho climbed?\n{listed}\n{filler(60, 1)}")
    assert ("keepers", "choices") in {(item, part) for _, item, part in hits}


EDITED = QUESTION.replace("so which keeper finally climbed outside?", "")
RUNS = [" ".join(QUESTION.split()[start : start + 5]) for start in range(0, len(QUESTION.split()), 5)]


@pytest.mark.parametrize(
    ("text", "item"),
    [
        (SHORT.question, ("lantern", "question")),
        (SHORT.question.replace("brightest", "longest"), None),  # eight words are found only word for word
        (PAIR.question, None),  # a shorter question is found only beside its answer
        (PAIR.answer, None),
        (f"{PAIR.question}\nAnswer: {PAIR.answer}.", ("vane", "item")),
        (QUESTION.replace("42", "57").replace("19", "23"), None),  # other numbers are another item
        (QUESTION.replace("42", "57"), ("wren", "question")),
        (EDITED, ("wren", "question")),
        (EDITED.replace("42", "57"), None),  # with half of its numbers more of the rest must be there
        ("\n".join(RUNS), ("wren", "question")),
        ("\n".join(f"{run} {filler(20, number)}" for number, run in enumerate(RUNS)), None),  # runs all over a page
        (READING.passage, None),  # a passage never counts without its question
        (f"{READING.passage}\n{READING.question}", ("mill", "item")),
    ],
)
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


def test_the_same_item_in_every_document_is_a_hit_of_each() -> None:
    hits = scan(*[QUESTION] * 20)
    assert [(hit.document, hit.start, hit.end) for hit in hits] == [(number, 0, len(QUESTION) - 1) for number in range(20)]


def test_an_item_said_twice_in_a_document_is_one_hit_at_its_best_place() -> None:
    worse = QUESTION.replace("finally climbed outside", "left then")
    text = f"{worse}\n{filler(300)}\n{QUESTION}\n{filler(300, 1)}\n{QUESTION}"
    [hit] = scan(text)
    assert hit.start == text.index(QUESTION)


@pytest.mark.parametrize("batch_bytes", [500, 1_777, 4_096, 9_999])
def test_batches_do_not_show(monkeypatch: pytest.MonkeyPatch, batch_bytes: int) -> None:
    texts = [
        f"{filler(30 + 7 * number, number)}\n{item.question}\n{filler(40, number + 1)}" for number, item in enumerate([WREN, SHORT] * 12)
    ]
    cut = QUESTION.index("while")
    texts[5:5] = [f"{filler(80)} {QUESTION[:cut]}", f"{QUESTION[cut:]} {filler(80)}"]
    whole = scan_documents(documents(*texts), INDEX, LIMITS)
    assert len({hit.document for hit in whole.hits}) >= 25
    monkeypatch.setattr(scan_module, "BATCH_BYTES", batch_bytes)
    monkeypatch.setattr(scan_module, "CARRIED_BYTES", 3_000)
    in_batches = scan_documents((document for document in documents(*texts)), INDEX, LIMITS)
    assert (in_batches.documents, in_batches.bytes) == (whole.documents, whole.bytes)
    assert [(hit.document, hit.item, hit.part) for hit in in_batches.hits] == [(hit.document, hit.item, hit.part) for hit in whole.hits]


def test_a_long_document_has_the_same_hits_in_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n".join(f"{filler(400, number)}\n{item.question}" for number, item in enumerate([filled_in(9), SHORT, WREN]))
    whole = scan(text)
    assert [hit.item for hit in whole] == ["wren", "lantern"]
    places = [(hit.item, hit.part, hit.start, hit.end, hit.excerpt) for hit in whole]
    monkeypatch.setattr(scan_module, "BATCH_BYTES", text.index(SHORT.question) - 200)
    monkeypatch.setattr(scan_module, "CARRIED_BYTES", 2_000)
    assert [(hit.item, hit.part, hit.start, hit.end, hit.excerpt) for hit in scan(text)] == places


def filled_in(seed: int) -> BenchmarkItem:
    return BenchmarkItem("other", "other", str(seed), filler(20, seed))


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


def test_scans_merge_in_any_order_to_the_same() -> None:
    scans = [
        Scan(documents=2, bytes=20, hits=(hit(1), hit(3, score=0.8, start=9))),
        Scan(documents=3, bytes=30, hits=(hit(3, start=4), hit(3, part="item"))),
        Scan(documents=0, bytes=0, hits=()),
        Scan(documents=1, bytes=10, hits=(hit(3, start=2), hit(0, file="earlier"), hit(1, item="owl"))),
    ]
    expected = Scan(documents=6, bytes=60, hits=(hit(0, file="earlier"), hit(1, item="owl"), hit(1), hit(3, part="item"), hit(3, start=2)))
    assert all(merge_scans(order) == expected for order in permutations(scans))
    assert merge_scans([]) == Scan(documents=0, bytes=0, hits=())


def test_parts_of_a_corpus_scanned_apart_merge_to_the_whole() -> None:
    every = documents(*(f"{filler(200, n)}\n{item.question}\n{filler(200, n + 1)}" for n, item in enumerate([WREN, SHORT] * 4)))
    whole = scan_documents(every, INDEX, LIMITS)
    assert merge_scans([scan_documents(every[4:], INDEX, LIMITS), scan_documents(every[:4], INDEX, LIMITS)]) == whole


def test_of_one_item_the_first_hits_are_kept_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "MAX_HITS_PER_ITEM", 5)
    hits = [hit(number) for number in range(40)] + [hit(number, item="owl") for number in range(3)]
    kept = {
        merge_scans([Scan(documents=1, bytes=1, hits=(each,)) for each in random.Random(seed).sample(hits, len(hits))]).hits
        for seed in range(20)
    }
    [only] = kept
    assert [each.document for each in only if each.item == "wren"] == [0, 1, 2, 3, 4]
    assert [each.document for each in only if each.item == "owl"] == [0, 1, 2]


def test_a_scan_keeps_so_many_hits_of_an_item(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "MAX_HITS_PER_ITEM", 5)
    monkeypatch.setattr(scan_module, "BATCH_BYTES", 1_000)
    monkeypatch.setattr(scan_module, "CARRIED_BYTES", 300)
    result = scan_documents(documents(*[QUESTION] * 40, SHORT.question), INDEX, LIMITS)
    assert [each.document for each in result.hits] == [0, 1, 2, 3, 4, 40]
    assert result.documents == 41


def test_only_the_sibling_that_is_there_is_found() -> None:
    names = ("heron", "magpie", "osprey", "plover", "curlew", "dunnock", "fulmar", "gannet", "kestrel", "linnet", "merlin", "pipit")
    foods = ("barley", "snails", "minnows", "acorns", "beetles", "cherries", "thistles", "mussels", "voles", "clover", "midges", "rye")
    siblings = [
        BenchmarkItem(
            "calls",
            "calls",
            name,
            f"During spring surveys we count how often the {name} eats {food} near {name} ponds; what does that tell us?",
        )
        for name, food in zip(names, foods, strict=True)
    ]
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
    wanted = ("smallest integers", "longest words", "oldest dates", "rarest letters", "widest rows")
    asked = [
        BenchmarkItem(
            "calls", "calls", what, f"Write a function to find the {what} from a given list of values using the heap queue algorithm."
        )
        for what in wanted
    ]
    index = LeakageIndex.build([*asked, WREN])
    assert found(asked[0].question, index=index) == [(0, "smallest integers", "question")]
    assert found(asked[0].question.replace("smallest integers", "largest floats"), index=index) == []
