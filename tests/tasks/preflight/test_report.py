import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from phasewise.flows.recipes.trinity.small import TRINITY_NANO as TRINITY_NANO_RECIPE
from phasewise.tasks.home import Home
from phasewise.tasks.preflight import launcher
from phasewise.tasks.preflight import launcher as module
from phasewise.tasks.preflight.estimate import ici_speed, roofline_of
from phasewise.tasks.preflight.launcher import MissingCompiler, digest_of, examine, preflight_setup, report_of, run_compiler
from phasewise.tasks.preflight.plan import GIB, Plan, Setup, policies_for, spec_for
from phasewise.tasks.preflight.search import Found, Tried, estimate_plan
from phasewise.tasks.preflight.slices import find_slice
from phasewise.trainer.base.errors import ConfigError, TrainingError
from phasewise.trainer.config import ATTENTION, Execution, Kept, Mesh
from phasewise.trainer.flops import step_flops
from phasewise.trainer.preflight.spec import Collective, Spec
from tests.tasks.preflight.steps import result_of
from tests.trainer.model.families import EXPERTS
from tests.trainer.preflight.models import LLAMA_8B, LLAMA_32B, step_of

TRINITY_NANO = TRINITY_NANO_RECIPE.phases[0]
KESTREL = Setup(phase="kestrel", slice="2x v5e-256", stretches=((0, 660_000),), step=step_of(LLAMA_8B, 1024, keeps_average=False))
PROMISED = {
    "phase", "slice", "chips", "hosts", "mesh", "fits", "remat", "gib_per_chip", "flops_per_step", "collective_bytes", "step_seconds",
    "tokens_per_day", "days", "chip_hours", "compile_seconds",
}  # fmt: skip
UNFIT = Tried(plan=Plan(remat="full"), reason="needs 40.0 GiB", gib=40.0, roofline=None)
NOTHING = Found(plan=None, result=None, tried=(), compile_seconds=9.0, considered=900, why="none fits")
STEP = step_of(LLAMA_8B.but(num_layers=12, d_model=1536, d_ff=5376, num_query_heads=12, num_kv_heads=3), 32)


def fitting(remat: str = "full") -> Found:
    tried = (Tried(plan=Plan(remat="dots"), reason="needs 23.4 GiB of 15.75: the compiler refused it", gib=23.4, roofline=None),)
    result = result_of(6.7, limit_gib=15.75)
    plan = Plan.model_validate({"remat": remat})
    return Found(plan=plan, result=result, tried=tried, compile_seconds=5.0, considered=900, why="the fastest of 1 that fit")


def test_what_scripts_read_is_there():
    report = report_of(KESTREL, find_slice("2x v5e-256"), fitting())
    assert set(report) >= PROMISED
    assert {"arguments", "temporaries", "peak", "limit"} <= set(report["gib_per_chip"])
    assert report["gib_per_chip"]["peak"] == 6.7
    assert report["collective_bytes"] == {"all-gather": 30 * 10**9, "all-reduce": 10 * 10**9 + 10**8}
    assert (report["fits"], report["reason"]) == (True, None)
    seconds = report["roofline_seconds"]["compute"]
    assert report["step_seconds"] == seconds == max(report["roofline_seconds"][term] for term in ("compute", "hbm", "ici", "dcn", "host"))
    assert report["days"] == pytest.approx(660_000 * seconds / 86_400, rel=1e-3)
    assert report["chip_hours"] == pytest.approx(660_000 * seconds * 512 / 3600, rel=1e-3)
    assert report["tokens_per_day"] == pytest.approx(1024 * 4096 * 86_400 / seconds, rel=1e-3)
    assert report["flops_per_step_per_chip"]["analytic"] * 512 == report["flops_per_step"]
    assert report["flops_per_step_per_chip"]["xla"] == 1e16 / 512
    assert report["roofline_seconds"]["dcn"] == pytest.approx(1e8 / 3.125e9, abs=1e-3)


