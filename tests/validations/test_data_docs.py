import re
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any
from urllib.parse import unquote

import pytest

from phasewise.tasks.report import html
from phasewise.tasks.report.html import Card, build_data_docs
from phasewise.validations import reevaluate
from phasewise.validations.expectations.suites import SUITES
from phasewise.validations.reevaluate import judge_again
from phasewise.validations.verdict import Verdict
from tests.validations.report.samples import HOSTILE, LEAK, SAMPLE_SUITE, STALE, evidence, judged, known_test_file, register

VOID = {"meta", "link", "br", "wbr"}


class Page(HTMLParser):
    """What a browser makes of a page: its text, its links and ids, every tag with its attributes."""

    def __init__(self, path: Path):
        super().__init__()
        self.texts: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        assert self.open == [], path
        self.text = " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]):
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str):
        assert self.open.pop() == tag

    def handle_data(self, data: str):
        self.texts.append(data)

    def values(self, name: str) -> list[str]:
        return [value for attribute, value in self.attributes if attribute == name]


@pytest.fixture(autouse=True)
def sample_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reevaluate, "_judged", {})
    register(monkeypatch)


@pytest.fixture
def bison(tmp_path: Path) -> Verdict:
    return judged("marin-32b/proxy/bison data", evidence(leaked=1319, stale=1, like_tests=2, excerpt=HOSTILE), tmp_path / "bison")


@pytest.fixture
def mantis(tmp_path: Path) -> Verdict:
    return judged("marin-32b/proxy/mantis data", evidence(), tmp_path / "mantis")


def pages_of(index: Path) -> Iterator[tuple[Path, Page]]:
    return ((path, Page(path)) for path in index.parent.rglob("*.html"))


def broken_links(index: Path) -> list[str]:
    found: list[str] = []
    for path, page in pages_of(index):
        for link in page.values("href"):
            file, _, place = unquote(link).partition("#")
            target = path.parent / file if file else path
            if not target.is_file() or (place and place not in Page(target).values("id")):
                found.append(f"{path.name}: {link}")
    return found


def test_the_index_says_first_what_failed_where_and_what_to_do(bison: Verdict, mantis: Verdict, tmp_path: Path):
    text = Page(build_data_docs(tmp_path / "docs", [mantis, bison])).text
    for reported in (
        ("1 of 2 verdicts passed, 1 failed: 7 of 10 checks passed, 2 failed, 1 warning.", "bison data", STALE, "1 file differs",
         "0 files differ", "tokens/math/", "Run phasewise data prepare again."),
        (LEAK, "are named like a test split", "1 verdict passed", "✓ passed mantis data"),
    ):  # fmt: skip
        places = [text.index(part) for part in reported]
        assert places == sorted(places)


def test_thousands_of_leaked_items_are_folded_counted_and_begun(bison: Verdict, tmp_path: Path):
    index = build_data_docs(tmp_path / "docs", [bison])
    html = index.read_text()
    assert "1,319 rows of leaked_items, the first 10" in html
    assert [f"test-{number:04}" in html for number in (0, 9, 10)] == [True, True, False]
    (items,) = index.parent.glob("*/leaked_items.html")
    assert "300 of 1,319 rows are shown; ✗ 1,319 fail , shown first" in Page(items).text
    assert items.read_text().count("✗ fails") == 300


def test_every_link_leads_somewhere_also_when_built_again_with_less(bison: Verdict, mantis: Verdict, tmp_path: Path):
    first = build_data_docs(tmp_path / "docs", [bison, mantis])
    assert broken_links(first) == []
    assert len(list(pages_of(first))) == 1 + 2 * 3 + 2 * 2
    older = first.parent / "validations" / "older" / "page.html"
    older.parent.mkdir(parents=True)
    older.write_text("left by an older report")
    again = build_data_docs(tmp_path / "docs", [mantis])
    assert again == first == tmp_path / "docs" / "index.html"
    assert broken_links(again) == []
    assert len(list(pages_of(again))) == 1 + 3 + 2
    assert not (first.parent / "validations").exists()


