import json
from pathlib import Path
from typing import Any

import pytest

from phasewise.flows.cli import doctor
from phasewise.tasks import accelerator_bench
from phasewise.tasks.accelerator_bench import SETTINGS, Bench
from phasewise.trainer.base.identity import read_sealed
from tests.flows.commands import Run, assert_refused

TINY = {"d_model": 64, "d_ff": 128, "num_query_heads": 2, "num_kv_heads": 1, "head_dim": 32, "vocab_size": 2048, "num_layers": 1}

pytestmark = pytest.mark.timeout(600)  # six processes compile, about a CPU minute


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy models, made smaller still, and few tokens."""
    monkeypatch.setattr(doctor, "BENCH_MODELS", {"proxy": ("marin-8b", "proxy"), "sparse": ("trinity-nano", "proxy")})
    tokens = 2**19
    manifest = {**SETTINGS["manifest"], "tokens": tokens, "shards": [{**SETTINGS["manifest"]["shards"][0], "tokens": tokens}]}
    monkeypatch.setitem(SETTINGS, "manifest", manifest)
    monkeypatch.setitem(SETTINGS, "cpu", {**SETTINGS["cpu"], **TINY})
    monkeypatch.setattr(accelerator_bench, "STEP_SECONDS", 0.1)


@pytest.mark.usefixtures("small")
def test_a_broken_section_is_named_and_the_others_are_measured(phasewise: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def kernels(self: Bench) -> dict[str, object]:
        return self.part("kernels", {"model": {}, "sequences": 1})

    monkeypatch.setattr(Bench, "kernels", kernels)
    done = phasewise("bench accelerator --minutes 20 --only kernels,mfu,resume,loader --json --out", tmp_path / "page.json")
    assert done.exit_code == 1, done.stderr
    page = json.loads(done.stdout)
    sections = page["sections"]
    assert list(sections) == ["devices", "kernels", "mfu", "resume", "loader"]
    assert {name: found["passes"] for name, found in sections.items()} == {**dict.fromkeys(sections, True), "kernels": False}, sections
    assert sections["kernels"]["error"].startswith("ValidationError: ")
    assert sections["devices"]["scaled_down_for_cpu"]
    (step,) = sections["mfu"]["rows"]
    assert (step["model"], step["failed"]) == ("proxy", [])
    assert step["mfu"] > 0
    assert step["loss_last"] < step["loss_first"]
    straight, killed = sections["resume"]["rows"]
    assert straight["params_digest"] == killed["params_digest"]
    assert sections["loader"]["rows"][0]["times_the_step"] > 1
    written = read_sealed(tmp_path / "page.json")
    assert written == {name: value for name, value in page.items() if name != "file"}
    doctor.print_page(page)
    assert_refused(phasewise("bench accelerator --out", tmp_path / "page.json"), 2, "page.json exists", "name a new file by --out.")
    assert_refused(phasewise("bench accelerator --only nix"), 2, "--only: expected some of parity,kernels,mfu,resume,loader, found nix.")


def test_a_part_ends_at_its_limit_and_without_devices_nothing_is_measured(tmp_path: Path):
    step: Any = None
    page = Bench(tmp_path, {"dense": step, "sparse": step}, minutes=0).measure(["mfu"])
    assert list(page["sections"]) == ["devices"]
    assert page["sections"]["devices"]["error"].startswith("devices: the time of its section is over.")
    assert not page["passes"]
