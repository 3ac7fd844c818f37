import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from phasewise.tasks.validation.decide import decide
from phasewise.trainer.base.decision import Decisions, decision_path, seen_of
from phasewise.trainer.base.errors import VerdictError
from phasewise.trainer.base.identity import write_sealed
from phasewise.trainer.base.storage import read_json
from phasewise.trainer.config import RunConfig
from phasewise.trainer.data.manifest import read_manifest, write_manifest
from phasewise.trainer.run import check_verdict
from tests.trainer.conftest import MakeRun

CHECK = {"table": "mixture", "name": "expect_epochs", "severity": "critical", "outcome": "failed"}
ASKS = {"approvable": [{"table": "mixture", "check": "expect_epochs"}], "on_warnings": False}


def test_a_passing_verdict_lets_train_and_none_or_a_torn_one_does_not(make_run: MakeRun):
    run = make_run("unjudged")
    assert check_verdict(run) is None
    for content in ('{"passes": tr', "[true]"):
        Path(run.verdict).write_text(content)
        with pytest.raises(VerdictError, match="validate the data again"):
            check_verdict(run)
    Path(run.verdict).unlink()
    with pytest.raises(VerdictError, match=r"phase unjudged has no verdict at .*: validate its data first"):
        check_verdict(run)


def test_a_verdict_on_other_bytes_is_none(make_run: MakeRun, caches: Mapping[str, Path], tmp_path: Path):
    other = Path(shutil.copytree(caches["code"], tmp_path / "code"))
    run = make_run("other bytes", caches={**{name: str(folder) for name, folder in caches.items()}, "code": str(other)})
    was, now = read_manifest(other), read_manifest(other).but(key="built again")
    write_manifest(other, now)
    found = read_manifest(other).digest
    with pytest.raises(VerdictError, match=rf"other bytes of code: it names {was.digest[:12]}, the cache is {found[:12]}"):
        check_verdict(run)


def waiting(make_run: MakeRun, name: str, **fields: Any) -> RunConfig:
    """A run whose verdict fails by what a person may let pass."""
    run = make_run(name)
    write_sealed(run.verdict, read_json(run.verdict) | {"passes": False, "checks": [CHECK], "asks_people": ASKS} | fields)
    return run


def test_a_verdict_that_waits_for_a_person_is_no_permission_until_one_lets_it_pass(make_run: MakeRun):
    run = waiting(make_run, "waiting")
    with pytest.raises(VerdictError, match=r"waits for a person's decision: phase waiting must not train before it"):
        check_verdict(run)
    decide(Path(run.verdict), approves=True, reason="it is small", who="Ada")
    assert check_verdict(run) is None
    decide(Path(run.verdict), approves=False, reason="it is not", who="Grace")
    with pytest.raises(VerdictError, match=r"was rejected by Grace on .*: it is not\. Phase waiting must not train"):
        check_verdict(run)


def test_a_decision_does_not_open_the_way_to_other_bytes_or_past_what_nobody_may_let_pass(make_run: MakeRun):
    run = waiting(make_run, "other bytes too", judged={"web": "0" * 64})
    decide(Path(run.verdict), approves=True, reason="it is small", who="Ada")
    with pytest.raises(VerdictError, match="was given for other bytes"):
        check_verdict(run)
    run = waiting(make_run, "leak")
    decision = decide(Path(run.verdict), approves=True, reason="it is small", who="Ada")
    verdict = read_json(run.verdict) | {"checks": [CHECK, {**CHECK, "table": "leakage"}]}
    write_sealed(run.verdict, verdict)
    forged = decision.but(seen=seen_of(verdict))
    write_sealed(decision_path(run.verdict), Decisions(latest=forged).model_dump(mode="json"))
    with pytest.raises(VerdictError, match="does not pass: phase leak must not train"):
        check_verdict(run)
