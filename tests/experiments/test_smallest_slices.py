from collections.abc import Callable

from experiments.lab.preflight_tables import smallest_slice
from phasewise.trainer.preflight.spec import Result, Spec
from tests.tasks.preflight.steps import result_of
from tests.trainer.preflight.models import LLAMA_8B, LLAMA_32B, step_of


def compiler(needs_gib: Callable[[int], float]) -> tuple[Callable[[Spec], Result], list[str]]:
    asked: list[str] = []

    def attempt(spec: Spec) -> Result:
        asked.append(spec.topology.name)
        mesh = spec.execution.mesh
        needs = needs_gib(mesh.replica * mesh.fsdp * mesh.expert * mesh.tensor)
        return result_of(needs, limit_gib=95.73, refused=needs > 95.73)

    return attempt, asked


def test_one_that_has_no_room_for_the_state_is_not_compiled_for() -> None:
    """32B, average and gradients: 20 bytes a parameter, 630 GiB, more than four chips of 95 have. On eight the compiler is asked."""
    attempt, asked = compiler(lambda devices: 800 / devices)
    found = smallest_slice(step_of(LLAMA_32B, 1024), "v5p", attempt)
    assert asked == ["v5p:2x2x2", "v5p:2x2x4"]
    assert found.where is not None
    assert found.where.name == "v5p-32"
    assert [name for name, _ in found.smaller] == ["v5p-16", "v5p-8"]
    assert "100.0 GiB of 95.73" in found.smaller[0][1]
    assert "state and gradients alone" in found.smaller[1][1]


def test_the_smallest_is_the_first_that_fits() -> None:
    attempt, asked = compiler(lambda devices: 1.0)
    found = smallest_slice(step_of(LLAMA_8B, 1024), "v5p", attempt)
    assert (found.where.name if found.where else None, found.smaller, asked) == ("v5p-8", (), ["v5p:2x2x1"])
