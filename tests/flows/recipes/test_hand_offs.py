"""No hand-off is silent: what a phase changes is declared, or refused by name."""

import re
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from phasewise.flows.recipes import load_recipe, load_record
from phasewise.flows.recipes.hand_off import changes_between
from phasewise.flows.recipes.phase import Change, HandOff, Phase
from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.recipes.scales import to_proxy
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.config import DataOrder, MixtureShares, Steps
from phasewise.trainer.data.mixture import MixtureSchedule

FULL, PROXY = load_recipe("marin-8b", "full"), load_recipe("marin-8b", "proxy")
PROXY_32B = load_recipe("marin-32b", "proxy")
BY_SCALE = {"full": FULL, "proxy": PROXY}
DECLARED = [
    pytest.param(recipe, phase.name, change, id=f"{scale}-{phase.name}-{change}")
    for scale, recipe in BY_SCALE.items()
    for phase in recipe.phases
    if isinstance(phase.start, HandOff)
    for change in phase.start.declares
]


def edited(recipe: Recipe, edited_phase: str, **changes: Any) -> dict[str, Any]:
    """The recipe as JSON, with fields of one phase replaced; `start__declares` is a field of its start."""
    raw = recipe.model_dump(mode="json")
    phase = next(phase for phase in raw["phases"] if phase["name"] == edited_phase)
    for path, value in changes.items():
        *outer, last = path.split("__")
        at = phase
        for part in outer:
            at = at[part]
        at[last] = value
    return raw


@pytest.mark.parametrize(("recipe", "name", "change"), DECLARED)
def test_a_change_that_is_not_declared_is_refused_by_name(recipe: Recipe, name: str, change: str):
    """Except where the change is of the full scale alone: on the proxy's machine no slice changes."""
    start = recipe.phase(name).start
    assert isinstance(start, HandOff)
    raw = edited(recipe, name, start__declares=[declared for declared in start.declares if declared != change])
    if change not in changes_between(recipe.phase(start.parent), recipe.phase(name)):
        assert (recipe.scale, change) == ("proxy", "slice")
        Recipe.model_validate(raw)
        return
    with pytest.raises(ValidationError, match=undeclared(start.parent, name, change)):
        Recipe.model_validate(raw)


@pytest.mark.parametrize("recipe", BY_SCALE.values(), ids=BY_SCALE)
def test_all_that_is_undeclared_is_named_at_once(recipe: Recipe):
    with pytest.raises(ValidationError, match="hand-off kestrel → ocelot makes changes that it does not declare") as refusal:
        Recipe.model_validate(edited(recipe, "ocelot", start__declares=[]))
    batch, ema = ("1024 → 1024, 3072", 0.995) if recipe is FULL else ("2 → 6", 0.875)
    rate = "learning_rate: 0.0001 → 0.0017, 17 times higher in one step"
    for said in (f"batch: {batch}; ", f"ema: none → {ema}", rate, "rope: theta 10000"):
        assert said in str(refusal.value)
    assert re.search(
        r"Name batch, ema, learning_rate, optimizer, rope, schedule(, slice)? in `declares`, or take them back", str(refusal.value)
    )


CHANGES: dict[Change, dict[str, Any]] = {
    "architecture": {"model__rms_norm_epsilon": 1e-6},
    "rope": {"model__rope__theta": 10_000},
    "batch": {"batch": [[0, 5]]},
    "learning_rate": {"learning_rate": [{"kind": "constant", "start_step": 1400, "end_step": 1420, "start": 2e-5, "end": 2e-5}]},
    "schedule": {"learning_rate": [{"kind": "linear", "start_step": 1400, "end_step": 1420, "start": 1.7e-5, "end": 1.8e-5}]},
    "optimizer": {"optimizer__weight_decay": 0.2},
    "optimizer_state": {"start__fresh": ["optimizer"]},
    "mixture": {"mixture": [[0, {"flan": 100}]]},
    "order": {"order__permutation": "feistel"},
    "coverage": {"order__seed": 7},
    "ema": {"stability__ema_decay": [[0, 0.9]]},
    "z_loss": {"stability__z_loss": [[0, 1e-3]]},
    "max_grad_norm": {"stability__max_grad_norm": [[0, None]]},
    "max_update_rms": {"stability__max_update_rms": [[0, 1.0]]},
    "max_update_norm": {"stability__max_update_norm": [[0, {"window": 128, "min_samples": 64, "sigmas": 2.0}]]},
    "skip_step": {"stability__skip_step": [[0, {"window": 128, "min_samples": 64, "sigmas": 6.0}]]},
    "slice": {"slice": [[0, "another"]]},
    "packing": {"packing": "greedy"},
    "loss_on": {"loss_on": "answers"},
    "seq_len": {"model__seq_len": 256, "batch": [[0, 4]], "order__first_step": 1400},
}


