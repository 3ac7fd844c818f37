"""What the backward pass computes again instead of keeping: time for memory, and no change to what is computed."""

from collections.abc import Callable
from typing import Any, Literal

import jax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array

from trainer.model.params import Params

Remat = Literal["none", "dots", "full", "offload"]
Block = Callable[[Array, Params], tuple[Array, Any]]
"""From the residual stream and one layer's weights to the residual stream after it, and what was measured in the layer."""

BLOCK_INPUT = "block_input"


def remat(block: Block, policy: Remat) -> Block:
    """The same block with another backward pass, for a scan over layers.

    * none: everything is kept.
    * dots: products with weights are kept; what lies between them, and attention, is computed again.
    * full: only what goes from block to block is kept.
    * offload: as full, and that is kept in the host's memory (Marin's carries on v4-2048).
    """
    policies = jax.checkpoint_policies
    match policy:
        case "none":
            return block
        case "dots":
            return _checkpoint(block, policies.dots_with_no_batch_dims_saveable)
        case "full":
            return _checkpoint(block, policies.nothing_saveable)
        case "offload":
            offload = policies.save_and_offload_only_these_names(
                names_which_can_be_saved=[],
                names_which_can_be_offloaded=[BLOCK_INPUT],
                offload_src="device",
                offload_dst="pinned_host",
            )
            return _checkpoint(lambda x, weights: block(checkpoint_name(x, BLOCK_INPUT), weights), offload)


def _checkpoint(block: Block, policy: Callable[..., bool]) -> Block:
    """A scan keeps its steps apart by itself, so that nothing must prevent the compiler from merging a block's two passes."""
    return jax.checkpoint(block, policy=policy, prevent_cse=False)
