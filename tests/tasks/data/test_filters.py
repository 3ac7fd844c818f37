import random
import shutil
import unicodedata
from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.near_copies import SHARES, planted, search, templates
from phasewise.tasks.data import findings as module
from phasewise.tasks.data.documents import bucket_ranges, find_copies, finish_documents, read_to_parts, split_texts
from phasewise.tasks.data.filters import REASON, FieldFilter, LengthBias, Normalization, TextFilter, build_sift, measured, normalize
from phasewise.tasks.data.findings import Counting, Fault, Finding, LeftOut, Record, Sample, Tally
from phasewise.tasks.data.listing import fingerprint
from phasewise.tasks.data.near_copies import REMOVED_NAME, find_near_copies, find_removed, read_near_copies
from phasewise.tasks.data.plan import DataPlan, plan_data
from phasewise.tasks.data.prepare import build_missing_caches, make_missing_tokenizer, write_missing_documents
from phasewise.tasks.data.source import Deduplicate, Piece, Source
from phasewise.tasks.data.stand_ins import roots
from phasewise.tasks.data.verify import verify_component
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.identity import digest_of_bytes
from phasewise.trainer.data.cache import TokenCache
from phasewise.trainer.data.manifest import MANIFEST_NAME, read_manifest
from tests.tasks.conftest import VOCAB_SIZE, World, write_lines
from tests.tasks.data.builds import build_cache, bundles

DRAWN_TEXT = st.text(st.one_of(st.sampled_from(" \t\r\n\u00a0\u0301e"), st.characters(exclude_categories=["Cs"])))
WAYS = st.builds(
    Normalization, unicode=st.sampled_from(["NFC", None]), line_ends=st.sampled_from(["lf", "keep"]),
    trailing_spaces=st.sampled_from(["keep", "strip"]),
)  # fmt: skip
TRINITY = LengthBias(floor=0.01, ceiling=0.90, full_tokens=131_072)
SOME = LengthBias(floor=0.05, ceiling=0.9, full_tokens=150)
TEXT = st.text(
    st.one_of(st.sampled_from("a1 .²½Ⅷ٣।़\u00a0日🌳"), st.characters(exclude_categories=["Cs"])), min_size=1, max_size=60
)  # fmt: skip
DOCUMENT = {"text": "x", "metadata": {"extension": "py", "deep": {"er": 3}, "none": None}, "a.b": "dotted", "a": {"b": "inner", "c": "d"}}
SOURCE = Source(url="gs://bucket/web", include=("*.jsonl",), format="jsonl", max_bad_fraction=0.01)
FINDINGS: list[Finding] = [
    Record("x", "byte 0"), Fault("broken JSON", "byte 9", "{"), LeftOut("filter words", "byte 10"), LeftOut("empty text", "byte 20"),
    LeftOut("empty text", "byte 30"), Fault("truncated", "file", "cut", whole_file=True),
]  # fmt: skip
FAULTS = st.builds(
    Fault, st.sampled_from(["broken JSON", "too long"]), st.integers(0, 99).map("byte {}".format), st.just(""),
    st.sampled_from([False] * 9 + [True]),
)  # fmt: skip


@settings(deadline=None)
@given(DRAWN_TEXT, WAYS)
def test_a_second_time_changes_nothing(text: str, how: Normalization):
    once = normalize(text, how)
    assert normalize(once, how) == once
    assert how.unicode is None or unicodedata.is_normalized("NFC", once)
    assert how.line_ends == "keep" or "\r" not in once
    assert how.trailing_spaces == "keep" or not any(end in once + "\n" for end in (" \n", "\t\n", " \r", "\t\r"))


def test_each_part_is_chosen_and_a_long_run_of_spaces_takes_linear_time():
    for changes, expected in (
        ({}, " café \n\nx\t\ny  "), ({"unicode": None}, " cafe\u0301 \n\nx\t\ny  "), ({"line_ends": "keep"}, " café \r\n\rx\t\ny  "),
        ({"trailing_spaces": "strip"}, " café\n\nx\ny"), ({"trailing_spaces": "strip", "line_ends": "keep"}, " café\r\n\rx\ny"),
    ):  # fmt: skip
        assert normalize(" cafe\u0301 \r\n\rx\t\ny  ", Normalization.model_validate(changes)) == expected
    text = " " * 3_000_000 + "x"
    assert normalize(text, Normalization(trailing_spaces="strip")) == text