COME_TOGETHER: dict[Change, tuple[Change, ...]] = {
    "order": ("coverage",), "coverage": ("order",), "packing": ("coverage",), "seq_len": ("order", "coverage"),
}  # fmt: skip


def undeclared(parent: str, phase: str, change: str) -> str:
    """The refusal that names a change, in a regular expression."""
    return rf"the hand-off {parent} → {phase} makes (a change|changes) that it does not declare\. (.*; )?{change}: .* → "


def test_every_kind_of_change_is_tried():
    """Balancing is tried where there are experts: test_trinity_hand_offs.py."""
    assert {*CHANGES, "balancing"} == set(get_args(Change))


@pytest.mark.parametrize("change", CHANGES)
def test_every_kind_of_change_is_seen_and_may_be_declared(change: Change):
    raw = edited(PROXY, "deeper-starling", **CHANGES[change])
    declared = set(PROXY.phase("deeper-starling").start.model_dump()["declares"])
    if change not in declared:
        with pytest.raises(ValidationError, match=undeclared("starling", "deeper-starling", change)):
            Recipe.model_validate(raw)
    deeper = next(phase for phase in raw["phases"] if phase["name"] == "deeper-starling")
    deeper["start"]["declares"] = sorted({*declared, change, *COME_TOGETHER.get(change, ())})
    recipe = Recipe.model_validate(raw)
    phase = recipe.phase("deeper-starling")
    assert change in recipe.changes_of(phase)


@pytest.mark.parametrize("change", [{"order__block_sequences": 40}, {"order__rounding": "floor"}])
def test_other_blocks_count_otherwise_what_was_drawn_and_so_change_the_coverage(change: dict[str, Any]):
    """From 24 sequences with 10 % of `b`, blocks of 8 drew 3 of it and a block of 40 drew 2: one would come again."""
    order = DataOrder(seed=0, permutation="feistel", block_sequences=8, cut_blocks=True)
    drawn = [
        MixtureSchedule(batch=Steps[int](((0, 8),)), mixture=Steps[MixtureShares](((0, {"a": 90, "b": 10}),)), order=one).realised(0, 3)[
            "b"
        ]
        for one in (order, order.but(block_sequences=40))
    ]
    assert drawn == [3, 2]
    with pytest.raises(ValidationError, match=undeclared("starling", "deeper-starling", "coverage")):
        Recipe.model_validate(edited(PROXY, "deeper-starling", **change))


@pytest.mark.parametrize(
    ("start", "change", "after"),
    [
        ({"fresh": ["optimizer"]}, "optimizer_state", {"optimizer": "fresh", "windows": "carried"}),
        ({"fresh": ["rolling"]}, "optimizer_state", {"optimizer": "carried", "windows": "fresh"}),
        ({"graft": [["optimizer", "phase-1", 80]]}, "optimizer_state", {"optimizer": "grafted from phase-1 80", "windows": "carried"}),
        ({"graft": [["rolling", "phase-1", 80]]}, "optimizer_state", {"optimizer": "carried", "windows": "grafted from phase-1 80"}),
        ({"fresh": ["ema"]}, "ema", "fresh"),
        ({"graft": [["ema", "phase-1", 80]]}, "ema", "grafted from phase-1 80"),
    ],
)
def test_state_that_is_not_carried_is_declared(start: dict[str, Any], change: Change, after: Any):
    """Mantis carries everything."""
    grafts = [dict(zip(("part", "phase", "step"), graft, strict=True)) for graft in start.get("graft", [])]
    changes = {"start__fresh": start.get("fresh", []), "start__graft": grafts}
    with pytest.raises(ValidationError, match=undeclared("qk-norm", "mantis", change)):
        Recipe.model_validate(edited(PROXY_32B, "mantis", **changes))
    declares = [*PROXY_32B.phase("mantis").start.model_dump()["declares"], change]
    recipe = Recipe.model_validate(edited(PROXY_32B, "mantis", **changes, start__declares=declares))
    phase = recipe.phase("mantis")
    found = recipe.changes_of(phase)
    assert found[change][1] == after
    assert set(found) == set(declares)


@pytest.mark.parametrize(
    ("phase", "step", "message"),
    [
        ("nobody", 90, "mantis grafts rolling from nobody, which is no phase before it"),
        ("mantis", 170, "grafts rolling from mantis, which is no phase before it"),
        ("qk-norm", 70, "grafts rolling from step 70 of qk-norm, a step it never has: it trains steps 80 → 160; phase-1 had it"),
    ],
)
def test_a_graft_from_what_is_not_there_is_refused(phase: str, step: int, message: str):
    raw = edited(PROXY_32B, "mantis", start__graft=[{"part": "rolling", "phase": phase, "step": step}])
    with pytest.raises(ValidationError, match=message):
        Recipe.model_validate(raw)


