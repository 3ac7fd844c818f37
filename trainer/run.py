"""The composition root: a run's file in, its result file out."""

import os
import sys
from pathlib import Path
from typing import Any

import jax
from pydantic import ValidationError

from trainer.base.errors import ConfigError, PhasewiseError, TakenOver
from trainer.base.exit_codes import ExitCode
from trainer.base.run_folder import RunFolder
from trainer.base.storage import read_json, storage_trouble, write_json
from trainer.config import RunConfig
from trainer.kernels.attention import check_kernel
from trainer.loop import Guards, Moves, Preempted, train
from trainer.process import distributed
from trainer.process.apart import are_apart, check_goes_apart
from trainer.process.fence import Fence, only_one_trainer
from trainer.process.heartbeat import Heartbeat
from trainer.process.parent import end_with_parent
from trainer.process.permission import check_permission
from trainer.process.stall_limits import stall_limits
from trainer.process.stopping import seconds_left_to_save
from trainer.process.watchdog import Watchdog, end_stalled
from trainer.result import with_digest
from trainer.sinks import check_sinks


def main(arguments: list[str]) -> int:
    """`python -m trainer RUN.json [--with-parent]`, and the exit code.

    0 done · 1 refused (no verdict, damaged cache or checkpoint) · 2 wrong usage or configuration · 3 diverged · 4 stalled (nothing done for
    so long as `execution` allows; the stacks of all threads are on standard error) · 5 lost (another process of the run is gone) · 6 taken
    over (a later trainer has the folder) · 7 a file could not be written or read · 8 asks (diverged, and a person decides whether to roll
    back) · 9 moves (saved where the phase goes on on another slice) · 75 preempted (stopped by SIGTERM or Ctrl-C, and saved).
    After 4, 5, 75 and a kill the same command goes on from the last checkpoint.

    Several processes are one program where the environment says so (`trainer.process.distributed`). jax may notice first that another is
    gone: then it ends this process by SIGABRT.

    With `--with-parent` the process ends when its standard input does: it does not outlive the program that launched it, except for the
    time that it takes to save where it was asked to stop before (`trainer.process.stopping`).
    """
    paths = [argument for argument in arguments if argument != "--with-parent"]
    if len(paths) != 1 or paths[0].startswith("-"):
        print("usage: python -m trainer RUN.json [--with-parent]", file=sys.stderr)
        return ExitCode.USAGE
    try:
        if "--with-parent" in arguments:
            end_with_parent(ExitCode.PREEMPTED, seconds_left_to_save)
        run = read_run(Path(paths[0]))
        with distributed.joined(run):
            execute(run)
    except (Preempted, Moves) as saved:
        return saved.exit_code
    except PhasewiseError as error:
        print(f"trainer: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"trainer: {storage_trouble(error)}", file=sys.stderr)
        return ExitCode.NO_STORAGE
    return ExitCode.DONE


def read_run(path: Path) -> RunConfig:
    """The run that a file describes.

    Raises:
        ConfigError: the file is missing, or a field is missing, misspelt or impossible.
    """
    try:
        return RunConfig.model_validate(read_json(path))
    except FileNotFoundError:
        raise ConfigError(f"no such file: {path}") from None
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, item['loc'])) or 'run'}: {item['msg'].removeprefix('Value error, ')}" for item in error.errors()
        )
        raise ConfigError(f"{path} is not a run: {problems}") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None


def execute(run: RunConfig) -> dict[str, Any]:
    """Ask for permission, train, write `result.json`."""
    if are_apart():
        check_goes_apart(run)
    check_sinks(run.instrumentation)
    check_kernel(run.execution.attention, jax.default_backend(), run.model, context=run.execution.mesh.context)
    check_permission(run)
    output = Path(run.output)
    output.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(RunFolder(output).compilation_cache))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # a restart then compiles nothing, however small
    watchdog = Watchdog(stall_limits(run.execution), end_stalled(run.phase))
    if not distributed.is_first():
        with watchdog:
            return train(run, Guards(watchdog))
    with only_one_trainer(output) as fence, watchdog, _heartbeat(output, watchdog, fence):
        result = train(run, Guards(watchdog, fence.check, fence.alone))
        with fence.alone():
            write_json(RunFolder(output).result, with_digest(result))
    return result


def _heartbeat(output: Path, watchdog: Watchdog, fence: Fence) -> Heartbeat:
    """It also ends a trainer that stood still and was taken over, whatever it is at."""

    def end_taken_over() -> None:
        try:
            fence.check()
        except TakenOver as error:
            print(f"trainer: {error}", file=sys.stderr, flush=True)
            os._exit(ExitCode.TAKEN_OVER)

    return Heartbeat(output, lambda: (watchdog.doing(), watchdog.step), token=fence.number, check=end_taken_over, spent=watchdog.spent)
