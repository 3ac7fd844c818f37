import re
from dataclasses import replace
from pathlib import Path

import pytest

from phasewise.validations.expectations.judging import MAX_REASONS_PER_CHECK
from phasewise.validations.failures import as_markdown, failures_of, lines_of, report_folder_of
from phasewise.validations.verdict import Verdict
from tests.validations.report.samples import HOSTILE, LEAK, STALE, evidence, judged


@pytest.fixture(scope="module")
def bison(tmp_path_factory: pytest.TempPathFactory) -> Verdict:
    return judged("marin-32b/proxy/bison data", evidence(leaked=1319, stale=1, like_tests=2), tmp_path_factory.mktemp("bison"))


def test_a_failing_verdict_is_reported_in_three_lines(bison: Verdict):
    what, found, to_do = lines_of(bison)
    assert what.startswith(f"marin-32b/proxy/bison data failed: {STALE} (in tokens/math/long-")
    assert what.endswith("folder)")
    assert found == "  found: 1 file differs; limit: 0 files differ"
    assert to_do == f"  to do: Run `phasewise data prepare` again. In all, 2 of 5 checks passed, 2 failed, 1 warning. See {bison.evidence}"


def test_the_last_line_names_the_report_once_it_is_there(tmp_path: Path):
    verdict = judged("bison data", evidence(stale=1), tmp_path)
    report = Path(report_folder_of(verdict)) / "index.html"
    report.parent.mkdir()
    report.touch()
    assert lines_of(verdict)[-1].endswith(f"See {report}")
    assert str(report) in as_markdown(verdict)


def test_what_stops_is_reported_before_what_warns_in_the_suite_s_order(bison: Verdict):
    said = [(failure.severity, failure.table, failure.asks, failure.total) for failure in failures_of(bison)]
    assert said == [
        ("critical", "caches", "The sources are still what the cache was made of.", 1),
        ("critical", "leakage", "No test item is in the training data.", 1),
        ("warning", "caches", "No file is named like a test split.", 1),
    ]
    assert failures_of(bison)[1].worst.what == LEAK


def test_many_cases_of_one_check_are_one_failure_that_counts_them(tmp_path: Path):
    verdict = judged("bison data", evidence(stale=1, components=40), tmp_path)
    (failure,) = failures_of(verdict)
    assert (failure.total, len(failure.cases)) == (40, MAX_REASONS_PER_CHECK)
    assert "And 39 more cases. In all, 4 of 5 checks passed, 1 failed. See" in lines_of(verdict)[-1]
    assert "40 such cases" in as_markdown(verdict)


def test_a_check_that_could_not_be_made_is_reported_as_that(tmp_path: Path):
    tables = evidence()
    verdict = judged("bison data", tables | {"caches": tables["caches"].drop(columns="stale_files")}, tmp_path)
    (failure,) = failures_of(verdict)
    assert failure.is_broken
    assert "## Could not be made: the check expect\\_column\\_values\\_to\\_be\\_in\\_set" in as_markdown(verdict)


def test_a_warning_is_no_failure(tmp_path: Path):
    verdict = judged("bison data", evidence(like_tests=3), tmp_path)
    assert (verdict.passes, verdict.counts.standing) == (True, "warned")
    assert lines_of(verdict)[0].startswith("bison data passed with 1 warning: 3 files of component math are named like a test split")
    assert as_markdown(verdict).startswith("# ! bison data passed with 1 warning: 4 of 5 checks")


def test_text_of_the_data_is_never_markup_nor_a_new_line(tmp_path: Path):
    tables = evidence(stale=1, leaked=2, excerpt=HOSTILE)
    tables["caches"]["differences"] = HOSTILE
    verdict = judged(HOSTILE, tables, tmp_path)
    assert len("\n".join(lines_of(verdict)).splitlines()) == 3
    page = as_markdown(verdict)
    assert not re.search(r"(?<!\\)[<>&]", page)
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {5}


def test_reasons_that_belong_to_no_known_check_are_still_reported(bison: Verdict):
    older = bison.but(checks=())
    assert [failure.table for failure in failures_of(older)] == ["", "", ""]
    assert lines_of(older)[0].startswith("marin-32b/proxy/bison data failed: the cache")
    assert replace(failures_of(older)[0], asks="").worst.what_to_do == "Run `phasewise data prepare` again."
