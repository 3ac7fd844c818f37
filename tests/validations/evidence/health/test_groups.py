from functools import cache
from typing import get_args

import numpy as np
import pytest

from phasewise.trainer.metrics import ALL_GROUPS, PARAM_GROUPS, SPARSE_GROUPS, Row
from phasewise.trainer.model.params import Group
from phasewise.trainer.step import groups
from phasewise.validations.evidence.health.phenomena import Measure
from tests.trainer.model.families import FAMILIES
from tests.validations.evidence.health.simulated import LIMITS, Scenario, evidence, flagged, healthy_rows, scaled
from tests.validations.evidence.health.trained import MODEL

UPDATES = 600
AT = (400, 401, 402)
GROUPS = {family: groups(MODEL.but(**changes)) for family, changes in FAMILIES.items()}
EACH = [(family, group) for family, found in GROUPS.items() for group in found]


@cache
def rows_of(family: str) -> list[Row]:
    return healthy_rows(Scenario(updates=UPDATES, groups=GROUPS[family]))


def test_the_groups_of_the_table_of_weights_are_those_that_have_norms():
    assert sorted(get_args(Group)) == sorted(ALL_GROUPS)
    assert {group for found in GROUPS.values() for group in found} == set(ALL_GROUPS)


@pytest.mark.parametrize(("family", "group"), EACH)
def test_a_spike_of_the_gradients_and_a_jump_of_the_weights_of_any_group_are_found(family: str, group: str):
    factors, jumps = np.ones(UPDATES), np.ones(UPDATES)
    factors[list(AT)], jumps[[300, 450]] = 10.0, 1.3
    rows = scaled(rows_of(family), f"grad_norm/{group}", factors)
    rows = scaled(rows, f"param_norm/{group}", np.cumprod(jumps))
    assert flagged(evidence(rows, groups=GROUPS[family])) == {f"grad_norm_spikes_percent/{group}", f"param_norm_jumps_percent/{group}"}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_healthy_run_of_each_family_is_silent(family: str):
    assert flagged(evidence(rows_of(family), groups=GROUPS[family])) == set()


@pytest.mark.parametrize("group", SPARSE_GROUPS)
def test_a_sparse_model_whose_rows_lack_a_group_is_not_judged(group: str):
    rows = [{name: value for name, value in row.items() if not name.endswith(f"/{group}")} for row in rows_of("afmoe")]
    table = evidence(rows, groups=GROUPS["afmoe"]).set_index("measure")
    assert not table.loc[[Measure.NON_FINITE, f"grad_norm_spikes_percent/{group}"], "has_required_numbers"].any()


def test_a_dense_model_is_judged_as_before_and_its_table_names_what_it_lacks():
    dense = evidence(rows_of("llama"))
    absent = dense[[measure.endswith(SPARSE_GROUPS) for measure in dense["measure"]]]
    assert len(absent) == 2 * len(SPARSE_GROUPS)
    assert not absent[["is_measured", "is_unjudged"]].any(axis=None)
    assert absent["has_required_numbers"].all()
    assert set(GROUPS["llama"]) == set(PARAM_GROUPS)
    assert LIMITS.max_violation is None
