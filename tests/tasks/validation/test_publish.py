import logging
from pathlib import Path
from typing import Any

import pytest

from phasewise.flows.status.phase_status import raise_unless_let_pass
from phasewise.tasks.site import SITE_VARIABLE
from phasewise.tasks.validation import task
from phasewise.trainer.base.errors import VerdictError
from phasewise.validations.failures import report_folder_of
from tests.validations.report.samples import LEAK, STALE, evidence, judged, register


@pytest.fixture(autouse=True)
def artifacts(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What is sent to Prefect; no server is started for it, and no page is served."""
    monkeypatch.delenv(SITE_VARIABLE, raising=False)
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(task, "publish_page", lambda markdown, **named: sent.append({"markdown": markdown, **named}))
    monkeypatch.setattr(task, "tell_of_gate", lambda state, **named: None)
    register(monkeypatch)
    return sent


def test_failures_are_on_terminal_artifact_and_report(tmp_path: Path, artifacts: Any, caplog: Any, monkeypatch: pytest.MonkeyPatch):
    verdict = judged("marin-32b/proxy/bison data", evidence(leaked=1319, stale=1), tmp_path)
    with caplog.at_level(logging.INFO, "phasewise"):
        task.publish(verdict, tmp_path / "marin-32b-proxy" / "bison" / "data.json")
    lines = [record.getMessage() for record in caplog.records if record.name == "phasewise"]
    report = Path(report_folder_of(verdict)) / "index.html"
    assert len(lines) == 3
    assert STALE in lines[0]
    assert lines[2].endswith(f"In all, 3 of 5 checks passed, 2 failed. See {report}")
    (artifact,) = artifacts
    assert artifact["key"] == "marin-32b-proxy-bison-data"
    assert artifact["description"] == "marin-32b/proxy/bison data failed: 3 of 5 checks passed, 2 failed"
    for place in (artifact["markdown"].replace("\\", ""), report.read_text()):
        assert STALE in place
        assert LEAK in place
    with pytest.raises(VerdictError) as refusal:
        raise_unless_let_pass(verdict, tmp_path / "data.json", "`approve`")
    assert str(refusal.value).splitlines() == lines
    monkeypatch.setenv(SITE_VARIABLE, "http://127.0.0.1:4201")
    verdict = judged("marin-32b/proxy/bison data", evidence(stale=1), tmp_path)
    with pytest.raises(VerdictError) as refusal:
        raise_unless_let_pass(verdict, tmp_path / "data.json", "`approve`")
    assert str(refusal.value).splitlines()[-1] == "  see http://127.0.0.1:4201/marin-32b/proxy/bison/data"


def test_a_verdict_that_passes_gets_one_line_and_no_report(tmp_path: Path, artifacts: Any, caplog: pytest.LogCaptureFixture):
    verdict = judged("bison data", evidence(), tmp_path)
    with caplog.at_level(logging.INFO, "phasewise"):
        task.publish(verdict, tmp_path / "data.json")
    assert [record.getMessage() for record in caplog.records if record.name == "phasewise"] == ["bison data passed: 5 of 5 checks"]
    assert artifacts[0]["markdown"].startswith("# ✓ bison data passed")
    assert not Path(report_folder_of(verdict)).exists()
    raise_unless_let_pass(verdict, tmp_path / "data.json", "`approve`")
    task.publish(judged("bison data", evidence(stale=1), tmp_path), tmp_path / "data.json")
    rebuilt = judged("bison data", evidence(), tmp_path)  # the report of a failure does not outlive it
    task.publish(rebuilt, tmp_path / "data.json")
    assert "1 of 1 verdict passed:</strong> 5 of 5 checks passed." in (Path(report_folder_of(rebuilt)) / "index.html").read_text()
