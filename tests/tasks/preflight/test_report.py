from pathlib import Path

import pytest

from phasewise.flows.recipes.trinity.small import TRINITY_NANO as TRINITY_NANO_RECIPE
from phasewise.tasks.home import Home
from phasewise.tasks.preflight.estimate import roofline_of
from phasewise.tasks.preflight.launcher import preflight_setup
from phasewise.tasks.preflight.plan import Plan, Setup, batch_refusal, spec_for
from phasewise.tasks.preflight.report import refused_report, report_of
from phasewise.tasks.preflight.search import Found, Tried
from phasewise.tasks.preflight.slices import find_slice
from phasewise.trainer.config import Execution, Kept, Mesh
from phasewise.trainer.flops import step_flops
from phasewise.trainer.preflight.spec import Collective, Result
from tests.tasks.preflight.steps import result_of
from tests.trainer.model.families import EXPERTS
from tests.trainer.preflight.models import LLAMA_8B, LLAMA_32B, step_of

TRINITY_NANO = TRINITY_NANO_RECIPE.phases[0]

KESTREL = Setup(phase="kestrel", slice="2x v5e-256", stretches=((0, 660_000),), step=step_of(LLAMA_8B, 1024, keeps_average=False))
PROMISED = {
    "phase", "slice", "chips", "hosts", "mesh", "fits", "remat", "gib_per_chip", "flops_per_step", "collective_bytes", "step_seconds",
    "tokens_per_day", "days", "chip_hours", "compile_seconds",
}  # fmt: skip


def fitting(remat: str = "full") -> Found:
    tried = (Tried(plan=Plan(remat="dots"), reason="needs 23.4 GiB of 15.75: the compiler refused it", gib=23.4, roofline=None),)
    result = result_of(6.7, limit_gib=15.75)
    plan = Plan.model_validate({"remat": remat})
    return Found(plan=plan, result=result, tried=tried, compile_seconds=5.0, considered=900, why="the fastest of 1 that fit")


def nothing_found(*tried: Tried, result: Result | None = None) -> Found:
    return Found(plan=None, result=result, tried=tried, compile_seconds=9.0, considered=900, why="none fits")


def unfit(remat: str, reason: str) -> Tried:
    return Tried(plan=Plan.model_validate({"remat": remat}), reason=reason, gib=40.0, roofline=None)


def test_what_scripts_read_is_there() -> None:
    report = report_of(KESTREL, find_slice("2x v5e-256"), fitting())
    assert set(report) >= PROMISED
    assert {"arguments", "temporaries", "peak", "limit"} <= set(report["gib_per_chip"])
    assert report["gib_per_chip"]["peak"] == 6.7
    assert report["collective_bytes"] == {"all-gather": 30 * 10**9, "all-reduce": 10 * 10**9 + 10**8}
    assert report["fits"]
    assert report["reason"] is None


def test_time_follows_from_steps_and_the_largest_term() -> None:
    report = report_of(KESTREL, find_slice("2x v5e-256"), fitting())
    seconds = report["roofline_seconds"]["compute"]
    assert report["step_seconds"] == seconds == max(report["roofline_seconds"][term] for term in ("compute", "hbm", "ici", "dcn", "host"))
    assert report["days"] == pytest.approx(660_000 * seconds / 86_400, rel=1e-3)
    assert report["chip_hours"] == pytest.approx(660_000 * seconds * 512 / 3600, rel=1e-3)
    assert report["tokens_per_day"] == pytest.approx(1024 * 4096 * 86_400 / seconds, rel=1e-3)
    assert report["flops_per_step_per_chip"]["analytic"] * 512 == report["flops_per_step"]
    assert report["flops_per_step_per_chip"]["xla"] == 1e16 / 512
    assert report["roofline_seconds"]["dcn"] == pytest.approx(1e8 / 3.125e9, abs=1e-3)


