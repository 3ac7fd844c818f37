"""What a plan needs and how long it takes, before it is compiled: by the sizes of what it keeps and moves, corrected by what was compiled.

Memory is a linear model: known bytes (the state) plus four amounts, each times a weight. The weights begin at a guess and move to what the
compiled plans of this setup say, by ridge regression. Times are sums of what is known to move, each term scaled to what was compiled.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from phasewise.tasks.preflight.candidates import Setting
from phasewise.tasks.preflight.plan import Plan
from phasewise.tasks.preflight.projection import exchange_speed, executed_flops, ici_speed
from phasewise.tasks.preflight.sizes import (
    COMPUTE_BYTES,
    FLOAT32_BYTES,
    SPARSE_WORK,
    block_a_token,
    count_weights,
    exchanged_a_token,
    gathered_bytes,
    gathered_keys_a_token,
    gathering_layers,
    kept_a_token,
    muon_flops,
    state_bytes,
)
from phasewise.tasks.preflight.slices import Slice
from phasewise.trainer.config import Remat
from phasewise.trainer.preflight.roofline import EXPOSED, UTILISATION, Roofline, kept_names
from phasewise.trainer.preflight.spec import Result, StepShape

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
    """Seconds of each term; `tokens` are those of a device in a whole step."""
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
        terms = self.terms * self._scales()
        longest = terms.max(axis=1)
        return longest + EXPOSED * (terms.sum(axis=1) - longest)

    def _scales(self) -> Float[np.ndarray, " t"]:
        scales = np.ones(self.terms.shape[1])
        if self.seen:
            expected = sum(self.terms[number] for number, _ in self.seen)
            found: Any = sum(np.array(list(roofline.model_dump().values())) for _, roofline in self.seen)
            scales = np.where((expected > 0) & (found > 0), found / np.maximum(expected, 1e-30), 1.0)
        return scales
