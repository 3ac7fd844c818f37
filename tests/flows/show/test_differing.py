import copy

import pytest

from phasewise.flows.recipes import load_record
from phasewise.flows.show.describe import describe_phase
from phasewise.flows.show.difference import describe_difference, fields_of
from phasewise.flows.show.pages import describe_component, print_component
from phasewise.trainer.base.errors import ConfigError


def fields(target: str, *names: str) -> dict[str, list[object]]:
    first, second = names
    return {row["field"]: row["values"] for row in describe_difference(target, "full", (first, second))["fields"]}


def test_bison_and_mantis_differ_and_a_phase_does_not_differ_from_itself():
    found = fields("marin-32b", "bison", "mantis")
    assert found["order.permutation"] == ["linear", "feistel_levanter"]
    assert found["mixture 1.all_math_9d507c"] == [pytest.approx(1.08, abs=0.005), None]
    assert found["mixture 1.megamath_web"] == [None, pytest.approx(5.57, abs=0.005)]
    assert found["mixture 2.stackv2_edu_python"] == [None, pytest.approx(1.10, abs=0.005)]
    assert found["mixture 2.flan"] == [pytest.approx(4.33, abs=0.005), pytest.approx(2.56, abs=0.005)]
    assert "mixture 2.nemotron_medium" not in found
    assert found["start.declares"] == [["optimizer", "schedule", "mixture"], ["optimizer", "schedule", "mixture", "order", "coverage"]]
    assert not [field for field in found if field.startswith(("learning_rate", "optimizer", "model", "stability", "batch"))]
    assert fields("marin-8b", "phoenix", "phoenix") == {}


@pytest.mark.parametrize(
    ("path", "field"),
    [
        (("gates", "health", "max_ema_gap"), "gates.health.max_ema_gap"), (("order", "cut_blocks"), "order.cut_blocks"),
        (("learning_rate", 1, "end"), "learning_rate 2.end"), (("mixture", 1, 1, "starcoderdata"), "mixture 2.starcoderdata"),
        (("mixture", 1, 0), "mixture 2 from step"), (("checkpoints", "every_steps"), "checkpoints.every_steps"),
    ],
)  # fmt: skip
def test_no_value_is_left_out(path: tuple[str | int, ...], field: str):
    recipe = load_record("marin-8b", "full")
    described = describe_phase(recipe, recipe.phase("phoenix"))
    other = copy.deepcopy(described)
    place = other
    for name in path[:-1]:
        place = place[name]  # pyright: ignore[reportArgumentType]  # a tree of dicts and lists
    place[path[-1]] = "other"  # pyright: ignore[reportArgumentType]  # the same
    before, after = fields_of(described), fields_of(other)
    assert {name for name in before if before[name] != after.get(name)} == {field}


def test_an_unknown_phase_or_component_is_refused_with_those_that_are_like_it():
    with pytest.raises(ConfigError, match="has no phase 'bisno'"):
        describe_difference("marin-32b", "full", ("bisno", "mantis"))
    with pytest.raises(ConfigError, match="Did you mean finemath_3_plus"):
        describe_component("marin-8b", "full", "finemath-3")


def test_the_files_and_revision_of_a_component(capsys: pytest.CaptureFixture[str]):
    found = describe_component("marin-8b", "full", "finemath_3_plus")
    assert (found["source"]["url"], found["source"]["revision"]) == ("hf://datasets/HuggingFaceTB/finemath", "8f233cf")
    assert found["source"]["include"] == ["finemath-3plus/train-*.parquet"]
    shares = {phase["name"]: phase["shares"] for phase in found["phases"]}
    assert shares["starling"] == [[1_320_000, pytest.approx(3.04, abs=0.005)]]
    assert "kestrel" not in shares
    for own_source in (False, True):
        print_component(found | {"own_source": own_source})
        assert ("its stand-in at proxy scale" in capsys.readouterr().out) != own_source
