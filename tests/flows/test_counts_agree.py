import html
import io
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from phasewise.flows.cli.terminal import print_summary
from phasewise.flows.recipes import load_recipe
from phasewise.flows.resolved import Resolved
from phasewise.flows.status import summary
from phasewise.flows.status.phase_status import PhaseRecord
from phasewise.tasks.home import Home
from phasewise.tasks.report.contents import Report
from phasewise.tasks.report.html import build_data_docs, render
from phasewise.tasks.report.sections import report_markdown
from phasewise.validations.failures import as_markdown, lines_of
from phasewise.validations.verdict import CheckCounts, Verdict, sum_counts
from tests.validations.report.samples import evidence, judged, known_test_file, register

RECIPE = load_recipe("marin-32b", "proxy")
SENTENCE = re.compile(
    r"(?:passed with (?P<first>\d+) warnings?: )?(?P<passed>\d+) of (?P<total>\d+) checks(?: passed)?(?:, (?P<failed>\d+) failed)?"
    r"(?:, (?P<broken>\d+) could not be made)?(?:, (?P<warned>\d+) warnings?(?! accepted))?"
    r"(?:, (?P<accepted>\d+) warnings? accepted by the recipe)?"
)
ROW_WORD = re.compile(r"(?:✓|!|✗) (passed|accepted|warning|failed|could not be made)")
EXPECTED = {
    "phase-1 data": CheckCounts(passed=4, accepted=1), "phase-1 training": CheckCounts(passed=5),
    "phase-1 model": CheckCounts(passed=4, warned=1), "qk-norm data": CheckCounts(passed=2, failed=2, warned=1),
    "bison data": CheckCounts(passed=3, accepted=1, broken=1),
}  # fmt: skip
ALL = CheckCounts(passed=18, accepted=2, warned=2, failed=2, broken=1)
VERDICTS_TOLD = "3 of 5 verdicts passed, 1 of them with warnings, 2 failed"


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verdict]:
    known, folder = known_test_file(), tmp_path_factory.mktemp("evidence")
    broken = evidence(like_tests=1)
    tables = {
        "phase-1 data": evidence(like_tests=2), "phase-1 training": evidence(), "phase-1 model": evidence(like_tests=1, components=2),
        "qk-norm data": evidence(stale=1, leaked=2, like_tests=1),
        "bison data": broken | {"caches": broken["caches"].drop(columns="stale_files")},
    }  # fmt: skip
    accepts = {name: () if name == "qk-norm data" else (known, known_test_file("never-there")) for name in tables}
    return {name: judged(f"marin-32b/proxy/{name}", table, folder / name, *accepts[name]) for name, table in tables.items()}


@pytest.fixture
def records(verdicts: dict[str, Verdict]) -> list[PhaseRecord]:
    done: dict[str, Any] = {"final_loss": 1.0, "macro_bits_per_byte": 1.0}
    phase_1, qk_norm, bison = RECIPE.phases[:3]
    data, training, model = (verdicts[f"phase-1 {what}"] for what in ("data", "training", "model"))
    return [
        PhaseRecord(phase_1, None, data, training, done, done, model),
        PhaseRecord(qk_norm, None, verdicts["qk-norm data"], None, None, None, None),
        PhaseRecord(bison, None, verdicts["bison data"], None, None, None, None),
    ]