def test_the_chance_rises_with_the_length_from_its_floor_and_documents_are_taken_as_often_as_it_says():
    chances = {0: 0.01, 1: 0.01, 1_456: 0.01, 13_107: 0.09, 65_536: 0.45, 131_072: 0.90, 10**7: 0.90}
    assert {tokens: TRINITY.chance(tokens) for tokens in chances} == pytest.approx(chances, rel=1e-3)
    for tokens in (10, 20_000, 65_536, 200_000):
        taken, chance = sum(TRINITY.takes(digest_of_bytes(b"%d" % number), tokens) for number in range(20_000)), TRINITY.chance(tokens)
        assert abs(taken - 20_000 * chance) < 5 * np.sqrt(20_000 * chance * (1 - chance))


def plan_with(world: World, bias: LengthBias | None) -> DataPlan:
    sources = {name: world.source(name) for name in ("code", "law", "web")}
    return plan_data(sources, world.home, vocab_size=VOCAB_SIZE, length_bias={} if bias is None else {"web": bias})


def test_a_cache_has_the_documents_that_the_draw_takes_and_counts_the_others(prepared: World, tmp_path: Path):
    for part in ("tokens", "documents", "tokenizers"):  # a cache with a bias would be found by whoever looks for the nearest one
        shutil.copytree(prepared.home.root / part, tmp_path / part)
    own = type(prepared)(Home(tmp_path), prepared.sources)
    plan = plan_with(own, SOME)
    web = plan.components["web"]
    build_cache(web.documents.folder, "train", plan.tokenizer, web.train.folder, web.train.key, length_bias=web.length_bias)
    whole, cache = (TokenCache.open(folder) for folder in (plan_with(own, None).components["web"].train.folder, web.train.folder))
    everything = {one.id: one.tokens.tolist() for one in whole.documents()}
    taken = {name: tokens for name, tokens in everything.items() if SOME.takes(name, len(tokens) - 2)}
    assert 0 < len(taken) < len(everything)
    assert {one.id: one.tokens.tolist() for one in cache.documents()} == taken
    manifest = cache.manifest
    assert (manifest.left_out[REASON], manifest.documents) == (len(everything) - len(taken), len(taken))
    assert manifest.text_bytes < whole.manifest.text_bytes
    assert REASON not in whole.manifest.left_out


@settings(deadline=None)
@given(TEXT)
def test_shares_are_those_of_the_characters(text: str):
    digits = sum(character.isdigit() for character in text)
    special = sum(not (character.isalnum() or character.isspace()) for character in text)
    assert (measured(text, "digit_percent"), measured(text, "special_percent")) == (100 * digits / len(text), 100 * special / len(text))


@pytest.mark.parametrize(
    ("measure", "text", "value"),
    [("characters", "Grüße", 5), ("words", " two\nwords ", 2), ("digit_percent", "a1b2٣", 60), ("special_percent", "a_b. é", 100 * 2 / 6)],
)
def test_limits_are_within(measure: str, text: str, value: float):
    def is_taken(**limits: float) -> bool:
        each = TextFilter.model_validate({"measure": measure, **limits})
        finding = build_sift([each])(text, "row 0", {})
        assert finding in (Record(text, "row 0"), LeftOut(f"filter {measure}", "row 0"))
        return isinstance(finding, Record)

    assert all((is_taken(min=value), is_taken(max=value), is_taken(min=value, max=value)))
    assert not any((is_taken(min=value + 0.1), is_taken(max=value - 0.1)))


@pytest.mark.parametrize(("value", "keep", "is_taken"), [
    ("py", "py", True), (3, "3", True), (True, "true", True), (False, "false", True), (1.5, "1.5", True),
    ("python", "py", False), (True, "1", False), (None, "None", False), (["py"], "py", False), ({"py": 1}, "py", False),
])  # fmt: skip
def test_a_field_must_have_one_of_the_values(value: object, keep: str, is_taken: bool):
    sift = build_sift([FieldFilter(key="metadata.extension", keep=("other", keep))])
    found = sift("text", "row 0", {"metadata": {"extension": value}})
    assert found == (Record("text", "row 0") if is_taken else LeftOut("filter field metadata.extension", "row 0"))


def test_a_dot_reaches_into_an_object_and_the_first_filter_that_fails_is_the_reason_and_no_text_is_before_all():
    sift = build_sift([TextFilter(measure="words", min=2), FieldFilter(key="lang", keep=("en",))])
    assert sift("one", "row 0", {}) == LeftOut("filter words", "row 0")
    assert sift("one two", "row 0", {}) == LeftOut("filter field lang", "row 0")
    assert sift("\u00a0\n", "row 0", {}) == sift("", "row 0", {}) == LeftOut("empty text", "row 0")
    found = {"text": "x", "metadata.extension": "py", "metadata.deep.er": 3, "a.b": "dotted", "a.c": "d", "text.more": module.NOT_AN_OBJECT}
    for key in (*found, "missing", "metadata.missing", "metadata.none.more", "missing.more"):
        assert module.reach(DOCUMENT, key) == found.get(key), key
    assert all(module.reach(document, "text") is module.NOT_AN_OBJECT for document in (["text"], "text", 3, None))


