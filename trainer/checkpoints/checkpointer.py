"""The checkpoints of a run: saved in the background, committed atomically, checked for damage, pruned, and compared with the run on resume.

Checkpoint N is the state after N updates. See `trainer.checkpoints.state` for its content, and `trainer.checkpoints.files` for its commit.
"""

import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from pydantic import TypeAdapter, ValidationError

from phasewise.trainer.base.errors import CheckpointError, StorageError, TakenOver, TrainingError, refusal_of
from phasewise.trainer.base.identity import digest_of_file
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.storage import as_path, cleaning_up
from phasewise.trainer.base.wording import name_some
from phasewise.trainer.checkpoints.files import (
    UNCOMMITTED,
    committed_files,
    find_damage,
    is_committed,
    remove_checkpoint,
    saved_steps,
    write_digests,
)
from phasewise.trainer.checkpoints.shards import build_writer, upload_shards
from phasewise.trainer.checkpoints.state import (
    ABOUT,
    MAX_NAMED,
    Leaves,
    check_types,
    leaves_of,
    placed,
    read_about,
    read_leaves,
    tree_like,
    types_of,
)
from phasewise.trainer.config import LearningRateSegment, RunConfig, first_changed_rate
from phasewise.trainer.config.run import MAY_CHANGE, NOTHING, Difference, differences_between, without_fields
from phasewise.trainer.data.loader import changed_since
from phasewise.trainer.metrics import read_metrics, rows_digest, whole_through
from phasewise.trainer.process.distributed import START_SECONDS, coordinator_client, is_first, is_of_the_runtime
from phasewise.trainer.process.rendezvous import CHECKPOINT_STORE_VARIABLE
from phasewise.trainer.process.watchdog import Alone
from phasewise.trainer.skipped_steps import CONTRACT_NAME, SkippedSteps, Window
from phasewise.trainer.step import TrainState, init_state

MIN_KEPT = 2  # the newest checkpoint, and a spare one if it is damaged
NONE_SAVED, NONE_WHOLE = -1, -2
KEPT_DECISIONS = 64
_SEGMENTS = TypeAdapter(tuple[LearningRateSegment, ...])