@pytest.fixture
def said(records: list[PhaseRecord], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[dict[str, Any], Report]:
    monkeypatch.setattr(summary, "read_records", lambda _resolved: records)
    monkeypatch.setattr(summary, "read_baselines", lambda *_: {})
    plan = SimpleNamespace(components={}, benchmark_components=())
    fields = {"recipe": RECIPE, "recipe_name": RECIPE.name, "options": "--scale proxy", "plan": plan}
    resolved = cast(Resolved, SimpleNamespace(home=Home.open(str(tmp_path)), **fields))
    return summary.run_summary(resolved), summary.build_report(resolved, records)


def counts_in(text: str) -> list[CheckCounts]:
    """Every sentence that counts checks, as numbers; the share left over must be what the parts say."""
    found: list[CheckCounts] = []
    for match in SENTENCE.finditer(" ".join(text.split())):
        numbers = {name: int(number or 0) for name, number in match.groupdict().items()}
        warned, total = numbers.pop("first") + numbers.pop("warned"), numbers.pop("total")
        found.append(CheckCounts(warned=warned, **numbers))
        assert found[-1].total == total, match.group()
    return found


def words_in(text: str) -> CheckCounts:
    words = Counter(ROW_WORD.findall(text))
    kinds = {"passed": "passed", "accepted": "accepted", "warning": "warned", "failed": "failed", "could not be made": "broken"}
    return CheckCounts(**{kinds[word]: number for word, number in words.items()})


def plain(page: str) -> str:
    page = re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


@pytest.mark.parametrize("name", EXPECTED)
def test_terminal_and_prefect_page_count_alike(name: str, verdicts: dict[str, Verdict]):
    lines, page = "\n".join(lines_of(verdicts[name])), as_markdown(verdicts[name])
    assert counts_in(lines) == [EXPECTED[name]]
    assert counts_in(page.splitlines()[0]) == [EXPECTED[name]]
    assert words_in(page.split("## Every check")[1]) == EXPECTED[name]


def test_the_data_docs_count_alike(verdicts: dict[str, Verdict], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    register(monkeypatch)
    index = build_data_docs(tmp_path / "docs", list(verdicts.values())).read_text()
    assert counts_in(plain(index).split("qk-norm data")[0]) == [ALL]
    assert f"{VERDICTS_TOLD}:" in plain(index)
    cards = dict(re.findall(r'id="marin-32b-proxy-([\w-]+)-sample-\w{8}"(.*?)(?=<article|<details class="row"|</main>)', index, re.DOTALL))
    assert len(cards) == len(EXPECTED)
    for name, expected in EXPECTED.items():
        card = cards[name.replace(" ", "-")]
        found = counts_in(plain(card))
        assert found == [expected] * len(found) != [], name
        table = re.search(r'aria-label="Checks of [^"]*">(.*?)</table>', card, re.DOTALL)
        assert table
        assert words_in(plain(table[1])) == expected, name
        assert f" {expected.standing_words} " in plain(card), name


def test_the_report_counts_alike(said: tuple[dict[str, Any], Report]):
    page = plain(render(said[1]))
    assert VERDICTS_TOLD in page
    counts = Counter(counts_in(page))
    passed = sum_counts(EXPECTED[f"phase-1 {one}"] for one in ("data", "training", "model"))
    assert counts == Counter([ALL, passed, *EXPECTED.values()])
    assert "! passed with 1 warning" in page
    assert page.count("✗ data failed") == 2


def test_the_json_and_the_table_of_a_run_count_alike(said: tuple[dict[str, Any], Report]):
    run, report = said
    assert CheckCounts.model_validate(run["checks"]) == ALL
    first = sum_counts(EXPECTED[f"phase-1 {one}"] for one in ("data", "training", "model"))
    found = [CheckCounts.model_validate(phase["checks"]) for phase in run["phases"]]
    assert found == [first, EXPECTED["qk-norm data"], EXPECTED["bison data"]]
    judged_one_by_one = [verdict for phase in run["phases"] for verdict in phase["verdicts"]]
    assert [counts_in(verdict["told"]) for verdict in judged_one_by_one] == [[counts] for counts in EXPECTED.values()]
    assert [{kind: verdict[kind] for kind in CheckCounts.model_fields} for verdict in judged_one_by_one] == [
        counts.model_dump() for counts in EXPECTED.values()
    ]
    assert [phase["standing"] for phase in run["phases"]] == ["passed with 1 warning", "failed", "failed"]
    assert [phase["verdict"] for phase in run["phases"]] == ["passed", "failed", "failed"]
    out = io.StringIO()
    print_summary(Console(file=out, width=120), run)
    artifact = report_markdown(report, "report.html", "index.html")
    for text in (out.getvalue(), artifact):
        assert f"{VERDICTS_TOLD}: " in text
        assert ALL in counts_in(text)
        assert "passed with 1 warning" in text