def test_grafts_stay_at_proxy_scale():
    graft = {"part": "optimizer", "phase": "ocelot", "step": 700_000}
    start = {"start__graft": [graft], "start__declares": ["schedule", "mixture", "optimizer_state"]}
    full = Recipe.model_validate(edited(FULL, "jellyfish", **start))
    assert to_proxy(full).phase("jellyfish").start.model_dump()["graft"] == ({**graft, "step": 700},)


def test_a_learning_rate_that_goes_on_is_no_change():
    """The cooldowns start from the rate that was in force; a jump of more than 1 % would be named."""
    jumps = {
        phase.name: "learning_rate" in changes_between(FULL.phase(phase.parent), phase) for phase in FULL.main_line if phase.parent
    }  # fmt: skip
    assert jumps == {"ocelot": True, "jellyfish": False, "phoenix": False, "starling": False, "deeper-starling": False}


@pytest.mark.parametrize(("factor", "jumps"), [(1.0, False), (1.009, False), (1.02, True), (0.98, True)])
def test_a_jump_is_more_than_one_percent(factor: float, jumps: bool):
    rate = 1.7e-5 * factor
    raw = edited(
        PROXY,
        "deeper-starling",
        learning_rate=[{"kind": "constant", "start_step": 1400, "end_step": 1420, "start": rate, "end": rate}],
        start__declares=["schedule", *(["learning_rate"] if jumps else [])],
    )
    recipe = Recipe.model_validate(raw)
    assert ("learning_rate" in changes_between(recipe.phase("starling"), recipe.phase("deeper-starling"))) == jumps


@pytest.mark.parametrize("needless", ["learning_rate", "architecture", "slice"])
def test_a_declared_change_that_is_none_is_refused(needless: Change):
    declares = [*FULL.phase("jellyfish").start.model_dump()["declares"], needless]
    with pytest.raises(
        ValidationError, match=f"ocelot → jellyfish declares {needless}, and changes no such thing: take it out of `declares`"
    ):
        Recipe.model_validate(edited(FULL, "jellyfish", start__declares=declares))


def test_qk_norm_is_not_switched_on_without_its_weights():
    """As Marin 32B did it: the gains are fresh. Without a word the trainer would look for them in the parent's checkpoint."""
    full = load_record("marin-32b", "full")
    assert full.phase("qk-norm").start.model_dump()["fresh"] == ("qk_norm",)
    with pytest.raises(
        ValidationError, match="phase-1 → qk-norm switches QK-norm on, and phase-1 has no weights of it: name qk_norm in `fresh`"
    ):
        Recipe.model_validate(edited(full, "qk-norm", start__fresh=[]))


def test_changes_say_before_and_after():
    found = changes_between(FULL.phase("kestrel"), FULL.phase("ocelot"))
    assert found["ema"] == (None, 0.995)
    assert found["learning_rate"] == pytest.approx((1e-4, 1.7e-3))
    assert found["slice"] == ("2x v5e-256", "v4-2048")
    assert found["batch"] == ((1024,), (1024, 3072))
    assert set(changes_between(FULL.phase("starling"), FULL.phase("starling"))) <= {"schedule", "batch", "mixture", "z_loss"}


@pytest.mark.parametrize(("parent", "step"), [("kestrel", 738_376), ("kestrel", 660_001), ("ocelot", 660_000), ("ocelot", 1)])
def test_a_step_that_the_parent_never_had_is_refused(parent: str, step: int):
    """As the record's code has it: Jellyfish from step 738,376 of Kestrel, which ended at 660,000."""
    rates = [{"kind": "linear", "start_step": step, "end_step": 820_000, "start": 1.7e-3, "end": 1.7e-4}]
    raw = edited(FULL, "jellyfish", start__parent=parent, start__step=step, learning_rate=rates)
    with pytest.raises(ValidationError, match=rf"jellyfish starts from step {step} of {parent}, a step it never has: it trains steps"):
        Recipe.model_validate(raw)


@pytest.mark.parametrize("parent", ["phoenix", "jellyfish", "nobody"])
def test_a_parent_that_is_not_before_it_is_refused(parent: str):
    with pytest.raises(ValidationError, match=rf"phase jellyfish starts from {parent}, which is no phase before it"):
        Recipe.model_validate(edited(FULL, "jellyfish", start__parent=parent))


