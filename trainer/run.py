"""The composition root: a run's file in, its result file out. It first checks the verdict on the data."""

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
from pydantic import ValidationError

from phasewise.trainer.base.decision import ruling_at
from phasewise.trainer.base.errors import ConfigError, ExitCode, PhasewiseError, TakenOver, VerdictError, print_refusal, refused_by_system
from phasewise.trainer.base.frozen import join_problems
from phasewise.trainer.base.identity import SEAL, NotAsWritten, read_sealed, unsealed, write_sealed
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.storage import read_json
from phasewise.trainer.checkpoints.checkpointer import check_resume
from phasewise.trainer.config import RunConfig
from phasewise.trainer.config.execution import check_kernel, check_sinks
from phasewise.trainer.data.manifest import read_manifest
from phasewise.trainer.loop import Guards, Moves, Preempted, train
from phasewise.trainer.process import distributed
from phasewise.trainer.process.child_process import end_with_parent, seconds_left_to_save
from phasewise.trainer.process.compilation_cache import drop_changed, seal_new
from phasewise.trainer.process.rendezvous import CHECKPOINT_STORE_VARIABLE, check_without_shared_folder
from phasewise.trainer.process.watchdog import Watchdog, end_stalled, heartbeat, only_one_trainer, stall_limits


def check_verdict(run: RunConfig) -> None:
    """Raise `VerdictError` unless the verdict names exactly the caches of the run, and passes or was approved in its current state."""
    try:
        verdict = read_sealed(run.verdict)
    except FileNotFoundError:
        raise VerdictError(f"phase {run.phase} has no verdict at {run.verdict}: validate its data first.") from None
    except NotAsWritten as error:
        raise VerdictError(f"the verdict {error}: validate the data again.") from None
    judged = verdict.get("judged")
    if not isinstance(judged, dict):
        raise VerdictError(f"{run.verdict} is not a verdict, it must say `passes` and `judged`: validate the data again.")
    try:
        ruling = ruling_at(run.verdict, verdict)
    except (KeyError, TypeError, AttributeError) as error:
        raise VerdictError(f"{run.verdict} is not a verdict ({error!r}): validate the data again.") from None
    if not ruling.lets_go_on:
        if ruling.decision:
            raise VerdictError(f"the verdict {run.verdict} was {ruling.decision.words}. Phase {run.phase} must not train.")
        if ruling.state == "waits":
            void = f" ({ruling.void})" if ruling.void else ""
            raise VerdictError(
                f"the verdict {run.verdict} waits for a person's decision{void}: phase {run.phase} must not train before it."
            )
        raise VerdictError(f"the verdict {run.verdict} does not pass: phase {run.phase} must not train.")
    for component, folder in sorted(run.caches.items()):
        digest = read_manifest(folder).digest
        if judged.get(component) != digest:
            raise VerdictError(
                f"the verdict {run.verdict} was given for other bytes of {component}: it names "
                f"{str(judged.get(component))[:12]}, the cache is {digest[:12]}. Validate the data again."
            )


def main(arguments: list[str]) -> int:
    """Run `python -m phasewise.trainer RUN.json [--with-parent]` and return the exit code (`ExitCode`).

    The environment can make several processes one program (`trainer.process.distributed`). If jax detects a dead process first, jax ends
    this process by SIGABRT.

    With `--with-parent` the process ends when its standard input closes, so it does not outlive its launcher. After a stop request it
    first takes the time to save (`trainer.process.signals`).
    """
    paths = [argument for argument in arguments if argument != "--with-parent"]
    if len(paths) != 1 or paths[0].startswith("-"):
        print("usage: python -m phasewise.trainer RUN.json [--with-parent]", file=sys.stderr)
        return ExitCode.USAGE
    try:
        if "--with-parent" in arguments:
            end_with_parent(ExitCode.PREEMPTED, seconds_left_to_save)
        with refused_by_system(Path(paths[0]).parent):
            run = read_run(Path(paths[0]))
            with distributed.joined(run):
                execute(run)
    except (Preempted, Moves) as saved:
        return saved.exit_code
    except PhasewiseError as error:
        print_refusal(f"trainer: {error}")
        return error.exit_code
    return ExitCode.DONE


def read_run(path: Path) -> RunConfig:
    """Return the run that a file describes. Raises ConfigError if the file is unreadable, or a field is missing, unknown or invalid."""
    try:
        content = read_json(path)
        if not isinstance(content, dict):
            raise ConfigError(f"{path} is not a run: expected an object, found {type(content).__name__}")
        return RunConfig.model_validate(unsealed(content, path, may_lack_seal=True))
    except FileNotFoundError:
        raise ConfigError(f"no such file: {path}") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        raise ConfigError(f"{path} is not a run: {join_problems(error)}") from None
    except NotAsWritten as error:
        raise ConfigError(f"{error}. If the change is intended, delete the field `{SEAL}`.") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None


def execute(run: RunConfig) -> dict[str, Any]:
    """Check the verdict, train, and write `result.json`."""
    if os.environ.get(CHECKPOINT_STORE_VARIABLE):
        check_without_shared_folder(run)
    check_sinks(run.instrumentation)
    check_kernel(run.execution.attention, jax.default_backend(), run.model, context=run.execution.mesh.context)
    check_verdict(run)
    check_resume(run)
    output = Path(run.output)
    output.mkdir(parents=True, exist_ok=True)
    programs = RunFolder(output).compilation_cache.resolve()
    if distributed.is_first():
        drop_changed(programs)
    jax.config.update("jax_compilation_cache_dir", str(programs))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # cache every program, so a restart compiles nothing
    watchdog = Watchdog(stall_limits(run.execution), partial(end_stalled, run.phase))
    if not distributed.is_first():
        with watchdog:
            return train(run, Guards(watchdog))
    with only_one_trainer(output) as fence:

        def end_taken_over() -> None:
            try:
                fence.check()
            except TakenOver as error:
                print(f"trainer: {error}", file=sys.stderr, flush=True)
                os._exit(ExitCode.TAKEN_OVER)

        pulse = heartbeat(output, lambda: (watchdog.doing(), watchdog.step), token=fence.number, check=end_taken_over, spent=watchdog.spent)
        with watchdog, pulse:
            try:
                result = train(run, Guards(watchdog, fence.check, fence.alone))
            finally:
                seal_new(programs)
            with fence.alone():
                write_sealed(RunFolder(output).result, result)
    return result
