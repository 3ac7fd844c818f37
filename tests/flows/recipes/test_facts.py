"""Where values come from, and what was reported: every field of every phase has a source, and no source names what does not exist."""

import ast
import fnmatch
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import yaml

from experiments.lab.library_values import defaults_of
from phasewise.flows.recipes import NAMES, facts, load_record
from phasewise.flows.recipes.facts import FACTS, LibraryValue, leaves_of, library_values, results_of, rules_of, sources_of
from phasewise.flows.recipes.phase import Phase
from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.show.describe import describe
from phasewise.flows.status.summary import reported_by_the_record

PHASES = [(name, phase.name) for name in NAMES for phase in load_record(name, "full").phases]


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
    rows = yaml.safe_load((Path(facts.__file__).parent / file).read_text(encoding="utf-8"))
    targets = {f"{recipe}/{phase}" for recipe, phase in PHASES if FACTS[recipe] == file}
    fields = {field for recipe, phase in PHASES for field in leaves_of(load_record(recipe, "full").phase(phase))}
    for row in (row for section, found in rows.items() if section != "base_models" for row in found):
        assert all(fnmatch.filter(targets, pattern) for pattern in row["phases"]), row
        assert all(any(field == name or field.startswith(f"{name}.") for field in fields) for name in row.get("fields", ())), row


@pytest.mark.parametrize(
    ("recipe", "phase", "field", "expected"),
    [
        ("marin-32b", "phase-1", "stability.skip_step.sigmas", "default"),
        ("marin-32b", "phase-1", "stability.max_update_norm.sigmas", "prose"),
        ("marin-32b", "bison", "learning_rate.end", "default"),
        ("marin-32b", "bison", "learning_rate.start", "code"),
        ("marin-32b", "mantis", "order.permutation", "code"),
        ("marin-8b", "kestrel", "optimizer.beta2", "default"),
        ("marin-8b", "kestrel", "optimizer.weight_decay", "code"),
        ("marin-8b", "ocelot", "optimizer.weight_decay", "default"),
        ("marin-32b", "muon", "optimizer.adam.weight_decay", "default"),
        ("marin-8b", "microannealing-flan-70-30", "mixture", "prose"),
        ("trinity-large", "phase-1", "batch", "notes"),
        ("trinity-large", "phase-1", "model.experts.num_dense_layers", "prose"),
        ("trinity-large", "phase-1", "model.vocab_size", "code"),
        ("trinity-large", "first-runs", "model.experts.balancing.kind", "ours"),
        ("marin-8b", "kestrel", "order.block_sequences", "default"),
    ],
)
def test_kinds(recipe: str, phase: str, field: str, expected: str):
    records = {scale: load_record(recipe, scale) for scale in ("full", "proxy")}
    assert sources_of(records["full"], records["full"].phase(phase))[field].kind == expected
    if phase == "kestrel":  # the proxy scale computes its own blocks, and keeps the optimizer
        found = sources_of(records["proxy"], records["proxy"].phase(phase))[field].kind
        assert found == ("ours" if field == "order.block_sequences" else expected)


def test_a_value_that_is_not_the_record_s_is_not_said_to_be():
    record = load_record("marin-8b", "full")
    raw = record.model_dump(mode="json")
    raw["phases"][0]["checkpoints"]["every_steps"] = 10_000
    changed = Recipe.model_validate(raw)
    found = sources_of(changed, changed.phases[0])
    assert found["checkpoints.every_steps"].kind == "ours"
    assert "set for this run" in found["checkpoints.every_steps"].place
    assert found["checkpoints.keep_all"].kind == "code"


def test_json_has_them_beside_the_values():
    (phase,) = describe("marin-32b/bison", "full", None)["phases"]
    assert phase["sources"]["learning_rate.end"] == {
        "kind": "default",
        "place": "Levanter 9fde0781, src/levanter/optim/config.py: OptimizerConfig.min_lr_ratio is 0.1, of the peak",
    }


# ── values of libraries ──

RECORDS = {recipe: file.partition("/")[0] for recipe, file in FACTS.items()}
LIBRARY_WORDS = ("default", "Levanter", "library", "transformers", "KellerJordan")
SAID_OF_LIBRARIES = {
    "order.rounding": "this project rounds otherwise than the library",
    "model.initializer_std": "this project's value, which the discrepancies set against the library's",
    "model.embedding_scale": "a product, not a value: √d_model",
}


def phase_of(recipe: str, name: str) -> Phase:
    return load_record(recipe, "full").phase(name)


def disagreement(value: LibraryValue, phase: Phase) -> str:
    entries = leaves_of(phase).get(value.decides)
    if entries is None:
        return f"{phase.name} has no {value.decides}"
    found: list[Any] = [entry[1] if isinstance(entry, list) else entry for entry in entries]
    agree = value.given in found if value.among else all(one == value.given for one in found)
    return "" if agree else f"{phase.name}: {value.decides} is {found}, and {value.in_words} gives {value.given}"


