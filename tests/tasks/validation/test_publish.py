"""What people meet when a verdict is published: lines, the page in the Prefect UI, the report beside the evidence."""

import logging
from pathlib import Path
from typing import Any

import pytest

from flows.validate_data import raise_unless_passed
from tasks.validation import task
from tests.validations.report.samples import LEAK, STALE, evidence, judged, register
from trainer.base.errors import VerdictError
from validations.report.words import report_folder_of


@pytest.fixture(autouse=True)
def artifacts(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What is sent to Prefect; no server is started for it."""
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(task, "create_markdown_artifact", lambda markdown, **named: sent.append({"markdown": markdown, **named}))
    register(monkeypatch)
    return sent


def test_the_same_failures_are_on_terminal_artifact_and_report(
    tmp_path: Path, artifacts: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
):
    verdict = judged("marin-32b/proxy/bison data", evidence(leaked=1319, stale=1), tmp_path)
    with caplog.at_level(logging.INFO, "phasewise"):
        task.publish(verdict, key="marin-32b-bison-data")
    lines = [record.getMessage() for record in caplog.records if record.name == "phasewise"]
    report = Path(report_folder_of(verdict)) / "index.html"
    assert len(lines) == 3
    assert STALE in lines[0]
    assert lines[2].endswith(f"In all, 3 of 5 checks passed, 2 failed. See {report}")
    (artifact,) = artifacts
    assert artifact["description"] == "marin-32b/proxy/bison data failed: 3 of 5 checks passed, 2 failed"
    for place in (artifact["markdown"].replace("\\", ""), report.read_text()):
        assert STALE in place
        assert LEAK in place
    with pytest.raises(VerdictError) as refusal:
        raise_unless_passed(verdict)
    assert str(refusal.value).splitlines() == lines


def test_a_verdict_that_passes_gets_one_line_and_no_report_of_its_own(
    tmp_path: Path, artifacts: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
):
    verdict = judged("bison data", evidence(), tmp_path)
    with caplog.at_level(logging.INFO, "phasewise"):
        task.publish(verdict, key="bison-data")
    assert [record.getMessage() for record in caplog.records if record.name == "phasewise"] == ["bison data passed: 5 of 5 checks"]
    assert artifacts[0]["markdown"].startswith("# ✓ bison data passed")
    assert not Path(report_folder_of(verdict)).exists()
    raise_unless_passed(verdict)


def test_the_report_of_a_failure_does_not_outlive_it(tmp_path: Path):
    task.publish(judged("bison data", evidence(stale=1), tmp_path), key="bison-data")
    rebuilt = judged("bison data", evidence(), tmp_path)
    task.publish(rebuilt, key="bison-data")
    assert "1 of 1 verdict passed:</strong> 5 of 5 checks passed." in (Path(report_folder_of(rebuilt)) / "index.html").read_text()
