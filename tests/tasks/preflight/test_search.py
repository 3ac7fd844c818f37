from hypothesis import given
from hypothesis import strategies as st

from tasks.preflight.plan import GIB, PLANS, Plan, estimate_refusal
from tasks.preflight.search import RESERVED_BYTES, find_plan, refusal
from tasks.preflight.slices import find_slice
from tests.tasks.preflight.steps import result_of
from tests.trainer.preflight.models import LLAMA_32B, step_of
from trainer.preflight.spec import Result, Spec

WHERE = find_slice("v4-2048")
STEP = step_of(LLAMA_32B, 8192)
LIMIT = 30.75


def plan_of(spec: Spec) -> Plan:
    part = spec.execution.microbatch_sequences
    return Plan.model_validate({"remat": spec.execution.remat, "parts": 8192 // part if part else 1})


@given(peaks=st.lists(st.floats(1.1, 60), min_size=len(PLANS), max_size=len(PLANS)), refuses=st.booleans())
def test_the_first_plan_that_fits_is_taken_and_all_before_it_have_a_reason(peaks: list[float], refuses: bool) -> None:
    needs = dict(zip(PLANS, peaks, strict=True))
    compiled: list[Plan] = []

    def attempt(spec: Spec) -> Result:
        compiled.append(plan_of(spec))
        peak = needs[compiled[-1]]
        return result_of(peak, refused=refuses and peak > LIMIT)

    found = find_plan(STEP, WHERE, attempt)
    possible = [plan for plan in PLANS if 8192 // plan.parts % 1024 == 0 and estimate_refusal(STEP, WHERE, plan) is None]
    fitting = [plan for plan in possible if needs[plan] * GIB + RESERVED_BYTES <= round(LIMIT * GIB)]
    assert found.plan == (fitting[0] if fitting else None)
    before = possible[: possible.index(fitting[0])] if fitting else possible
    assert [tried.plan for tried in found.tried if "estimated" not in tried.reason] == before
    assert compiled == [*before, *fitting[:1]]
    assert all("GiB" in tried.reason for tried in found.tried)
    assert found.compile_seconds == 5.0 * len(compiled)


def test_room_for_code_and_runtime_stays_free() -> None:
    assert refusal(result_of(30.2)) is None
    said = refusal(result_of(30.5))
    assert said is not None
    assert "30.5 GiB of 30.75" in said
    assert "0.5" in said


def test_a_refusal_without_an_account_tells_the_compilers_words() -> None:
    result = result_of(31, refused=True).but(memory=None)
    assert refusal(result) == "the compiler refused it: RESOURCE_EXHAUSTED: as it says"
