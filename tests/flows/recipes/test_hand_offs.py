from typing import Any

import pytest
from pydantic import ValidationError

from phasewise.flows.plan import drawn_earlier
from phasewise.flows.recipes import load_recipe, load_record
from phasewise.flows.recipes.hand_off import changes_between
from phasewise.flows.recipes.phase import Change, Phase, continued
from phasewise.flows.recipes.recipe import Recipe, Tokenizer
from phasewise.flows.recipes.words import Experts, SignBalancing, Smebu, afmoe, cosine, from_scratch, llama, order, wsd
from phasewise.tasks.data.filters import LengthBias
from phasewise.trainer.config import DataOrder, always
from phasewise.trainer.data.mixture import MixtureSchedule
from phasewise.trainer.data.packing import DrawnRows
from phasewise.validations.evidence.mixture import mixture_evidence

FULL, PROXY = load_recipe("marin-8b", "full"), load_recipe("marin-8b", "proxy")
PROXY_32B = load_recipe("marin-32b", "proxy")
BY_SCALE = {"full": FULL, "proxy": PROXY}


def edited(recipe: Recipe, edited_phase: str, **changes: Any) -> dict[str, Any]:
    raw = recipe.model_dump(mode="json")
    phase = next(phase for phase in raw["phases"] if phase["name"] == edited_phase)
    for path, value in changes.items():
        *outer, last = path.split("__")
        at = phase
        for part in outer:
            at = at[part]
        at[last] = value
    return raw


CHANGES: dict[Change, dict[str, Any]] = {
    "architecture": {"model__rms_norm_epsilon": 1e-6}, "rope": {"model__rope__theta": 10_000}, "batch": {"batch": [[0, 5]]},
    "learning_rate": {"learning_rate": [{"kind": "constant", "start_step": 1400, "end_step": 1420, "start": 2e-5, "end": 2e-5}]},
    "schedule": {"learning_rate": [{"kind": "linear", "start_step": 1400, "end_step": 1420, "start": 1.7e-5, "end": 1.8e-5}]},
    "optimizer": {"optimizer__weight_decay": 0.2}, "optimizer_state": {"start__fresh": ["optimizer"]},
    "mixture": {"mixture": [[0, {"flan": 100}]]}, "order": {"order__permutation": "feistel"}, "coverage": {"order__seed": 7},
    "ema": {"stability__ema_decay": [[0, 0.9]]}, "z_loss": {"stability__z_loss": [[0, 1e-3]]},
    "max_grad_norm": {"stability__max_grad_norm": [[0, None]]}, "max_update_rms": {"stability__max_update_rms": [[0, 1.0]]},
    "max_update_norm": {"stability__max_update_norm": [[0, {"window": 128, "min_samples": 64, "sigmas": 2.0}]]},
    "skip_step": {"stability__skip_step": [[0, {"window": 128, "min_samples": 64, "sigmas": 6.0}]]},
    "slice": {"slice": [[0, "another"]]}, "packing": {"packing": "greedy"}, "loss_on": {"loss_on": "answers"},
    "seq_len": {"model__seq_len": 256, "batch": [[0, 4]], "order__first_step": 1400},
}  # fmt: skip

COME_TOGETHER: dict[Change, tuple[Change, ...]] = {
    "order": ("coverage",), "coverage": ("order",), "packing": ("coverage",), "seq_len": ("order", "coverage"),
}  # fmt: skip


def undeclared(parent: str, phase: str, change: str) -> str:
    return rf"the hand-off {parent} → {phase} makes (a change|changes) that it does not declare\. (.*, and )?{change}: .* → "


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
    order = DataOrder(seed=0, permutation="feistel", block_sequences=8, cut_blocks=True)
    shares, orders = always({"a": 90.0, "b": 10.0}), (order, order.but(block_sequences=40))
    schedules = [MixtureSchedule(batch=always(8), mixture=shares, order=one) for one in orders]
    assert [schedule.realised(0, 3)["b"] for schedule in schedules] == [3, 2]
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


@pytest.mark.parametrize(("factor", "jumps"), [(1.0, False), (1.009, False), (1.02, True), (0.98, True)])
def test_a_jump_is_more_than_one_percent(factor: float, jumps: bool):
    rates = [{"kind": "constant", "start_step": 1400, "end_step": 1420, "start": 1.7e-5 * factor, "end": 1.7e-5 * factor}]
    declares = ["schedule", *(["learning_rate"] if jumps else [])]
    recipe = Recipe.model_validate(edited(PROXY, "deeper-starling", learning_rate=rates, start__declares=declares))
    assert ("learning_rate" in changes_between(recipe.phase("starling"), recipe.phase("deeper-starling"))) == jumps


