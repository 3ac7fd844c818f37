"""Estimate the memory and time of execution plans before compilation, and correct the estimates by compiled plans.

Memory is a linear model: the known bytes of the state, plus four amounts with weights. Ridge regression moves the weights from a first
guess to the compiled plans. Times are sums of moved bytes and FLOPs, and each term is scaled to the compiled plans.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from phasewise.tasks.preflight.plan import GIB, Plan, Setting
from phasewise.tasks.preflight.slices import Slice
from phasewise.trainer.config import ATTENTION, BLOCK_INPUT, Kept, Mesh, ModelConfig, Muon, Remat
from phasewise.trainer.flops import step_flops
from phasewise.trainer.model.params import EXPERT, ParamSpec, expert_layers, layer_kinds, param_specs
from phasewise.trainer.preflight import roofline as rooflines
from phasewise.trainer.preflight.roofline import EXPOSED, Roofline, StepWork, kept_names, products, recomputed_flops, remembered
from phasewise.trainer.preflight.spec import Collective, Result, StepShape

ALL_TO_ALL = "all-to-all"
FLOAT32_BYTES, COMPUTE_BYTES = 4, {"float32": 4, "bfloat16": 2}
DENSE_MLP = ("gate", "up", "down")
SPARSE_WORK = 6
"""Working memory of a block with experts, as a multiple of its products and rows: 3 to 6 in compiled plans of Trinity Nano and Large."""
EXPERT_ROWS, ROWS_AT_WORK = "expert_rows", 3  # copies of a token's expert rows at one time: sorted, received, and results
EVERYTHING = 2.2
"""Without recomputation, activations between the products are kept as well: this multiple in total, as compiled for Trinity Mini."""
GATE_ROW_BYTES = 128 * FLOAT32_BYTES  # bytes of a gate on its way to an expert's device (decision 4)
ROWS_SENT, GATES_SENT = 4, 2  # transfers of rows (there and back, forward and backward), and of gates (there, and gradients back)
TILE_ROWS = 8
"""If a chip's part of d_model is not whole tiles of this size, XLA gathers and scatters by sums over all chips: twice the transfers."""
HBM_PASSES = 16  # reads and writes of a block's activations, forward and backward
FIRST_WEIGHTS = np.array([0.5, 1.0, 1.0, 2.0])  # weights of: a constant GiB, kept activations, working memory of a block, logits of a chunk
CAUTION = 0.03  # ridge penalty: the first weights count as a compiled plan with amounts of this many GiB²
Column = Float[np.ndarray, " p"]


def roofline_of(step: StepShape, where: Slice, plan: Plan, result: Result) -> Roofline:
    """Return the roofline of a compiled step."""
    mesh, sequences = plan.mesh_on(where), step.batch_sequences
    executed = step_flops(step.model, sequences).total + recomputed_flops(step.model, sequences, plan.remat)
    work = StepWork(
        flops=executed / where.devices + result.update_flops,
        hbm_bytes=result.hbm_bytes,
        ici_seconds=sum(ici_seconds(each, mesh, where) for each in result.collectives if each.link == "ici"),
        dcn_bytes=sum(each.bytes for each in result.collectives if each.link == "dcn"),
        host_bytes=result.host_traffic_bytes,
    )
    return rooflines.project(work, where.chip.speeds)


def ici_seconds(each: Collective, mesh: Mesh, where: Slice) -> float:
    """Return how long a collective uses a device's links."""
    return each.bytes / ici_speed(each.axis, mesh, where, all_to_all=each.kind == ALL_TO_ALL)


