from typing import Any

import pytest
from pydantic import ValidationError

from phasewise.flows.recipes import words
from phasewise.flows.recipes.words import Phase, Recipe, Tokenizer, adamw, always, constant, continued, cooldown, from_scratch, llama, wsd
from phasewise.trainer.config import learning_rate_at


def warm_up(**settings: Any) -> Phase:
    fields: dict[str, Any] = {
        "name": "warm-up", "stop_step": 40, "model": llama(num_layers=2, d_model=64),
        "learning_rate": wsd(stop_step=40, warmup=4, decay=0, peak=1e-3), "batch": 8, "mixture": {"all": 100},
    }  # fmt: skip
    return from_scratch(**(fields | settings))


def test_a_recipe_of_words_is_run_as_it_is_written():
    settings: dict[str, Any] = {"learning_rate": cooldown(40, 60, 1e-3), "mixture": {"all": 30, "best": 70}}
    end = continued(warm_up(), name="cooldown", stop_step=60, declares=("schedule", "mixture"), **settings)
    recipe = Recipe(name="mine", tokenizer=Tokenizer(vocab_size=4096), phases=(warm_up(), end))
    assert (recipe.scale, recipe.run_name, recipe.tokenizer.name) == ("own", "mine-own", None)
    assert [phase.slice.root for phase in recipe.phases] == [((0, "local"),)] * 2
    assert end.batch.root == always(8).root
    assert end.mixture.at(59) == {"all": 30, "best": 70}
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"batch": "soon"}, "batch.0.1"), ({"mixture": {"all": 99}}, "must sum to 100 %"),
        ({"stop_stpe": 3}, "Extra inputs are not permitted"), ({"learning_rate": (constant(0, 39, 1e-3),)}, "must cover steps 0 → 40"),
        ({"optimizer": None}, "optimizer"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused(settings: dict[str, Any], said: str):
    with pytest.raises(ValidationError, match=said):
        warm_up(**settings)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, (4, 4, 32, 448)), ({"num_query_heads": 8}, (8, 8, 16, 448)), ({"num_query_heads": 8, "num_kv_heads": 2}, (8, 2, 16, 448)),
        ({"head_dim": 64}, (2, 2, 64, 448)), ({"d_ff": 100}, (4, 4, 32, 100)),
    ],
)  # fmt: skip
def test_what_a_shape_leaves_out_follows_from_it(given: dict[str, Any], found: tuple[int, ...]):
    model = llama(num_layers=3, d_model=128, **given)
    assert (model.num_query_heads, model.num_kv_heads, model.head_dim, model.d_ff) == found
    assert (model.num_layers, model.d_model, model.qk_norm) == (3, 128, False)
    assert words.qwen(num_layers=3, d_model=128, **given) == llama(num_layers=3, d_model=128, qk_norm=True, **given)


@pytest.mark.parametrize(
    ("rates", "step", "rate"),
    [
        (wsd(stop_step=100, warmup=10, decay=20, peak=1.0), 5, 0.5), (wsd(stop_step=100, warmup=10, decay=20, peak=1.0), 50, 1.0),
        (wsd(stop_step=100, warmup=10, decay=20, peak=1.0), 90, 0.5), (wsd(stop_step=100, warmup=0, decay=0, peak=1.0), 0, 1.0),
        (wsd(stop_step=40, warmup=100, decay=0, peak=1.0), 30, 0.3), (wsd(stop_step=40, warmup=40, decay=0, peak=1.0), 20, 0.5),
        (wsd(stop_step=40, warmup=20, decay=20, peak=1.0), 30, 0.5), (cooldown(10, 20, 1.0, 0.5), 15, 0.75),
        ((words.cosine(0, 10, 1.0, 0.0),), 5, 0.5), ((words.inverse(0, 10, 1.0, 0.1),), 5, 1 / 5.5),
        ((words.linear(0, 10, 0.0, 1.0),), 3, 0.3),
    ],
)  # fmt: skip
def test_a_rate_has_its_shape(rates: Any, step: int, rate: float):
    assert learning_rate_at(rates, step) == pytest.approx(rate)


def test_what_a_word_is_given_is_what_it_makes():
    assert adamw(weight_decay=0.3, beta1=0.1, beta2=0.2, epsilon=1e-3).model_dump() == {
        "kind": "adamw", "weight_decay": 0.3, "beta1": 0.1, "beta2": 0.2, "epsilon": 1e-3,
    }  # fmt: skip
    assert words.adamc(peak_learning_rate=0.5, weight_decay=0.3).model_dump(include={"kind", "peak_learning_rate", "weight_decay"}) == {
        "kind": "adamc", "peak_learning_rate": 0.5, "weight_decay": 0.3,
    }  # fmt: skip
    assert words.muon(adam_learning_rate_scale=0.5, adam=adamw(beta1=0.5)).adam.beta1 == 0.5
    limits = words.gates(max_increase_bits_per_byte=0.5, max_epochs=None, max_items=3, max_share_error_points=2, must_beat_baseline=False)
    assert (limits.data.max_epochs, limits.data.leakage.max_items, limits.data.max_share_error_points) == (None, 3, 2)
    assert (limits.model.max_increase_bits_per_byte, limits.model.must_beat_baseline) == (0.5, False)
    steady = words.stability(z_loss=0.1, ema=0.9)
    assert (steady.z_loss.root, steady.ema_decay.root) == (((0, 0.1),), ((0, 0.9),))
    assert words.order(seed=3, permutation="linear", block_sequences=7).block_sequences == 7
    assert words.checkpoints(every_steps=7, at_steps=[3]).at_steps == (3,)
    assert words.evaluated(loss_every_steps=None, benchmarks=["next_word"]).benchmarks == ("next_word",)