DECLARED = FULL.phase("jellyfish").start.model_dump()["declares"]
GRAFTS = {
    ("nobody", 90): "mantis grafts rolling from nobody, which is not an earlier phase",
    ("mantis", 170): "grafts rolling from mantis, which is not an earlier phase",
    ("qk-norm", 70): "grafts rolling from step 70 of qk-norm, a step it never has: it trains steps 80 → 160. Step 70 is in phase-1",
}
"""Phase and step of a graft into Mantis that is impossible → a part of the refusal."""


def test_a_branch_starts_where_its_parent_does_not_end():
    raw = FULL.model_dump(mode="json")
    rates = [{"kind": "constant", "start_step": 700_000, "end_step": 710_000, "start": 1.7e-3, "end": 1.7e-3}]
    start = {**FULL.phase("jellyfish").start.model_dump(), "step": 700_000, "declares": ["mixture", "batch"]}
    changes = {"name": "branch", "start": start, "stop_step": 710_000, "batch": [[0, 64]], "learning_rate": rates}
    branch = edited(FULL, "jellyfish", **changes)["phases"][2]
    raw["phases"][1]["batch"] = [[0, 1024], [660_001, 3072], [720_000, 4000]]
    recipe = Recipe.model_validate({**raw, "phases": [*raw["phases"][:2], branch]})
    phase = recipe.phase("branch")
    assert [one.name for one in recipe.lineage(phase)] == ["kestrel", "ocelot", "branch"]
    batch, mixture = recipe.schedules_of_lineage(phase)
    assert batch.root == ((0, 1024), (660_001, 3072), (700_000, 64))
    assert [step for step, _ in mixture.root] == [0, 700_000]
    assert phase.tokens == 10_000 * 64 * 4096


@pytest.mark.parametrize("recipe", BY_SCALE.values(), ids=BY_SCALE)
def test_schedules_of_a_lineage_are_those_of_its_phases(recipe: Recipe):
    last = recipe.phases[-1]
    batch, mixture = recipe.schedules_of_lineage(last)
    for phase in recipe.phases:
        for step in (phase.start_step, phase.start_step + 1, (phase.start_step + phase.stop_step) // 2, phase.stop_step - 1):
            assert batch.at(step) == phase.batch.at(step), (phase.name, step)
            assert mixture.at(step) == phase.mixture.at(step), (phase.name, step)
    assert len(mixture.root) == 5
    tokens = sum(phase.tokens for phase in recipe.phases)
    steps = [step for step, _ in batch.root] + [last.stop_step]
    assert tokens == last.model.seq_len * sum(size * (end - start) for (start, size), end in zip(batch.root, steps[1:], strict=True))


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
        ({"start__fresh": ["rolling"]}, "the hand-off to jellyfish declares rolling, and the phase has no such state"),
        *(({"start__declares": [*DECLARED, one]}, f"ocelot → jellyfish declares {one}, and changes no such thing: take it out of `decl")
          for one in ("learning_rate", "architecture", "slice")),
        *(({"start__graft": [{"part": "rolling", "phase": phase, "step": step}]}, said) for (phase, step), said in GRAFTS.items()),
    ],
)  # fmt: skip
def test_an_impossible_phase_is_refused(change: dict[str, Any], message: str):
    recipe, phase = (PROXY_32B, "mantis") if "start__graft" in change else (FULL, "jellyfish")
    with pytest.raises(ValidationError, match=message):
        Recipe.model_validate(edited(recipe, phase, **change))


def test_weights_and_momentum_that_a_parent_has_not_are_refused():
    with pytest.raises(ValidationError, match="has no momentum of the routers' biases: name balancing in `fresh`"):
        two_sparse(sparse(), declares=("balancing",), balancing=SMEBU)
    first = from_scratch(
        name="first", stop_step=40, model=llama(num_layers=4, d_model=64, qk_norm=True), learning_rate=RATE, batch=8, mixture={"all": 100}
    )
    with pytest.raises(ValidationError, match="found no experts before it"):
        two_sparse(first, declares=("architecture",))
    full = load_record("marin-32b", "full")
    message = "phase-1 → qk-norm switches QK-norm on, and phase-1 has no weights of it: name qk_norm in `fresh`"
    with pytest.raises(ValidationError, match=message):
        Recipe.model_validate(edited(full, "qk-norm", start__fresh=[]))


