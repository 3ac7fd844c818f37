"""What a plan needs and how long it takes, before it is compiled: by the sizes of what it keeps and moves, corrected by what was compiled.

Memory is a linear model: known bytes (the state) plus four amounts, each times a weight. The weights begin at a guess and move to what the
compiled plans of this setup say, by ridge regression. Times are sums of what is known to move, each term scaled to what was compiled.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from phasewise.tasks.preflight.plan import Plan, Setting
from phasewise.tasks.preflight.slices import Slice
from phasewise.trainer.config import ATTENTION, BLOCK_INPUT, Kept, Mesh, ModelConfig, Muon, Remat
from phasewise.trainer.flops import step_flops
from phasewise.trainer.model.params import EXPERT, ParamSpec, expert_layers, layer_kinds, param_specs
from phasewise.trainer.preflight.roofline import (
    EXPOSED,
    UTILISATION,
    Roofline,
    StepWork,
    exchange_share,
    kept_names,
    products,
    project,
    recomputed_flops,
    remembered,
    ring_share,
)
from phasewise.trainer.preflight.spec import Collective, Result, StepShape

ALL_TO_ALL = "all-to-all"


def roofline_of(step: StepShape, where: Slice, plan: Plan, result: Result) -> Roofline:
    """The terms of the step, by what was compiled."""
    mesh = plan.mesh_on(where)
    work = StepWork(
        flops=executed_flops(step, plan.remat) / where.devices + result.update_flops,
        hbm_bytes=result.hbm_bytes,
        ici_seconds=sum(ici_seconds(each, mesh, where) for each in result.collectives if each.link == "ici"),
        dcn_bytes=sum(each.bytes for each in result.collectives if each.link == "dcn"),
        host_bytes=result.host_traffic_bytes,
    )
    return project(work, where.chip.speeds)


def executed_flops(step: StepShape, remat: Remat) -> int:
    """The model's FLOPs of a step, and what is computed again, on all chips. What the optimizer multiplies is not in it."""
    sequences = step.batch_sequences
    return step_flops(step.model, sequences).total + recomputed_flops(step.model, sequences, remat)


def ici_seconds(each: Collective, mesh: Mesh, where: Slice) -> float:
    """How long a device's links are at work for this. What goes from each to each passes the links of others on its way."""
    speed = exchange_speed if each.kind == ALL_TO_ALL else ici_speed
    return each.bytes / speed(each.axis, mesh, where)


def ici_speed(axis: str, mesh: Mesh, where: Slice) -> float:
    """Bytes a second that a device sends along axes of the mesh (`fsdp×tensor`) within its slice."""
    if where.chip.is_switched:
        return where.chip.speeds.ici_bytes
    return where.chip.speeds.ici_bytes * ring_share(chips_along(axis, mesh, where), where.torus)


def exchange_speed(axis: str, mesh: Mesh, where: Slice) -> float:
    """Bytes a second that a device sends to all others along axes of the mesh within its slice."""
    if where.chip.is_switched:
        return where.chip.speeds.ici_bytes
    return where.chip.speeds.ici_bytes * exchange_share(chips_along(axis, mesh, where), where.torus)