def test_a_report_has_the_same_fields_and_every_reason_if_nothing_fits_or_cuts(tmp_path: Path):
    setup = Setup(phase="phase-1", slice="3x v5p-512", stretches=((18_500, 21_010),), step=step_of(LLAMA_32B, 8192, window=128))
    refused = preflight_setup(setup, Home.open(str(tmp_path)))
    nothing = report_of(KESTREL, find_slice("2x v5e-256"), NOTHING)
    assert set(refused) == set(nothing) == set(report_of(KESTREL, find_slice("2x v5e-256"), fitting()))
    assert (refused["fits"], refused["step_seconds"], "7,680" in refused["reason"]) == (False, None, True)
    tried = (UNFIT.but(reason="needs 40.0 GiB of 30.75"), UNFIT.but(plan=Plan(remat="offload"), reason="needs 31.0 GiB"))
    report = report_of(KESTREL, find_slice("v4-2048"), NOTHING.but(tried=tried, result=result_of(31)))
    assert report["reason"].startswith("no plan fits: blocks computed again needs 40.0 GiB")
    assert "offloaded needs 31.0 GiB" in report["reason"]
    assert report["gib_per_chip"]["peak"] == 31.0
    sparse = KESTREL.but(step=KESTREL.step.but(model=KESTREL.step.model.but(experts=EXPERTS, d_model=4095)))
    report = preflight_setup(sparse, Home.open(str(tmp_path)))  # sizes that no mesh divides: the compiler is not asked
    assert (report["fits"], report["step_seconds"]) == (False, None)
    assert "no mesh cuts 4 experts, d_model 4,095" in report["reason"]


def test_each_compiled_plan_is_there_with_its_cost_and_the_chosen_one_as_the_trainer_takes_it():
    where = find_slice("2x v5e-256")
    plan = Plan(remat=Kept(on_device=("gate",)), parts=2, mesh=Mesh(replica=4, fsdp=128), loss_tokens_a_chip=4096)
    report = report_of(KESTREL, where, fitting().but(plan=plan))
    assert Execution.model_validate(report["execution"]) == spec_for(KESTREL.step, where, plan).execution
    assert report["mesh"] == report["execution"]["mesh"] == {"replica": 4, "fsdp": 128, "tensor": 1, "expert": 1, "context": 1}
    assert (report["remat"], report["microbatch_sequences"]) == (report["execution"]["remat"], 512)
    plan = Plan(remat="full")
    slower = Tried(plan=plan, reason="fits, 4.13 s a step", gib=6.66, roofline=roofline_of(KESTREL.step, where, plan, result_of(6)))
    report = report_of(KESTREL, where, fitting().but(tried=(slower, UNFIT)))
    first, second = report["tried"]
    assert (first["fits"], first["gib"], first["binds"]) == (True, 6.66, "compute")
    assert first["ranking_seconds"] > first["step_seconds"] > 4
    assert (second["fits"], second["step_seconds"]) == (False, None)


def test_a_sparse_report_has_its_parameters_and_its_exchange_by_axis():
    """Memory has all experts, arithmetic those that a token meets. Without an axis for experts nothing is exchanged."""
    where = find_slice("v5p-1024")
    step = step_of(TRINITY_NANO.model, 4096, keeps_average=False)
    setup = Setup(phase="phase-1", slice="v5p-1024", stretches=((0, 1000),), step=step)
    sent = Collective(kind="all-to-all", axis="expert", link="ici", count=486, bytes=171 * 10**9)
    plan = Plan(remat="full", mesh=Mesh(replica=8, fsdp=8, expert=8))
    found = fitting().but(plan=plan, result=result_of(16.5).but(collectives=(*result_of(16.5).collectives, sent), update_flops=10**12))
    report = report_of(setup, where, found)
    assert (report["parameters"], report["active_parameters"]) == (6_120_003_328, 1_023_923_968)
    assert report["flops_per_step"] == step_flops(TRINITY_NANO.model, 4096).total < 6 * 1.3 * report["active_parameters"] * 4096 * 4096
    assert report["all_to_all"] == {"expert": {"bytes": 171 * 10**9, "seconds": pytest.approx(171 / 200 * 16 / 7, abs=1e-3)}}
    assert report["flops_per_step_per_chip"]["update"] == 10**12
    assert report["tokens_per_second"] == pytest.approx(4096 * 4096 / report["step_seconds"], rel=1e-3)
    assert (report["execution"]["expert_kernel"], report_of(setup, where, fitting())["all_to_all"]) == ("megablox", {})


def test_chip_hours_are_of_chips_and_mfu_of_devices():
    where = find_slice("tpu7x-128")
    report = report_of(KESTREL.but(slice="tpu7x-128"), where, fitting())
    seconds = report["step_seconds"]
    assert (report["chips"], report["devices"], report["chip_hours"]) == (64, 128, pytest.approx(660_000 * seconds * 64 / 3600, rel=1e-3))
    assert report["mfu"] == pytest.approx(report["flops_per_step"] / seconds / (64 * 2307e12), rel=1e-2)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setattr(module, "examine", lambda spec, home: pytest.fail("something was compiled"))
    return Home(tmp_path)


