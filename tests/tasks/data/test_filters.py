"""Filters by field and by text, against a count character by character."""

import shutil
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from phasewise.tasks.data.caches import encode_part
from phasewise.tasks.data.filters import (
    NORMALIZER,
    REASON,
    STRETCH_CHARACTERS,
    FieldFilter,
    LengthBias,
    Normalization,
    TextFilter,
    build_sift,
    digit_percent,
    field_keys,
    normalize,
    special_percent,
)
from phasewise.tasks.data.findings import LeftOut, Record
from phasewise.tasks.data.plan import DataPlan, plan_data
from phasewise.tasks.data.prepare import _parts_to_encode  # pyright: ignore[reportPrivateUsage]  # Dask takes seconds to start
from phasewise.tasks.data.verify import differs_in_code_alone, verify_component
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.identity import digest_of_bytes
from phasewise.trainer.data.cache import TokenCache
from phasewise.trainer.data.manifest import read_manifest
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


@settings(deadline=None)
@given(DRAWN_TEXT)
def test_nothing_is_changed_that_is_not_wished(text: str):
    assert normalize(text, Normalization(unicode=None, line_ends="keep", trailing_spaces="keep")) == text


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


def test_the_version_names_code_and_unicode_tables():
    name, digest, unicode = NORMALIZER.split("+")
    assert (name, len(digest), unicode) == ("nfc-lf-2", 8, f"unicode-{unicodedata.unidata_version}")


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


def test_a_higher_chance_takes_the_same_documents_and_more():
    short, long = ({name for name in names(2_000) if TRINITY.takes(name, tokens)} for tokens in (20_000, 80_000))
    assert short < long


def test_another_seed_takes_others():
    one, other = ({name for name in names(500) if bias.takes(name, 65_536)} for bias in (TRINITY, TRINITY.but(seed=1)))
    assert one - other
    assert other - one


@pytest.mark.parametrize("fields", [{"floor": 0.95}, {"ceiling": 1.5}, {"full_tokens": 0}, {"floor": -0.1}])
def test_what_is_no_chance_is_refused(fields: dict[str, float]):
    with pytest.raises(ValidationError):
        TRINITY.but(**fields)


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


def test_held_out_text_and_other_components_keep_their_caches(biased: DataPlan, own: World):
    plain = plan_with(own, None)
    for name, component in plain.components.items():
        assert biased.components[name].held_out == component.held_out
        assert (biased.components[name].train == component.train) == (name != "web")
    assert biased.components["web"].documents == plain.components["web"].documents


@pytest.mark.parametrize("change", [{"floor": 0.06}, {"ceiling": 0.8}, {"full_tokens": 151}, {"seed": 1}])
def test_every_field_of_it_is_in_the_key(own: World, change: dict[str, float]):
    keys = {plan_with(own, bias).components["web"].train.key for bias in (None, SOME, SOME.but(**change))}
    assert len(keys) == 3


def test_a_cache_of_another_bias_is_found_out(biased: DataPlan, own: World):
    assert verify_component("web", biased, own.home) == []
    other = plan_with(own, SOME.but(ceiling=0.5))
    found = [str(one) for one in verify_component("web", other, own.home)]
    assert any("length_bias changed" in one and "'ceiling': 0.5" in one and "'ceiling': 0.9" in one for one in found)
    manifest = read_manifest(biased.components["web"].train.folder).model_copy(update={"encoder": "older"})
    assert differs_in_code_alone(biased.components["web"], manifest)
    assert not differs_in_code_alone(other.components["web"], manifest)


def test_a_bias_that_takes_nothing_is_refused_with_what_to_do(own: World):
    plan = plan_with(own, LengthBias(floor=0.0, ceiling=1e-9, full_tokens=10**9))
    with pytest.raises(DataError, match=r"its length_bias takes none of \d+: .*full_tokens of 1,000,000,000.*floor of 0"):
        build(plan)


def test_preparation_hands_the_bias_to_every_part(biased: DataPlan):
    web = biased.components["web"]
    calls = _parts_to_encode(biased, [(web, "train"), (biased.components["law"], "train")])
    assert {str(call[0]): call[4] for call in calls} == {
        str(web.documents.folder): SOME,
        str(biased.components["law"].documents.folder): None,
    }


def test_encoding_again_gives_the_same_bytes(biased: DataPlan, tmp_path: Path):
    web = biased.components["web"]
    encode_part(web.documents.folder, 0, biased.tokenizer, {"train": tmp_path}, SOME)
    for name in ("shard-00000.bin", "shard-00000.parquet", "shard-00000.json"):
        assert (tmp_path / name).read_bytes() == (web.train.folder / name).read_bytes()


TEXT = st.text(
    st.one_of(st.sampled_from("a1 .²½Ⅷ٣।़\u00a0日🌳"), st.characters(exclude_categories=["Cs"])), min_size=1, max_size=60
)  # fmt: skip


@settings(deadline=None)
@given(TEXT)
def test_shares_are_those_of_the_characters(text: str):
    digits = sum(character.isdigit() for character in text)
    special = sum(not (character.isalnum() or character.isspace()) for character in text)
    assert digit_percent(text) == 100 * digits / len(text)
    assert special_percent(text) == 100 * special / len(text)


def test_a_long_text_is_measured_in_stretches():
    assert digit_percent("1x" * STRETCH_CHARACTERS + "日11") == 100 * (STRETCH_CHARACTERS + 2) / (2 * STRETCH_CHARACTERS + 3)


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


@pytest.mark.parametrize("fields", [{}, {"metadata": None}, {"metadata": "py"}, {"metadata": {}}])
def test_a_document_without_the_field_is_left_out(fields: dict[str, object]):
    sift = build_sift([FieldFilter(key="metadata.extension", keep=("py",))])
    assert isinstance(sift("text", "row 0", fields), LeftOut)


def test_the_first_filter_that_fails_is_the_reason_and_no_text_is_before_all():
    sift = build_sift([TextFilter(measure="words", min=2), FieldFilter(key="lang", keep=("en",))])
    assert sift("one", "row 0", {}) == LeftOut("filter words", "row 0")
    assert sift("one two", "row 0", {}) == LeftOut("filter field lang", "row 0")
    assert sift("\u00a0\n", "row 0", {}) == sift("", "row 0", {}) == LeftOut("empty text", "row 0")


def test_fields_are_named_once():
    filters = [FieldFilter(key="b", keep=("1",)), TextFilter(measure="words", min=1), FieldFilter(key="a", keep=("1",))]
    assert field_keys([*filters, filters[0]]) == ("b", "a")
