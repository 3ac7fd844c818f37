from typing import Any

import pytest

from phasewise.flows.recipes import load_record
from tests.flows.commands import PHASES, Run, assert_refused, read


@pytest.mark.parametrize("scale", ["full", "proxy"])
def test_show_has_the_shape_that_scripts_read(phasewise: Run, scale: Any):
    shown = read(phasewise("show", "marin-8b", "--scale", scale, "--json"))
    assert (shown["recipe"], shown["scale"]) == ("marin-8b", scale)
    assert [phase["name"] for phase in shown["phases"] if not phase["branch"]] == PHASES
    recipe = load_record("marin-8b", scale)
    for phase in shown["phases"]:
        expected = recipe.phase(phase["name"])
        assert (phase["start_step"], phase["stop_step"], phase["tokens"]) == (expected.start_step, expected.stop_step, expected.tokens)
        assert isinstance(phase["parameters"], int)
        assert all({"kind", "start_step", "end_step", "start", "end"} == set(segment) for segment in phase["learning_rate"])
        for values in (phase["batch"], phase["mixture"], phase["slice"]):
            assert values[0][0] == phase["start_step"]
            assert all(len(entry) == 2 for entry in values)
        assert all(sum(shares.values()) == pytest.approx(100) for _, shares in phase["mixture"])
        assert {"parent", "step", "fresh", "graft", "declares"} <= set(phase["start"])
        assert phase["start"]["parent"] == expected.parent
        assert all({"field", "severity", "code", "retrospective", "source", "place"} == set(found) for found in phase["discrepancies"])
        assert {"optimizer", "stability", "order"} <= set(phase)
        assert phase["optimizer"]["weight_decay"] == (0.05 if phase["name"] == "kestrel" else 0.1) or phase["branch"]
    assert shown["phases"][0]["parameters"] == (8_030_261_248 if scale == "full" else 1_475_200)
    if scale == "proxy":
        assert [phase["stop_step"] for phase in shown["phases"] if not phase["branch"]] == [660, 740, 820, 1320, 1400, 1420]


@pytest.mark.parametrize(("target", "step"), [("marin-8b", 1_420_001), ("marin-8b/kestrel", 660_001), ("marin-8b/ocelot", 0)])
def test_show_at_a_step_that_is_not_trained_is_refused(phasewise: Run, target: str, step: int):
    assert_refused(phasewise("show", target, "--scale", "full", "--at", step), 2, f"no phase of {target} trains at step {step}. Phases are")


@pytest.mark.parametrize("scale", ["full", "proxy"])
def test_lineage_says_what_changes(phasewise: Run, scale: str):
    shown = read(phasewise("lineage", "marin-8b", "--scale", scale, "--json"))
    assert (shown["recipe"], shown["scale"]) == ("marin-8b", scale)
    main_line = [(phase["name"], phase["parent"]) for phase in shown["phases"] if not phase["branch"]]
    assert main_line == list(zip(PHASES, [None, *PHASES[:-1]], strict=True))
    for phase in shown["phases"]:
        assert all(change["declared"] and change["before"] != change["after"] for change in phase["changes"])
        assert {change["what"] for change in phase["changes"]} <= set(phase["declares"])
    ocelot = {change["what"]: (change["before"], change["after"]) for change in shown["phases"][1]["changes"]}
    assert ocelot["ema"] == (None, 0.995 if scale == "full" else 0.875)
    assert shown["phases"][1]["fresh"] == ["ema"]
