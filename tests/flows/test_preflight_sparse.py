from experiments.lab.preflight_tables import size_table, time_table
from phasewise.flows.plan import setups_of
from phasewise.flows.recipes.trinity.small import TRINITY_NANO as TRINITY_NANO_RECIPE
from phasewise.tasks.preflight.plan import Plan
from phasewise.tasks.preflight.report import Report, refused_report, report_of
from phasewise.tasks.preflight.search import Found
from phasewise.tasks.preflight.slices import find_slice
from phasewise.trainer.config import Mesh
from phasewise.trainer.preflight.spec import Collective
from tests.tasks.preflight.steps import result_of

TRINITY_NANO = TRINITY_NANO_RECIPE.phases[0]

SETUP = setups_of([TRINITY_NANO])[0]
WHERE = find_slice(SETUP.slice)


def made(expert: int) -> Report:
    plan = Plan(remat="full", mesh=Mesh(replica=8, fsdp=64 // expert, expert=expert))
    sent = (Collective(kind="all-to-all", axis="expert", link="ici", count=486, bytes=171 * 10**9),) if expert > 1 else ()
    result = result_of(16.5, limit_gib=95.73).but(collectives=(*result_of(1).collectives, *sent))
    found = Found(plan=plan, result=result, tried=(), compile_seconds=95.0, considered=9, why="the fastest")
    return report_of(SETUP, WHERE, found) | {"recipe": "trinity-nano"}


def test_rows_have_both_counts_of_parameters_and_the_plan() -> None:
    row = size_table([made(8)]).splitlines()[2]
    assert "| 6.12 B | 1.02 B | v5p-1024 | 512 | 4,096 | 16.5 of 95.73 |" in row
    assert "experts over 8" in row


def test_all_to_all_is_that_of_the_experts_axis_and_none_without() -> None:
    with_axis, without = (time_table([made(expert)]).splitlines()[2].split(" | ") for expert in (8, 1))
    assert with_axis[2:5] == ["over 8", "171.0", "1.95"]
    assert without[2:5] == ["none", "0.0", "0.00"]


def test_what_does_not_fit_has_its_reason_and_no_time() -> None:
    refused = refused_report(SETUP, WHERE, "too small") | {"recipe": "trinity-nano"}
    assert "does not fit" in size_table([refused])
    assert len(time_table([refused]).splitlines()) == 2