def test_nothing_is_fetched_and_no_text_of_the_data_becomes_markup(bison: Verdict, tmp_path: Path):
    hostile = judged(HOSTILE, evidence(stale=1), tmp_path / "hostile")
    index = build_data_docs(tmp_path / "docs", [bison, hostile])
    for path, page in pages_of(index):
        assert not {"script", "img", "iframe", "object", "base", "form"} & set(page.tags), path
        assert not [name for name, _ in page.attributes if name.startswith("on") or name in ("src", "style")], path
        assert not [link for link in page.values("href") if "//" in link], path
        assert "default-src 'none'" in path.read_text()
    assert not re.search(r"url\(|@import", (index.parent / "style.css").read_text())
    assert "<script>alert(1)</script>" in Page(index).text


def test_rows_that_fail_are_marked_for_each_verdict_by_its_own_evidence(bison: Verdict, mantis: Verdict, tmp_path: Path):
    index = build_data_docs(tmp_path / "docs", [bison, mantis])
    of = {(path.parent.name.split("-")[3], path.stem): page.text for path, page in pages_of(index) if path.parent != index.parent}
    assert re.findall(r"✗ fails (\d+) math (\w+)", of["bison", "leakage"]) == [("1", "gsm8k")]
    assert of["bison", "leakage"].index("gsm8k") < of["bison", "leakage"].index("mmlu")
    assert "✗" not in of["mantis", "leakage"]
    assert "✗ fails No test item is in the training data." in of["bison", "leakage-expectations"]
    assert "✓ passes No test item is in the training data." in of["mantis", "leakage-expectations"]


def test_of_several_verdicts_on_one_subject_the_last_counts_and_subjects_that_read_alike_have_their_own_pages(tmp_path: Path):
    subjects = ["a/b c", "a b/c", "x" * 300, "x" * 301]
    verdicts = [judged(subject, evidence(), tmp_path / f"e{i}") for i, subject in enumerate(subjects)]
    index = build_data_docs(tmp_path / "docs", [judged(subjects[0], evidence(stale=1), tmp_path / "older"), *verdicts])
    assert "4 of 4 verdicts passed: 20 of 20 checks passed." in Page(index).text
    assert len([path for path in index.parent.iterdir() if path.is_dir()]) == 4
    assert broken_links(index) == []
    assert "Nothing was judged." in Page(build_data_docs(tmp_path / "docs", [])).text


def test_evidence_that_is_gone_or_changed_is_said_to_be_so(bison: Verdict, mantis: Verdict, tmp_path: Path):
    (tmp_path / "bison" / "leakage.parquet").unlink()
    evidence(stale=1)["caches"].to_parquet(tmp_path / "mantis" / "caches.parquet")
    index = build_data_docs(tmp_path / "docs", [bison, mantis])
    text = Page(index).text
    for said in (
        STALE, "leakage – – – not there any more", "has changed since the verdict was given",
        "the evidence cannot be judged again (the table leakage is missing, or has changed since the verdict was given)",
    ):  # fmt: skip
        assert said in text
    assert broken_links(index) == []


def test_the_same_evidence_is_put_before_the_library_once_and_any_other_again(bison: Verdict, monkeypatch: pytest.MonkeyPatch):
    tables = evidence(leaked=1)
    judged_once = judge_again(bison, tables)
    assert judge_again(bison, {name: table.copy() for name, table in tables.items()}) is judged_once
    assert not judged_once.tables["leakage"].passes
    assert judge_again(bison, evidence(leaked=0)).tables["leakage"].passes
    assert judge_again(bison.but(subject="of another"), tables) is not judged_once
    checks = SAMPLE_SUITE.checks(bison.thresholds, tables)
    lenient = (*checks[:-1], replace(checks[-1], arguments={**checks[-1].arguments, "limit": 1}))
    monkeypatch.setitem(SUITES, SAMPLE_SUITE.name, replace(SAMPLE_SUITE, checks=lambda thresholds, tables: lenient))
    assert judge_again(bison, tables).tables["leakage"].passes


def test_a_verdict_of_another_time_still_has_its_report(bison: Verdict, tmp_path: Path):
    older = bison.but(thresholds={"min_containment": 0.5})
    index = build_data_docs(tmp_path / "docs", [older, bison.but(suite="forgotten")])
    text = Page(index).text
    assert text.count(STALE) == 2
    assert "ValueError: thresholds of another time" in text
    assert "KeyError: 'forgotten'" in text
    assert broken_links(index) == []


