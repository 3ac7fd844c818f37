"""One declaration for each weight: shape, axes, initialiser, optimizer group and Hugging Face name."""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from phasewise.trainer.config import ModelConfig

if TYPE_CHECKING:
    import jax
    from jaxtyping import Array, Float

Params = dict[str, Any]  # a nested dictionary of float32 arrays. The layers of a stack are stacked along the first axis
Sizes = dict[str, int]  # the axes of a weight in order: logical axis → size
Group = Literal["embedding", "attention", "mlp", "experts", "router", "norms", "lm_head"]
UpdatedBy = Literal["muon", "adam", "balancing"]
LAYER, EXPERT = "layer", "expert"
STACKING_AXES = (LAYER, EXPERT)  # axes that count matrices, before the axes of the matrix
ONLY_STACK = "blocks"  # the stack of a model with one kind of layer
MIN_DRAWN, LARGE = 2**12, 2**20  # weights of sizes between them are drawn in lengths that are powers of two


class LayerKind(NamedTuple):
    """The architecture of a layer."""

    window: int | None  # number of positions that a position sees, with itself. None is all earlier positions
    has_rope: bool
    has_qk_norm: bool
    has_attention_gate: bool  # the heads' output is multiplied by a sigmoid of the attention's input (Qiu et al., 2025)
    has_post_norms: bool  # a norm after attention and a norm after the MLP
    has_experts: bool  # experts in place of the dense MLP


class Stack(NamedTuple):
    """Layers of one kind whose weights are stacked along a first axis, in this order. `name` is its key in the tree of weights."""

    name: str
    kind: LayerKind
    layers: tuple[int, ...]


class Cycle(NamedTuple):
    """Layers that repeat: in each repetition a number of layers from each stack, one stack after the other."""

    repeats: int
    runs: tuple[tuple[Stack, int], ...]


@dataclass(frozen=True)
class Normal:
    """N(0, `std`²), truncated at ± `cutoff` standard deviations without rescaling. None is not truncated."""

    std: float
    cutoff: float | None

    def draw(self, key: "jax.Array", shape: tuple[int, ...]) -> "Float[Array, '...']":
        """Draw values. Small weights share a few compiled lengths: value i depends only on key and i (`jax_threefry_partitionable`)."""
        import jax  # counting parameters does not need it
        import jax.numpy as jnp

        size = math.prod(shape)
        drawn = size if size > LARGE else max(MIN_DRAWN, 1 << (size - 1).bit_length())
        if self.cutoff is None:
            flat = self.std * jax.random.normal(key, (drawn,), jnp.float32)
        else:
            flat = self.std * jax.random.truncated_normal(key, -self.cutoff, self.cutoff, (drawn,), jnp.float32)
        return flat[:size].reshape(shape)


@dataclass(frozen=True)
class ParamSpec:
    """A weight before it has values."""

    shape: tuple[int, ...]
    axes: tuple[str, ...]  # a logical axis for each dimension of `shape` (`trainer.sharding.RULES`)
    init: Normal | float  # random values, or one number everywhere
    tensor: str  # its name in a Hugging Face folder, with `{layer}` and `{expert}` for stacked tensors
    group: Group  # its group of norms in the metrics (`trainer.metrics.ALL_GROUPS`)
    inputs: int | None = None  # for a matrix, the number of input axes after `STACKING_AXES`. None is not a matrix
    decays: bool = False  # whether weight decay applies
    # "muon" for the matrices of the layers, if the optimizer is Muon. "balancing" for biases without a gradient, which follow the load of
    # the experts. "adam" for all others
    updated_by: UpdatedBy = "adam"
    # names that its random keys come from: one name, or one for each layer. A weight keeps its names when it moves in the tree, so that a
    # seed keeps its model
    drawn_as: tuple[str, ...] = ()
    layers: tuple[int, ...] = ()  # numbers of the stacked layers. Empty for a weight outside the layers

    @property
    def num_stacking_axes(self) -> int:
        """Number of leading axes that count layers and experts."""
        return sum(axis in STACKING_AXES for axis in self.axes)


def layer_kinds(config: ModelConfig) -> tuple[LayerKind, ...]:
    """Return the kind of each layer, the first layer first."""
    every = config.global_attention_every
    dense = config.num_layers if config.experts is None else config.experts.num_dense_layers
    are_global = [every is not None and (layer + 1) % every == 0 for layer in range(config.num_layers)]
    return tuple(
        LayerKind(
            window=None if is_global else config.sliding_window,
            has_rope=not is_global,
            has_qk_norm=config.qk_norm,
            has_attention_gate=config.attention_gate,
            has_post_norms=config.post_norms,
            has_experts=layer >= dense,
        )
        for layer, is_global in enumerate(are_global)
    )


