"""The page of a training: its loss as a picture, thinned, and its table."""

import base64
import re
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from phasewise.tasks.training.task import MAX_POINTS, Curve, loss_svg, training_markdown

RUN: Any = SimpleNamespace(recipe="tiny", scale="proxy", phase="kestrel", start_step=0, stop_step=10_000)


def rows(count: int, first: int = 1) -> list[dict[str, Any]]:
    return [{"step": first + number, "loss": 9.0 - number / count, "learning_rate": 1e-3} for number in range(count)]


def test_a_long_run_keeps_few_points_in_order_and_always_the_last():
    curve = Curve()
    for start in range(0, 10_000, 100):
        curve.add(rows(100, start + 1))
    steps = [step for step, _ in curve.points]
    assert MAX_POINTS / 2 <= len(steps) <= MAX_POINTS + 1
    assert steps == sorted(set(steps))
    assert (steps[0], steps[-1]) == (1, 10_000)


def test_a_loss_that_is_no_number_is_left_out_of_the_picture_and_said_in_the_table():
    curve = Curve()
    curve.add([*rows(5), {"step": 6, "loss": None, "learning_rate": 1e-3}, {"step": 7, "loss": float("nan"), "learning_rate": 1e-3}])
    assert [step for step, _ in curve.points] == [1, 2, 3, 4, 5]
    curve = Curve()
    curve.add([*rows(5), {"step": 6, "loss": None, "learning_rate": 1e-3}])
    assert "| loss | no number |" in training_markdown(RUN, curve, 0)


def test_the_page_has_picture_table_and_link(monkeypatch: pytest.MonkeyPatch):
    curve = Curve()
    curve.add(rows(50))
    assert "](http" not in training_markdown(RUN, curve, 1234.0)
    monkeypatch.setenv("PHASEWISE_SITE_URL", "http://site/")
    page = training_markdown(RUN, curve, 1234.0)
    assert "[Live, with every measure](http://site/tiny/proxy/kestrel)" in page
    assert "| step | 50 of 10,000 |" in page
    assert "| tokens a second | 1,234 |" in page
    picture = re.search(r"data:image/svg\+xml;base64,([^)]+)\)", page)
    assert picture
    assert ElementTree.fromstring(base64.b64decode(picture[1])).tag.endswith("svg")


def test_a_phase_that_has_not_begun_has_a_page_without_a_picture():
    page = training_markdown(RUN, Curve(), 0)
    assert "data:image" not in page
    assert "| step | 0 of 10,000 |" in page


def test_one_flat_line_is_a_picture_too():
    assert "polyline" in loss_svg([(1, 2.0), (1, 2.0)])
