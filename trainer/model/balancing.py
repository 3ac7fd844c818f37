"""How a router's bias moves after an update, and what the counts say of the balance. Leading axes (layers) are taken apart.

Shape letters: x expert. All is float32 but the counts.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from phasewise.trainer.config import Balancing, SignBalancing, Smebu

Bias = Float[Array, "*layer x"]


def next_bias(bias: Bias, momentum: Bias | None, counts: Int[Array, "*layer x"], balancing: Balancing | None) -> tuple[Bias, Bias | None]:
    """Bias and momentum after an update whose whole batch gave these counts, over all of its parts and devices.

    Sign (Wang et al., 2024; Trinity report, eqs 19–22): ± rate, up where an expert had fewer tokens than the mean, less the mean step.
    SMEBU (eqs 23–28): rate · tanh(sharpness · relative lack), less the mean step, averaged by the momentum.
    Where the load is even, or there were no tokens, a step is 0. The sum of the bias does not change but by rounding.

    Args:
        momentum: of SMEBU, zeros at first; None, and so returned, for the others.
        counts: integers; all of a layer together fewer than 2³¹.
        balancing: None leaves the bias where it is.
    """
    match balancing:
        case None:
            return bias, momentum
        case SignBalancing():
            assert momentum is None, "sign balancing has no momentum"
            return bias + centred(jnp.float32(balancing.rate) * jnp.sign(lack(counts))), None
        case Smebu():
            assert momentum is not None, "SMEBU needs its momentum"
            clamped = jnp.tanh(jnp.float32(balancing.sharpness) * lack(counts) / mean_count(counts))
            beta = jnp.float32(balancing.momentum)
            averaged = beta * momentum + (1 - beta) * centred(jnp.float32(balancing.rate) * clamped)
            return bias + averaged, averaged


def lack(counts: Int[Array, "*layer x"]) -> Bias:
    """Mean − count. Exactly 0 at balance, and of the right sign everywhere: float32 cannot hold large counts, their differences it can."""
    num_experts = counts.shape[-1]
    total = jnp.sum(counts, axis=-1, keepdims=True)
    return (total // num_experts - counts).astype(jnp.float32) + (total % num_experts).astype(jnp.float32) / num_experts


def centred(step: Bias) -> Bias:
    """The step less its mean over the experts: a bias that all share would choose nothing."""
    return step - jnp.mean(step, axis=-1, keepdims=True)


def mean_count(counts: Int[Array, "*layer x"]) -> Float[Array, "*layer 1"]:
    """Tokens an expert has in the mean; of no tokens at all, the least that divides."""
    total = jnp.sum(counts, axis=-1, keepdims=True)
    return jnp.maximum(total, 1).astype(jnp.float32) / counts.shape[-1]


def load_shares(counts: Int[Array, "*layer x"]) -> Bias:
    """The part of all assignments that each expert has: 1 / num_experts at balance."""
    return counts.astype(jnp.float32) / (mean_count(counts) * counts.shape[-1])


def max_violation(counts: Int[Array, "*layer x"]) -> Float[Array, "*layer"]:
    """MaxVio: how far the most loaded expert is above the mean, as a share of it (Wang et al., 2024; Trinity report, eq. 42).

    0 at balance; num_experts / num_active − 1 where every token has the same experts.
    """
    return jnp.max(-lack(counts), axis=-1) / mean_count(counts)[..., 0]


def dead_experts(counts: Int[Array, "*layer x"]) -> Int[Array, "*layer"]:
    """How many experts had no token at all."""
    return jnp.sum(counts == 0, axis=-1, dtype=jnp.int32)