def cycles(config: ModelConfig) -> tuple[Cycle, ...]:
    """Return the layers in the order of computation.

    The longest row of two or more equal periods of the attention pattern is one cycle. The layers before and after are cut into rows of
    one kind.
    """
    kinds = layer_kinds(config)
    if len(set(kinds)) == 1:
        return (Cycle(len(kinds), ((Stack(ONLY_STACK, kinds[0], tuple(range(len(kinds)))), 1),)),)
    period = config.global_attention_every or 1
    periods = [kinds[start : start + period] for start in range(0, len(kinds) - period + 1, period)]
    first, count = max(_equal_runs(periods), key=lambda run: run[1], default=(0, 0))
    start, stop = (first * period, (first + count) * period) if count >= 2 and period > 1 else (0, 0)

    def stack(first: int, layers: Sequence[int]) -> Stack:
        kind = kinds[first]
        name = f"{'' if kind.has_experts else 'dense_'}{'global' if kind.window is None else 'local'}_{first}"
        return Stack(name, kind, tuple(layers))

    found: list[Cycle] = []
    for at, length in _equal_runs(kinds[:start]):
        found.append(Cycle(length, ((stack(at, range(at, at + length)), 1),)))
    if stop:
        runs: list[tuple[Stack, int]] = []
        for at, length in _equal_runs(kinds[start : start + period]):
            layers = [layer for begin in range(start + at, stop, period) for layer in range(begin, begin + length)]
            runs.append((stack(start + at, layers), length))
        found.append(Cycle((stop - start) // period, tuple(runs)))
    for at, length in _equal_runs(kinds[stop:]):
        found.append(Cycle(length, ((stack(stop + at, range(stop + at, stop + at + length)), 1),)))
    return tuple(found)


def _equal_runs(items: Sequence[Any]) -> list[tuple[int, int]]:
    """Return start and length of each run of equal items."""
    runs: list[tuple[int, int]] = []
    start = 0
    for _, run in groupby(items):
        length = len(list(run))
        runs.append((start, length))
        start += length
    return runs


def stacks(config: ModelConfig) -> tuple[Stack, ...]:
    """Return every stack once."""
    return tuple(stack for cycle in cycles(config) for stack, _ in cycle.runs)


def expert_layers(config: ModelConfig) -> tuple[int, ...]:
    """Return the numbers of the layers with experts, ascending."""
    return tuple(layer for layer, kind in enumerate(layer_kinds(config)) if kind.has_experts)


def param_specs(config: ModelConfig) -> dict[str, Any]:
    """Return all declarations as a tree, in the order of a Hugging Face folder.

    Norm gains and the token embedding do not decay, the head does (Marin's mask). With `tied_head` the model has no head.
    """
    outer, vocab = {"d_model": config.d_model}, {"vocab": config.vocab_size}
    normal = Normal(config.initializer_std, config.initializer_cutoff)
    embedding = _matrix("model.embed_tokens", vocab | outer, normal, "embedding")
    specs: dict[str, Any] = {"embedding": replace(embedding, inputs=None, decays=False, drawn_as=("['embedding']",))}
    for stack in stacks(config):
        specs[stack.name] = _layer_specs(config, stack)
    specs["final_norm"] = replace(_gain("model.norm", outer), drawn_as=("['final_norm']",))
    if not config.tied_head:
        specs["head"] = replace(_matrix("lm_head", outer | vocab, normal, "lm_head"), drawn_as=("['head']",))
    return specs


def _layer_specs(config: ModelConfig, stack: Stack) -> dict[str, ParamSpec]:
    kind, layers = stack.kind, stack.layers
    normal = Normal(config.initializer_std, config.initializer_cutoff)
    outer, head = {"d_model": config.d_model}, {"head_dim": config.head_dim}
    queries, keys = {"query_heads": config.num_query_heads} | head, {"kv_heads": config.num_kv_heads} | head
    post_gain = 1 / math.sqrt(config.num_layers)
    specs = {
        "attention_norm": _gain("input_layernorm", outer),
        "query": _matrix("self_attn.q_proj", outer | queries, normal, "attention"),
        "key": _matrix("self_attn.k_proj", outer | keys, normal, "attention"),
        "value": _matrix("self_attn.v_proj", outer | keys, normal, "attention"),
    }
    if kind.has_qk_norm:
        specs["query_norm"] = _gain("self_attn.q_norm", head)
        specs["key_norm"] = _gain("self_attn.k_norm", head)
    if kind.has_attention_gate:
        specs["attention_gate"] = _matrix("self_attn.gate_proj", outer | queries, normal, "attention")
    specs["output"] = _matrix("self_attn.o_proj", queries | outer, normal, "attention", inputs=2)
    if kind.has_post_norms:
        specs["attention_post_norm"] = _gain("post_attention_layernorm", outer, post_gain)
        specs["mlp_norm"] = _gain("pre_mlp_layernorm", outer)
        specs["mlp_post_norm"] = _gain("post_mlp_layernorm", outer, post_gain)
    else:
        specs["mlp_norm"] = _gain("post_attention_layernorm", outer)
    if kind.has_experts:
        specs |= _expert_specs(config, normal)
    else:
        hidden = {"d_ff": config.d_ff}
        specs["gate"] = _matrix("mlp.gate_proj", outer | hidden, normal, "mlp")
        specs["up"] = _matrix("mlp.up_proj", outer | hidden, normal, "mlp")
        specs["down"] = _matrix("mlp.down_proj", hidden | outer, normal, "mlp")

    is_only = stack.name == ONLY_STACK
    return {
        name: replace(
            spec,
            shape=(len(layers), *spec.shape),
            axes=(LAYER, *spec.axes),
            tensor=f"model.layers.{{layer}}.{spec.tensor}",
            updated_by=spec.updated_by if spec.inputs is None else "muon",
            drawn_as=(f"['{ONLY_STACK}']['{name}']",) if is_only else tuple(f"layer {layer} {name}" for layer in layers),
            layers=layers,
        )
        for name, spec in specs.items()
    }


def _expert_specs(config: ModelConfig, normal: Normal) -> dict[str, ParamSpec]:
    experts = config.experts
    assert experts is not None
    outer, scores = {"d_model": config.d_model}, {"router_expert": experts.num_experts}
    each, inner, hidden = {EXPERT: experts.num_experts}, {"expert_d_model": config.d_model}, {"d_ff": experts.d_expert}
    specs = {
        "router": _matrix("mlp.router.gate", outer | scores, normal, "router"),
        "router_bias": ParamSpec(tuple(scores.values()), tuple(scores), 0.0, "mlp.expert_bias", "router", updated_by="balancing"),
        "expert_gate": _matrix("mlp.experts.{expert}.gate_proj", each | inner | hidden, normal, "experts"),
        "expert_up": _matrix("mlp.experts.{expert}.up_proj", each | inner | hidden, normal, "experts"),
        "expert_down": _matrix("mlp.experts.{expert}.down_proj", each | hidden | inner, normal, "experts"),
    }
    if experts.num_shared:
        shared = {"d_ff": experts.num_shared * experts.d_expert}
        specs["shared_gate"] = _matrix("mlp.shared_experts.gate_proj", outer | shared, normal, "mlp")
        specs["shared_up"] = _matrix("mlp.shared_experts.up_proj", outer | shared, normal, "mlp")
        specs["shared_down"] = _matrix("mlp.shared_experts.down_proj", shared | outer, normal, "mlp")
    return specs


def _gain(tensor: str, sizes: Sizes, start: float = 1.0) -> ParamSpec:
    return ParamSpec(tuple(sizes.values()), tuple(sizes), start, f"{tensor}.weight", "norms")


def _matrix(tensor: str, sizes: Sizes, init: Normal, group: Group, *, inputs: int = 1) -> ParamSpec:
    return ParamSpec(tuple(sizes.values()), tuple(sizes), init, f"{tensor}.weight", group, inputs, decays=True)


def init_params(seed: int, config: ModelConfig) -> Params:
    """Draw float32 weights. A weight's keys come from its `drawn_as`, so a new weight changes no other."""
    import jax
    import jax.numpy as jnp

    root = jax.random.key(seed)

    def make(spec: ParamSpec) -> jax.Array:
        init = spec.init
        if not isinstance(init, Normal):
            return jnp.full(spec.shape, init, jnp.float32)
        numbers = [int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) for name in spec.drawn_as]
        if len(numbers) == 1:
            return init.draw(jax.random.fold_in(root, numbers[0]), spec.shape)
        draw_one = jax.vmap(lambda number: init.draw(jax.random.fold_in(root, number), spec.shape[1:]))
        return draw_one(jnp.asarray(numbers, jnp.uint32))

    return jax.tree.map(make, param_specs(config))


def abstract_params(config: ModelConfig) -> Params:
    """Return shapes and types without values."""
    import jax
    import jax.numpy as jnp

    return jax.tree.map(lambda spec: jax.ShapeDtypeStruct(spec.shape, jnp.float32), param_specs(config))


def _specs_in(tree: Any) -> Iterator[ParamSpec]:
    if isinstance(tree, ParamSpec):
        yield tree
    else:
        for branch in tree.values() if isinstance(tree, dict) else tree:
            yield from _specs_in(branch)


def count_parameters(config: ModelConfig) -> int:
    """Return the number of parameters."""
    return sum(math.prod(spec.shape) for spec in _specs_in(param_specs(config)))


def count_active_parameters(config: ModelConfig, *, only_matrices: bool = False) -> int:
    """Return the number of parameters that a token uses, with only its routed experts.

    `only_matrices` counts parameters that multiply a token: matrices of the layers, and the head.
    """
    specs = [spec for spec in _specs_in(param_specs(config)) if spec.inputs is not None or not only_matrices]
    active = 1.0 if config.experts is None else config.experts.num_active / config.experts.num_experts
    counts = [round((active if EXPERT in spec.axes else 1.0) * math.prod(spec.shape)) for spec in specs]
    return sum(counts) + (config.d_model * config.vocab_size if only_matrices and config.tied_head else 0)