class Checkpoints(AbstractContextManager["Checkpoints"]):
    """The checkpoints of one run, in `folder`. Leaving the context waits for the last save.

    Args:
        clock: returns seconds, for saves by minutes.
        check: called before each commit.
        alone: the context for deleting files.
        watch: the context for writing in the background.
    """

    def __init__(
        self,
        folder: Path,
        run: RunConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        check: Callable[[], None] = lambda: None,
        alone: Alone = nullcontext,
        watch: Callable[[], AbstractContextManager[None]] = nullcontext,
    ):
        self.folder = folder.resolve()
        self._run = run
        self._clock, self._check, self._alone, self._watch = clock, check, alone, watch
        self._saved_at = clock()
        self._damaged: set[int] = set()
        url = os.environ.get(CHECKPOINT_STORE_VARIABLE)
        self._store = as_path(url) if url and jax.process_count() > 1 else None  # for shards, if the processes share no folder
        self._has_folder = is_first() or self._store is not None
        self._writer = build_writer(has_shared_folder=self._store is None)
        self._background = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[None] | None = None
        self._copy: Leaves | None = None

    def __exit__(self, *_: object) -> None:
        try:
            self.wait()
        finally:
            self._background.shutdown()
            self._writer.close()

    def due(self, step: int) -> bool:
        """Return whether to save after `step` updates: by steps, or by minutes of process 0 if no save is running.

        All processes must call this at the same steps. No device waits.
        """
        policy = self._run.checkpoints
        if self.due_by_rule(step):
            return True
        if policy.every_minutes is None:
            return False
        is_free = self._writing is None or self._writing.done()
        is_late = is_free and self._clock() - self._saved_at >= 60 * policy.every_minutes
        if jax.process_count() == 1:
            return is_late
        client, key = coordinator_client(), "phasewise/save"
        if is_first():
            client.key_value_set(f"{key}/{step}", str(int(is_late)))
            client.key_value_delete(f"{key}/{step - KEPT_DECISIONS}")  # updates keep all processes closer than this
            return is_late
        try:
            return client.blocking_key_value_get(f"{key}/{step}", 1000 * START_SECONDS) == "1"
        except jax.errors.JaxRuntimeError as error:
            raise TrainingError(f"process 0 did not say whether to save at step {step}: {error}") from error

    def due_by_rule(self, step: int) -> bool:
        """Return whether the policy saves after `step` updates, whatever the time."""
        policy = self._run.checkpoints
        return step % policy.every_steps == 0 or step in policy.at_steps

    def forget_given_up(self, skipped_steps: SkippedSteps) -> None:
        """Delete the checkpoints of updates that were rolled back."""
        if not skipped_steps or not is_first():
            return
        for step in saved_steps(self.folder):
            path = self.folder / str(step)
            if find_damage(path) is None and skipped_steps.standing(step, read_about(path)["contract"]) == "given up":
                with self._alone():
                    remove_checkpoint(path)

    def latest_step(self, at_most: int | None = None) -> int | None:
        """Return the newest undamaged checkpoint, of a step up to `at_most`. Damaged checkpoints are named on standard error.

        Return None if no save was ever committed. Raise `CheckpointError` if all checkpoints are damaged.
        """
        found = NONE_SAVED
        steps = [step for step in saved_steps(self.folder) if at_most is None or step <= at_most] if is_first() else []
        for step in reversed(steps):
            path = self.folder / str(step)
            if (damage := find_damage(path)) is None:
                found = step
                break
            self._damaged.add(step)
            found = NONE_SAVED if damage == UNCOMMITTED and len(steps) == 1 else NONE_WHOLE
            _say(f"checkpoint {path} {damage}; {'the one before it is used' if step != steps[0] else 'there is none before it'}")
        step = int(multihost_utils.broadcast_one_to_all(np.int32(found)))
        if step == NONE_WHOLE:
            raise CheckpointError(
                f"no checkpoint in {self.folder} is whole. Restore one from a copy, or move the folder away to restart the phase."
            )
        return None if step == NONE_SAVED else step

    def newest_with_its_rows(self, step: int, skipped_steps: SkippedSteps) -> int:
        """Return the newest checkpoint, up to `step`, whose updates all have their original rows in the metrics.

        Without these rows, the training would be judged by a part of its updates. Several processes skip this check, because they might
        read different states of the file.
        """
        if jax.process_count() > 1:
            return step
        path = RunFolder(self._run.output).metrics
        rows = read_metrics(path)
        reached = whole_through(rows, self._run.start_step, skipped_steps)
        found: int | None = step
        while found is not None:
            said = read_about(self.folder / str(found)).get("rows")
            is_complete = all(update in skipped_steps for update in range(reached, found))
            if is_complete and (said is None or said == rows_digest(row for row in rows if row["step"] <= found)):
                break
            found = self.latest_step(at_most=found - 1)
        if found is None:
            raise CheckpointError(
                f"{path}: expected the original row of each step up to the last checkpoint ({step}), found missing or changed rows, and "
                f"every checkpoint needs some of them. Restore the file from a copy, or move {self._run.output} away to restart the phase."
            )
        if found != step:
            _say(
                f"{path} lacks rows of the steps up to {step}, or has others than were written; the checkpoint of step {found} is gone "
                "back to, and the updates after it are done again"
            )
        gone = [at for at in range(step + 1, reached + 1) if self.due_by_rule(at) and at not in self._damaged and not skipped_steps]
        if gone:
            _say(
                f"{self.folder}: expected checkpoint {gone[-1]}, as {path} reaches step {reached}, found checkpoint {step} as the newest: "
                f"{reached - step} updates are done again"
            )
        return found

    def save(self, step: int, state: TrainState, contract: Mapping[str, Any], *, rows: str | None = None) -> None:
        """Copy the state and write the copy in the background, after the end of the previous save. A saved step is not saved again."""
        self.wait()
        path = self.folder / str(step)
        is_saved = np.int32(step not in self._damaged and is_committed(path))
        if multihost_utils.broadcast_one_to_all(is_saved):  # another process may see the commit of the first process or not
            return
        if self._has_folder:
            with self._alone():  # of killed writers: Orbax's temporary folders, and folders without a commit
                for left in self.folder.glob("*.orbax-checkpoint-tmp*"):
                    shutil.rmtree(left, ignore_errors=True)
                for left in [path, *(self.folder / str(step) for step in saved_steps(self.folder))]:
                    if left == path or not is_committed(left):
                        remove_checkpoint(left)
        self._damaged.discard(step)
        self._saved_at = self._clock()
        leaves = leaves_of(state)
        about = {"run": self._run.model_dump(mode="json"), "contract": dict(contract), "leaves": types_of(leaves)}
        about |= {} if rows is None else {"rows": rows}
        on_host = jax.default_backend() == "cpu"
        if on_host:
            # The next update reuses the state's memory, and would wait for the write. (On accelerators Orbax's save copies to the host
            # first.) The copy's memory is reused, as allocation takes four times as long as filling.
            self._copy = leaves = jax.block_until_ready(_copied(leaves, self._copy))
        items = ocp.args.Composite(state=ocp.args.PyTreeSave(leaves), about=ocp.args.JsonSave(about))
        begin = partial(self._writer.save, path, args=items)
        if on_host and jax.process_count() == 1:
            self._writing = self._background.submit(self._commit, step, begin)
        else:  # Orbax copies to the host first, and communicates with the other processes
            begin()
            self._writing = self._background.submit(self._commit, step)

    def wait(self) -> None:
        """Wait until the save in the background is committed and older checkpoints are pruned, and raise its error."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def restore(self, step: int, contract: Mapping[str, Any], shardings: TrainState | None = None) -> TrainState:
        """Return the state of this run at `step`, saved on any mesh, with these shardings or on the first device."""
        path = self.folder / str(step)
        about = read_about(path)
        check_same_run(path, about["run"], self._run)
        changed = changed_since(about["contract"], contract)
        known = SkippedSteps(tuple(Window(*window) for window in contract.get(CONTRACT_NAME, ())))
        if known.standing(step, about["contract"]) != "valid":
            changed = [*changed, CONTRACT_NAME]
        if changed:
            raise CheckpointError(
                f"{path} was trained on another data order: {', '.join(changed)} changed since. "
                f"Restore the earlier data order, or remove {self.folder} to restart the phase."
            )
        wanted = jax.eval_shape(lambda: init_state(self._run))
        check_types(path, about["leaves"], types_of(leaves_of(wanted)))
        return tree_like(wanted, read_leaves(path, about["leaves"].keys(), placed(shardings)))

    def _commit(self, step: int, begin: Callable[[], None] = lambda: None) -> None:
        try:
            with self._watch():
                begin()
                self._writer.wait_until_finished()
                if self._has_folder:
                    self._check()
                    path = self.folder / str(step)
                    write_digests(path, None if self._store is None else upload_shards(path, self._store))
                    steps, policy = saved_steps(self.folder), self._run.checkpoints
                    whole = [one for one in steps if one not in self._damaged and is_committed(self.folder / str(one))]
                    kept = {*whole[-MIN_KEPT:], *filter(policy.keeps, whole)}
                    if (recovery := self._run.recovery) is not None:  # the checkpoints that a rollback may need
                        kept |= {*[one for one in whole if one % policy.every_steps == 0][-(recovery.checkpoints_back + 1) :]}
                    with self._alone():
                        for one in set(steps) - kept:
                            with cleaning_up(self.folder, _say):
                                remove_checkpoint(self.folder / str(one))
        except TakenOver:
            raise
        except Exception as error:  # errors of a file system or a store
            if jax.process_count() > 1 and is_of_the_runtime(error):
                raise
            reason = refusal_of(error, self.folder) or f"{error}. Look after the storage, and start again."
            raise StorageError(
                f"checkpoint {self.folder / str(step)} could not be written, the previous checkpoint is kept: {reason}"
            ) from error


@partial(jax.jit, donate_argnums=1, keep_unused=True)
def _copied(leaves: Leaves, _memory: Leaves | None) -> Leaves:
    return jax.tree.map(jnp.copy, leaves)


def _say(text: str) -> None:
    print(f"trainer: {text}", file=sys.stderr, flush=True)


def check_resume(run: RunConfig) -> None:
    """Raise `CheckpointError` if the newest checkpoint of a run was trained with other settings. Print fields that can't be compared."""
    folder = RunFolder(run.output).checkpoints
    for path in (folder / str(step) for step in reversed(saved_steps(folder))):
        files = committed_files(path)
        items = () if isinstance(files, str) else files.items()
        record = {path / name: digest for name, (_, digest) in items if name.startswith(f"{ABOUT}/")}
        if record and all(name.is_file() and digest_of_file(name) == digest for name, digest in record.items()):
            saved = read_about(path)["run"]
            if unknown := check_same_run(path, saved, run):
                _say(f"{path} was written by another version of the code: {name_some(unknown, MAX_NAMED, ', ')} cannot be compared")
            return


