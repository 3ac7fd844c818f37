from collections import defaultdict
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.validations.evidence.leakage.index import SEED_WORDS, LeakageIndex
from phasewise.validations.evidence.leakage.items import BenchmarkItem
from phasewise.validations.evidence.leakage.match import SLACK_WORDS, WINDOW_PER_ITEM
from phasewise.validations.evidence.leakage.prefilter import find_seeds
from phasewise.validations.evidence.leakage.rules import ALIKE, MIN_EACH, MIN_NUMBERS, MIN_NUMBERS_SHARE, NEVER, PARTS, Rules, build_rules
from phasewise.validations.evidence.leakage.scan import CLEARLY_BETTER, Document, scan_documents
from phasewise.validations.evidence.leakage.segments import ANSWER, CHOICE, PASSAGE, QUESTION, SOLUTION
from phasewise.validations.evidence.leakage.words import split_words
from phasewise.validations.limits import LeakageLimits

LIMITS = LeakageLimits(min_words=13, min_score=0.7, min_copy_share=0.8, max_items=0)
KEEPER = BenchmarkItem(
    "shore", "shore", "keeper",
    "the keeper of the lighthouse counted 47 gulls upon the rocks before breakfast on tuesday and 35 more near whitby after lunch with 6 "
    "cormorants among them so how many gulls did he see",
    choices=("exactly enough tame young birds", "fewer than forty wet gulls", "none because fog hid every rock"),
    answer="enough tame",
    solutions=(
        "both flocks together are 47 + 35 = 82 of which 6 were cormorants hence 82 - 6 = 76 remain for the damp ledger",
        "leave out the black divers first then add what was tallied at dawn to what flew past later that day giving 76",
    ),
)  # fmt: skip
FERRY = BenchmarkItem(
    "shore", "shore", "ferry", "does the northern ferry accept bicycles", answer="yes",
    passage="vessels of our northern line carry passengers bicycles and small livestock between granite quays and outer isles all summer",
)  # fmt: skip
PLAIN = BenchmarkItem(
    "shore", "shore", "plain",
    "which of these shells did the retired harbour pilot trade for a brass sextant when the salt merchants anchored off the eastern spit",
    choices=("speckled cowrie", "ribbed cockle", "chipped limpet"), answer="ribbed cockle",
)  # fmt: skip
WEEDS = [BenchmarkItem("weeds", "weeds", str(n), f"the {n} of bladder wrack and dulse number {n} on a tuesday") for n in range(9)]
ITEMS = [KEEPER, FERRY, *WEEDS, PLAIN]
FILLERS = ("heron", "otter", "9", "quince")


class Part(NamedTuple):
    kind: int
    words: list[str]
    weights: list[float]


class Found(NamedTuple):
    """Of a part: weight found and in all, words found and in all, numbers found and in all."""

    counts: tuple[float, ...]

    @property
    def share(self) -> float:
        weight, all_weight, words, all_words, numbers, all_numbers = self.counts
        others_numbers = all_numbers >= MIN_NUMBERS and numbers < MIN_NUMBERS_SHARE * all_numbers
        return 0.0 if others_numbers or not all_words else min(weight / all_weight, words / all_words)


@pytest.fixture(scope="module")
def index() -> LeakageIndex:
    return LeakageIndex.build(ITEMS)


@pytest.fixture(scope="module")
def rules(index: LeakageIndex) -> Rules:
    return build_rules(index, LIMITS)


def words_of(text: str) -> list[str]:
    return [word for word in text.split() if word.isalnum()]


def parts_of(item: int, index: LeakageIndex) -> list[Part]:
    said = ITEMS[item]
    texts = [(QUESTION, said.question), *((CHOICE, text) for text in said.choices), (ANSWER, said.answer)]
    texts += [*((SOLUTION, text) for text in said.solutions), (PASSAGE, said.passage)]
    weights = iter(index.weights[index.item_of_word == item].tolist())
    return [Part(kind, part, [next(weights) for _ in part]) for kind, text in texts if (part := words_of(text))]


