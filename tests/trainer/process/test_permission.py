"""No training without a verdict for exactly these bytes."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from trainer.base.errors import DataError, VerdictError
from trainer.config import RunConfig
from trainer.data.manifest import read_manifest, write_manifest
from trainer.process.permission import check_permission

MakeRun = Callable[..., RunConfig]
Judge = Callable[..., None]


def test_a_passing_verdict_for_these_caches_lets_train(make_run: MakeRun):
    assert check_permission(make_run("permitted")) is None


def test_no_verdict_is_no_permission(make_run: MakeRun):
    run = make_run("unjudged")
    Path(run.verdict).unlink()
    with pytest.raises(VerdictError, match=r"phase unjudged has no verdict at .*: validate its data first"):
        check_permission(run)


@pytest.mark.parametrize("passes", [False, None, "true", 1])
def test_only_true_is_a_pass(make_run: MakeRun, judge: Judge, passes: Any):
    run = make_run("failing")
    judge(run, passes=passes)
    with pytest.raises(VerdictError, match=r"does not pass: phase failing must not train"):
        check_permission(run)


def test_a_verdict_on_other_bytes_is_none(make_run: MakeRun, caches: Mapping[str, Path], tmp_path: Path):
    other = Path(shutil.copytree(caches["code"], tmp_path / "code"))
    run = make_run("other bytes", caches={**{name: str(folder) for name, folder in caches.items()}, "code": str(other)})
    judged = read_manifest(other).digest
    write_manifest(other, read_manifest(other).but(key="built again"))
    found = read_manifest(other).digest
    with pytest.raises(VerdictError, match=rf"other bytes of code: it names {judged[:12]}, the cache is {found[:12]}"):
        check_permission(run)


def test_a_verdict_that_leaves_a_cache_out_is_none(make_run: MakeRun, judge: Judge):
    run = make_run("left out")
    judge(run, judged={name: read_manifest(folder).digest for name, folder in run.caches.items() if name != "web"})
    with pytest.raises(VerdictError, match=r"other bytes of web: it names None"):
        check_permission(run)


def test_a_cache_without_a_manifest_is_no_cache(make_run: MakeRun, tmp_path: Path):
    run = make_run("no cache")
    run = run.but(caches={**run.caches, "web": str(tmp_path)})
    with pytest.raises(DataError, match=r"is not a finished token cache"):
        check_permission(run)


@pytest.mark.parametrize("content", ['{"passes": tr', "[true]"], ids=["torn", "list"])
def test_a_verdict_that_does_not_read_is_none(make_run: MakeRun, content: str):
    run = make_run("torn verdict")
    Path(run.verdict).write_text(content)
    with pytest.raises(VerdictError):
        check_permission(run)