# ── rows of another length ──

RATE = wsd(stop_step=40, warmup=4, decay=0, peak=1e-3)
MODEL = llama(num_layers=2, d_model=64, seq_len=128, sliding_window=32)
FIRST = from_scratch(name="first", stop_step=40, model=MODEL, learning_rate=RATE, batch=8, mixture={"web": 100}, order=order())
DECLARED_ROWS = ("seq_len", "order", "mixture")


def longer(parent: Phase = FIRST, name: str = "longer", **changes: Any) -> Phase:
    start = parent.stop_step
    settings: dict[str, Any] = {
        "declares": DECLARED_ROWS, "model": MODEL.but(seq_len=512), "batch": 2, "mixture": {"books": 100},
        "order": order(first_step=start), "learning_rate": wsd(stop_step=start + 20, warmup=0, decay=0, peak=1e-3),
    }  # fmt: skip
    return continued(parent, name=name, stop_step=start + 20, **(settings | changes))


def of_rows(*phases: Phase, **fields: Any) -> Recipe:
    return Recipe(name="mine", tokenizer=Tokenizer(vocab_size=4096), phases=(FIRST, *phases), **fields)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"declares": ("order", "mixture")}, r"does not declare\. seq_len: 128 → 512\. Name seq_len in `declares`"),
        ({"batch": 8}, r"does not declare\. batch: 1,024 tokens → 4,096 tokens\."),
        ({"model": MODEL.but(seq_len=512, sliding_window=128)}, r"architecture: sliding_window 32 → sliding_window 128\."),
        ({"order": order(), "declares": ("seq_len", "mixture")}, r"512 tokens, and first has rows of 128.*order\.first_step 40, found 0"),
    ],
)
def test_longer_rows_are_a_change_of_their_own(changes: dict[str, Any], said: str):
    made = of_rows(longer())
    assert set(made.changes_of(made.phase("longer"))) == set(DECLARED_ROWS)
    assert "batch" in of_rows(longer(batch=8, declares=(*DECLARED_ROWS, "batch"))).changes_of(longer(batch=8))
    with pytest.raises(ValidationError, match=said):
        of_rows(longer(**changes))


def test_text_from_before_the_order_began_is_declared_also_by_a_later_phase():
    middle = longer()
    same = {"model": middle.model, "order": middle.order, "mixture": {"web": 100}}
    with pytest.raises(
        ValidationError, match=r"longer → last makes a change that it does not declare\. coverage: .*rows of web come again"
    ):
        of_rows(middle, longer(middle, name="last", declares=("mixture",), **same))
    last = longer(middle, name="last", declares=("mixture", "coverage"), **same)
    after = longer(last, name="after", declares=(), model=middle.model, order=middle.order, mixture={"web": 100})
    of_rows(middle, last, after)


