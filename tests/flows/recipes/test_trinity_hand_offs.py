"""Hand-offs of sparse models: balancing is a change of its own, and weights of experts are carried or not at all."""

from typing import Any

import pytest
from pydantic import ValidationError

from phasewise.flows.recipes.hand_off import changes_between
from phasewise.flows.recipes.phase import Phase, continued
from phasewise.flows.recipes.recipe import Recipe, Tokenizer
from phasewise.flows.recipes.words import Experts, SignBalancing, Smebu, afmoe, cosine, from_scratch, llama, wsd

SIGN = SignBalancing(kind="sign", rate=0.001)
SMEBU = Smebu(kind="smebu", rate=5e-4, sharpness=2.0, momentum=0.5)
EXPERTS = Experts(
    num_experts=8, num_active=2, num_shared=1, d_expert=32, route_scale=1.0, num_dense_layers=1, balancing=SIGN, sequence_loss=0.0
)
RATE = wsd(stop_step=40, warmup=4, decay=0, peak=1e-3)
LATER = wsd(stop_step=60, warmup=0, decay=0, peak=1e-3)


def phase(**experts: Any) -> Phase:
    """The first phase, with so changed experts."""
    model = afmoe(num_layers=4, d_model=64, experts=EXPERTS.but(**experts))
    return from_scratch(name="first", stop_step=40, model=model, learning_rate=RATE, batch=8, mixture={"all": 100})


def recipe(first: Phase, *, declares: tuple[Any, ...] = (), fresh: tuple[Any, ...] = (), **experts: Any) -> Recipe:
    """Two phases, of which the second has so changed experts."""
    model = phase(**experts).model
    second = continued(first, name="second", stop_step=60, declares=declares, fresh=fresh, model=model, learning_rate=LATER)
    return Recipe(name="mine", tokenizer=Tokenizer(vocab_size=4096), phases=(first, second))


@pytest.mark.parametrize(
    ("before", "after", "fresh"),
    [
        ({}, {"balancing": SIGN.but(rate=0.002)}, ()),
        ({}, {"balancing": None}, ()),
        ({}, {"sequence_loss": 1e-4}, ()),
        ({}, {"balancing": SMEBU}, ("balancing",)),
        ({"balancing": SMEBU}, {"balancing": SIGN}, ()),
        ({"balancing": SMEBU}, {"balancing": SMEBU.but(momentum=0.4)}, ()),
        ({"balancing": SMEBU}, {"balancing": SMEBU}, ("balancing",)),
    ],
)
def test_a_change_of_balancing_must_be_declared_as_that(before: dict[str, Any], after: dict[str, Any], fresh: tuple[str, ...]):
    """Also fresh momentum alone; and it is no change of the architecture."""
    first = phase(**before)
    with pytest.raises(ValidationError, match=r"does not declare\. balancing: .* → .*Name balancing in `declares`"):
        recipe(first, fresh=fresh, **after)
    second = recipe(first, fresh=fresh, declares=("balancing",), **after).phase("second")
    assert set(changes_between(first, second)) == {"balancing"}


def test_a_change_of_balancing_is_told_by_what_differs():
    with pytest.raises(ValidationError, match=r"balancing: sequence_loss 0 → sequence_loss 0\.0001\."):
        recipe(phase(), sequence_loss=1e-4)


def test_balancing_that_does_not_change_is_not_declared():
    with pytest.raises(ValidationError, match="declares balancing, and changes no such thing"):
        recipe(phase(), declares=("balancing",))


@pytest.mark.parametrize("field", ["route_scale", "num_active"])
def test_what_else_changes_of_experts_is_architecture(field: str):
    changed: dict[str, Any] = {field: 3}
    second = recipe(phase(), declares=("architecture",), **changed).phase("second")
    assert set(changes_between(phase(), second)) == {"architecture"}


def test_smebu_needs_momentum_that_a_parent_without_it_has_not():
    with pytest.raises(ValidationError, match="has no momentum of the routers' biases: name balancing in `fresh`"):
        recipe(phase(), declares=("balancing",), balancing=SMEBU)


def test_fresh_momentum_is_refused_where_there_is_none():
    with pytest.raises(ValidationError, match="declares where its balancing comes from, and the phase has none"):
        recipe(phase(), declares=("balancing",), fresh=("balancing",), sequence_loss=0.1)


@pytest.mark.parametrize(("field", "value"), [("num_dense_layers", 2), ("num_experts", 16), ("d_expert", 64), ("num_shared", 2)])
def test_experts_of_another_shape_are_a_new_run(field: str, value: int):
    """Large's three dense layers became six: its weights could not be carried."""
    changed: dict[str, Any] = {field: value}
    said = rf"must keep the experts' weights, found .*{field} .* before it and .*{field} {value}.*scratch"
    with pytest.raises(ValidationError, match=said):
        recipe(phase(), declares=("architecture",), **changed)


def test_a_dense_model_does_not_become_a_sparse_one():
    first = from_scratch(
        name="first", stop_step=40, model=llama(num_layers=4, d_model=64, qk_norm=True), learning_rate=RATE, batch=8, mixture={"all": 100}
    )
    with pytest.raises(ValidationError, match="found no experts before it"):
        recipe(first, declares=("architecture",))


def going_on(*, stop_step: int = 40, end: int = 60, **fields: Any) -> Phase:
    """A phase whose cosine ends at `end`."""
    rates = (cosine(0, end, 1e-3, 1e-4),)
    return from_scratch(
        name="first", stop_step=stop_step, model=phase().model, learning_rate=rates, batch=8, mixture={"all": 100}, **fields
    )


def test_a_schedule_may_go_on_in_the_next_phase_where_that_is_said():
    with pytest.raises(ValidationError, match="is not finished"):
        going_on()
    first = going_on(schedule_goes_on=True)
    second = continued(first, name="second", stop_step=60, declares=(), learning_rate=first.learning_rate)
    assert (first.schedule_goes_on, second.schedule_goes_on) == (True, False)
    assert Recipe(name="mine", tokenizer=Tokenizer(vocab_size=4096), phases=(first, second)).phase("second").stop_step == 60


def test_a_schedule_that_ends_is_not_said_to_go_on():
    with pytest.raises(ValidationError, match=r"says schedule_goes_on, so its last segment must begin before step 40 .* found 0 → 40"):
        going_on(end=40, schedule_goes_on=True)
