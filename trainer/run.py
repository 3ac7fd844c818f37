"""The composition root: a run's file in, its result file out."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from pydantic import ValidationError

from trainer.base.errors import ConfigError, PhasewiseError, TrainingError
from trainer.base.exit_codes import ExitCode
from trainer.base.file_lock import locked
from trainer.base.storage import read_json, write_json
from trainer.config import RunConfig
from trainer.kernels.attention import check_kernel
from trainer.loop import Preempted, train
from trainer.process import distributed
from trainer.process.parent import end_with_parent
from trainer.process.permission import check_permission
from trainer.process.stopping import seconds_left_to_save
from trainer.sinks import check_sinks


def main(arguments: list[str]) -> int:
    """`python -m trainer RUN.json [--with-parent]`, and the exit code.

    0 done · 1 refused (no verdict, damaged cache or checkpoint) · 2 wrong usage or configuration · 3 diverged · 4 stalled (no update for
    `execution.stall_seconds`; the stacks of all threads are on standard error) · 5 lost (another process of the run is gone) · 75 preempted
    (stopped by SIGTERM or Ctrl-C, and saved). After 4, 5, 75 and a kill the same command goes on from the last checkpoint.

    Several processes are one program where the environment says so (`trainer.process.distributed`). jax may notice first that another is
    gone: then it ends this process by SIGABRT.

    With `--with-parent` the process ends when its standard input does: it does not outlive the program that launched it, except for the
    time that it takes to save where it was asked to stop before (`trainer.process.stopping`).
    """
    paths = [argument for argument in arguments if argument != "--with-parent"]
    if len(paths) != 1 or paths[0].startswith("-"):
        print("usage: python -m trainer RUN.json [--with-parent]", file=sys.stderr)
        return ExitCode.USAGE
    if "--with-parent" in arguments:
        end_with_parent(ExitCode.PREEMPTED, seconds_left_to_save)
    try:
        run = read_run(Path(paths[0]))
        with distributed.joined():
            execute(run)
    except Preempted:
        return ExitCode.PREEMPTED
    except PhasewiseError as error:
        print(f"trainer: {error}", file=sys.stderr)
        return error.exit_code
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
    check_sinks(run.instrumentation)
    check_kernel(run.execution.attention, jax.default_backend(), run.model)
    check_permission(run)
    output = Path(run.output)
    output.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(output.parent.resolve() / "compilation-cache"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # a restart then compiles nothing, however small
    if not distributed.is_first():
        return train(run)
    with only_one_trainer(output):
        result = train(run)
        write_json(output / "result.json", result)
    return result


@contextlib.contextmanager
def only_one_trainer(output: Path) -> Iterator[None]:
    """Hold the run's folder. The lock goes with the process, however it ends.

    Raises:
        TrainingError: another trainer holds it.
    """
    with locked(output / "lock", wait=False) as is_held:
        if not is_held:
            raise TrainingError(f"another trainer is at work in {output}: wait for it, or stop it.")
        yield
