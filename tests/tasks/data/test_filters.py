"""Filters by field and by text, against a count character by character."""

import shutil
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.tasks.data.filters import (
    REASON,
    FieldFilter,
    LengthBias,
    Normalization,
    TextFilter,
    build_sift,
    measured,
    normalize,
)
from phasewise.tasks.data.findings import LeftOut, Record
from phasewise.tasks.data.plan import DataPlan, plan_data
from phasewise.tasks.home import Home
from phasewise.trainer.base.identity import digest_of_bytes
from phasewise.trainer.data.cache import TokenCache
from tests.tasks.conftest import VOCAB_SIZE, World
from tests.tasks.data.builds import build_cache

DRAWN_TEXT = st.text(st.one_of(st.sampled_from(" \t\r\n\u00a0\u0301e"), st.characters(exclude_categories=["Cs"])))
WAYS = st.builds(
    Normalization,
    unicode=st.sampled_from(["NFC", None]),
    line_ends=st.sampled_from(["lf", "keep"]),
    trailing_spaces=st.sampled_from(["keep", "strip"]),
)


@settings(deadline=None)
@given(DRAWN_TEXT, WAYS)
def test_a_second_time_changes_nothing(text: str, how: Normalization):
    once = normalize(text, how)
    assert normalize(once, how) == once
    assert how.unicode is None or unicodedata.is_normalized("NFC", once)
    assert how.line_ends == "keep" or "\r" not in once
    assert how.trailing_spaces == "keep" or not any(end in once + "\n" for end in (" \n", "\t\n", " \r", "\t\r"))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, " café \n\nx\t\ny  "),
        ({"unicode": None}, " cafe\u0301 \n\nx\t\ny  "),
        ({"line_ends": "keep"}, " café \r\n\rx\t\ny  "),
        ({"trailing_spaces": "strip"}, " café\n\nx\ny"),
        ({"trailing_spaces": "strip", "line_ends": "keep"}, " café\r\n\rx\ny"),
    ],
)
def test_each_part_is_chosen(changes: dict[str, str], expected: str):
    assert normalize(" cafe\u0301 \r\n\rx\t\ny  ", Normalization.model_validate(changes)) == expected


def test_a_long_run_of_spaces_takes_linear_time():
    text = " " * 3_000_000 + "x"
    assert normalize(text, Normalization(trailing_spaces="strip")) == text


TRINITY = LengthBias(floor=0.01, ceiling=0.90, full_tokens=131_072)
SOME = LengthBias(floor=0.05, ceiling=0.9, full_tokens=150)


def names(count: int) -> list[str]:
    return [digest_of_bytes(str(number).encode()) for number in range(count)]


@pytest.mark.parametrize(
    ("tokens", "chance"), [(0, 0.01), (1, 0.01), (1_456, 0.01), (13_107, 0.09), (65_536, 0.45), (131_072, 0.90), (10**7, 0.90)]
)
def test_the_chance_rises_with_the_length_from_its_floor(tokens: int, chance: float):
    assert TRINITY.chance(tokens) == pytest.approx(chance, rel=1e-3)


@pytest.mark.parametrize("tokens", [10, 20_000, 65_536, 200_000])
def test_documents_are_taken_as_often_as_their_chance_says(tokens: int):
    taken = sum(TRINITY.takes(name, tokens) for name in names(20_000))
    chance = TRINITY.chance(tokens)
    assert abs(taken - 20_000 * chance) < 5 * np.sqrt(20_000 * chance * (1 - chance))


@pytest.fixture
def own(prepared: World, tmp_path: Path) -> World:
    """A home of its own: a cache with a bias would be found by whoever looks for the nearest one."""
    for part in ("tokens", "documents", "tokenizers"):
        shutil.copytree(prepared.home.root / part, tmp_path / part)
    return type(prepared)(Home(tmp_path), prepared.sources)


@pytest.fixture
def biased(own: World) -> DataPlan:
    plan = plan_with(own, SOME)
    build(plan)
    return plan