def check_same_run(path: Path, saved: Any, run: RunConfig) -> list[str]:
    """Raise `CheckpointError` if the run `saved` in a checkpoint has other settings than `run`. Return fields that can't be compared."""
    wanted, unknown = without_fields(run.model_dump(mode="json"), MAY_CHANGE), list[str]()
    try:
        known = without_fields(RunConfig.model_validate(saved).model_dump(mode="json"), MAY_CHANGE)
        found = list(differences_between(known, wanted))
    except ValidationError:
        every = list(differences_between(without_fields(saved if isinstance(saved, dict) else {}, MAY_CHANGE), wanted))
        found = [one for one in every if NOTHING not in (one.before, one.now)]
        unknown = [one.field for one in every if NOTHING in (one.before, one.now)]
    before = tuple[LearningRateSegment, ...]()
    with suppress(ValidationError, KeyError):  # of another version
        before = _SEGMENTS.validate_python(saved["learning_rate"] if isinstance(saved, Mapping) else ())
    if before and (changed := first_changed_rate(before, run.learning_rate, run.start_step, int(path.name))):
        update, was, now = changed
        found.append(Difference(f"learning_rate of update {update + 1}", f"{was:g}", f"{now:g}"))
    if found:
        named = name_some([f"{one.field} is {one.before} in the checkpoint and {one.now} in run.json" for one in found], MAX_NAMED, "; ")
        raise CheckpointError(
            f"{path} was trained with other settings: {named}. Restore the checkpoint's values in run.json, or move {run.output} away to "
            "restart the phase."
        )
    return unknown
