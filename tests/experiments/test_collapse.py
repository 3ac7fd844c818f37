"""The health verdict stops a collapsing router, and both cures prevent the collapse: one seed of `experiments.incidents.collapse`."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from experiments.incidents.collapse import KINDS, LIMITS, NUM_EXPERTS, Trained, report_of, train
from phasewise.tasks.report.html import render
from phasewise.trainer.step import groups
from phasewise.validations.evidence.health.phenomena import Measure
from tests.compilation import compile_from_now_on
from tests.validations.evidence.health.simulated import evidence

STEPS = 160  # of 300: this seed has lost its balance by step 100
Train = Callable[[str], Trained]


@pytest.fixture(scope="module", autouse=True)
def quick_compilation() -> None:
    compile_from_now_on(quickly=True)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Train:
    home = tmp_path_factory.mktemp("collapse")
    return cache(lambda kind: train(kind, 0, home, STEPS))


def test_without_balancing_the_phase_is_stopped_where_the_balance_is_lost(trained: Train):
    run = trained("none")
    assert run.is_stopped
    assert run.last_violation > 2.5
    reason = next(reason for reason in run.verdict.reasons if reason.severity == "critical")
    assert reason.what.startswith("experts collapse: in the worst layer the busiest expert has lastingly")
    assert STEPS // 2 < int(reason.where.removeprefix("step ")) <= STEPS


@pytest.mark.parametrize("kind", ["sign", "smebu"])
def test_balancing_holds_it_from_equal_first_updates(trained: Train, kind: str):
    run = trained(kind)
    assert not run.is_stopped
    assert run.last_violation < 1.0
    assert sum(row["dead_experts"] for row in run.rows[STEPS // 2 :]) == 0
    assert [run.rows[0][name] for name in ("loss", "max_violation")] == [
        trained("none").rows[0][name] for name in ("loss", "max_violation")
    ]


def test_every_group_of_a_sparse_model_s_weights_is_judged(trained: Train):
    run = trained("sign")
    table = evidence(run.rows, LIMITS, groups=groups(run.run.model))
    assert table["has_required_numbers"].all()
    judged = table.set_index("measure")["is_measured"]
    has_no_mlp = {"param_norm_jumps_percent/mlp"}  # there is no dense layer and no shared expert: a norm of 0 has no growth
    assert {measure for measure in judged.index if "/" in measure and not judged[measure]} == has_no_mlp
    assert judged[Measure.MAX_VIOLATION]
    assert judged[Measure.EARLY_VIOLATION]


def test_the_report_maps_the_load_of_the_last_step(trained: Train):
    report = report_of([trained(kind) for kind in KINDS])
    routings = [phase.routing for phase in report.phases if phase.routing]
    for routing in routings:
        assert (routing.loads_step, routing.layers) == (STEPS, (0, 1))
        np.testing.assert_allclose(np.mean(routing.loads, axis=1), 1.0, rtol=1e-5)
        assert {len(loads) for loads in routing.loads} == {NUM_EXPERTS}
    assert np.max(routings[0].loads) > 3.5 > 2.5 > np.max(routings[1].loads)
    page = render(report)
    assert page.count('class="loads"') == len(KINDS) == len(routings)
    assert "1 of 3 runs lost the balance of their experts." in page