def count(findings: list[Finding], name: str = "a.jsonl", start: int | None = None) -> Tally:
    counting = Counting("web", Piece(name=name, url=name, start=start, stop=None))
    assert list(counting.records(findings)) == [finding for finding in findings if isinstance(finding, Record)]
    return counting.tally


def test_a_piece_is_counted_by_reason():
    assert count(FINDINGS) == Tally(
        files=1, documents=5, bad_documents={"broken JSON": 1}, bad_files={"a.jsonl": "truncated"},
        left_out={"empty text": 2, "filter words": 1},
        samples=(
            Sample(component="web", file="a.jsonl", where="byte 9", reason="broken JSON", sample="{"),
            Sample(component="web", file="a.jsonl", where="file", reason="truncated", sample="cut"),
        ),
    )  # fmt: skip


TALLIES = st.lists(
    st.builds(count, st.lists(FAULTS, max_size=30), st.sampled_from("abc"), st.sampled_from([0, 100])), min_size=1, max_size=5
)


@settings(deadline=None)
@given(TALLIES, st.integers(0, 99))
def test_tallies_add_up_in_any_order(tallies: list[Tally], seed: int):
    total = reduce(add, tallies, Tally())
    shuffled = random.Random(seed).sample(tallies, len(tallies))
    assert reduce(lambda sum_, tally: tally + sum_, shuffled, Tally()) == total
    assert total.documents == sum(tally.documents for tally in tallies) == sum(total.bad_documents.values())
    assert all(sum(sample.reason == reason for sample in total.samples) <= module.MAX_SAMPLES for reason in total.reasons)
    assert {sample.reason for sample in total.samples} >= {*total.bad_documents, *total.bad_files.values()} == set(total.reasons)
    assert Tally.model_validate_json(total.model_dump_json()) == total


def refusal(tally: Tally) -> str:
    with pytest.raises(DataError) as found:
        module.check_readable("web", SOURCE, tally, Path("somewhere"))
    return str(found.value)


def test_a_refusal_says_what_was_required_and_found_where_and_what_to_do_and_each_reason_has_its_remedy():
    tally = count([*FINDINGS, Fault("broken JSON", "byte 70", "{")]) + count([Record("x", "byte 0")], name="b.jsonl")
    text = refusal(tally)
    for part in (
        "component web", "at most 1.0000%", "found 50.0000%", "7 documents in 2 files of gs://bucket/web", "somewhere/quarantine.jsonl",
        "broken JSON, 2 documents, such as a.jsonl, byte 9 ('{'): repair or exclude the file",
        "truncated, 1 file, such as a.jsonl, file ('cut'): fetch the file again",
    ):  # fmt: skip
        assert part in text
    assert "leave_out" not in text
    unread = count([Fault("field of a message that nothing reads", "byte 0", "{}")])
    assert "must be named in the source's conversation.leave_out" in refusal(unread)
    linked = refusal(Tally(files=1, bad_files={"a": "outside the root"}))
    assert "outside the root, 1 file, such as a: the link leads out of the source's folder: name in `url` the folder" in linked
    assert "max_bad_fraction" not in linked
    assert set(module.remedies()) == {*get_args(module.Reason), *get_args(module.NoText)}


WORDS = " ".join(path.read_text(errors="replace") for path in sorted(roots()["stdlib"].glob("[a-d]*.py"))).split()
MIN_FOUND = dict(zip(SHARES, (0.98, 0.95, 0.8), strict=True))


def test_most_planted_copies_are_found(tmp_path: Path):
    sizes, each = (80, 300), 40
    removed, _ = search(planted(WORDS, sizes, each), tmp_path)
    for share, limit in MIN_FOUND.items():
        names = [f"{share} {size} {number}" for size in sizes for number in range(each)]
        found = sum(f"copy {name}" in removed or f"text {name}" in removed for name in names)
        assert found >= limit * len(names), (share, found)
    pairs = {(one.partition(" ")[2], other.partition(" ")[2]) for one, other in removed.items()}
    assert sum(one == other for one, other in pairs) >= 0.98 * len(pairs)


def test_pages_of_one_template_stay_apart(tmp_path: Path):
    shares, pages = (0.3, 0.5, 0.6, 0.7, 0.8), (5, 60)
    removed, _ = search(templates(WORDS, shares, pages), tmp_path)
    assert len(removed) <= 0.01 * len(shares) * sum(pages), removed