def test_tokens_and_what_was_drawn_before_are_counted_in_rows_of_then():
    made = of_rows(longer(batch=4, declares=(*DECLARED_ROWS, "batch")))
    phase = made.phase("longer")
    assert made.tokens_before(phase, 0) == 0
    assert made.tokens_before(phase, 40) == FIRST.tokens == 40 * 8 * 128
    assert made.tokens_before(phase, 50) == FIRST.tokens + 10 * 4 * 512
    assert made.tokens_before(phase, 60) == FIRST.tokens + phase.tokens
    middle = longer(mixture={"web": 50, "books": 50}, declares=(*DECLARED_ROWS, "coverage"))
    last = longer(middle, name="last", declares=(), model=middle.model, order=middle.order, mixture=middle.mixture)
    made = of_rows(middle, last)
    assert drawn_earlier(made, made.phase("first")) == {}
    for name in ("longer", "last"):
        assert drawn_earlier(made, made.phase(name)) == {"web": (DrawnRows(FIRST.tokens // 128, 128),)}


def test_epochs_count_what_was_drawn_before_the_order_began():
    phase = longer(mixture={"web": 100}, declares=("seq_len", "order", "coverage"))
    schedule = MixtureSchedule(batch=always(2), mixture=always({"web": 100.0}), order=phase.order)
    rows: dict[str, Any] = {"start_step": 40, "stop_step": 60, "rows": {"web": 20}, "seq_len": 512}
    (alone,) = mixture_evidence(schedule, **rows)["epochs_since_step_0"]
    (counted,) = mixture_evidence(schedule, **rows, epochs_before={"web": FIRST.tokens / (20 * 512)})["epochs_since_step_0"]
    assert (alone, counted) == (2.0, 2.0 + 4.0)


def test_a_length_bias_of_nobody_s_component_is_refused():
    bias = LengthBias(floor=0.1, ceiling=0.9, full_tokens=100)
    with pytest.raises(ValidationError, match="length_bias names nobody: expected components of the phases"):
        of_rows(longer(), length_bias={"nobody": bias})
    assert of_rows(longer(), length_bias={"books": bias}).with_branch(None).length_bias == {"books": bias}


# ── experts ──

SIGN = SignBalancing(kind="sign", rate=0.001)
SMEBU = Smebu(kind="smebu", rate=5e-4, sharpness=2.0, momentum=0.5)
EXPERTS = Experts(
    num_experts=8, num_active=2, num_shared=1, d_expert=32, route_scale=1.0, num_dense_layers=1, balancing=SIGN, sequence_loss=0.0
)
RATE_LATER = wsd(stop_step=60, warmup=0, decay=0, peak=1e-3)


def sparse(**experts: Any) -> Phase:
    model = afmoe(num_layers=4, d_model=64, experts=EXPERTS.but(**experts))
    return from_scratch(name="first", stop_step=40, model=model, learning_rate=RATE, batch=8, mixture={"all": 100})


def two_sparse(first: Phase, *, declares: tuple[Any, ...] = (), fresh: tuple[Any, ...] = (), **experts: Any) -> Recipe:
    model = sparse(**experts).model
    second = continued(first, name="second", stop_step=60, declares=declares, fresh=fresh, model=model, learning_rate=RATE_LATER)
    return Recipe(name="mine", tokenizer=Tokenizer(vocab_size=4096), phases=(first, second))


@pytest.mark.parametrize(
    ("before", "after", "fresh"),
    [
        ({}, {"balancing": SIGN.but(rate=0.002)}, ()), ({}, {"balancing": None}, ()), ({}, {"sequence_loss": 1e-4}, ()),
        ({}, {"balancing": SMEBU}, ("balancing",)), ({"balancing": SMEBU}, {"balancing": SIGN}, ()),
        ({"balancing": SMEBU}, {"balancing": SMEBU.but(momentum=0.4)}, ()),
        ({"balancing": SMEBU}, {"balancing": SMEBU}, ("balancing",)),
    ],
)  # fmt: skip
def test_a_change_of_balancing_must_be_declared_as_that(before: dict[str, Any], after: dict[str, Any], fresh: tuple[str, ...]):
    first = sparse(**before)
    with pytest.raises(ValidationError, match=r"does not declare\. balancing: .* → .*Name balancing in `declares`"):
        two_sparse(first, fresh=fresh, **after)
    second = two_sparse(first, fresh=fresh, declares=("balancing",), **after).phase("second")
    assert set(changes_between(first, second)) == {"balancing"}


@pytest.mark.parametrize(("field", "value"), [("num_dense_layers", 2), ("num_experts", 16), ("d_expert", 64), ("num_shared", 2)])
def test_experts_of_another_shape_are_a_new_run(field: str, value: int):
    changed: dict[str, Any] = {field: value}
    said = rf"must keep the experts' weights, found .*{field} .* before it and .*{field} {value}.*scratch"
    with pytest.raises(ValidationError, match=said):
        two_sparse(sparse(), declares=("architecture",), **changed)


def going_on(*, stop_step: int = 40, end: int = 60, **fields: Any) -> Phase:
    rates = (cosine(0, end, 1e-3, 1e-4),)
    return from_scratch(
        name="first", stop_step=stop_step, model=sparse().model, learning_rate=rates, batch=8, mixture={"all": 100}, **fields
    )


def test_a_schedule_may_go_on_in_the_next_phase_where_that_is_said():
    with pytest.raises(ValidationError, match="is not finished"):
        going_on()
    first = going_on(schedule_goes_on=True)
    second = continued(first, name="second", stop_step=60, declares=(), learning_rate=first.learning_rate)
    assert (first.schedule_goes_on, second.schedule_goes_on) == (True, False)
    assert Recipe(name="mine", tokenizer=Tokenizer(vocab_size=4096), phases=(first, second)).phase("second").stop_step == 60
    with pytest.raises(ValidationError, match=r"has schedule_goes_on: expected a last segment from before step 40 .* found 0 → 40"):
        going_on(end=40, schedule_goes_on=True)
