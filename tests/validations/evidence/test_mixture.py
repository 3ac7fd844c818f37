import math

import pytest

from trainer.config import Steps
from validations.evidence.mixture import mixture_evidence

MIXTURE = Steps[dict[str, float]](((0, {"web": 100.0}), (10, {"web": 70.0, "code": 30.0, "tail": 0.0})))


def realised(start: int, stop: int) -> dict[str, int]:
    """Ten sequences a step; after step 10, two of every ten are code and not three."""
    web_only, mixed = max(0, min(stop, 10) - start), max(0, stop - max(start, 10))
    return {"web": 10 * web_only + 8 * mixed, "code": 2 * mixed}


def test_each_stage_and_component_is_measured():
    evidence = mixture_evidence(start_step=5, stop_step=20, mixture=MIXTURE, realised=realised, rows={"web": 50, "code": 40})
    assert evidence[["start_step", "stop_step", "component", "sequences"]].to_numpy().tolist() == [
        [5, 10, "web", 50],
        [10, 20, "web", 80],
        [10, 20, "code", 20],
    ]
    assert evidence["realised_percent"].tolist() == [100.0, 80.0, 20.0]
    assert evidence["error_points"].tolist() == pytest.approx([0, 10, 10])
    assert evidence["epochs"].tolist() == [1.0, 1.6, 0.5]
    assert evidence["epochs_since_step_0"].tolist() == [2.0, 3.6, 0.5]


def test_what_is_drawn_but_not_intended_is_measured_too():
    evidence = mixture_evidence(
        start_step=0, stop_step=10, mixture=MIXTURE, realised=lambda start, stop: {"web": 99, "code": 1}, rows={"web": 9}
    )
    code = evidence[evidence["component"] == "code"]
    assert code[["intended_percent", "error_points", "rows", "epochs"]].to_numpy().tolist() == [[0, 1, 0, math.inf]]


def test_what_is_intended_but_never_drawn_is_marked():
    evidence = mixture_evidence(
        start_step=10, stop_step=11, mixture=MIXTURE, realised=lambda start, stop: {"web": 3}, rows={"web": 9, "code": 9}
    )
    assert evidence.set_index("component")["is_drawn"].to_dict() == {"web": True, "code": False}
