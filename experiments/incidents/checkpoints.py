"""Replays of incidents of checkpoints and resumes, in training runs of a tiny model."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

from experiments.incidents.case import START, Case
from experiments.survival.file_faults import Faults, installed
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.checkpoints.files import DIGESTS_NAME, saved_steps
from phasewise.trainer.checkpoints.shards import import_folder
from phasewise.trainer.config import RunConfig
from phasewise.trainer.model.hugging_face import write_folder
from phasewise.trainer.process.watchdog import Doing, heartbeat, only_one_trainer
from phasewise.trainer.step import init_state

END = 4


def newest_checkpoint_is_cut(case: Case) -> str | None:
    run = trained(case, stop_step=END)
    if not case.sound:
        cut(run, saved_steps(RunFolder(run.output).checkpoints)[-1])
    return case.named_at_start(resumed(run), "is damaged", "the one before it is used")


def unreadable_checkpoints_restart_from_scratch(case: Case) -> None:
    run = trained(case, stop_step=END)
    for step in () if case.sound else saved_steps(RunFolder(run.output).checkpoints):
        cut(run, step)
    case.train(resumed(run))


def relaunch_discards_the_newest_steps(case: Case) -> str | None:
    run = trained(case, stop_step=END)
    if not case.sound:
        shutil.rmtree(RunFolder(run.output).checkpoint(END))
    return case.named_at_start(resumed(run), "expected checkpoint", "done again")


def named_step_does_not_exist(case: Case) -> None:
    child = case.after(trained(case))
    if not case.sound:
        shutil.rmtree(str(child.start and child.start.checkpoint))
    case.train(child)


def copied_checkpoint_lacks_its_commit(case: Case) -> None:
    child = case.after(trained(case))
    if not case.sound:
        (Path(str(child.start and child.start.checkpoint)) / DIGESTS_NAME).unlink()
    case.train(child)


def weights_under_the_name_are_others(case: Case) -> None:
    parent = trained(case)
    child = case.after(parent)
    if not case.sound:
        target = RunFolder(parent.output).checkpoint(parent.stop_step)
        other = trained(case, name="another", seed=1)
        shutil.rmtree(target)
        shutil.copytree(RunFolder(other.output).checkpoint(other.stop_step), target)
    case.train(child)


def optimizer_state_is_empty(case: Case) -> None:
    parent = trained(case)
    child = case.after(parent)
    if not case.sound:
        weights = case.folder / "weights"
        write_folder(weights, init_state(parent).params, parent.model)
        start = {"checkpoint": str(case.folder / "imported"), "fresh": []}
        start["params_digest"] = import_folder(weights, case.folder / "imported", parent.model)
        child = case.after(parent, start=start)
    case.train(child)


def weight_has_another_key(case: Case) -> None:
    case.stage = START
    run, folder = case.run(), case.folder / "hub"
    write_folder(folder, init_state(run).params, run.model)
    path = folder / "model.safetensors"
    if not case.sound:
        content = path.read_bytes()
        path.write_bytes(content.replace(b"model.norm.weight", b"other.norm.weight"))
    import_folder(folder, case.folder / "imported", run.model)


def export_lacks_its_rope(case: Case) -> None:
    case.stage = START
    run, folder = case.run(), case.folder / "hub"
    write_folder(folder, init_state(run).params, run.model)
    about = json.loads((folder / "config.json").read_text())
    for name in () if case.sound else ("rope_theta", "rope_parameters", "rope_scaling"):
        about.pop(name, None)
    (folder / "config.json").write_text(json.dumps(about))
    import_folder(folder, case.folder / "imported", run.model)


def resume_has_another_batch(case: Case) -> None:
    resume_with(case, batch=[[0, 4]])


def resume_has_another_data_set(case: Case) -> None:
    run = case.run()
    resume_with(case, caches=run.caches | {"web": run.caches["law"]})


def update_clip_is_off_by_accident(case: Case) -> None:
    clip = {"window": 8, "min_samples": 4, "sigmas": 2.0}
    on = case.run().stability.but(max_update_norm=[[0, clip]])
    resume_with(case, at_first={"stability": on}, stability=case.run().stability)


def longer_run_stretches_its_schedule(case: Case) -> None:
    def decay(end: int) -> list[dict[str, Any]]:
        return [{"kind": "linear", "start_step": 0, "end_step": end, "start": 1e-2, "end": 0.0}]

    resume_with(case, at_first={"learning_rate": decay(END + 2)}, learning_rate=decay(2 * END))


def second_trainer_writes_the_same_folder(case: Case) -> None:
    run = case.run()
    with ExitStack() as stack:
        if not case.sound:
            fence = stack.enter_context(only_one_trainer(Path(run.output)))
            doing = Doing("step", 0.0, None), 1
            stack.enter_context(heartbeat(Path(run.output), lambda: doing, token=fence.number))
        case.train(run)


def store_forbids_the_rename_of_a_commit(case: Case) -> None:
    renamed: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in ("rename", "replace")}

    def forbid(name: str) -> Callable[..., Any]:
        def rename(source: Any, target: Any, **named: Any) -> Any:
            if "/checkpoints/" in str(target) and not case.sound:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(target))
            return renamed[name](source, target, **named)

        return rename

    with patch.object(os, "rename", forbid("rename")), patch.object(os, "replace", forbid("replace")):
        case.train(case.run())


def storage_is_full_at_a_save(case: Case) -> None:
    run = case.run()
    faults = Faults(RunFolder(run.output).checkpoints)
    faults.arm("nothing" if case.sound else "full", 1)
    with installed(faults):
        case.train(run)


def trained(case: Case, name: str = "run", stop_step: int = 2, **changes: Any) -> RunConfig:
    """Train a run to its end, without a result if more steps follow."""
    run = case.run(name, stop_step, **changes)
    case.train(run)
    return run


def resumed(run: RunConfig, **changes: Any) -> RunConfig:
    """The run with two more steps."""
    last = run.learning_rate[-1]
    rate = [*run.learning_rate[:-1], last.but(end_step=max(last.end_step, run.stop_step + 2))]
    return run.but(**{"stop_step": run.stop_step + 2, "learning_rate": [one.model_dump() for one in rate], **changes})


def resume_with(case: Case, *, at_first: dict[str, Any] | None = None, **changes: Any) -> None:
    """Train a run, and resume the run with changed settings, or without a change if the case is sound."""
    run = trained(case, stop_step=END, **(at_first or {}))
    case.train(resumed(run) if case.sound else resumed(run, **changes))


def cut(run: RunConfig, step: int) -> None:
    """Cut the largest file of a checkpoint in half."""
    path = max(RunFolder(run.output).checkpoint(step).rglob("*"), key=lambda one: one.stat().st_size if one.is_file() else 0)
    os.truncate(path, path.stat().st_size // 2)
