import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from phasewise.flows import preflight as flow
from phasewise.flows.cli.main import main
from phasewise.tasks.preflight import launcher
from phasewise.tasks.preflight.slices import find_slice
from phasewise.trainer.config import Execution, Kept
from phasewise.trainer.preflight.spec import Result as Compiled
from phasewise.trainer.preflight.spec import Spec
from tests.tasks.preflight.steps import compiler_of

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    def compile_it(spec: Spec) -> Compiled:
        return compiler_of(spec.step, find_slice("v4-2048"), 30.75, np.array([1.0, 1.2, 1.2, 1.2]))[0](spec)

    monkeypatch.setattr(launcher, "run_compiler", compile_it)
    monkeypatch.setattr(launcher, "version", lambda name: f"{name} 1")
    return lambda *arguments: CliRunner().invoke(main, ["preflight", "--home", str(tmp_path), *arguments])


def test_json_is_alone_on_standard_output_and_the_table_has_what_was_changed(run: Run) -> None:
    done = run("marin-32b/mantis", "--json")
    assert done.exit_code == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["recipe"] == "marin-32b"
    assert report["local"] == []
    assert {setup["phase"] for setup in report["phases"]} == {"mantis"}
    setup = report["phases"][0]
    assert (setup["slice"], setup["chips"], setup["hosts"]) == ("v4-2048", 1024, 256)
    assert setup["fits"]
    assert Execution.model_validate(setup["execution"]).remat == Kept.model_validate(setup["remat"])
    done = run("marin-32b/mantis")
    assert done.exit_code == 0
    assert "of 30.75" in done.stdout
    assert "32.52 B parameters" in done.stdout
    assert "a token meets" not in done.stdout
    assert "kept, gradients over" in done.stdout
    assert "the fastest of" in done.stdout
    assert "blocks computed again: needs 33.1 GiB of 30.75: the compiler refused it" in done.stdout


def test_a_phase_that_does_not_fit_ends_with_1_and_the_reason(run: Run) -> None:
    done = run("marin-32b/mantis", "--slice", "3x v5p-512")
    assert done.exit_code == 1
    assert "8,192 sequences cannot be cut" in done.stdout
    assert "7,680" in done.stdout
    assert "does not fit" in done.stdout
    refused = json.loads(run("marin-32b/mantis", "--slice", "3x v5p-512", "--json").stdout)
    assert not refused["phases"][0]["fits"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("marin-8b", "--slice", "v9-8"), "no slice is called 'v9-8'"), (("marin-9b",), "no recipe is called"),
        (("marin-8b/nothing",), "no phase"), ((), "Missing argument"),
        (("marin-32b/mantis", "--region", "us-east5"), "--region is for a home on a store"),
        (("marin-32b/mantis", "--region", "US"), "--region must be the region of the slice"),
        (("marin-32b/mantis", "--price-per-gib", "1"), "--price-per-gib needs --region"),
    ],
)  # fmt: skip
def test_wrong_usage_ends_with_2(run: Run, arguments: tuple[str, ...], said: str) -> None:
    done = run(*arguments)
    assert (done.exit_code, said in " ".join(done.stderr.split())) == (2, True), done.stderr


def test_without_the_compiler_one_line_says_what_to_install(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import PackageNotFoundError

    def version(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(launcher, "version", version)
    done = run("marin-8b/kestrel")
    assert done.exit_code == 1
    assert done.stderr.strip().splitlines()[-1].endswith("pip install 'phasewise[tpu]'.")


def test_the_flow_compiles_nothing_at_proxy_scale_and_fails_where_a_setup_does_not_fit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said: list[str] = []
    monkeypatch.setattr(flow, "say", said.append)
    flow.preflight.fn("marin-8b", "kestrel", "proxy", None)
    assert said == ["marin-8b/kestrel: on this machine, nothing to compile"]
    unfit = {"phase": "kestrel", "slice": "2x v5e-256", "fits": False, "reason": "needs too much"}
    monkeypatch.setattr("phasewise.tasks.preflight.launcher.preflight_setup", lambda setup, home: unfit)
    monkeypatch.setattr(flow, "create_table_artifact", lambda *_, **__: None)
    monkeypatch.setattr(flow, "task", lambda **_: lambda work: work)  # outside a flow run Prefect would start a server for it
    with pytest.raises(flow.DoesNotFit, match="kestrel on 2x v5e-256: needs too much"):
        flow.preflight.fn("marin-8b", "kestrel", "full", str(tmp_path))


def test_reads_from_another_region_are_named_with_bytes_and_price(run: Run, gcs: Path) -> None:
    done = run("marin-32b/mantis", "--region", "europe-west4", "--home", str(gcs))
    assert done.exit_code == 0, done.stderr
    assert "GiB of tokens from us, which is another location: --price-per-gib computes the cost." in done.stdout
    priced = run("marin-32b/mantis", "--region", "europe-west4", "--home", str(gcs), "--price-per-gib", "1")
    assert "at $1.00 a GiB." in priced.stdout
    given = run("marin-32b/mantis", "--region", "europe-west4", "--home", str(gcs), "--price-per-gib", "1", "--json")
    reads = json.loads(given.stdout)["reads"]
    assert reads[0]["usd"] == pytest.approx(reads[0]["read_bytes"] / 2**30)