def count(part: Part, text: list[str]) -> Found:
    """Slowly: a word is found where it is in the text beside a neighbour that it has in the part, before or behind."""
    pairs = {frozenset(pair) if len(set(pair)) > 1 else pair for pair in pairwise(text)}
    is_found = [len(part.words) == 1 and part.words[0] in text] * len(part.words)
    for at, pair in enumerate(pairwise(part.words)):
        if (frozenset(pair) if len(set(pair)) > 1 else pair) in pairs:
            is_found[at] = is_found[at + 1] = True
    numbers = [word for word in part.words if word.isdigit()]
    weight = sum(np.float64(weight) for weight, here in zip(part.weights, is_found, strict=True) if here)
    return Found((weight, sum(part.weights), sum(is_found), len(part.words), sum(word in text for word in numbers), len(numbers)))


def expected(item: int, text: list[str], index: LeakageIndex, rules: Rules) -> dict[str, float]:
    of_kind: dict[int, list[Found]] = defaultdict(list)
    for part in parts_of(item, index):
        of_kind[part.kind].append(count(part, text))
    best = {kind: max(found, key=lambda one: one.share) if kind == SOLUTION else total(found) for kind, found in of_kind.items()}
    scores: dict[str, float] = {}
    for kind, found in best.items():
        assert rules.alone[item, kind] in (NEVER, ALIKE), "a part that must stand word for word needs another reference"
        if rules.alone[item, kind] == ALIKE and found.share >= rules.alone_scores[item, kind]:
            part = PARTS[min(kind, ANSWER)]
            scores[part] = max(scores.get(part, 0), found.share)
    if not scores:
        for kind, found in best.items():
            both = total([best[QUESTION], found])
            is_each = min(best[QUESTION].share, found.share) >= MIN_EACH
            if kind != QUESTION and rules.together[item, kind] == ALIKE and is_each and both.share >= rules.together_scores[item, kind]:
                scores["item"] = max(scores.get("item", 0), both.share)
    return scores


def total(found: list[Found]) -> Found:
    return Found(tuple(map(sum, zip(*(one.counts for one in found), strict=True))))


def runs_of(words: list[str]) -> list[tuple[str, ...]]:
    return list(zip(*(words[offset:] for offset in range(SEED_WORDS)), strict=False))