def build(plan: DataPlan) -> None:
    web = plan.components["web"]
    build_cache(web.documents.folder, "train", plan.tokenizer, web.train.folder, web.train.key, length_bias=web.length_bias)


def plan_with(world: World, bias: LengthBias | None) -> DataPlan:
    sources = {name: world.source(name) for name in ("code", "law", "web")}
    return plan_data(sources, world.home, vocab_size=VOCAB_SIZE, length_bias={} if bias is None else {"web": bias})


def test_a_cache_has_the_documents_that_the_draw_takes_and_counts_the_others(biased: DataPlan, own: World):
    whole = TokenCache.open(plan_with(own, None).components["web"].train.folder)
    cache = TokenCache.open(biased.components["web"].train.folder)
    everything = {one.id: one.tokens.tolist() for one in whole.documents()}
    taken = {name: tokens for name, tokens in everything.items() if SOME.takes(name, len(tokens) - 2)}
    assert 0 < len(taken) < len(everything)
    assert {one.id: one.tokens.tolist() for one in cache.documents()} == taken
    manifest = cache.manifest
    assert manifest.left_out[REASON] == len(everything) - len(taken)
    assert manifest.documents == len(taken)
    assert manifest.text_bytes < whole.manifest.text_bytes
    assert REASON not in whole.manifest.left_out


TEXT = st.text(
    st.one_of(st.sampled_from("a1 .²½Ⅷ٣।़\u00a0日🌳"), st.characters(exclude_categories=["Cs"])), min_size=1, max_size=60
)  # fmt: skip


@settings(deadline=None)
@given(TEXT)
def test_shares_are_those_of_the_characters(text: str):
    digits = sum(character.isdigit() for character in text)
    special = sum(not (character.isalnum() or character.isspace()) for character in text)
    assert measured(text, "digit_percent") == 100 * digits / len(text)
    assert measured(text, "special_percent") == 100 * special / len(text)


@pytest.mark.parametrize(
    ("measure", "text", "value"),
    [
        ("characters", "Grüße", 5),
        ("words", " two\nwords ", 2),
        ("digit_percent", "a1b2٣", 60),
        ("special_percent", "a_b. é", 100 * 2 / 6),
    ],
)
def test_limits_are_within(measure: str, text: str, value: float):
    def is_taken(**limits: float) -> bool:
        each = TextFilter.model_validate({"measure": measure, **limits})
        finding = build_sift([each])(text, "row 0", {})
        assert finding in (Record(text, "row 0"), LeftOut(f"filter {measure}", "row 0"))
        return isinstance(finding, Record)

    assert all((is_taken(min=value), is_taken(max=value), is_taken(min=value, max=value)))
    assert not any((is_taken(min=value + 0.1), is_taken(max=value - 0.1)))


@pytest.mark.parametrize(
    ("value", "keep", "is_taken"),
    [
        ("py", "py", True),
        ("python", "py", False),
        (3, "3", True),
        (True, "true", True),
        (True, "1", False),
        (False, "false", True),
        (1.5, "1.5", True),
        (None, "None", False),
        (["py"], "py", False),
        ({"py": 1}, "py", False),
    ],
)
def test_a_field_must_have_one_of_the_values(value: object, keep: str, is_taken: bool):
    sift = build_sift([FieldFilter(key="metadata.extension", keep=("other", keep))])
    found = sift("text", "row 0", {"metadata": {"extension": value}})
    assert found == (Record("text", "row 0") if is_taken else LeftOut("filter field metadata.extension", "row 0"))


def test_the_first_filter_that_fails_is_the_reason_and_no_text_is_before_all():
    sift = build_sift([TextFilter(measure="words", min=2), FieldFilter(key="lang", keep=("en",))])
    assert sift("one", "row 0", {}) == LeftOut("filter words", "row 0")
    assert sift("one two", "row 0", {}) == LeftOut("filter field lang", "row 0")
    assert sift("\u00a0\n", "row 0", {}) == sift("", "row 0", {}) == LeftOut("empty text", "row 0")
