from types import SimpleNamespace
from typing import Any, cast

import pytest

from phasewise.flows.recipes import load_recipe
from phasewise.flows.recipes.words import adamw, constant, cosine, linear
from phasewise.tasks.evaluation.phase_evaluation import read_schedule_point
from phasewise.trainer.config import LearningRateSegment, RunConfig


def point(*segments: LearningRateSegment, start_step: int = 0, stop_step: int = 100) -> dict[str, Any]:
    run = SimpleNamespace(learning_rate=segments, start_step=start_step, stop_step=stop_step, optimizer=adamw())
    return read_schedule_point(cast(RunConfig, run))


@pytest.mark.parametrize(
    ("segments", "end", "peak"),
    [
        ((linear(0, 10, 0.0, 1e-3), constant(10, 100, 1e-3)), 1e-3, 1e-3),
        ((linear(0, 10, 0.0, 1e-3), linear(10, 100, 1e-3, 1e-5)), 1e-5, 1e-3),
        ((linear(0, 10, 0.0, 1e-3), cosine(10, 190, 1e-3, 0.0)), 5e-4, 1e-3),  # stopped in the middle of its decay
        ((constant(0, 50, 2e-3), constant(50, 100, 1e-3), constant(100, 200, 9e-3)), 1e-3, 2e-3),  # what follows is not this phase's
    ],
)
def test_the_end_and_the_peak_are_those_of_the_phase(segments: tuple[LearningRateSegment, ...], end: float, peak: float):
    found = point(*segments)
    assert (found["end"], found["peak"]) == (pytest.approx(end), pytest.approx(peak))
    assert found["optimizer"] == "adamw"


def test_what_was_before_the_phase_is_left_out():
    assert point(constant(0, 50, 9e-3), constant(50, 100, 1e-3), start_step=50)["peak"] == 1e-3


@pytest.mark.parametrize(
    ("phase", "share"),
    [("kestrel", 0.1), ("ocelot", 1.0), ("jellyfish", 0.1), ("phoenix", 1.0), ("starling", 0.01), ("deeper-starling", 1.0)],
)
def test_of_the_record(phase: str, share: float):
    one = load_recipe("marin-8b", "proxy").phase(phase)
    found = point(*one.learning_rate, start_step=one.start_step, stop_step=one.stop_step)
    assert found["end"] / found["peak"] == pytest.approx(share)