def pieces_of(item: BenchmarkItem) -> st.SearchStrategy[list[str]]:
    """Runs of an item's words, whole parts among them, each once, and fillers, in any order."""
    parts = [words_of(text) for text in (item.question, *item.choices, *item.solutions, item.passage) if text]
    ends = [st.tuples(st.integers(0, len(part) // 3), st.integers(len(part) // 2, len(part))) for part in parts]
    cuts = [end.map(lambda cut, part=part: part[cut[0] : cut[1]]) for part, end in zip(parts, ends, strict=True)]
    pieces = [*(st.one_of(st.just(part), cut, st.just([])) for part, cut in zip(parts, cuts, strict=True)), *[st.sampled_from(FILLERS)] * 3]
    drawn = st.tuples(*pieces).flatmap(lambda found: st.permutations([[one] if isinstance(one, str) else one for one in found]))
    return drawn.map(lambda found: [word for piece in found for word in piece])


@settings(deadline=None, max_examples=70)
@given(data=st.data())
@pytest.mark.parametrize("item", [0, 1])
def test_what_is_found_and_its_score(item: int, data: st.DataObject, index: LeakageIndex, rules: Rules):
    window = SLACK_WORDS + int(WINDOW_PER_ITEM * sum(len(part.words) for part in parts_of(item, index)))
    text = data.draw(pieces_of(ITEMS[item]))[:window]
    seeds = {run for part in parts_of(item, index) if part.kind != PASSAGE for run in runs_of(part.words)}
    is_candidate = sum(run in seeds for run in runs_of(text)) >= rules.seeds[item]
    wanted = expected(item, text, index, rules) if is_candidate else {}
    hits = {hit.part: hit for hit in scan_documents([Document("f", 0, "a", " ".join(text).encode())], index, LIMITS).hits}
    clearly = {part: score for part, score in wanted.items() if score > max(wanted.values()) - CLEARLY_BETTER}
    assert set(clearly) <= set(hits) <= set(wanted), "a part that another one overshadows may go"
    assert {part: hit.score for part, hit in hits.items()} == pytest.approx({part: wanted[part] for part in hits}, abs=1e-4)


@pytest.mark.parametrize(("text", "expected_part"), [
    (KEEPER.question, "question"), (KEEPER.solutions[0], "answer"), (f"{FERRY.question} {FERRY.passage}", "item"), (FERRY.passage, None),
    (KEEPER.question.replace("47", "58").replace("35", "61").replace("6", "9"), None),
])  # fmt: skip
def test_the_reference_says_what_is_meant(text: str, expected_part: str | None, index: LeakageIndex, rules: Rules):
    item = 1 if "ferry" in text or "vessels" in text else 0
    scores = expected(item, words_of(text), index, rules)
    assert list(scores) == ([expected_part] if expected_part else [])
    assert [hit.part for hit in scan_documents([Document("f", 0, "a", text.encode())], index, LIMITS).hits] == list(scores)


@settings(deadline=None, max_examples=25)
@given(data=st.data(), before=st.integers(0, 1500), behind=st.integers(0, 1500))
@pytest.mark.parametrize("item", [KEEPER, FERRY, PLAIN])
def test_a_long_document_has_the_hits_of_its_pieces(
    item: BenchmarkItem, data: st.DataObject, before: int, behind: int, index: LeakageIndex
):
    words = data.draw(pieces_of(item))
    alone = scan_documents([Document("f", 0, "a", " ".join(words).encode())], index, LIMITS).hits
    padded = " ".join([*["filler"] * before, *words, *["padding"] * behind]).encode()
    within = scan_documents([Document("f", 0, "a", padded)], index, LIMITS).hits
    assert [(hit.item, hit.part, hit.score) for hit in within] == [(hit.item, hit.part, hit.score) for hit in alone]


@settings(deadline=None, max_examples=40)
@given(pieces_of(KEEPER))
def test_every_rare_run_is_found_where_it_is(index: LeakageIndex, words: list[str]):
    words = [*words, *ITEMS[-1].question.split()]
    of_items = [(word, run) for item in range(len(ITEMS)) for word, run in seeds_of(item, index)]
    wanted = sorted((place, word) for place, run in enumerate(runs_of(words)) for word, of_item in of_items if run == of_item)
    found_words, found_places = np.empty(400, np.int32), np.empty(400, np.int32)
    tables = (index.seed_hashes, index.seed_words, index.seed_buckets, index.seed_filter)
    block = (np.empty(7, np.uint64), np.empty(7, np.bool_))
    number = find_seeds(split_words(" ".join(words).encode()).hashes, *tables, found_words, found_places, block)
    assert sorted(zip(found_places[:number].tolist(), found_words[:number].tolist(), strict=True)) == wanted


def seeds_of(item: int, index: LeakageIndex) -> list[tuple[int, tuple[str, ...]]]:
    kept, first = set(index.seed_words.tolist()), int(np.flatnonzero(index.item_of_word == item)[0])
    runs: list[tuple[int, tuple[str, ...]]] = []
    for part in parts_of(item, index):
        runs += [(first + at, run) for at, run in enumerate(runs_of(part.words)) if first + at in kept]
        first += len(part.words)
    return runs


@pytest.mark.parametrize(("texts", "places"), [
    ((KEEPER.question, KEEPER.solutions[0]), {"question": 0, "answer": 1}),
    ((KEEPER.solutions[1], KEEPER.question), {"question": 1, "answer": 0}),
    ((" ".join(KEEPER.choices), KEEPER.question), {"question": 1, "choices": 0}),
])  # fmt: skip
def test_each_part_is_found_in_the_document_in_which_it_is(texts: tuple[str, str], places: dict[str, int], index: LeakageIndex):
    documents = [Document("f", number, str(number), text.encode()) for number, text in enumerate(texts)]
    hits = scan_documents(documents, index, LIMITS).hits
    assert {hit.part: hit.document for hit in hits} == places
    assert all((hit.start, hit.end) == (0, len(texts[hit.document])) and hit.excerpt for hit in hits)