def chips_along(axis: str, mesh: Mesh, where: Slice) -> int:
    """Chips of one slice along axes of the mesh. Devices of one chip have no links of their own: they share the chip's."""
    sizes = {**mesh.model_dump(), "replica": max(mesh.replica // where.count, 1)}
    devices = math.prod(sizes.get(name, 1) for name in axis.split("×"))
    return -(-devices // where.chip.devices)


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


TILE_ROWS = 8
"""Where a chip's part of d_model is not whole tiles of so many rows, the compiler gathers and scatters by sums over all chips."""
HBM_PASSES = 16
"""How often what a block computes for a token is read or written, forward and backward."""
FIRST_WEIGHTS = np.array([0.5, 1.0, 1.0, 2.0])
"""GiB that every plan needs; of what is kept; of what a block needs while it is at work; of a chunk's logits."""
CAUTION = 0.03
"""How firmly the first weights are held to: as a plan that was compiled, with amounts of so many GiB² each."""
GIB = 2**30
Column = Float[np.ndarray, " p"]


class Policies(NamedTuple):
    """What each policy keeps and computes again where `tensor` is cut alike: bytes a token on device and host, FLOPs of a chip and step."""

    on_device: Column
    on_host: Column
    flops: Column
    computes_output_again: Column
    exchanges_again: Column


class Estimates(NamedTuple):
    """Of all policies in one setting. `amounts` are in GiB and multiply the model's weights; `known` is what needs none; terms as in
    `Roofline`, in seconds."""

    known: Column
    amounts: Float[np.ndarray, "p a"]
    host: Column
    terms: Float[np.ndarray, "p t"]


def measure_policies(step: StepShape, where: Slice, policies: Sequence[Remat], tensor: int) -> Policies:
    """The sizes of each policy."""
    kept = np.array([kept_a_token(step.model, remat, tensor) for remat in policies])
    flops = np.array([executed_flops(step, remat) / where.devices for remat in policies], float)
    output = np.array(["output" not in kept_names(remat) for remat in policies], float)
    again = np.array([remat != "none" for remat in policies], float)
    return Policies(kept[:, 0], kept[:, 1], flops, output, again)


def estimate(step: StepShape, where: Slice, setting: Setting, policies: Policies) -> Estimates:
    """What can be said from sizes."""
    model, mesh = step.model, setting.mesh
    ones = np.ones_like(policies.flops)
    tokens = step.batch_sequences // setting.parts * model.seq_len // (mesh.batch_parts * mesh.context)
    gradients = FLOAT32_BYTES * count_weights(model).all * (2 if setting.parts > 1 else 1)
    cut = (state_bytes(step) + gradients) / (mesh.weight_parts * mesh.tensor)
    keys = tokens * gathered_keys_a_token(model, mesh, once=True)
    known = (cut + gathered_bytes(model, expert=mesh.expert, tensor=mesh.tensor) + 2 * keys) / GIB  # and their gradients
    kept = tokens * policies.on_device + (1 - policies.exchanges_again) * tokens * gathered_keys_a_token(model, mesh, once=False)
    logits = FLOAT32_BYTES * min(setting.loss_tokens_a_chip * mesh.tensor, tokens) * model.vocab_size / mesh.tensor / GIB
    block = tokens * block_a_token(model, mesh.tensor) * (1 if model.experts is None else SPARSE_WORK) / GIB
    amounts = np.stack([ones, kept / GIB, block * ones, logits * ones], axis=1)
    host = tokens * np.where((mesh.context > 1) & (policies.on_host > 0), np.inf, policies.on_host)  # XLA fails: decision 3
    terms = np.stack(_terms(step, where, setting, policies, tokens * setting.parts), axis=1)
    return Estimates(known * ones, amounts, host / GIB, terms)


def _terms(step: StepShape, where: Slice, setting: Setting, policies: Policies, tokens: int) -> list[Column]:
    model, mesh, parts = step.model, setting.mesh, setting.parts
    speeds, ones = where.chip.speeds, np.ones_like(policies.flops)
    width = COMPUTE_BYTES[model.compute_dtype]
    weights = width * count_weights(model).all / mesh.tensor
    here = width * (count_weights(model).others + count_weights(model).experts / mesh.expert) / mesh.tensor
    block = tokens * block_a_token(model, mesh.tensor) * model.num_layers
    hbm = HBM_PASSES * block + 3 * parts * here + 3 * state_bytes(step) / mesh.weight_parts
    across = parts * 2 * weights / where.devices_of_each * (where.count - 1) / where.count
    passed = width * tokens * model.d_model * model.num_layers * 2 * (mesh.tensor - 1) / mesh.tensor
    by_tensor = (4 + policies.computes_output_again) * passed / ici_speed("tensor", mesh, where)
    update = muon_flops(step, fsdp=mesh.fsdp * mesh.context, expert=mesh.expert, tensor=mesh.tensor)
    by_position = _context_seconds(step, where, setting, policies, tokens)
    return [
        (policies.flops + update) / (speeds.flops * UTILISATION),
        hbm / speeds.hbm_bytes * ones,
        _ici_seconds(step, where, setting, tokens) + by_tensor + by_position + _exchange_seconds(step, where, setting, policies, tokens),
        across / speeds.dcn_bytes * ones,
        2 * tokens * policies.on_host / speeds.host_bytes,
    ]


def _exchange_seconds(step: StepShape, where: Slice, setting: Setting, policies: Policies, tokens: int) -> Column:
    """Rows of experts on their way along `expert`, and back; none where that is one device."""
    mesh = setting.mesh
    once, again = (tokens * exchanged_a_token(step.model, expert=mesh.expert, again=again) for again in (False, True))
    return (once + policies.exchanges_again * (again - once)) / exchange_speed("expert", mesh, where)


def _context_seconds(step: StepShape, where: Slice, setting: Setting, policies: Policies, tokens: int) -> Column:
    """Keys gathered along `context` and their gradients scattered, queries dealt out and their results brought back."""
    model, mesh = step.model, setting.mesh
    width = COMPUTE_BYTES[model.compute_dtype]
    share = (mesh.context - 1) / mesh.context
    keys = gathered_keys_a_token(model, mesh, once=False) * share
    dealt = 2 * width * model.num_query_heads * model.head_dim / mesh.tensor * gathering_layers(model, mesh) * share
    return tokens * (keys + dealt) * (2 + policies.exchanges_again) / ici_speed("context", mesh, where)


def _ici_seconds(step: StepShape, where: Slice, setting: Setting, tokens: int) -> float:
    """Weights gathered twice and their gradients scattered, for each part; the head's gradient for each chunk; sums over copies."""
    model, mesh, parts = step.model, setting.mesh, setting.parts
    width, counted = COMPUTE_BYTES[model.compute_dtype], count_weights(model)
    chunks = max(tokens // mesh.tensor // setting.loss_tokens_a_chip, parts)
    head = 2 * FLOAT32_BYTES * model.vocab_size * model.d_model / mesh.tensor
    copies = mesh.replica // where.count
    between = parts * 2 * width * counted.all / mesh.tensor / mesh.weight_parts * (copies - 1) / copies
    others = parts * _passes(model.d_model, mesh.weight_parts) * width * counted.others / mesh.tensor
    experts = parts * _passes(model.d_model, mesh.fsdp * mesh.context) * width * counted.experts / (mesh.tensor * mesh.expert)
    seconds = (others + chunks * head) / ici_speed("fsdp×expert×context", mesh, where) + between / ici_speed("replica", mesh, where)
    return seconds + experts / ici_speed("fsdp×context", mesh, where)


def _passes(d_model: int, devices: int) -> int:
    """How often a weight goes over the links for a part of the batch: three times where a device's part is whole tiles, else six."""
    if devices == 1:
        return 0
    return 3 if (d_model // devices) % TILE_ROWS == 0 else 6


class Table:
    """Every setting with every policy, and what is estimated of it, as arrays; `learn` moves the estimates to what was compiled."""

    def __init__(self, step: StepShape, where: Slice, settings: Sequence[Setting], policies: Sequence[Remat]) -> None:
        measured = {tensor: measure_policies(step, where, policies, tensor) for tensor in {each.mesh.tensor for each in settings}}
        parts = [estimate(step, where, setting, measured[setting.mesh.tensor]) for setting in settings]
        self._where, self._settings, self._policies = where, settings, policies
        self.known, self.amounts, self.host, self.terms = (np.concatenate(column) for column in zip(*parts, strict=True))
        self.compiled: list[tuple[int, float]] = []
        self.seen: list[tuple[int, Roofline]] = []

    def __len__(self) -> int:
        return len(self.known)

    def plan(self, number: int) -> Plan:
        """The plan of a row."""
        setting, policy = divmod(number, len(self._policies))
        return self._settings[setting].plan(self._policies[policy], self._where)

    def learn(self, number: int, result: Result, roofline: Roofline | None) -> None:
        """Take into account what the compiler said of a candidate."""
        if result.memory is not None:
            self.compiled.append((number, result.memory.peak / GIB))
        if roofline is not None:
            self.seen.append((number, roofline))

    def gib(self) -> Float[np.ndarray, " n"]:
        """Estimated memory of a chip."""
        return self.known + self.amounts @ self._weights()

    def _weights(self) -> Float[np.ndarray, " a"]:
        if not self.compiled:
            return FIRST_WEIGHTS
        numbers = [number for number, _ in self.compiled]
        peaks = np.array([peak for _, peak in self.compiled])
        rows = self.amounts[numbers]
        missing = peaks - self.known[numbers] - rows @ FIRST_WEIGHTS
        moved = np.linalg.solve(rows.T @ rows + CAUTION * np.eye(rows.shape[1]), rows.T @ missing)
        return np.maximum(FIRST_WEIGHTS + moved, 0.0)

    def seconds(self) -> Float[np.ndarray, " n"]:
        """Estimated seconds that plans are compared by, as `Roofline.ranking_seconds`."""
        scales = np.ones(self.terms.shape[1])
        if self.seen:
            expected = sum(self.terms[number] for number, _ in self.seen)
            found: Any = sum(np.array(list(roofline.model_dump().values())) for _, roofline in self.seen)
            scales = np.where((expected > 0) & (found > 0), found / np.maximum(expected, 1e-30), 1.0)
        terms = self.terms * scales
        longest = terms.max(axis=1)
        return longest + EXPOSED * (terms.sum(axis=1) - longest)
