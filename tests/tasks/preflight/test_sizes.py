import math

import pytest

from phasewise.flows.recipes.trinity.large import PHASE_1 as LARGE
from phasewise.flows.recipes.trinity.small import TRINITY_MINI as MINI_RECIPE
from phasewise.flows.recipes.trinity.small import TRINITY_NANO as NANO_RECIPE
from phasewise.tasks.preflight import estimate
from phasewise.tasks.preflight.estimate import count_weights, exchanged_a_token, kept_a_token, muon_flops, state_bytes
from phasewise.trainer.config import ATTENTION, Kept
from tests.trainer.preflight.models import LLAMA_8B, step_of

MINI = MINI_RECIPE.phases[0]
NANO = NANO_RECIPE.phases[0]

MODEL = NANO.model
STEP = step_of(MODEL, 4096, keeps_average=False).but(optimizer=NANO.optimizer)
EXPERTS = 54 * 128 * 3 * 1024 * 256


@pytest.mark.parametrize(
    ("phase", "total", "experts"),
    [(NANO, 6.12e9, EXPERTS), (MINI, 26.12e9, 30 * 128 * 3 * 2048 * 1024), (LARGE, 398.6e9, 54 * 256 * 3 * 3072 * 3072)],
    ids=["nano", "mini", "large"],
)
def test_memory_counts_every_expert(phase: object, total: float, experts: int):
    found = count_weights(phase.model)  # type: ignore[attr-defined]
    assert found.experts == experts
    assert sum(found) == pytest.approx(total, rel=1e-3)


def test_muon_has_one_moment_for_its_matrices_and_two_for_all_else():
    """AdamW's weights: embedding, head, gains and the routers' biases. All else is Muon's, each expert too."""
    vocabulary = 2 * 200_192 * 1024
    gains = 56 * (4 * 1024 + 2 * 128) + 1024
    adam = vocabulary + gains + 54 * 128
    assert state_bytes(STEP) == 4 * (2 * sum(count_weights(MODEL)) + adam)
    assert state_bytes(STEP.but(optimizer=step_of(MODEL, 1).optimizer)) == 12 * sum(count_weights(MODEL))
    assert state_bytes(STEP.but(keeps_average=True)) - state_bytes(STEP) == 4 * sum(count_weights(MODEL))


def test_what_is_exchanged_and_gathered_is_what_was_compiled():
    """On v5p-1024, eight rows a device: Trinity Nano with experts over 8 and blocks computed again, Mini with 16 and everything kept."""
    tokens = 8 * 4096
    assert tokens * exchanged_a_token(MODEL, expert=8, again=True) == 171_228_266_496
    assert tokens * exchanged_a_token(MINI.model, expert=16, again=False) == 128_345_702_400
    row, gate = 7 / 8 * 8 * 2 * 1024, 7 / 8 * 8 * 512
    assert exchanged_a_token(MODEL, expert=8, again=False) == 54 * (4 * row + 2 * gate)
    assert exchanged_a_token(MODEL.but(post_norms=False), expert=8, again=True) == 54 * (5 * row + 3 * gate)
    assert exchanged_a_token(MODEL, expert=1, again=True) == exchanged_a_token(LLAMA_8B, expert=8, again=True) == 0
    # 128 experts of a layer, and their gradients, two bytes a number; a quarter of them where four devices share.
    assert estimate.gathered_bytes(MODEL, expert=1, tensor=1) == 2 * 2 * 128 * 3 * 1024 * 256
    assert estimate.gathered_bytes(MODEL, expert=4, tensor=2) == estimate.gathered_bytes(MODEL, expert=1, tensor=1) / 8
    assert estimate.gathered_bytes(LLAMA_8B, expert=1, tensor=1) == 0


def test_what_is_kept_is_counted_in_the_layers_that_have_it():
    """Two dense layers, 54 with a shared expert, 56 with attention. Experts' products come with everything or not at all."""
    carry = 56 * 2 * 1024
    assert kept_a_token(MODEL, "full") == (carry, 0)
    assert kept_a_token(MODEL, "offload") == (0, carry)
    assert kept_a_token(MODEL, Kept(on_device=("gate",)))[0] - carry == 2 * 2 * 3072
    assert kept_a_token(MODEL, Kept(on_device=("shared_gate",)))[0] - carry == 54 * 2 * 256
    assert kept_a_token(MODEL, Kept(on_device=("attention_gate",)), 2)[0] - carry == 56 * 1024
    assert kept_a_token(MODEL, Kept(on_device=(ATTENTION,)))[0] - carry == 56 * 8 * (2 * 128 + 4)
    experts = 54 * 2 * 8 * (2 * 256 + 1024)
    assert kept_a_token(MODEL, "none")[0] > kept_a_token(MODEL, "dots")[0] + experts
    assert MODEL.experts is not None
    more = MODEL.but(experts=MODEL.experts.but(num_active=9))
    assert estimate.block_a_token(more, 1) - estimate.block_a_token(MODEL, 1) == 2 * (2 * 256 + 1024) + 3 * 2 * 1024


def test_muons_steps_of_one_device():
    """Square products are those of every device that shares a matrix: twice the devices along fsdp leave more than half."""
    once, twice = (muon_flops(STEP, fsdp=fsdp, expert=8, tensor=1) for fsdp in (8, 16))
    assert once / 2 < twice < once
    assert muon_flops(STEP, fsdp=8, expert=16, tensor=1) < 0.9 * once
    assert muon_flops(step_of(LLAMA_8B, 8), fsdp=8, expert=1, tensor=1) == 0
    assert math.isfinite(once)