def test_two_phases_of_one_name_are_refused():
    raw = FULL.model_dump(mode="json")
    with pytest.raises(ValidationError, match="two phases are called kestrel"):
        Recipe.model_validate({**raw, "phases": [raw["phases"][0], *raw["phases"]]})


def test_a_branch_starts_where_its_parent_does_not_end():
    """The lineage is a tree: a second child of Ocelot, from the middle, with the schedules of its own ancestors alone."""
    raw = FULL.model_dump(mode="json")
    rates = [{"kind": "constant", "start_step": 700_000, "end_step": 710_000, "start": 1.7e-3, "end": 1.7e-3}]
    start = {**FULL.phase("jellyfish").start.model_dump(), "step": 700_000, "declares": ["mixture", "batch"]}
    changes = {"name": "branch", "start": start, "stop_step": 710_000, "batch": [[0, 64]], "learning_rate": rates}
    branch = edited(FULL, "jellyfish", **changes)["phases"][2]
    raw["phases"][1]["batch"] = [[0, 1024], [660_001, 3072], [720_000, 4000]]
    recipe = Recipe.model_validate({**raw, "phases": [*raw["phases"][:2], branch]})
    phase = recipe.phase("branch")
    assert [one.name for one in recipe.lineage(phase)] == ["kestrel", "ocelot", "branch"]
    assert recipe.batch_of_lineage(phase).root == ((0, 1024), (660_001, 3072), (700_000, 64))
    assert [step for step, _ in recipe.mixture_of_lineage(phase).root] == [0, 700_000]
    assert phase.tokens == 10_000 * 64 * 4096


@pytest.mark.parametrize("recipe", BY_SCALE.values(), ids=BY_SCALE)
def test_schedules_of_a_lineage_are_those_of_its_phases(recipe: Recipe):
    last = recipe.phases[-1]
    batch, mixture = recipe.batch_of_lineage(last), recipe.mixture_of_lineage(last)
    for phase in recipe.phases:
        for step in (phase.start_step, phase.start_step + 1, (phase.start_step + phase.stop_step) // 2, phase.stop_step - 1):
            assert batch.at(step) == phase.batch.at(step), (phase.name, step)
            assert mixture.at(step) == phase.mixture.at(step), (phase.name, step)
    assert len(mixture.root) == 5
    tokens = sum(phase.tokens for phase in recipe.phases)
    steps = [step for step, _ in batch.root] + [last.stop_step]
    assert tokens == last.model.seq_len * sum(size * (end - start) for (start, size), end in zip(batch.root, steps[1:], strict=True))


def test_a_lineage_without_its_end_is_shorter():
    ocelot = PROXY.phase("ocelot")
    assert PROXY.mixture_of_lineage(ocelot).root == ((0, PROXY.phase("kestrel").mixture.at(0)),)
    assert PROXY.batch_of_lineage(ocelot).root == ((0, 2), (660, 6))


def test_an_unknown_phase_is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match="marin-8b has no phase 'kestral'; it has kestrel, ocelot, jellyfish"):
        FULL.phase("kestral")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stop_step": 740_000}, "phase jellyfish must stop after step 740500"),
        ({"stop_step": 820_001}, "the learning rate must cover steps 740500 → 820001"),
        ({"mixture": [[0, {"flan": 70, "all_math": 29}]]}, r"the mixture from step 0 must sum to 100 %, found 99\.00 % over 2"),
        ({"mixture": []}, "a value by steps needs at least one entry"),
        ({"batch": [[0, 1], [0, 2]]}, "steps must increase"),
        ({"name": "Jelly fish"}, "name"),
        ({"model__num_kv_heads": 5}, "num_query_heads must be a multiple of num_kv_heads"),
        ({"model__d_modle": 5}, "Extra inputs are not permitted"),
    ],
)  # fmt: skip
def test_an_impossible_phase_is_refused(change: dict[str, Any], message: str):
    with pytest.raises(ValidationError, match=message):
        Recipe.model_validate(edited(FULL, "jellyfish", **change))


def test_a_recipe_cannot_be_changed():
    phase: Phase = FULL.phases[0]
    with pytest.raises(ValidationError, match="frozen"):
        phase.stop_step = 1  # pyright: ignore[reportAttributeAccessIssue]  # that is what is tried


@pytest.mark.parametrize("part", ["rolling", "qk_norm"])
def test_a_part_that_the_phase_does_not_have_is_refused(part: str):
    with pytest.raises(ValidationError, match=f"the hand-off to jellyfish declares where its {part} comes from, and the phase has none"):
        Recipe.model_validate(edited(FULL, "jellyfish", start__fresh=[part]))
