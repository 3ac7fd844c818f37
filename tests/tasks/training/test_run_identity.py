import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from phasewise.tasks.data.plan import DataPlan
from phasewise.tasks.home import Home
from phasewise.tasks.preflight.launcher import preflight_setup
from phasewise.tasks.preflight.plan import Setup
from phasewise.tasks.training import run_identity as module
from phasewise.tasks.training.run_identity import finished_result, is_begun, note_caches, note_changed_plan
from phasewise.trainer.base.identity import read_sealed, write_sealed
from phasewise.trainer.base.run_folder import CACHES_NAME, read_events
from phasewise.trainer.checkpoints.files import remove_checkpoint
from phasewise.trainer.config import Execution, Mesh, RunConfig
from phasewise.trainer.data.manifest import Manifest, read_manifest, write_manifest
from phasewise.trainer.preflight.spec import StepShape
from phasewise.trainer.run import main
from tests.compilation import compile_from_now_on
from tests.tasks.training.conftest import STEPS, BuildRun, rows_of


@pytest.fixture(scope="module", autouse=True)
def quick_compilation() -> None:
    compile_from_now_on(quickly=True)


def train(run: RunConfig, *, devices: int) -> list[float]:
    path = Path(run.output) / "run.json"
    write_sealed(path, run.model_dump(mode="json"))
    if devices == 1:
        assert main([str(path)]) == 0
        return [row["loss"] for row in rows_of(run)]
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    command = [sys.executable, "-m", "phasewise.trainer", str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [row["loss"] for row in rows_of(run)]


def check_that_another_plan_is_noted(run: RunConfig, again: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder with checkpoints up to step 60."""
    said, result = list[str](), Path(run.output) / "result.json"
    monkeypatch.setattr(module, "say", said.append)
    write_sealed(result, {"run_digest": run.digest})
    assert note_changed_plan(again) is None, "nothing is left to go on with"
    result.unlink()
    assert note_changed_plan(run) is None, "nothing changed"
    text: Any = note_changed_plan(again)
    assert "resuming from step 60 by another plan, on the same batches, and no longer bit for bit" in text
    assert "execution.mesh.fsdp: 1 → 2" in text
    assert said == [f"{run.phase}: {text}"]
    (event,) = [one for one in read_events(run.output) if one["kind"] == "replanned"]
    assert (event["step"], event["text"]) == (60, text)


def test_another_plan_is_noted(build_run: BuildRun, monkeypatch: pytest.MonkeyPatch):
    run = build_run("noted")
    folder, again = Path(run.output), run.but(execution=Execution(mesh=Mesh(fsdp=2)))
    assert note_changed_plan(again) is None, "nothing is there to go on from"
    write_sealed(folder / "run.json", run.model_dump(mode="json"))
    write_sealed(folder / "checkpoints" / "60" / "digests.json", {})
    check_that_another_plan_is_noted(run, again, monkeypatch)


@pytest.mark.long
def test_a_plan_is_executed_and_a_changed_one_goes_on_alike(build_run: BuildRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = build_run("planned")
    off = {"keeps_average": False, "clips_update_rms": False, "update_norm_window": None, "skip_step_window": None}
    shape = StepShape.model_validate({"model": run.model, "optimizer": run.optimizer, "batch_sequences": 2, **off})
    report = preflight_setup(Setup(phase="planned", slice="cpu-2", stretches=((0, STEPS),), step=shape), Home(tmp_path))
    assert report["fits"]
    assert not report["estimated"]
    assert report["collectives"], "weights that are cut over two devices are gathered"
    assert report["gib_per_chip"]["peak"] == pytest.approx(0, abs=0.05)
    planned = Execution.model_validate(report["execution"])
    assert (planned.mesh, planned.attention) == (Mesh(fsdp=2), "xla")
    before, again = train(run, devices=1), run.but(execution=planned)
    remove_checkpoint(Path(run.output) / "checkpoints" / str(STEPS))
    check_that_another_plan_is_noted(run, again, monkeypatch)
    after = train(again, devices=2)
    assert after[:60] == before[:60]
    assert after[60:] == pytest.approx(before[60:], rel=1e-4)
    assert len(after) == STEPS


@dataclass(frozen=True)
class Case:
    world: Any
    run: RunConfig

    def again(self, number: str = "0", **changes: Any) -> RunConfig:
        """The run with caches that other code has prepared beside the first, under other names; their manifests have these changes."""
        caches: dict[str, str] = {}
        for name, folder in self.run.caches.items():
            key = number * 64
            copy = Path(folder).with_name(f"train-{key[:16]}")
            shutil.copytree(folder, copy, dirs_exist_ok=True)
            fields = read_manifest(folder).model_dump(mode="json")
            write_manifest(copy, Manifest.model_validate({**fields, "key": key, "reader": f"reader {number}", **changes}))
            caches[name] = str(copy)
        return self.run.but(caches=caches)


@pytest.fixture
def case(prepared: Any, build_run: BuildRun, tmp_path: Path) -> Case:
    """On a copy of the shared home; nothing is trained: what is in the run's folder decides."""
    shutil.copytree(prepared.home.root, tmp_path / "home", dirs_exist_ok=True)
    world = type(prepared)(Home.open(str(tmp_path / "home")), tmp_path / "home" / "sources")
    caches = {name: str(folder) for name, folder in world.plan().folders("train").items()}
    output = str(world.home.run("tiny", "phase"))
    run = build_run("phase").but(caches=caches, output=output)
    note_caches(run)
    write_sealed(Path(output) / "run.json", run.model_dump(mode="json"))
    write_sealed(Path(output) / "result.json", {"run_digest": run.digest})
    return Case(world, run)


def holds(run: RunConfig) -> bool:
    finished = finished_result(run) is not None
    assert finished == is_begun(run)
    return finished


def test_the_same_bytes_under_another_name_are_the_same_run_and_other_content_or_settings_are_not(case: Case):
    again = case.again()
    assert again.digest != case.run.digest
    assert holds(case.run)
    assert holds(again)
    assert not holds(again.but(seed=1))
    fields: list[Any] = [{"begin_of_text": 5}, {"end_of_text": 5}, {"dtype": "uint32"}, {"tokenizer_digest": "x"}, {"shards": []}]
    assert not any(holds(case.again(str(number), **changes)) for number, changes in enumerate(fields, 1))


@pytest.mark.parametrize(
    ("lacks", "expected"), [("notes", True), ("caches", True), ("caches and notes of this run", False), ("notes and caches", False)]
)
def test_what_was_trained_on_is_known_from_notes_or_from_manifests(case: Case, lacks: str, expected: bool):
    again = case.again()
    notes = Path(case.run.output) / CACHES_NAME
    if "of this run" in lacks:
        write_sealed(notes, {**read_sealed(notes), "run_digest": "another"})
    elif "notes" in lacks:
        notes.unlink()
    for folder in case.run.caches.values() if "caches" in lacks else ():
        shutil.rmtree(folder)
    assert holds(again) is expected
    assert holds(case.run)  # by name


def test_a_run_of_a_home_that_was_moved_holds(case: Case, tmp_path: Path):
    again = case.again()
    (Path(case.run.output) / CACHES_NAME).unlink()
    moved = (tmp_path / "home").rename(tmp_path / "moved")
    places = {name: str(folder).replace(str(tmp_path / "home"), str(moved)) for name, folder in again.caches.items()}
    assert holds(again.but(caches=places, output=again.output.replace(str(tmp_path / "home"), str(moved))))


@pytest.mark.parametrize("lacks_for", ["code", "file", "setting"])
def test_caches_that_lack_for_their_code_alone_do_not_speak_against_a_result(case: Case, monkeypatch: pytest.MonkeyPatch, lacks_for: str):
    monkeypatch.setattr("phasewise.tasks.data.documents.READER", "another reader")
    monkeypatch.setattr("phasewise.tasks.data.verify.read_by", lambda _: "another reader")
    if lacks_for == "file":
        (case.world.sources / "web" / "part-2.jsonl").write_text('{"text": "more"}\n')
    plan: DataPlan = case.world.plan(**({"normalization": {"line_ends": "keep"}} if lacks_for == "setting" else {}))
    run = case.run.but(caches={name: str(folder) for name, folder in plan.folders("train").items()})
    assert not plan.is_built
    assert finished_result(run) is None
    assert (finished_result(run, plan) is not None) == (lacks_for == "code")
    if lacks_for == "code":  # once they are there, their content decides
        for name, folder in run.caches.items():
            fields = read_manifest(case.run.caches[name]).model_dump(mode="json")
            write_manifest(folder, Manifest.model_validate({**fields, "key": plan.components[name].train.key, "begin_of_text": 7}))
        assert finished_result(run, plan) is None


def test_a_manifest_s_content_is_of_its_tokens_in_order(case: Case):
    manifest = read_manifest(case.run.caches["web"])
    shards = [shard.model_dump(mode="json") for shard in manifest.shards]
    assert len(shards) > 1
    same = [{"key": "k"}, {"reader": "r"}, {"normalizer": "n"}, {"encoder": "e"}, {"source": {}}, {"sources": []}, {"component": "c"}]
    other = [{"shards": shards[::-1]}, {"shards": shards[1:]}, {"shards": [{**shards[0], "digest": "d"}, *shards[1:]]}]
    assert {manifest.but(**changes).content for changes in same} == {manifest.content}
    assert len({manifest.content, *(manifest.but(**changes).content for changes in other)}) == 1 + len(other)
