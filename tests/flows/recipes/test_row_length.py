"""Rows that grow or shrink between phases: a change of its own, another order, and counts over the lineage that add up."""

from typing import Any

import pytest
from pydantic import ValidationError

from phasewise.flows.recipes import load_record
from phasewise.flows.recipes.phase import Phase, continued
from phasewise.flows.recipes.recipe import Recipe, Tokenizer
from phasewise.flows.recipes.scales import proxy_rows, to_proxy
from phasewise.flows.recipes.words import from_scratch, llama, order, wsd
from phasewise.flows.token_budget import drawn_earlier
from phasewise.tasks.data.filters import LengthBias
from phasewise.trainer.config import always
from phasewise.trainer.data.mixture import MixtureSchedule
from phasewise.trainer.data.packing import DrawnRows
from phasewise.validations.evidence.mixture import mixture_evidence

MODEL = llama(num_layers=2, d_model=64, seq_len=128, sliding_window=32)
FIRST = from_scratch(
    name="first",
    stop_step=40,
    model=MODEL,
    learning_rate=wsd(stop_step=40, warmup=4, decay=0, peak=1e-3),
    batch=8,
    mixture={"web": 100},
    order=order(),
)
DECLARED = ("seq_len", "order", "mixture")


def longer(parent: Phase = FIRST, name: str = "longer", **changes: Any) -> Phase:
    """The next twenty steps, on rows four times as long of other text."""
    start = parent.stop_step
    settings: dict[str, Any] = {
        "declares": DECLARED,
        "model": MODEL.but(seq_len=512),
        "batch": 2,
        "mixture": {"books": 100},
        "order": order(first_step=start),
        "learning_rate": wsd(stop_step=start + 20, warmup=0, decay=0, peak=1e-3),
    }
    return continued(parent, name=name, stop_step=start + 20, **(settings | changes))


def recipe(*phases: Phase, **fields: Any) -> Recipe:
    return Recipe(name="mine", tokenizer=Tokenizer(vocab_size=4096), phases=(FIRST, *phases), **fields)


def test_longer_rows_are_a_change_of_their_own():
    made = recipe(longer())
    assert set(made.changes_of(made.phase("longer"))) == set(DECLARED)
    with pytest.raises(ValidationError, match=r"does not declare\. seq_len: 128 → 512\. Name seq_len in `declares`"):
        recipe(longer(declares=("order", "mixture")))


def test_the_same_number_of_rows_is_another_batch_where_they_are_longer():
    with pytest.raises(ValidationError, match=r"does not declare\. batch: 1,024 tokens → 4,096 tokens\."):
        recipe(longer(batch=8))
    assert "batch" in recipe(longer(batch=8, declares=(*DECLARED, "batch"))).changes_of(longer(batch=8))


def test_a_window_that_grows_with_the_rows_is_architecture():
    with pytest.raises(ValidationError, match=r"does not declare\. architecture: sliding_window 32 → sliding_window 128\."):
        recipe(longer(model=MODEL.but(seq_len=512, sliding_window=128)))


def test_the_order_begins_again_with_rows_of_another_length():
    with pytest.raises(
        ValidationError, match=r"longer has rows of 512 tokens, where those of first have 128.*order\.first_step 40; found 0"
    ):
        recipe(longer(order=order(), declares=("seq_len", "mixture")))


def test_text_that_comes_again_in_longer_rows_is_declared():
    with pytest.raises(ValidationError, match=r"does not declare\. coverage: .* → rows of web come again within their epoch"):
        recipe(longer(mixture={"web": 100}, declares=("seq_len", "order")))
    recipe(longer(mixture={"web": 100}, declares=("seq_len", "order", "coverage")))


def test_text_from_before_the_order_began_is_declared_also_by_a_later_phase():
    """Its order goes on, and knows nothing of what was drawn before it began."""
    middle = longer()
    same = {"model": middle.model, "order": middle.order, "mixture": {"web": 100}}
    with pytest.raises(
        ValidationError, match=r"longer → last makes a change that it does not declare\. coverage: .*rows of web come again"
    ):
        recipe(middle, longer(middle, name="last", declares=("mixture",), **same))
    last = longer(middle, name="last", declares=("mixture", "coverage"), **same)
    after = longer(last, name="after", declares=(), model=middle.model, order=middle.order, mixture={"web": 100})
    recipe(middle, last, after)


def test_text_from_before_a_parent_s_order_is_declared_where_the_order_begins_again():
    middle = longer()
    short = {"model": MODEL, "batch": 8, "mixture": {"web": 100}}
    with pytest.raises(ValidationError, match=r"longer → last makes a change that it does not declare\. coverage: "):
        recipe(middle, longer(middle, name="last", declares=DECLARED, **short))


def test_tokens_of_a_lineage_are_those_of_each_phase():
    made = recipe(longer(batch=4, declares=(*DECLARED, "batch")))
    phase = made.phase("longer")
    assert made.tokens_before(phase, 0) == 0
    assert made.tokens_before(phase, 40) == FIRST.tokens == 40 * 8 * 128
    assert made.tokens_before(phase, 50) == FIRST.tokens + 10 * 4 * 512
    assert made.tokens_before(phase, 60) == FIRST.tokens + phase.tokens


def test_what_was_drawn_before_the_order_began_is_counted_in_tokens_of_then():
    middle = longer(mixture={"web": 50, "books": 50}, declares=(*DECLARED, "coverage"))
    last = longer(middle, name="last", declares=(), model=middle.model, order=middle.order, mixture=middle.mixture)
    made = recipe(middle, last)
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


@pytest.mark.parametrize(
    ("seq_len", "first", "small", "batch"), [(4096, 4096, 128, 1), (8192, 4096, 256, 1), (32_768, 4096, 1024, 1), (262_144, 4096, 1024, 8)]
)
def test_proxy_rows_grow_at_most_eight_times_and_keep_the_tokens(seq_len: int, first: int, small: int, batch: int):
    rows = proxy_rows(seq_len, first)
    assert (rows.small, rows.sequences(512)) == (small, batch)


def test_proxy_rows_between_the_first_and_the_longest_stay_between():
    assert [proxy_rows(4096 * times, 4096, 262_144).small for times in (1, 16, 64)] == [128, 512, 1024]


def test_a_length_bias_of_nobody_s_component_is_refused():
    bias = LengthBias(floor=0.1, ceiling=0.9, full_tokens=100)
    with pytest.raises(ValidationError, match="length_bias names nobody, which no phase draws from"):
        recipe(longer(), length_bias={"nobody": bias})
    assert recipe(longer(), length_bias={"books": bias}).with_branch(None).length_bias == {"books": bias}


def test_rows_of_a_model_with_rope_everywhere_need_another_rope_that_is_declared():
    """Marin's layers all have RoPE: its branch stretches it, and says so."""
    full = load_record("marin-8b", "full")
    phase = full.phase("context-extension")
    assert set(phase.start.model_dump()["declares"]) >= {"seq_len", "rope"}
    raw = full.model_dump(mode="json")
    at = next(one for one in raw["phases"] if one["name"] == "context-extension")
    at["start"]["declares"].remove("rope")
    with pytest.raises(ValidationError, match=r"deeper-starling → context-extension makes a change that it does not declare\. rope: "):
        Recipe.model_validate(raw)
    assert to_proxy(full).phase("context-extension").model.seq_len == 8 * 128
