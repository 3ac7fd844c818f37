"""Plans that nothing is compiled for: they say so, and name a kernel of their platform."""

from pathlib import Path

import pytest

from phasewise.tasks.home import Home
from phasewise.tasks.preflight import launcher as module
from phasewise.tasks.preflight.estimate import ici_speed
from phasewise.tasks.preflight.launcher import preflight_setup
from phasewise.tasks.preflight.plan import GIB, Plan, Setup, policies_for, spec_for
from phasewise.tasks.preflight.search import estimate_plan
from phasewise.tasks.preflight.slices import find_slice
from phasewise.trainer.config import ATTENTION, Execution, Kept, Mesh
from tests.trainer.model.families import EXPERTS
from tests.trainer.preflight.models import LLAMA_8B, LLAMA_32B, step_of

STEP = step_of(LLAMA_8B.but(num_layers=12, d_model=1536, d_ff=5376, num_query_heads=12, num_kv_heads=3), 32)


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
    assert report["step_seconds"] == pytest.approx(
        max(value for name, value in report["roofline_seconds"].items() if name != "binds"), rel=0.01
    )
    assert report["chip_hours"] == pytest.approx(100 * report["step_seconds"] * where.chips / 3600, rel=1e-3)


def test_a_tpu_is_estimated_where_that_is_asked(home: Home):
    setup = Setup(phase="kestrel", slice="v6e-8", stretches=((0, 100),), step=STEP)
    report = preflight_setup(setup, home, estimated=True)
    assert (report["fits"], report["estimated"], report["execution"]["attention"]) == (True, True, "splash")


def test_what_is_too_large_does_not_fit_and_says_by_how_much():
    found = estimate_plan(step_of(LLAMA_32B, 32), find_slice("h100-1"))
    assert found.plan is None
    assert found.estimated
    assert "is estimated to need" in found.tried[0].reason
    assert found.tried[0].gib is not None
    assert found.tried[0].gib > 59.7


def test_a_larger_batch_is_never_estimated_to_need_no_more_time():
    seconds = [estimate_plan(STEP.but(batch_sequences=size), find_slice("h100-8")).roofline for size in (32, 64, 128)]
    times = [roofline.step_seconds for roofline in seconds if roofline]
    assert times == sorted(times)
    assert times[2] == pytest.approx(4 * times[0], rel=0.2)


@pytest.mark.parametrize(
    ("name", "dtype", "attention"),
    [
        ("v6e-8", "bfloat16", "splash"),
        ("v6e-8", "float32", "splash"),
        ("h100-8", "bfloat16", "cudnn"),
        ("h100-8", "float32", "xla"),
        ("cpu-2", "bfloat16", "xla"),
    ],
)
def test_the_kernel_is_one_of_the_platform(name: str, dtype: str, attention: str):
    step = STEP.but(model=STEP.model.but(compute_dtype=dtype))
    assert spec_for(step, find_slice(name), Plan(remat="none")).execution.attention == attention


def test_experts_have_a_kernel_of_the_platform_too():
    step = STEP.but(model=STEP.model.but(experts=EXPERTS))
    kernels = [spec_for(step, find_slice(name), Plan(remat="none")).execution.expert_kernel for name in ("v6e-8", "h100-8", "cpu-2")]
    assert kernels == ["megablox", "padded", "padded"]


@pytest.mark.parametrize("platform", ["gpu", "cpu"])
def test_elsewhere_than_on_a_tpu_nothing_goes_to_the_host_and_attention_has_no_name(platform: str):
    found = list(policies_for(LLAMA_8B, platform))  # pyright: ignore[reportArgumentType]  # of two
    assert found[:2] == ["full", "none"]
    assert all(isinstance(one, Kept) and not one.on_host and ATTENTION not in one.on_device for one in found[2:])
    assert len(found) == len(set(found)) > 10


def test_behind_a_switch_every_chip_has_all_its_links():
    where = find_slice("h100-8")
    for mesh, axis in ((Mesh(fsdp=8), "fsdp"), (Mesh(replica=4, fsdp=2), "fsdp")):
        assert ici_speed(axis, mesh, where) == ici_speed(axis, mesh, where, all_to_all=True) == 450e9


def test_the_slices_beside_the_record():
    sizes = {
        name: (find_slice(name).devices, find_slice(name).hosts) for name in ("h100-1", "h100-8", "2x h100-8", "v5e-8", "v6e-8", "cpu-4")
    }
    assert sizes == {"h100-1": (1, 1), "h100-8": (8, 1), "2x h100-8": (16, 2), "v5e-8": (8, 2), "v6e-8": (8, 2), "cpu-4": (4, 1)}
    assert find_slice("2x h100-8").mesh == Mesh(replica=2, fsdp=8)
    assert find_slice("h100-1").chip.memory_gib * GIB < 81_559 * 2**20 + GIB
