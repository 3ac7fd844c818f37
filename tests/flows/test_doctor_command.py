"""`phasewise doctor` on this machine, and on a worse one."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from phasewise.flows.cli import doctor, main


def call(*words: object) -> Result:
    return CliRunner().invoke(main.main, ["doctor", *map(str, words)])


def test_a_machine_on_which_the_tests_run_is_healthy(tmp_path: Path):
    found = call("--home", tmp_path, "--json")
    described = json.loads(found.stdout)
    assert (found.exit_code, described["problems"]) == (0, [])
    assert described["packages"]["prefect"].startswith("3.8")
    assert {one["platform"] for one in described["devices"]} == {"cpu"}
    assert described["home"]["url"] == str(tmp_path)
    shown = call("--home", tmp_path)
    assert "nothing is wrong" in shown.stdout
    assert str(tmp_path) in shown.stdout


def test_each_problem_is_named_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    real, others = doctor.installed, {"fastapi": "0.200.0", "dask": None, "wandb": None}
    monkeypatch.setattr(doctor, "installed", lambda package: others[package] if package in others else real(package))
    monkeypatch.setattr(doctor, "MIN_FREE_GIB", 10**9)
    monkeypatch.setenv("JAX_ENABLE_X64", "1")
    found = call("--home", tmp_path, "--json")
    described = json.loads(found.stdout)
    assert found.exit_code == 1
    said = "\n".join(described["problems"])
    assert "fastapi must be <0.149,>=0.139, found 0.200.0 (the server of Prefect 3.8 does not start with it): pip install" in said
    assert "dask is not installed: pip install 'dask'" in said
    assert "GiB of free space: make room" in said
    assert "JAX_ENABLE_X64" in said
    assert described["extras"]["wandb"] == ["wandb"]
    assert len(described["problems"]) == 4
    refused = call("--home", "ftp://somewhere")
    assert refused.exit_code == 1
    assert "must be a local folder or a gs:// URL" in refused.stdout