@pytest.mark.parametrize("name", ["h100-1", "h100-8", "h200-8", "2x h100-8"])
def test_a_gpu_is_estimated_and_the_report_says_so(name: str, home: Home):
    report = preflight_setup(Setup(phase="kestrel", slice=name, stretches=((0, 100),), step=STEP), home)
    where = find_slice(name)
    assert (report["fits"], report["estimated"], report["compile_seconds"]) == (True, True, 0.0)
    assert report["gib_per_chip"]["peak"] + 0.5 <= report["gib_per_chip"]["limit"] == round(where.chip.memory_gib * 0.75, 2)
    assert report["gib_per_chip"]["arguments"] <= report["gib_per_chip"]["peak"]
    execution = Execution.model_validate(report["execution"])
    assert execution.attention == "cudnn"
    mesh = execution.mesh
    assert mesh.replica * mesh.fsdp * mesh.tensor * mesh.expert == where.devices
    longest = max(value for name, value in report["roofline_seconds"].items() if name != "binds")
    assert report["step_seconds"] == pytest.approx(longest, rel=0.01)
    assert report["chip_hours"] == pytest.approx(100 * report["step_seconds"] * where.chips / 3600, rel=1e-3)


def test_a_tpu_is_estimated_on_demand_what_is_too_large_does_not_fit_and_a_larger_batch_needs_no_less_time(home: Home):
    setup = Setup(phase="kestrel", slice="v6e-8", stretches=((0, 100),), step=STEP)
    report = preflight_setup(setup, home, estimated=True)
    assert (report["fits"], report["estimated"], report["execution"]["attention"]) == (True, True, "splash")
    found = estimate_plan(step_of(LLAMA_32B, 32), find_slice("h100-1"))
    assert (found.plan, found.estimated) == (None, True)
    assert "is estimated to need" in found.tried[0].reason
    assert (found.tried[0].gib or 0) > 59.7
    seconds = [estimate_plan(STEP.but(batch_sequences=size), find_slice("h100-8")).roofline for size in (32, 64, 128)]
    times = [roofline.step_seconds for roofline in seconds if roofline]
    assert (times, times[2]) == (sorted(times), pytest.approx(4 * times[0], rel=0.2))


def test_the_kernels_are_of_the_platform_and_only_on_a_tpu_anything_goes_to_the_host():
    kernels = {("v6e-8", "bfloat16"): "splash", ("v6e-8", "float32"): "splash", ("h100-8", "bfloat16"): "cudnn"}
    for (name, dtype), attention in (kernels | {("h100-8", "float32"): "xla", ("cpu-2", "bfloat16"): "xla"}).items():
        step = STEP.but(model=STEP.model.but(compute_dtype=dtype))
        assert spec_for(step, find_slice(name), Plan(remat="none")).execution.attention == attention
    step = STEP.but(model=STEP.model.but(experts=EXPERTS))
    for name, kernel in {"v6e-8": "megablox", "h100-8": "padded", "cpu-2": "padded"}.items():
        assert spec_for(step, find_slice(name), Plan(remat="none")).execution.expert_kernel == kernel
    for platform in ("gpu", "cpu"):
        found = list(policies_for(LLAMA_8B, platform))
        assert found[:2] == ["full", "none"]
        assert all(isinstance(one, Kept) and not one.on_host and ATTENTION not in one.on_device for one in found[2:])
        assert len(found) == len(set(found)) > 10


def test_the_slices_beside_the_record():
    sizes = {"h100-1": (1, 1), "h100-8": (8, 1), "2x h100-8": (16, 2), "v5e-8": (8, 2), "v6e-8": (8, 2), "cpu-4": (4, 1)}
    assert {name: (find_slice(name).devices, find_slice(name).hosts) for name in sizes} == sizes
    where = find_slice("h100-8")  # behind a switch every chip has all its links
    for mesh in (Mesh(fsdp=8), Mesh(replica=4, fsdp=2)):
        assert ici_speed("fsdp", mesh, where) == ici_speed("fsdp", mesh, where, all_to_all=True) == 450e9
    assert find_slice("2x h100-8").mesh == Mesh(replica=2, fsdp=8)
    assert find_slice("h100-1").chip.memory_gib * GIB < 81_559 * 2**20 + GIB


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