def build(source: Source, folder: Path, order: Callable[[list[Any]], Sequence[Any]], max_part_bytes: int) -> dict[str, bytes]:
    listing = fingerprint(source)
    records = [read_to_parts(bundle, max_part_bytes, folder) for bundle in bundles(source, listing)]
    kept = [find_copies(folder, ranges, bucket) for bucket, ranges in enumerate(bucket_ranges(records))]

    def run(_: str, function: Callable[..., object], calls: Sequence[tuple[object, ...]]) -> None:
        for call in order(list(calls)):
            function(*call)

    kept.append(find_near_copies("web", records, folder, evidence=folder / "evidence", num_buckets=len(kept), run=run))
    finish_documents("web", source, listing, records, kept, folder)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_order_of_the_work_decides_nothing_and_no_file_of_the_search_stays(tmp_path: Path):
    texts = [text for _, text in planted(WORDS, (60,), 20)]
    for number in range(3):
        write_lines(tmp_path / "in" / f"{number}.jsonl", [*texts[number::3], texts[number]])
    source = Source(url=(tmp_path / "in").as_uri(), include=("*",), format="jsonl", deduplicate="near")
    found = build(source, tmp_path / "a", list, 1 << 20)
    assert build(source, tmp_path / "b", lambda calls: calls[::-1], 1 << 20) == found
    assert {Path(name).suffix for name in found} == {".parquet", ".digests", ".json", ".bin"}
    assert {name for name in found if name.endswith(".bin")} == {"copies.bin"}
    small = build(source, tmp_path / "c", lambda calls: random.Random(0).sample(calls, len(calls)), 4000)
    assert small[f"evidence/{REMOVED_NAME}"] == found[f"evidence/{REMOVED_NAME}"]


def plan_of(folder: Path, deduplicate: Deduplicate | None) -> DataPlan:
    source = Source(url=(folder / "web").as_uri(), include=("*.jsonl",), format="jsonl", deduplicate=deduplicate)
    plan = plan_data({"web": source}, Home.open(str(folder / "home")), vocab_size=VOCAB_SIZE)
    write_missing_documents(plan)
    make_missing_tokenizer(plan, VOCAB_SIZE, None)
    build_missing_caches(plan)
    assert verify_component("web", plan, Home.open(str(folder / "home"))) == []
    return plan


@pytest.mark.usefixtures("on_scheduler")
def test_a_component_chooses_its_search_and_the_evidence_names_each_document_that_is_left_out(tmp_path: Path):
    rows = planted(WORDS, (80,), 30)
    texts = [text for _, text in rows]
    write_lines(tmp_path / "web" / "0.jsonl", [*texts, *texts[:7]])
    exact, near, none = (plan_of(tmp_path, one).components["web"] for one in ("exact", "near", None))
    assert len({one.documents.key for one in (exact, near, none)}) == 3
    manifests = [read_manifest(one.train.folder) for one in (exact, near, none)]
    assert ["deduplicate" in manifest.source for manifest in manifests] == [False, True, True]
    found = read_near_copies(near)
    assert found is not None
    assert (read_near_copies(exact), found.documents) == (None, len(texts) + 7)
    assert [manifest.left_out["copy"] for manifest in manifests] == [7, 7 + found.near_copies, 0]
    counts = [sum(1 for split in ("train", "held_out") for _ in split_texts(one.documents.folder, split)) for one in (exact, near, none)]
    assert counts == [len(texts), len(texts) - found.near_copies, len(texts) + 7]
    assert found.near_copies >= 0.9 * len(texts) / 2
    assert 0 < len(found.samples) <= 20
    listed = pq.read_table(near.near_copies / REMOVED_NAME).to_pylist()
    kept = {str(name) for split in (near.train, near.held_out) for path in split.folder.glob("*.parquet") for name in ids_of(path)}
    assert len(listed) == found.near_copies
    assert all(row["id"] not in kept and row["kept_id"] in kept and row["similarity"] > 0.7 for row in listed)
    assert find_removed(near, "id", [listed[0]["id"][:8]]) == [listed[0]]
    assert (find_removed(near, "id", ["f" * 64]), find_removed(exact, "id", [listed[0]["id"]])) == ([], [])
    (near.near_copies / REMOVED_NAME).write_bytes(b"other")
    with pytest.raises(DataError, match="was changed after it was written"):
        find_removed(near, "id", [listed[0]["id"]])
    (near.near_copies / MANIFEST_NAME).write_text("{}")
    with pytest.raises(DataError, match="does not read"):
        read_near_copies(near)
    shutil.rmtree(near.near_copies)
    plan_of(tmp_path, "near")
    assert read_near_copies(near) == found


def ids_of(path: Path) -> list[Any]:
    return pq.read_table(path, columns=["id"])["id"].to_pylist()
