"""Run the compiler in a child process, and keep its results under the digest of everything that decides them."""

import os
import subprocess
import tempfile
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from phasewise.tasks.home import Home
from phasewise.tasks.preflight.plan import Setup, batch_refusal, mesh_refusal, settings_for
from phasewise.tasks.preflight.report import Report, report_of
from phasewise.tasks.preflight.search import Found, estimate_plan, find_plan
from phasewise.tasks.preflight.slices import find_slice
from phasewise.trainer.base.errors import ConfigError, ExitCode, PhasewiseError, StorageError, TrainingError
from phasewise.trainer.base.identity import NotAsWritten, code_digest, digest_of_json, read_sealed, write_sealed
from phasewise.trainer.base.storage import read_json, write_json
from phasewise.trainer.config import without_added
from phasewise.trainer.preflight.spec import Result, Spec
from phasewise.trainer.process.child_process import ending, last_line, python_command
from phasewise.trainer.process.environment import deciding_variables

MAX_SECONDS, MAX_MACHINE_CODE_SECONDS = 1800, 3600
LIBRARIES = ("jax", "jaxlib", "libtpu", "optax")
DECIDING = (
    *(f"trainer/{name}.py" for name in ("interventions", "loss", "metrics", "optimizer", "sharding", "state", "step")),
    *(f"trainer/{name}/**/*.py" for name in ("kernels", "model", "preflight")),
)
"""The files that decide the compiled step and its analysis. They are read, not imported: they need jax."""
DROPPED = ("XLA_FLAGS", "JAX_PLATFORMS", "TPU_LIBRARY_PATH", "JAX_NUM_CPU_DEVICES")  # variables for the devices of this machine
FLAGS = "LIBTPU_INIT_ARGS"
COMPILER = {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}


class MissingCompiler(PhasewiseError):
    """The TPU compiler is not installed."""


def examine(spec: Spec, home: Home) -> Result:
    """Compile a specification, or read its kept result."""
    key = digest_of(spec)
    kept = home.keyed("preflight", key).with_suffix(".json")
    with suppress(FileNotFoundError, NotAsWritten, KeyError):
        found = read_sealed(kept)
        if found["key"] == key:
            return Result.model_validate(found["result"])
    result = run_compiler(spec)
    about = {"key": key, "spec": spec.model_dump(mode="json"), "versions": versions()}
    write_sealed(kept, {**about, "result": result.model_dump(mode="json")})
    return result


def digest_of(spec: Spec) -> str:
    """Digest of a specification with the versions, flags, variables and code that decide its result."""
    deciding = {
        "spec": without_added(spec.model_dump(mode="json")),
        "versions": versions(),
        "flags": os.environ.get(FLAGS, ""),
        "code": code_digest(*DECIDING),
    }
    others = {name: value for name, value in deciding_variables(os.environ).items() if name not in (*DROPPED, FLAGS)}
    return digest_of_json(deciding | ({"variables": others} if others else {}))


def versions() -> dict[str, str]:
    """Return the versions of the compiling libraries, or raise MissingCompiler."""
    try:
        return {name: version(name) for name in LIBRARIES}
    except PackageNotFoundError as error:
        raise MissingCompiler(
            f"preflight needs the compiler for TPUs, and {error.name} is not installed here: pip install 'phasewise[tpu]'."
        ) from None


def run_compiler(spec: Spec) -> Result:
    """Run `python -m phasewise.trainer.preflight`. The process exits with this process, which holds its standard input."""
    limit = MAX_MACHINE_CODE_SECONDS if spec.machine_code else MAX_SECONDS
    environment = {name: value for name, value in os.environ.items() if name not in DROPPED} | COMPILER
    if spec.topology.platform == "cpu":
        environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={spec.topology.devices}"
    with tempfile.TemporaryDirectory(prefix="phasewise-preflight-") as folder:
        spec_file, result_file, log = (Path(folder) / name for name in ("spec.json", "result.json", "log"))
        write_json(spec_file, spec.model_dump(mode="json"))
        command = python_command("phasewise.trainer.preflight", str(spec_file), str(result_file), "--with-parent")
        with (
            open(log, "wb") as output,
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output, env=environment) as process,
        ):
            try:
                code = process.wait(limit)
            except subprocess.TimeoutExpired:
                process.kill()
                raise TrainingError(f"the compiler for TPUs took more than {limit} seconds for {spec.topology.name}: stopped.") from None
            except BaseException:
                process.kill()
                raise
        if code:
            lines = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("preflight: ")]
            if lines:
                kinds: dict[int, type[PhasewiseError]] = {ExitCode.USAGE: ConfigError, ExitCode.NO_STORAGE: StorageError}
                raise kinds.get(code, TrainingError)(lines[-1].removeprefix("preflight: "))
            reason = last_line(log) or "it said nothing"
            raise TrainingError(f"the compiler for TPUs {ending(code)} for {spec.topology.name}: {reason}")
        return Result.model_validate(read_json(result_file))


def preflight_setup(setup: Setup, home: Home, *, machine_code: bool = False, estimated: bool = False) -> Report:
    """Find the fastest plan that fits the setup on its slice, with time and cost. `estimated` compiles nothing, as for GPUs."""
    where = find_slice(setup.slice)
    if not settings_for(setup.step, where):
        reason = batch_refusal(setup.step.batch_sequences, where) or mesh_refusal(setup.step, where)
        nothing = Found(plan=None, result=None, tried=(), compile_seconds=0.0, considered=0, why="")
        return report_of(setup, where, nothing) | {"why": None, "reason": reason}
    if estimated or where.chip.platform == "gpu":
        return report_of(setup, where, estimate_plan(setup.step, where))
    return report_of(setup, where, find_plan(setup.step, where, partial(examine, home=home), machine_code=machine_code))