def ici_speed(axis: str, mesh: Mesh, where: Slice, *, all_to_all: bool = False) -> float:
    """Return a device's bytes per second along axes of the mesh (`fsdp×tensor`). Devices of one chip share its links."""
    if where.chip.is_switched:
        return where.chip.speeds.ici_bytes
    sizes = {**mesh.model_dump(), "replica": max(mesh.replica // where.count, 1)}
    chips = -(-math.prod(sizes.get(name, 1) for name in axis.split("×")) // where.chip.devices)
    share = rooflines.exchange_share if all_to_all else rooflines.ring_share
    return where.chip.speeds.ici_bytes * share(chips, where.torus)


class Weights(NamedTuple):
    """Number of parameters in experts and elsewhere."""

    experts: int
    others: int


@remembered
def _specs_of(model: ModelConfig) -> tuple[ParamSpec, ...]:
    import jax  # takes a second

    return tuple(jax.tree.leaves(param_specs(model)))


@remembered
def count_weights(model: ModelConfig) -> Weights:
    """Count the declared parameters."""
    specs = _specs_of(model)
    experts = sum(math.prod(spec.shape) for spec in specs if EXPERT in spec.axes)
    return Weights(experts, sum(math.prod(spec.shape) for spec in specs) - experts)


@remembered
def state_bytes(step: StepShape) -> int:
    """Return the bytes of weights, moments and moving average. Muon's weights have one moment, all others two."""
    is_muon = isinstance(step.optimizer, Muon)
    moments = sum(math.prod(spec.shape) * (1 if is_muon and spec.updated_by == "muon" else 2) for spec in _specs_of(step.model))
    return FLOAT32_BYTES * (moments + (1 + step.keeps_average) * sum(count_weights(step.model)))


def gathered_bytes(model: ModelConfig, *, expert: int, tensor: int) -> float:
    """Return the bytes of one layer's experts on a device, gathered over `fsdp`, and of their gradients."""
    layers = len(expert_layers(model))
    each = count_weights(model).experts / layers if layers else 0.0
    return 2 * COMPUTE_BYTES[model.compute_dtype] * each / (expert * tensor)


def gathering_layers(model: ModelConfig, mesh: Mesh) -> int:
    """Count the layers whose attention needs keys of other devices: their window is longer than a device's part, or absent."""
    own = model.seq_len // mesh.context
    return 0 if mesh.context == 1 else sum(kind.window is None or kind.window - 1 > own for kind in layer_kinds(model))


def kept_a_token(model: ModelConfig, remat: Remat, tensor: int = 1) -> tuple[float, float]:
    """Return the bytes per token that all layers keep on the device and on the host. `tensor` divides heads and d_ff."""
    sizes = _sizes_a_token(model, tensor, once=False)
    on_host = remat.on_host if isinstance(remat, Kept) else (BLOCK_INPUT,) if remat == "offload" else ()
    on_device = (kept_names(remat) | {BLOCK_INPUT}) - set(on_host)
    kept = sum(sizes.get(name, 0) for name in on_device)
    if remat == "none":
        kept = EVERYTHING * (kept + sizes[EXPERT_ROWS])
    return kept, sum(sizes.get(name, 0) for name in on_host)


@remembered
def block_a_token(model: ModelConfig, tensor: int) -> float:
    """Return the bytes per token of all activations in one block, for the larger of a dense and a sparse block."""
    sizes = _sizes_a_token(model, tensor, once=True)
    dense = sum(size for name, size in sizes.items() if name in DENSE_MLP)
    sparse = sum(size for name, size in sizes.items() if name.startswith(("expert_", "shared_", "router")))
    return sum(sizes.values()) - dense - sparse + max(dense, sparse)


def _sizes_a_token(model: ModelConfig, tensor: int, *, once: bool) -> dict[str, float]:
    """Bytes of each product per token, of one layer (`once`) or all layers. Attention keeps its result and a float32 sum per head."""
    width = COMPUTE_BYTES[model.compute_dtype]
    sizes: dict[str, float] = {
        name: (1 if once else each.layers) * width * each.outputs * each.copies / (tensor if each.is_cut else 1)
        for name, each in products(model).items()
    }
    layers = 1 if once else model.num_layers
    mixed = FLOAT32_BYTES if model.float32_attention else width
    heads = layers * model.num_query_heads * (mixed * model.head_dim + FLOAT32_BYTES) / tensor
    rows = ROWS_AT_WORK * (model.experts.num_active if model.experts else 0) * width * model.d_model
    rows *= 1 if once else len(expert_layers(model))
    return sizes | {BLOCK_INPUT: layers * width * model.d_model, ATTENTION: heads, EXPERT_ROWS: rows}


def exchanged_a_token(model: ModelConfig, *, expert: int, again: bool) -> float:
    """Return the bytes per token and step that leave a device along `expert`. With recomputation (`again`), rows are sent again."""
    if model.experts is None or expert == 1:
        return 0.0
    rows = ROWS_SENT + again * (1 + model.post_norms)
    row = rows * COMPUTE_BYTES[model.compute_dtype] * model.d_model + (GATES_SENT + again) * GATE_ROW_BYTES
    return len(expert_layers(model)) * model.experts.num_active * row * (expert - 1) / expert


@remembered
def muon_flops(step: StepShape, *, fsdp: int, expert: int, tensor: int) -> float:
    """Return a device's FLOPs in Muon's iterations. Devices share products with a matrix's long side, not the square products."""
    if not isinstance(step.optimizer, Muon):
        return 0.0
    total = 0.0
    for spec in _specs_of(step.model):
        if spec.updated_by != "muon" or spec.inputs is None:
            continue
        stacked, sides = spec.shape[: spec.num_stacking_axes], spec.shape[spec.num_stacking_axes :]
        short, long = sorted((math.prod(sides[: spec.inputs]), math.prod(sides[spec.inputs :])))
        is_experts = EXPERT in spec.axes
        number = math.prod(stacked) / (expert if is_experts else 1)
        cut = (fsdp if is_experts else fsdp * expert) * tensor
        total += number * (4 * short**2 * long / cut + 2 * short**3)
    return total * step.optimizer.newton_schulz_steps


class Policies(NamedTuple):
    """Arrays over remat policies with equal `tensor`: bytes per token on device and host, FLOPs of a chip and step, and two flags."""

    on_device: Column
    on_host: Column
    flops: Column
    computes_output_again: Column
    exchanges_again: Column


class Estimates(NamedTuple):
    """Estimates of all policies in one setting: GiB of the known state, GiB of the weighted amounts, host GiB, roofline seconds."""

    known: Column
    amounts: Float[np.ndarray, "p a"]
    host: Column
    terms: Float[np.ndarray, "p t"]


def measure_policies(step: StepShape, where: Slice, policies: Sequence[Remat], tensor: int) -> Policies:
    """Measure each policy without a compiler."""
    kept = np.array([kept_a_token(step.model, remat, tensor) for remat in policies])
    model, sequences = step.model, step.batch_sequences
    once = step_flops(model, sequences).total
    flops = np.array([(once + recomputed_flops(model, sequences, remat)) / where.devices for remat in policies], float)
    output = np.array(["output" not in kept_names(remat) for remat in policies], float)
    return Policies(kept[:, 0], kept[:, 1], flops, output, np.array([remat != "none" for remat in policies], float))


def estimate(step: StepShape, where: Slice, setting: Setting, policies: Policies) -> Estimates:
    """Estimate memory and time of every policy in one setting."""
    model, mesh, parts = step.model, setting.mesh, setting.parts
    ones, again = np.ones_like(policies.flops), policies.exchanges_again
    width, weights = COMPUTE_BYTES[model.compute_dtype], count_weights(model)
    part_tokens = step.batch_sequences // parts * model.seq_len // (mesh.batch_parts * mesh.context)
    tokens = part_tokens * parts

    # GiB on a device and its host
    gradients = FLOAT32_BYTES * sum(weights) * (2 if parts > 1 else 1)
    cut = (state_bytes(step) + gradients) / (mesh.weight_parts * mesh.tensor)
    layers = gathering_layers(model, mesh)
    key_bytes = FLOAT32_BYTES if model.float32_attention else width
    keys_a_layer = mesh.context * 2 * key_bytes * model.num_kv_heads * model.head_dim / mesh.tensor
    gathered_keys = 2 * part_tokens * min(layers, 1) * keys_a_layer  # with their gradients
    known = (cut + gathered_bytes(model, expert=mesh.expert, tensor=mesh.tensor) + gathered_keys) / GIB
    kept = part_tokens * policies.on_device + (1 - again) * part_tokens * (layers * keys_a_layer)
    logits = FLOAT32_BYTES * min(setting.loss_tokens_a_chip * mesh.tensor, part_tokens) * model.vocab_size / mesh.tensor / GIB
    block = part_tokens * block_a_token(model, mesh.tensor) * (1 if model.experts is None else SPARSE_WORK) / GIB
    amounts = np.stack([ones, kept / GIB, block * ones, logits * ones], axis=1)
    host = part_tokens * np.where((mesh.context > 1) & (policies.on_host > 0), np.inf, policies.on_host)  # XLA fails: decision 3

    # For each part: gather weights twice and scatter their gradients. For each chunk: the head's gradient. Then sum over copies
    here = width * (weights.others + weights.experts / mesh.expert) / mesh.tensor
    hbm = HBM_PASSES * tokens * block_a_token(model, mesh.tensor) * model.num_layers + 3 * parts * here
    hbm += 3 * state_bytes(step) / mesh.weight_parts
    across = parts * 2 * width * sum(weights) / mesh.tensor / where.devices_of_each * (where.count - 1) / where.count
    update = muon_flops(step, fsdp=mesh.fsdp * mesh.context, expert=mesh.expert, tensor=mesh.tensor)
    chunks = max(tokens // mesh.tensor // setting.loss_tokens_a_chip, parts)
    head = 2 * FLOAT32_BYTES * model.vocab_size * model.d_model / mesh.tensor
    copies = mesh.replica // where.count
    between = parts * 2 * width * sum(weights) / mesh.tensor / mesh.weight_parts * (copies - 1) / copies
    devices = (mesh.weight_parts, mesh.fsdp * mesh.context)  # of the other weights, and of experts
    passes = [0 if number == 1 else 3 if (model.d_model // number) % TILE_ROWS == 0 else 6 for number in devices]
    others = parts * passes[0] * width * weights.others / mesh.tensor
    experts = parts * passes[1] * width * weights.experts / (mesh.tensor * mesh.expert)
    by_weights = (others + chunks * head) / ici_speed("fsdp×expert×context", mesh, where) + between / ici_speed("replica", mesh, where)
    by_weights += experts / ici_speed("fsdp×context", mesh, where)
    passed = width * tokens * model.d_model * model.num_layers * 2 * (mesh.tensor - 1) / mesh.tensor
    by_tensor = (4 + policies.computes_output_again) * passed / ici_speed("tensor", mesh, where)

    # Along `context`: gather keys and scatter their gradients, send queries and return results
    share = (mesh.context - 1) / mesh.context
    queries = 2 * width * model.num_query_heads * model.head_dim / mesh.tensor * layers * share
    by_position = tokens * (layers * keys_a_layer * share + queries) * (2 + again) / ici_speed("context", mesh, where)
    once, twice = (tokens * exchanged_a_token(model, expert=mesh.expert, again=repeats) for repeats in (False, True))
    by_expert = (once + again * (twice - once)) / ici_speed("expert", mesh, where, all_to_all=True)
    terms = [
        (policies.flops + update) / (where.chip.speeds.flops * rooflines.UTILISATION),
        hbm / where.chip.speeds.hbm_bytes * ones,
        by_weights + by_tensor + by_position + by_expert,
        across / where.chip.speeds.dcn_bytes * ones,
        2 * tokens * policies.on_host / where.chip.speeds.host_bytes,
    ]
    return Estimates(known * ones, amounts, host / GIB, np.stack(terms, axis=1))


class Table:
    """Estimates of every setting with every policy. `learn` corrects them by a compiled plan."""

    def __init__(self, step: StepShape, where: Slice, settings: Sequence[Setting], policies: Sequence[Remat]) -> None:
        measured = {tensor: measure_policies(step, where, policies, tensor) for tensor in {each.mesh.tensor for each in settings}}
        parts = [estimate(step, where, setting, measured[setting.mesh.tensor]) for setting in settings]
        self._where, self._settings, self._policies = where, settings, policies
        self.known, self.amounts, self.host, self.terms = (np.concatenate(column) for column in zip(*parts, strict=True))
        self.compiled: list[tuple[int, float]] = []
        self.seen: list[tuple[int, Roofline]] = []

    def plan(self, number: int) -> Plan:
        """Return the plan of a row."""
        setting, policy = divmod(number, len(self._policies))
        return self._settings[setting].plan(self._policies[policy], self._where)

    def learn(self, number: int, result: Result, roofline: Roofline | None) -> None:
        """Add a compiled plan to the correction."""
        if result.memory is not None:
            self.compiled.append((number, result.memory.peak / GIB))
        if roofline is not None:
            self.seen.append((number, roofline))

    def gib(self) -> Float[np.ndarray, " n"]:
        """Estimate the memory of a device."""
        weights = FIRST_WEIGHTS
        if self.compiled:
            numbers = [number for number, _ in self.compiled]
            peaks = np.array([peak for _, peak in self.compiled])
            rows = self.amounts[numbers]
            missing = peaks - self.known[numbers] - rows @ FIRST_WEIGHTS
            moved = np.linalg.solve(rows.T @ rows + CAUTION * np.eye(rows.shape[1]), rows.T @ missing)
            weights = np.maximum(FIRST_WEIGHTS + moved, 0.0)
        return self.known + self.amounts @ weights

    def seconds(self) -> Float[np.ndarray, " n"]:
        """Estimate the seconds that rank the plans, as `Roofline.ranking_seconds`."""
        scales = np.ones(self.terms.shape[1])
        if self.seen:
            expected = sum(self.terms[number] for number, _ in self.seen)
            found: Any = sum(np.array(list(roofline.model_dump().values())) for _, roofline in self.seen)
            scales = np.where((expected > 0) & (found > 0), found / np.maximum(expected, 1e-30), 1.0)
        terms = self.terms * scales
        longest = terms.max(axis=1)
        return longest + EXPOSED * (terms.sum(axis=1) - longest)
