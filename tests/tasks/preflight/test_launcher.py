import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from phasewise.tasks.home import Home
from phasewise.tasks.preflight import launcher
from phasewise.tasks.preflight.launcher import MissingCompiler, digest_of, examine, run_compiler
from phasewise.tasks.preflight.plan import Plan, spec_for
from phasewise.tasks.preflight.slices import find_slice
from phasewise.trainer.base.errors import ConfigError, TrainingError
from phasewise.trainer.preflight.spec import Spec
from tests.tasks.preflight.steps import result_of
from tests.trainer.preflight.models import LLAMA_8B, step_of

SPEC = spec_for(step_of(LLAMA_8B, 1024), find_slice("2x v5e-256"), Plan(remat="full"))


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[Spec]:
    done: list[Spec] = []
    monkeypatch.setattr(launcher, "run_compiler", lambda spec: (done.append(spec), result_of(6.7))[1])
    monkeypatch.setattr(launcher, "version", lambda name: f"{name} 1")
    return done


def test_the_same_is_compiled_once_and_what_decides_is_digested(monkeypatch: pytest.MonkeyPatch, compilations: list[Spec], tmp_path: Path):
    digests = {digest_of(SPEC)}
    monkeypatch.setattr(launcher, "version", lambda name: f"{name} 2")
    digests.add(digest_of(SPEC))
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_something=true")
    digests.add(digest_of(SPEC))
    monkeypatch.setattr(launcher, "DECIDING", ("trainer/step.py",))
    digests.add(digest_of(SPEC))
    assert len(digests) == 4
    assert not compilations
    home = Home(tmp_path)
    assert examine(SPEC, home) == examine(SPEC, home) == result_of(6.7)
    assert compilations == [SPEC]
    where, plan = find_slice("2x v5e-256"), Plan(remat="full")
    steps = (step_of(LLAMA_8B, 2048), step_of(LLAMA_8B, 1024, window=128), step_of(LLAMA_8B, 1024, keeps_average=False))
    first, there = step_of(LLAMA_8B, 1024), find_slice("2x v5p-512")
    others = [*(spec_for(step, where, plan) for step in steps), spec_for(first, where, Plan(remat="offload"))]
    others += [spec_for(first, where, plan, machine_code=True), spec_for(first, there, plan)]
    for spec in (SPEC, *others):
        examine(spec, Home(tmp_path))
    assert compilations == [SPEC, *others]


def test_without_the_compiler_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def version(name: str) -> str:
        if name == "libtpu":
            raise PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr(launcher, "version", version)
    with pytest.raises(MissingCompiler, match=r"pip install 'phasewise\[tpu\]'") as error:
        examine(SPEC, Home(tmp_path))
    assert error.value.exit_code == 1


@pytest.mark.parametrize(("program", "kind", "said"), [
    ("import sys; print('preflight: mesh and model', file=sys.stderr); sys.exit(2)", ConfigError, "^mesh and model$"),
    ("import sys; print('preflight: it failed', file=sys.stderr); sys.exit(1)", TrainingError, "^it failed$"),
    ("import sys; print('Killed for memory', file=sys.stderr); sys.exit(-9)", TrainingError, "v5e:16x16: Killed for memory"),
])  # fmt: skip
def test_how_the_process_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, kind: type[Exception], said: str):
    monkeypatch.setattr(sys, "executable", write_program(tmp_path, program))
    with pytest.raises(kind, match=said):
        run_compiler(SPEC)


def test_flags_for_own_devices_do_not_reach_the_compiler_and_a_slow_one_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", write_program(tmp_path, "import sys; sys.stdin.read()"))
        patch.setattr(launcher, "MAX_SECONDS", 0.5)
        with pytest.raises(TrainingError, match=r"more than 0\.5 seconds"):
            run_compiler(SPEC)
    seen = tmp_path / "seen"
    program = "import os, sys; open(SEEN, 'w').write(repr((os.environ.get('XLA_FLAGS'), os.environ['JAX_PLATFORMS']))); sys.exit(1)"
    monkeypatch.setattr(sys, "executable", write_program(tmp_path, program.replace("SEEN", repr(str(seen)))))
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    monkeypatch.setenv("JAX_PLATFORMS", "tpu")
    with pytest.raises(TrainingError):
        run_compiler(SPEC)
    assert seen.read_text() == "(None, 'cpu')"


def write_program(folder: Path, program: str) -> str:
    path = folder / "python"
    path.write_text(f"#!{sys.executable}\n{program}\n")
    path.chmod(0o755)
    return str(path)
