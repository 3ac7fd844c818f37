import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.tasks.preflight.estimate import FIRST_WEIGHTS, Table
from phasewise.tasks.preflight.plan import GIB, Plan, policies_for, settings_for
from phasewise.tasks.preflight.search import MAX_COMPILED, MAX_COMPILED_SPARSE, RESERVED_BYTES, find_plan, host_gib, refusal
from phasewise.tasks.preflight.slices import find_slice
from phasewise.trainer.config import ATTENTION, BLOCK_INPUT, Kept
from phasewise.trainer.preflight.spec import Spec
from tests.tasks.preflight.steps import compiler_of, result_of
from tests.trainer.preflight.models import LLAMA_8B, LLAMA_32B, SPARSE, step_of

V4, V5P = find_slice("v4-2048"), find_slice("4x v5p-512")
STEP = step_of(LLAMA_32B, 8192)
EVERYTHING = Kept(on_device=(ATTENTION, "query", "key", "value", "output", "gate", "up"))


@pytest.fixture(scope="module")
def table() -> Table:
    return Table(STEP, V4, settings_for(STEP, V4), list(policies_for(STEP.model)))


@settings(max_examples=5, deadline=None)
@given(factors=st.lists(st.floats(0.5, 2.5), min_size=4, max_size=4), limit=st.sampled_from([20.0, 30.75, 60.0]))
def test_the_plan_fits_and_is_nearly_the_fastest_of_all_that_fit(table: Table, factors: list[float], limit: float):
    attempt, asked = compiler_of(STEP, V4, limit, np.array(factors))
    found = find_plan(STEP, V4, attempt)
    assert len(asked) <= MAX_COMPILED
    assert asked[0].mesh is None
    assert asked[0].remat in ("full", "offload")
    truth = table.known + table.amounts @ (FIRST_WEIGHTS * np.array(factors))
    fits = (truth <= limit - RESERVED_BYTES / GIB) & (table.host <= host_gib(V4))
    assert (found.plan is None) == (not fits.any())
    if not found.plan:
        return
    assert found.result is not None
    assert refusal(found.result, V4) is None
    number = next(number for number in np.flatnonzero(fits) if table.plan(int(number)) == found.plan)
    assert table.terms[number, 0] <= 1.06 * table.terms[fits, 0].min()


def test_the_search_goes_the_same_way_twice_and_with_room_nothing_is_computed_again():
    """32B on 4 × v5p-512: 95 GiB hold every product of a quarter of the batch, and the first plan computed every block again."""
    attempt, asked = compiler_of(STEP, V5P, 95.73, np.ones(4))
    found = find_plan(STEP, V5P, attempt)
    assert found.plan is not None
    assert found.plan.remat == EVERYTHING
    assert found.plan.parts > 1
    assert [tried.plan for tried in found.tried] + [found.plan] == sorted([*asked], key=lambda plan: plan == found.plan)
    first = found.tried[0]
    assert first.plan == Plan(remat="full")
    assert first.roofline is not None
    assert "slower" in first.reason
    assert f"of {len(asked)} compiled" in found.why
    assert found.compile_seconds == 5.0 * len(asked)
    ways = []
    for _ in range(2):
        attempt, asked = compiler_of(STEP, V4, 30.75, np.array([1.5, 1.2, 2.0, 0.7]))
        ways.append((find_plan(STEP, V4, attempt).plan, asked))
    assert ways[0] == ways[1]


def test_where_nothing_fits_the_plan_that_needs_least_is_compiled_and_the_compiler_is_not_asked_for_ever():
    step, where = step_of(LLAMA_8B, 1024), find_slice("2x v5e-256")
    attempt, asked = compiler_of(step, where, 0.2, np.ones(4))
    found = find_plan(step, where, attempt)
    assert found.plan is None
    assert found.tried[-1].plan == asked[-1]
    table = Table(step, where, settings_for(step, where), list(policies_for(STEP.model)))
    least = table.plan(int(np.argmin(np.where(table.host <= host_gib(where), table.gib(), np.inf))))
    assert least in asked
    assert all("GiB" in tried.reason for tried in found.tried)
    refused: list[Spec] = []
    assert find_plan(STEP, V4, lambda spec: (refused.append(spec), result_of(30.8, refused=True))[1]).plan is None
    assert len(refused) <= MAX_COMPILED  # it refuses everything by a little


@pytest.mark.parametrize("limit", [100.0, 0.1])
def test_a_sparse_model_is_compiled_three_times_at_most_and_begins_with_what_promises_most(limit: float):
    step, where = step_of(SPARSE, 256), find_slice("v5e-16")
    attempt, asked = compiler_of(step, where, limit, np.ones(4))
    found = find_plan(step, where, attempt)
    assert 1 <= len(asked) <= MAX_COMPILED_SPARSE
    table = Table(step, where, settings_for(step, where), list(policies_for(step.model)))
    rows = {table.plan(number): number for number in range(len(table.known))}
    if limit > 1:
        assert found.plan is not None
        assert rows[asked[0]] == int(np.argmin(table.seconds()))
        assert all(asked[0] != plan for plan in asked[1:])
    else:
        assert found.plan is None
        assert table.gib()[rows[asked[-1]]] == pytest.approx(table.gib().min())


def test_what_does_not_fit_on_chip_or_host_is_refused_with_the_account():
    assert refusal(result_of(30.2), V4) is refusal(result_of(20, host_gib=49), V4) is None
    said = refusal(result_of(30.5), V4) or ""  # room for code and runtime stays free
    assert "30.5 GiB of 30.75" in said
    assert "0.5" in said
    assert "51.0 GiB of its host's memory, of which 50.0 are there" in (refusal(result_of(20, host_gib=51), V4) or "")
    assert Kept(on_host=(BLOCK_INPUT, "gate")) in list(policies_for(STEP.model))
    without_account = result_of(31, refused=True).but(memory=None)
    assert refusal(without_account, V4) == "the compiler refused it: RESOURCE_EXHAUSTED: as it says"