def test_two_builders_at_once_leave_one_whole_report(bison: Verdict, mantis: Verdict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    index = build_data_docs(tmp_path / "docs", [bison, mantis])
    meeting, met, write_index = Barrier(2), list[str](), html.index_page

    def wait_for_another(cards: Sequence[Card]) -> str:
        with suppress(BrokenBarrierError):  # nobody comes: the other one waits outside
            meeting.wait(timeout=0.3)
            met.append("two builders were at work")
        return write_index(cards)

    monkeypatch.setattr(html, "index_page", wait_for_another)
    with ThreadPoolExecutor(2) as pool:
        builds = [pool.submit(build_data_docs, index.parent, verdicts) for verdicts in ([bison], [bison, mantis]) * 2]
        seen = [index.read_text()]
        while wait(builds, timeout=0.01).not_done:
            seen.append(index.read_text())
        assert {build.result() for build in builds} == {index}
    assert met == []
    assert all(page.startswith("<!DOCTYPE html>") and page.endswith("</html>") for page in seen)
    assert broken_links(index) == []
    assert len(list(pages_of(index))) in (1 + 3 + 2, 1 + 2 * 3 + 2 * 2)
    assert {path.suffix for path in index.parent.rglob("*") if path.is_file() and path.name != ".lock"} == {".html", ".css"}


def test_building_asks_nothing_of_the_network(bison: Verdict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*address: object) -> None:
        raise AssertionError(f"the network was asked for {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert "the evidence cannot be judged again" not in build_data_docs(tmp_path / "docs", [bison]).read_text()


CHANGED = "has changed since the verdict was given"


def accepting(tmp_path: Path, tables: dict[str, Any], *accepted: str) -> tuple[Verdict, dict[str, str]]:
    """A verdict on the tables, the recipe accepting files named like tests of some components, and its pages' texts by name."""
    verdict = judged("marin-32b/proxy/bison data", tables, tmp_path / "evidence", *map(known_test_file, accepted))
    return verdict, {path.stem: page.text for path, page in pages_of(build_data_docs(tmp_path / "docs", [verdict]))}


def test_rows_that_the_recipe_accepts_are_marked_so_and_fail_nothing(tmp_path: Path):
    verdict, pages = accepting(tmp_path, evidence(like_tests=2, components=2), "math", "web-1")
    assert verdict.counts.words == "passed: 4 of 5 checks, 1 warning accepted by the recipe"
    assert "Accepted by the recipe 2 files of component math are named like a test split. The record reads them" in pages["index"]
    assert "caches 2 0 2 rows" in pages["index"], "of two rows none fails and two are accepted"
    assert CHANGED not in pages["index"]
    assert "none is marked as failing; ✓ 2 accepted by the recipe" in pages["caches"]
    assert re.findall(r"✓ accepted (\d) ", pages["caches"]) == ["0", "1"]
    assert "✗" not in pages["caches"]
    assert "Not every expectation is met; the recipe accepts what was found." in pages["caches-expectations"]


def test_what_nobody_accepts_is_marked_beside_what_the_recipe_accepts(tmp_path: Path):
    verdict, pages = accepting(tmp_path, evidence(like_tests=2, components=2), "math")
    assert verdict.counts.words == "passed with 1 warning: 4 of 5 checks"
    assert "caches 2 1 1 rows" in pages["index"]
    assert pages["caches"].index("✗ fails 1 web-1") < pages["caches"].index("✓ accepted 0 math")
    assert "Not every expectation is met. The rows" in pages["caches-expectations"]
    (tmp_path / "other").mkdir()
    _, pages = accepting(tmp_path / "other", evidence(like_tests=1, stale=1), "math")
    assert "caches 1 1 0 rows" in pages["index"], "a row that also fails is shown as failing"
    assert "accepted by the recipe" in pages["index"]


def test_evidence_that_is_no_longer_covered_has_changed_and_a_broken_check_is_not_settled_by_what_is_accepted(tmp_path: Path):
    tables = evidence(like_tests=2)
    verdict, _ = accepting(tmp_path, tables, "math")
    tables["caches"].assign(component="web").to_parquet(tmp_path / "evidence" / "caches.parquet")
    assert CHANGED in Page(build_data_docs(tmp_path / "docs", [verdict])).text
    _, pages = accepting(tmp_path, tables | {"caches": tables["caches"].drop(columns="stale_files")}, "math")
    assert "✗ Not every expectation is met. The rows" in pages["caches-expectations"]
    assert CHANGED not in pages["index"]
