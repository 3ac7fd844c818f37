"""What all benchmarks share."""

from experiments.bench.measure import Row, in_turns


def test_sides_take_turns_and_their_medians_are_kept():
    order: list[str] = []
    times = {"a": iter([3.0, 1.0, 2.0]), "b": iter([30.0, 10.0, 20.0])}

    def side(name: str) -> float:
        order.append(name)
        return next(times[name])

    assert in_turns({"a": lambda: side("a"), "b": lambda: side("b")}, 3) == {"a": 2.0, "b": 20.0}
    assert order == ["a", "b"] * 3


def test_a_row_says_whether_its_demand_is_met():
    assert Row("x", 0.85, at_least=0.85).met == "met"
    assert Row("x", 0.84, at_least=0.85).met == "NOT MET"
    assert Row("x", 1.2, at_least=0.9, at_most=1.1).met == "NOT MET"
    assert Row("x", 1.0).met == ""
    assert Row("x", None, at_least=5).met == "not run"
    assert Row("x", 1.0, at_least=0.9, at_most=1.1).demand == "≥ 0.9, ≤ 1.1"
