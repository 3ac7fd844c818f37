import json

import pytest

from phasewise.flows.cli.order import judge_order
from phasewise.trainer.base.errors import ConfigError


def test_the_shape_is_the_documented_one():
    judgement = judge_order("feistel", 786_432, 3)
    assert json.loads(json.dumps(judgement, allow_nan=False)) == judgement
    assert [judgement[name] for name in ("kind", "length", "seed", "passes")] == ["feistel", 786_432, 3, True]
    assert all(judge_order("feistel", length, 2**64 - 1)["passes"] for length in (1, 2, 2**40))
    assert len(judgement["measures"]) == 15
    assert all({"name", "value", "limit", "passes"} <= set(one) for one in judgement["measures"])


@pytest.mark.parametrize("kind", ["linear", "feistel_levanter"])
def test_the_record_s_orders_fail(kind: str):
    judgement = judge_order(kind, 2**33 + 5, 0)
    assert not judgement["passes"]
    for one in judgement["measures"]:
        within = one["value"] <= one["limit"] if one["bound"] == "max" else one["value"] >= one["limit"]
        assert one["passes"] == within, one


@pytest.mark.parametrize(
    ("kind", "length", "seed", "said"),
    [
        ("random", 10, 0, "linear, feistel, feistel_levanter"), ("feistel", 0, 0, "from 1 to 1099511627776, found 0"),
        ("feistel", 2**40 + 1, 0, "found 1099511627777"), ("feistel", 10, -1, "from 0 to 2.64 - 1, found -1"),
    ],
)  # fmt: skip
def test_wrong_usage_names_what_is_possible(kind: str, length: int, seed: int, said: str):
    with pytest.raises(ConfigError, match=said):
        judge_order(kind, length, seed)