def test_two_reports_have_the_same_fields_whether_or_not_they_fit() -> None:
    where = find_slice("3x v5p-512")
    setup = Setup(phase="phase-1", slice="3x v5p-512", stretches=((18_500, 21_010),), step=step_of(LLAMA_32B, 8192, window=128))
    reason = batch_refusal(8192, where)
    assert reason is not None
    refused = refused_report(setup, where, reason)
    nothing = report_of(KESTREL, find_slice("2x v5e-256"), nothing_found())
    assert set(refused) == set(nothing) == set(report_of(KESTREL, find_slice("2x v5e-256"), fitting()))
    assert not refused["fits"]
    assert "7,680" in refused["reason"]
    assert refused["step_seconds"] is None


def test_where_no_plan_fits_every_reason_is_reported() -> None:
    tried = (unfit("full", "needs 40.0 GiB of 30.75"), unfit("offload", "needs 31.0 GiB"))
    report = report_of(KESTREL, find_slice("v4-2048"), nothing_found(*tried, result=result_of(31)))
    assert report["reason"].startswith("no plan fits: blocks computed again needs 40.0 GiB")
    assert "offloaded needs 31.0 GiB" in report["reason"]
    assert report["gib_per_chip"]["peak"] == 31.0


def test_the_plan_is_there_as_the_trainer_takes_it() -> None:
    """What was compiled, whole: mesh, names of what is kept, parts, chunk, kernel."""
    where = find_slice("2x v5e-256")
    plan = Plan(remat=Kept(on_device=("gate",)), parts=2, mesh=Mesh(replica=4, fsdp=128), loss_tokens_a_chip=4096)
    report = report_of(KESTREL, where, fitting().but(plan=plan))
    assert Execution.model_validate(report["execution"]) == spec_for(KESTREL.step, where, plan).execution
    assert report["mesh"] == report["execution"]["mesh"] == {"replica": 4, "fsdp": 128, "tensor": 1, "expert": 1, "context": 1}
    assert report["remat"] == report["execution"]["remat"]
    assert report["microbatch_sequences"] == 512


def test_each_plan_that_was_compiled_is_there_with_its_cost() -> None:
    where = find_slice("2x v5e-256")
    slower = Tried(
        plan=Plan(remat="full"),
        reason="fits, 4.13 s a step",
        gib=6.66,
        roofline=roofline_of(KESTREL.step, where, Plan(remat="full"), result_of(6)),
    )
    report = report_of(KESTREL, where, fitting().but(tried=(slower, unfit("none", "needs 40.0 GiB"))))
    first, second = report["tried"]
    assert (first["fits"], first["gib"], first["binds"]) == (True, 6.66, "compute")
    assert first["ranking_seconds"] > first["step_seconds"] > 4
    assert (second["fits"], second["step_seconds"]) == (False, None)


def test_a_sparse_model_that_nothing_cuts_is_refused_before_anything_is_compiled(tmp_path: Path) -> None:
    """Sizes that no mesh divides: the compiler is not asked."""
    sparse = KESTREL.but(step=KESTREL.step.but(model=KESTREL.step.model.but(experts=EXPERTS, d_model=4095)))
    report = preflight_setup(sparse, Home.open(str(tmp_path)))
    assert not report["fits"]
    assert "no mesh cuts 4 experts, d_model 4,095" in report["reason"]
    assert report["step_seconds"] is None


def test_a_sparse_report_has_its_parameters_and_its_exchange_by_axis() -> None:
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
    assert report["execution"]["expert_kernel"] == "megablox"
    assert report_of(setup, where, fitting())["all_to_all"] == {}


def test_chip_hours_are_of_chips_and_mfu_of_devices() -> None:
    """Ironwood has two devices a chip: the same step is not twice as dear, nor half as fast."""
    where = find_slice("tpu7x-128")
    report = report_of(KESTREL.but(slice="tpu7x-128"), where, fitting())
    seconds = report["step_seconds"]
    assert (report["chips"], report["devices"]) == (64, 128)
    assert report["chip_hours"] == pytest.approx(660_000 * seconds * 64 / 3600, rel=1e-3)
    assert report["mfu"] == pytest.approx(report["flops_per_step"] / seconds / (64 * 2307e12), rel=1e-2)
