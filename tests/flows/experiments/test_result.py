"""The table, the pictures and the page of an experiment, from runs with known metrics."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from phasewise.flows.experiments.result import compare_arms, figures_of, write_experiment
from phasewise.flows.site import pages
from phasewise.flows.site.export import write_site
from phasewise.flows.site.shelf import Links
from phasewise.trainer.base.run_folder import RunFolder
from tests.flows.site.homes import RUN_NAME, site_of, write_home


def arm(name: str, *values: float | None, variables: tuple[str, ...] = ("batch",), answers: bool = False) -> dict[str, Any]:
    runs = [
        {"seed": seed, "folder": f"runs/{RUN_NAME}/{name}-{seed}", "measures": {} if value is None else {"score": value}, "refusal": None}
        for seed, value in enumerate(values)
    ]
    return {"name": name, "phase": "lion", "settings": (), "variables": variables, "differences": [], "refusal": None, "runs": runs}


def result_of(*arms: dict[str, Any]) -> dict[str, Any]:
    known = {
        "recipe": "zoo",
        "scale": "own",
        "phase": "lion",
        "name": "lion-1",
        "seeds": 3,
        "error_rate": 0.05,
        "headline": "<b>",
        "notes": [],
    }
    return known | {"arms": list(arms), "differences": compare_arms(arms, {})}


def test_only_replicates_of_both_are_pairs_and_other_orders_have_none():
    control, hot, other = arm("control", 1.0, 2.0, 3.0), arm("hot", 1.5, None, 3.4), arm("other", 5.0, 6.0, variables=("order",))
    rows = {row["arm"]: row for row in compare_arms([control, hot, other, arm("lost")], {})}
    assert [rows[name]["replicates"] for name in ("hot", "other", "lost")] == [2, 2, 0]
    assert rows["hot"]["difference"] == pytest.approx(0.45)  # of the first and the third replicate
    assert rows["other"]["difference"] == pytest.approx(3.5)
    assert (rows["lost"]["low"], rows["lost"]["is_shown"]) == (None, False)


def test_the_page_of_a_recipe_shows_its_experiments_and_the_rows_of_a_picture_are_in_order(tmp_path: Path):
    home = write_home(tmp_path / "home")
    result = result_of(arm("control", 1.0, 2.0, 3.1), arm("hot", 2.0, 3.0, 4.0), arm("cold", 0.5, 1.4, 2.7))
    for run in (run for one in result["arms"] for run in one["runs"]):
        metrics = RunFolder(home.work / run["folder"]).metrics
        metrics.parent.mkdir(parents=True)
        metrics.write_text("".join(json.dumps({"step": step, "loss": 5 - step / 10 + run["seed"]}) + "\n" for step in range(1, 9)))
    figures = figures_of(result, home)
    assert [figure.title.partition(":")[0].partition(",")[0] for figure in figures] == ["score", "loss"]
    heights = [float(y) for y in re.findall(r'<circle[^>]* cy="([\d.]+)"', figures[0].svg)]
    labels = [float(y) for y, _ in re.findall(r'y="([\d.]+)" text-anchor="end">(hot|cold)<', figures[0].svg)]
    assert heights == sorted(heights)
    assert [label - height for label, height in zip(labels, heights, strict=True)] == [4, 4]
    written = write_experiment(result, home, figures)
    page = Path(written["report"]).read_text()
    assert "+0.9667" in page
    site = site_of(home)
    shown = pages.recipe_page(site, Links("zoo/own"), next(one for one in site.shelf.sets() if one.run_name == RUN_NAME))
    assert f"/-/experiment/{RUN_NAME}/lion-1/report.html" in shown
    assert "&lt;b&gt;" in shown
    write_site(site, tmp_path / "out")
    assert (tmp_path / "out" / "-" / "experiment" / RUN_NAME / "lion-1" / "report.html").read_text() == page