@pytest.mark.parametrize(("recipe", "name"), PHASES)
def test_a_phase_has_what_its_library_gives(recipe: str, name: str):
    phase, values = phase_of(recipe, name), library_values(RECORDS[recipe]).of(f"{recipe}/{name}")
    rules = rules_of(recipe, name)
    decisive = [value for value, *_ in values if rules[value.decides].place.endswith(value.in_words)]
    assert not [text for value in decisive if (text := disagreement(value, phase))]
    decided = [value.decides for value, *_ in values]
    assert len(set(decided)) == len(decided), "two values of libraries decide the same field"


@pytest.mark.parametrize(("recipe", "name"), PHASES)
def test_every_value_that_names_a_library_is_written_down(recipe: str, name: str):
    record = load_record(recipe, "full")
    phase = record.phase(name)
    written = {value.decides for value, *_ in library_values(RECORDS[recipe]).of(f"{recipe}/{name}")}
    for field, source in sources_of(record, phase).items():
        claims = source.kind == "default" or any(word in source.place for word in LIBRARY_WORDS)
        if claims and field not in SAID_OF_LIBRARIES:
            assert field in written or source.kind != "default", f"{field}: {source.place}"
            assert field in written or "experiments/" in source.place, f"{field}: {source.place}"


@pytest.mark.parametrize(("recipe", "name"), PHASES)
def test_a_phase_of_marin_is_checked_by_one_commit_of_levanter(recipe: str, name: str):
    if RECORDS[recipe] == "marin":
        checked = [
            one.commit for one in library_values("marin").versions if any(fnmatch.fnmatchcase(f"{recipe}/{name}", to) for to in one.phases)
        ]
        assert len(checked) == (name != "context-extension"), checked


def test_defaults_of_a_class_are_read_beside_an_import_of_its_name():
    library = "from x import Base\n@register\nclass Base: a: int = 1\nclass Own(Base, Base): b: int = 2\nclass Base2(Base): a: int = 3\n"
    module = ast.parse(library)
    found = {one.name: defaults_of(module, one) for one in module.body if isinstance(one, ast.ClassDef)}
    assert [ast.unparse(value) for name in ("Own", "Base2") for value in found[name].values() if value] == ["1", "2", "3"]


def test_a_value_that_was_inherited_is_seen():
    phase = phase_of("marin-8b", "ocelot")
    [decay] = [value for value, *_ in library_values("marin").of("marin-8b/ocelot") if value.decides == "optimizer.weight_decay"]
    assert disagreement(decay, phase) == ""
    inherited = phase.but(optimizer=phase_of("marin-8b", "kestrel").optimizer)
    assert disagreement(decay, inherited).endswith("is [0.05], and OptimizerConfig.weight_decay is 0.1 gives 0.1")


# ── reported results ──


@pytest.mark.parametrize(
    ("recipe", "phase", "what", "expected"),
    [
        ("marin-8b", "jellyfish", "MMLU (5-shot)", 65.3),
        ("marin-8b", "starling", "GSM8K", 67.854),
        ("marin-8b", "deeper-starling", "average", 66.6),
        ("marin-32b", "phase-1", "steps in or after a spike, of 2,500", 130),
        ("marin-32b", "bison", "GSM8K", 54.71),
        ("marin-32b", "mantis", "mean reciprocal rank", 0.44),
        ("marin-32b", "necromancy", "training loss where it settled", 1.975),
        ("trinity-large", "context-extension", "GPQA Diamond (5-shot)", 43.94),
    ],
)
def test_a_printed_figure(recipe: str, phase: str, what: str, expected: float):
    found = [one for one in results_of(load_record(recipe, "full"))[phase] if one.what == what and not isinstance(one.value, str)]
    assert [one.value for one in found] == [expected]


def test_every_phase_of_a_main_line_has_results():
    for recipe in ("marin-8b", "marin-32b"):
        record = load_record(recipe, "full")
        assert {phase.name for phase in record.main_line} <= set(results_of(record))
    found = {name: set(results_of(load_record(name, "full"))) for name in NAMES if name.startswith("trinity")}
    assert found == {
        "trinity-nano": {"phase-1"},
        "trinity-mini": {"phase-1"},
        "trinity-large": {"phase-1", "phase-3", "context-extension", "first-runs"},
    }


def test_the_printed_ranks_and_averages_follow_from_the_printed_table():
    rows = yaml.safe_load((Path(facts.__file__).parent / "marin" / "marin_32b.yaml").read_text(encoding="utf-8"))["base_models"]
    assert (len(rows), {len(row["scores"]) for row in rows}) == (6, {19})
    for row in rows:
        ranks = [1 + sum(other["scores"][name] > score for other in rows) for name, score in row["scores"].items()]
        assert round(fmean(ranks), 2) == row["mean_rank"]
        assert round(fmean(1 / rank for rank in ranks), 2) == row["mean_reciprocal_rank"]
        assert fmean(row["scores"].values()) == pytest.approx(row["average"], abs=0.051)


def test_the_report_has_all_of_them_at_full_scale_and_scores_and_losses_at_proxy_scale():
    found = reported_by_the_record(load_record("marin-8b", "full"), "deeper-starling")
    assert ("average", "66.6 %", "Marin paper, table 4") in {(one.what, one.value, one.source) for one in found}
    assert any(not one.is_measure for one in found)
    smaller = reported_by_the_record(load_record("marin-8b", "proxy"), "deeper-starling")
    assert smaller == tuple(one for one in found if one.is_measure) != ()
