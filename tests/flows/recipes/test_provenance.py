"""Where values come from: every field of every phase has a source, and no source names what does not exist."""

import fnmatch
from pathlib import Path

import pytest
import yaml

from phasewise.flows.recipes import NAMES, facts, load_record
from phasewise.flows.recipes.facts import FACTS, leaves_of, rules_of, sources_of
from phasewise.flows.recipes.phase import Phase
from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.show.describe import describe

PHASES = [(name, phase.name) for name in NAMES for phase in load_record(name, "full").phases]


def kind(recipe: str, phase: str, field: str, scale: str = "full") -> str:
    record = load_record(recipe, scale)  # pyright: ignore[reportArgumentType]  # a scale
    return sources_of(record, record.phase(phase))[field].kind


@pytest.mark.parametrize("scale", ["full", "proxy"])
@pytest.mark.parametrize(("recipe", "name"), PHASES)
def test_every_field_has_a_source(recipe: str, name: str, scale: str):
    record = load_record(recipe, scale)  # pyright: ignore[reportArgumentType]  # a scale
    phase = record.phase(name)
    found = sources_of(record, phase)
    assert set(found) == set(leaves_of(phase))
    assert all(one.place.strip() for one in found.values())


@pytest.mark.parametrize("file", sorted(set(FACTS.values())))
def test_every_row_is_about_a_phase_and_a_field_that_exist(file: str):
    """A pattern without a phase, or a source without a field, is a misspelling."""
    rows = yaml.safe_load((Path(facts.__file__).parent / file).read_text(encoding="utf-8"))
    targets = {f"{recipe}/{phase}" for recipe, phase in PHASES if FACTS[recipe] == file}
    fields = {field for recipe, phase in PHASES for field in leaves_of(load_record(recipe, "full").phase(phase))}
    for row in (row for section, found in rows.items() if section != "base_models" for row in found):
        assert all(fnmatch.filter(targets, pattern) for pattern in row["phases"]), row
        assert all(any(field == name or field.startswith(f"{name}.") for field in fields) for name in row.get("fields", ())), row


def test_a_phase_overrides_a_library_and_a_library_the_recipe():
    assert rules_of("marin-8b", "kestrel")["stop_step"].place.endswith("lines 51 to 78")
    assert rules_of("marin-8b", "kestrel")["optimizer.beta2"].kind == "default"


def test_the_leaves_are_the_whole_phase():
    """Of each model's fields none is passed over, whatever is nested in it."""
    phase = load_record("marin-32b", "full").phase("phase-1")
    fields = leaves_of(phase)
    assert {field.partition(".")[0] for field in fields} == set(Phase.model_fields) - {"discrepancies", "notes"}
    for field in (
        "model.rope.scaling.factor",
        "stability.skip_step.sigmas",
        "learning_rate.end",
        "gates.data.order.false_alarm_rate",
        "mixture",
    ):
        assert field in fields
    assert fields["learning_rate.end"] == [7e-4, 7e-4]


@pytest.mark.parametrize(
    ("recipe", "phase", "field", "expected"),
    [
        ("marin-32b", "phase-1", "stability.skip_step.sigmas", "default"),
        ("marin-32b", "phase-1", "stability.max_update_norm.sigmas", "prose"),
        ("marin-32b", "bison", "learning_rate.end", "default"),
        ("marin-32b", "bison", "learning_rate.start", "code"),
        ("marin-32b", "bison", "order.permutation", "default"),
        ("marin-32b", "mantis", "order.permutation", "code"),
        ("marin-32b", "nadamw", "learning_rate.kind", "default"),
        ("marin-32b", "phase-1", "evaluation.benchmarks", "ours"),
        ("marin-8b", "kestrel", "evaluation.benchmarks", "code"),
        ("marin-8b", "kestrel", "optimizer.beta2", "default"),
        ("marin-8b", "kestrel", "optimizer.weight_decay", "code"),
        ("marin-8b", "ocelot", "optimizer.weight_decay", "default"),
        ("marin-32b", "muon", "optimizer.max_adam_grad_norm", "default"),
        ("marin-32b", "muon", "optimizer.adam.weight_decay", "default"),
        ("marin-8b", "kestrel", "gates.model.max_increase_bits_per_byte", "ours"),
        ("marin-8b", "microannealing-flan-70-30", "mixture", "prose"),
        ("trinity-nano", "phase-1", "learning_rate.end", "ours"),
        ("trinity-mini", "phase-1", "learning_rate.end", "notes"),
        ("trinity-nano", "phase-3", "learning_rate.start_step", "ours"),
        ("trinity-mini", "phase-3", "learning_rate.start_step", "notes"),
        ("trinity-mini", "phase-1", "batch", "ours"),
        ("trinity-large", "phase-1", "batch", "notes"),
        ("trinity-large", "phase-1", "mixture", "ours"),
        ("trinity-large", "phase-1", "model.experts.num_dense_layers", "prose"),
        ("trinity-large", "phase-1", "model.experts.balancing.sharpness", "notes"),
        ("trinity-large", "phase-1", "model.vocab_size", "code"),
        ("trinity-large", "phase-2", "learning_rate.start_step", "ours"),
        ("trinity-large", "first-runs", "model.experts.balancing.kind", "ours"),
    ],
)
def test_kinds(recipe: str, phase: str, field: str, expected: str):
    assert kind(recipe, phase, field) == expected


def test_what_the_proxy_scale_computes_is_ours():
    assert kind("marin-8b", "kestrel", "order.block_sequences") == "default"
    assert kind("marin-8b", "kestrel", "order.block_sequences", "proxy") == "ours"
    assert kind("marin-8b", "kestrel", "optimizer.weight_decay", "proxy") == "code"


def test_a_value_that_is_not_the_record_s_is_not_said_to_be():
    record = load_record("marin-8b", "full")
    raw = record.model_dump(mode="json")
    raw["phases"][0]["checkpoints"]["every_steps"] = 10_000
    changed = Recipe.model_validate(raw)
    found = sources_of(changed, changed.phases[0])
    assert found["checkpoints.every_steps"].kind == "ours"
    assert "set for this run" in found["checkpoints.every_steps"].place
    assert found["checkpoints.keep_all"].kind == "code"


def test_a_recipe_that_is_no_record_has_none():
    record = load_record("marin-8b", "proxy")
    mine = record.but(name="mine")
    assert sources_of(mine, mine.phases[0]) == {}


def test_json_has_them_beside_the_values():
    (phase,) = describe("marin-32b/bison", "full", None)["phases"]
    assert phase["sources"]["learning_rate.end"] == {
        "kind": "default",
        "place": "Levanter 9fde0781, src/levanter/optim/config.py: OptimizerConfig.min_lr_ratio is 0.1, of the peak",
    }
