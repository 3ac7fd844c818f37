import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from phasewise.flows.cli.main import main
from phasewise.flows.recipes import load_recipe
from phasewise.flows.show.describe import describe_takes
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.model.params import count_parameters


def test_the_sums_are_those_of_the_main_line(home: Home):
    recipe = load_recipe("marin-8b", "370m")
    takes = describe_takes(recipe, None, home)
    assert takes["parameters"] == count_parameters(recipe.phases[0].model) == takes["active_parameters"]
    assert takes["body_parameters"] == 368_050_176
    assert takes["tokens"] == recipe.tokens_before(recipe.phases[-1], recipe.phases[-1].stop_step)
    assert takes["steps"] == recipe.phases[-1].stop_step
    body_and_head = takes["body_parameters"] + 1536 * 128_256
    assert takes["flops"] == pytest.approx(6 * body_and_head * takes["tokens"], rel=0.15), "attention is the rest"
    assert takes["on"] is None


def test_a_slice_that_is_twice_as_large_takes_half_the_days(home: Home):
    one, eight = (describe_takes(load_recipe("marin-8b", "370m"), name, home)["on"] for name in ("h100-1", "h100-8"))
    assert one["estimated"]
    assert one["days"] == pytest.approx(8 * eight["days"], rel=0.3)
    assert one["chip_hours"] == pytest.approx(24 * one["days"], rel=1e-2)
    assert eight["chip_hours"] == pytest.approx(8 * 24 * eight["days"], rel=1e-2), "what is added up was not rounded to nothing before"


def test_what_does_not_fit_has_no_days_and_a_slice_that_nobody_knows_is_refused(home: Home):
    on = describe_takes(load_recipe("marin-8b", "3b"), "h100-1", home)["on"]
    assert (on["days"], on["chip_hours"]) == (None, None)
    assert on["refused"][0].startswith("kestrel: no plan fits")
    with pytest.raises(ConfigError, match="no slice is called 'h900-8'"):
        describe_takes(load_recipe("marin-8b", "130m"), "h900-8", home)


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "200")
    arguments = ["show", "marin-8b", "--scale", "370m", "--slice", "h100-8", "--home", str(tmp_path)]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    sums = "368.1 M parameters without embedding and head (762.1 M with); 7.400 B tokens in 26,372 steps of 32 → 96 → 128 sequences"
    assert sums in done.stdout
    assert "Estimated, not compiled" in done.stdout
    shown = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).stdout)
    assert shown["takes"]["on"]["slice"] == "h100-8"
    assert list(tmp_path.iterdir()) == []
