"""What a model's state, its products and the rows of its experts measure: bytes, before anything is compiled."""

import math
from typing import NamedTuple

from phasewise.trainer.config import ATTENTION, BLOCK_INPUT, Kept, Mesh, ModelConfig, Muon, Remat
from phasewise.trainer.model.params import EXPERT, ParamSpec, expert_layers, layer_kinds, param_specs
from phasewise.trainer.preflight.roofline import kept_names, products, remembered
from phasewise.trainer.preflight.spec import StepShape

FLOAT32_BYTES, COMPUTE_BYTES = 4, {"float32": 4, "bfloat16": 2}
DENSE_MLP = ("gate", "up", "down")
SPARSE_WORK = 6
"""So many times the sizes of its products and rows a block with experts needs while it is at work: 3 to 6, as compiled for Trinity Nano and
Large with experts over 8 and 16."""
ROWS_AT_WORK = 3
"""How often a token's rows for its experts exist at a time: sorted, received, and as results."""
EVERYTHING = 2.2
"""Where nothing is computed again, what lies between the products is kept as well (norms, activations, gathered rows): so many times as
much in all, as compiled for Trinity Mini."""
GATE_ROW_BYTES = 128 * FLOAT32_BYTES
"""What a gate takes on its way to an expert's device (decision 4)."""
ROWS_SENT, GATES_SENT = 4, 2
"""There and back, forward and backward; of gates, there and their gradients back."""


class Weights(NamedTuple):
    """Numbers of a model: the experts', and all others."""

    experts: int
    others: int

    @property
    def all(self) -> int:
        """Both."""
        return self.experts + self.others


@remembered
def specs_of(model: ModelConfig) -> tuple[ParamSpec, ...]:
    """Every weight of the table."""
    import jax  # a second, for those who need it

    return tuple(jax.tree.leaves(param_specs(model)))


@remembered
def count_weights(model: ModelConfig) -> Weights:
    """How many numbers the table declares."""
    specs = specs_of(model)
    experts = sum(math.prod(spec.shape) for spec in specs if EXPERT in spec.axes)
    return Weights(experts, sum(math.prod(spec.shape) for spec in specs) - experts)


@remembered
def state_bytes(step: StepShape) -> int:
    """Weights, moments and average. Muon has one moment for the weights that are its own, and two for all others."""
    is_muon = isinstance(step.optimizer, Muon)
    moments = sum(math.prod(spec.shape) * (1 if is_muon and spec.updated_by == "muon" else 2) for spec in specs_of(step.model))
    return FLOAT32_BYTES * (moments + (1 + step.keeps_average) * count_weights(step.model).all)


def gathered_bytes(model: ModelConfig, *, expert: int, tensor: int) -> float:
    """The experts of one layer on a device, which has those of its place along `expert`, gathered over `fsdp`; and their gradients."""
    layers = len(expert_layers(model))
    each = count_weights(model).experts / layers if layers else 0.0
    return 2 * COMPUTE_BYTES[model.compute_dtype] * each / (expert * tensor)


def gathering_layers(model: ModelConfig, mesh: Mesh) -> int:
    """Layers in which a device needs the keys of all positions: those without a window, or with one that is longer than its part."""
    own = model.seq_len // mesh.context
    return 0 if mesh.context == 1 else sum(kind.window is None or kind.window - 1 > own for kind in layer_kinds(model))


def gathered_keys_a_token(model: ModelConfig, mesh: Mesh, *, once: bool) -> float:
    """Bytes of gathered keys and values for each token of a device, whose row has `context` times as many; of one layer, or of all."""
    layers = gathering_layers(model, mesh)
    width = FLOAT32_BYTES if model.float32_attention else COMPUTE_BYTES[model.compute_dtype]
    return (min(layers, 1) if once else layers) * mesh.context * 2 * width * model.num_kv_heads * model.head_dim / mesh.tensor


