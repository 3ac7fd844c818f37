import math

import numpy as np
import pytest

from phasewise.validations.evidence.leakage import segments as segments_module
from phasewise.validations.evidence.leakage.items import BenchmarkItem
from phasewise.validations.evidence.leakage.segments import ANSWER, CHOICE, PASSAGE, QUESTION, SOLUTION, Segments
from phasewise.validations.evidence.leakage.words import split_words

OWL = BenchmarkItem(
    "birds", "night", "owl", "which bird hunts at night, 1 or 2?", choices=("the owl", "…", "the wren"), answer="the owl",
    solutions=("owls hunt", "an owl hunts an owl at night"), passage="birds",
)  # fmt: skip
WREN = BenchmarkItem("birds", "night", "wren", "which bird sleeps at night?")
EMPTY = BenchmarkItem("birds", "night", "empty", "", choices=("?",))
HERON = BenchmarkItem("birds", "day", "heron", "which bird wades")
ITEMS = [OWL, EMPTY, WREN, HERON]


def hashes(text: str) -> list[int]:
    return split_words(text.encode()).hashes.tolist()


def test_parts_without_words_are_no_segments():
    found = Segments.of(ITEMS)
    assert found.kinds.tolist() == [QUESTION, CHOICE, CHOICE, ANSWER, SOLUTION, SOLUTION, PASSAGE, QUESTION, QUESTION]
    assert found.item_segments.tolist() == [0, 7, 7, 8, 9]
    assert np.diff(found.starts).tolist() == [8, 2, 2, 2, 2, 7, 1, 5, 3]
    assert found.hashes[found.starts[5] : found.starts[6]].tolist() == hashes(OWL.solutions[1])
    assert found.item_of_word.tolist() == [0] * 24 + [2] * 5 + [3] * 3


def test_runs_stay_within_their_segment():
    found = Segments.of(ITEMS)
    runs, lengths = found.runs(4), np.diff(found.starts)
    assert (runs != 0).tolist() == [offset + 4 <= length for length in lengths.tolist() for offset in range(length)]
    repeated = Segments.of([WREN, WREN]).runs(4).tolist()
    assert repeated[:5] == repeated[5:]
    assert len(set(repeated[:2])) == 2


def test_of_an_item_only_so_many_words_are_kept_and_what_is_not_unicode_is_read_too(monkeypatch: pytest.MonkeyPatch):
    assert Segments.of([WREN._replace(question="a broken \ud83d wing")]).hashes.tolist() == hashes("a broken ? wing")
    monkeypatch.setattr(segments_module, "MAX_ITEM_WORDS", 9)
    assert np.diff(Segments.of([OWL, WREN]).starts).tolist() == [8, 1, 5]


def test_an_item_that_repeats_a_feature_holds_it_once():
    assert segments_module.count_holders(np.array([7, 7, 7, 9]), np.array([0, 0, 1, 1], np.int32)).tolist() == [2, 2, 2, 1]


def test_sizes_of_parts():
    found = Segments.of(ITEMS)
    sizes = segments_module.part_sizes(found, np.ones(len(found.hashes), np.float32))
    assert sizes.words.tolist() == [[8, 4, 2, 7, 1], [0] * 5, [5, 0, 0, 0, 0], [3, 0, 0, 0, 0]]
    assert sizes.weights.tolist() == sizes.words.tolist()
    kinds = [QUESTION, CHOICE, ANSWER, PASSAGE]
    assert sizes.distinct[0, kinds].tolist() == [8, 3, 2, 1]
    assert sizes.telling[0, kinds].tolist() == [6, 3, 2, 1]
    assert sizes.telling_with_question[0, kinds].tolist() == [6, 9, 8, 7]
    assert sizes.words.shape == sizes.telling.shape == (len(ITEMS), segments_module.NUM_KINDS)


def test_weights_are_those_of_a_slow_count():
    """Minus the log of the share of items that hold the word, of all or of its task, in units of the mean."""
    names = [("night", "owl"), ("night", "moth"), ("night", "bat"), ("day", "wren"), ("day", "bee"), ("dusk", "toad")]
    texts = [(task, f"{task} template x {n} {name} {'often' if n % 2 else ''}") for n, (task, name) in enumerate(names)]
    items = [BenchmarkItem("b", task, str(n), text) for n, (task, text) in enumerate(texts)]
    found = Segments.of(items)
    words = [set(hashes(item.question)) for item in items]

    def surprise(word: int, task: str) -> float:
        all_share = (sum(word in one for one in words) + 1) / (len(items) + 2)
        of_task = [one for one, item in zip(words, items, strict=True) if item.task == task]
        return -math.log(max(all_share, sum(word in one for one in of_task) / (len(of_task) + 2)))

    surprises = np.array([surprise(word, items[item].task) for word, item in zip(found.hashes.tolist(), found.item_of_word, strict=True)])
    expected = np.maximum(surprises / surprises.mean(), segments_module.MIN_WEIGHT)
    expected = np.where(found.hashes & np.uint64(1), np.minimum(expected, segments_module.MAX_SIGN_WEIGHT), expected)
    weights = segments_module.word_weights(found, [item.task for item in items])
    assert weights.tolist() == pytest.approx(expected.tolist(), rel=1e-5)
    by_word = dict(zip(found.hashes.tolist(), weights.tolist(), strict=True))
    template, night, often, owl, number = (by_word[hashes(word)[0]] for word in ("template", "night", "often", "owl", "4"))
    assert template < often < owl > night
    assert 0 < number <= np.float32(segments_module.MAX_SIGN_WEIGHT)