def kept_a_token(model: ModelConfig, remat: Remat, tensor: int = 1) -> tuple[float, float]:
    """Bytes that all layers keep of a token: on the device, and on the host. Heads and d_ff are cut over `tensor`."""
    sizes = _sizes_a_token(model, tensor, once=False)
    on_host = remat.on_host if isinstance(remat, Kept) else (BLOCK_INPUT,) if remat == "offload" else ()
    on_device = (kept_names(remat) | {BLOCK_INPUT}) - set(on_host)
    kept = sum(sizes.get(name, 0) for name in on_device)
    if remat == "none":
        kept = EVERYTHING * (kept + rows_a_token(model) * len(expert_layers(model)))
    return kept, sum(sizes.get(name, 0) for name in on_host)


@remembered
def block_a_token(model: ModelConfig, tensor: int) -> float:
    """Bytes of everything that one block computes for a token; where there are two kinds of blocks, of the one that needs more."""
    sizes = _sizes_a_token(model, tensor, once=True)
    dense = sum(size for name, size in sizes.items() if name in DENSE_MLP)
    sparse = sum(size for name, size in sizes.items() if name.startswith(("expert_", "shared_", "router"))) + rows_a_token(model)
    return sum(sizes.values()) - dense - (sparse - rows_a_token(model)) + max(dense, sparse)


def rows_a_token(model: ModelConfig) -> float:
    """Bytes of the rows that a token has for its experts in one layer."""
    active = model.experts.num_active if model.experts else 0
    return ROWS_AT_WORK * active * COMPUTE_BYTES[model.compute_dtype] * model.d_model


def _sizes_a_token(model: ModelConfig, tensor: int, *, once: bool) -> dict[str, float]:
    """Bytes of each product for one token, of one layer (`once`) or of all.

    Attention's is its result and, in float32, a sum for each head.
    """
    width = COMPUTE_BYTES[model.compute_dtype]
    sizes: dict[str, float] = {
        name: (1 if once else each.layers) * width * each.outputs * each.copies / (tensor if each.is_cut else 1)
        for name, each in products(model).items()
    }
    layers = 1 if once else model.num_layers
    mixed = FLOAT32_BYTES if model.float32_attention else width
    heads = layers * model.num_query_heads * (mixed * model.head_dim + FLOAT32_BYTES) / tensor
    return sizes | {BLOCK_INPUT: layers * width * model.d_model, ATTENTION: heads}


def exchanged_a_token(model: ModelConfig, *, expert: int, again: bool) -> float:
    """Bytes that leave a device along `expert` for a token, in a step: its rows, and their gates in rows of 128 numbers.

    Args:
        again: whether blocks are computed again: then rows go once more, and come back where a norm behind the experts needs the result.
    """
    if model.experts is None or expert == 1:
        return 0.0
    rows = ROWS_SENT + again * (1 + model.post_norms)
    row = rows * COMPUTE_BYTES[model.compute_dtype] * model.d_model + (GATES_SENT + again) * GATE_ROW_BYTES
    return len(expert_layers(model)) * model.experts.num_active * row * (expert - 1) / expert


@remembered
def muon_flops(step: StepShape, *, fsdp: int, expert: int, tensor: int) -> float:
    """FLOPs of a device in Muon's steps: products with a matrix's long side are shared by those that cut it, the square ones are not."""
    if not isinstance(step.optimizer, Muon):
        return 0.0
    total = 0.0
    for spec in specs_of(step.model):
        if spec.updated_by != "muon" or spec.inputs is None:
            continue
        stacked, sides = spec.shape[: spec.num_stacking_axes], spec.shape[spec.num_stacking_axes :]
        short, long = sorted((math.prod(sides[: spec.inputs]), math.prod(sides[spec.inputs :])))
        is_experts = EXPERT in spec.axes
        number = math.prod(stacked) / (expert if is_experts else 1)
        cut = (fsdp if is_experts else fsdp * expert) * tensor
        total += number * (4 * short**2 * long / cut + 2 * short**3)
    return total * step.optimizer.newton_schulz_steps
