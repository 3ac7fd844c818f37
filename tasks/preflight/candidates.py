"""What the search chooses from: every setting (mesh, parts of the batch, chunks of the loss) with every policy of what is kept."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from phasewise.tasks.preflight.plan import LOSS_TOKENS_A_CHIP, Plan
from phasewise.tasks.preflight.slices import Slice
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.config import ATTENTION, BLOCK_INPUT, LANES, Kept, Mesh, ModelConfig, Remat
from phasewise.trainer.preflight.roofline import products
from phasewise.trainer.preflight.spec import Platform, StepShape
from phasewise.trainer.sharding import check_mesh

MAX_TENSOR, MAX_PARTS, MIN_FSDP = 8, 32, 8
MAX_EXPERT, MAX_TENSOR_SPARSE = 16, 2
"""Rows of experts go to each of so many devices at most: further ones are further away on the torus."""
MAX_CONTEXT, MIN_CONTEXT_POSITIONS = 16, 8192
"""Rows are cut along positions into so many parts at most, and of at least so many positions: shorter rows are many, and cut the batch."""
LOSS_TOKENS = (LOSS_TOKENS_A_CHIP, 4 * LOSS_TOKENS_A_CHIP)
OFFLOADED = ("gate", "up")
"""The widest products: the only ones that are worth the way to the host."""
SPARSE_GROUPS = (
    (ATTENTION,),
    ("query", "attention_gate"),
    ("key", "value"),
    ("output",),
    ("gate", "up", "down"),
    ("router", "shared_gate", "shared_up", "shared_down"),
)
"""What is kept together in a sparse model: dense layers are few, and what experts compute cannot be named."""


class Setting(NamedTuple):
    """All of a plan but what is kept."""

    mesh: Mesh
    parts: int
    loss_tokens_a_chip: int

    def plan(self, remat: Remat, where: Slice) -> Plan:
        """The plan that keeps this."""
        mesh = None if self.mesh == where.mesh else self.mesh
        return Plan(remat=remat, parts=self.parts, mesh=mesh, loss_tokens_a_chip=self.loss_tokens_a_chip)


def settings_for(step: StepShape, where: Slice) -> list[Setting]:
    """Every setting that mesh, model and batch allow, the rule's first, in an order that does not change. Whether it fits is not asked."""
    found: list[Setting] = []
    for mesh in meshes_for(step.model, where):
        for parts in parts_for(step.batch_sequences, mesh.batch_parts):
            tokens = step.batch_sequences // parts * step.model.seq_len // where.devices
            found += [
                Setting(mesh, parts, size) for number, size in enumerate(LOSS_TOKENS) if number == 0 or tokens > LOSS_TOKENS[number - 1]
            ]
    return found


def meshes_for(model: ModelConfig, where: Slice) -> list[Mesh]:
    """The rule's mesh first; then fewer devices that cut the weights, with copies within the slice, heads cut over `tensor`, and long rows
    along their positions over `context`.

    A sparse model has no mesh by rule: those that deal out its experts come with the others.
    """
    if model.experts is not None:
        return list(_sparse_meshes(model, where))
    found = [where.mesh]
    for tensor, context in itertools.product(_powers(MAX_TENSOR), contexts_for(model, where)):
        if any(size % tensor for size in (model.num_query_heads, model.num_kv_heads, model.d_ff, model.vocab_size)):
            continue
        for copies in _powers(where.devices_of_each):
            fsdp, left = divmod(where.devices_of_each, tensor * context * copies)
            if left or not fsdp or fsdp * context < min(MIN_FSDP, where.devices_of_each) or model.d_model % (fsdp * context):
                continue
            mesh = Mesh(replica=where.count * copies, fsdp=fsdp, tensor=tensor, context=context)
            found += [mesh] if mesh != where.mesh else []
    return found


def contexts_for(model: ModelConfig, where: Slice) -> list[int]:
    """Into how many parts a row may be cut. Not for GPUs, whose kernel cannot compute a part of a row."""
    if where.chip.platform == "gpu":
        return [1]
    parts = (size for size in _powers(MAX_CONTEXT) if model.seq_len >= size * MIN_CONTEXT_POSITIONS)
    return [1, *(size for size in parts if size > 1 and model.seq_len % (2 * LANES * size) == 0)]


def _sparse_meshes(model: ModelConfig, where: Slice) -> Iterator[Mesh]:
    """As `trainer.sharding` takes them: experts in equal parts over `expert`, all other weights over fsdp × expert × context."""
    for expert, tensor, context in itertools.product(_powers(MAX_EXPERT), _powers(MAX_TENSOR_SPARSE), contexts_for(model, where)):
        for copies in _powers(where.devices_of_each):
            fsdp, left = divmod(where.devices_of_each, expert * tensor * context * copies)
            if left or not fsdp or fsdp * expert * context < min(MIN_FSDP, where.devices_of_each // tensor):
                continue
            mesh = Mesh(replica=where.count * copies, fsdp=fsdp, expert=expert, tensor=tensor, context=context)
            try:
                check_mesh(mesh, model)
            except ConfigError:
                continue
            yield mesh


def parts_for(batch_sequences: int, rows: int) -> list[int]:
    """The parts of the batch that replica × fsdp × expert divides."""
    return [parts for parts in _powers(MAX_PARTS) if batch_sequences % parts == 0 and (batch_sequences // parts) % rows == 0]


def policies_for(model: ModelConfig, platform: Platform = "tpu") -> Iterator[Remat]:
    """Every choice of what is kept, on the device or on the host. Keys and values, both small, go together.

    Where it is no TPU, nothing goes to the host, and attention has no name: its kernel does not say what it needs.
    """
    if platform != "tpu":
        found = _sparse_policies(model) if model.experts is not None else _dense_policies()
        yield from ("full", "none", *(one for one in found if isinstance(one, Kept) and not one.on_host and ATTENTION not in one.on_device))
        return
    yield "full"
    yield "offload"
    yield from _sparse_policies(model) if model.experts is not None else _dense_policies()


def _dense_policies() -> Iterator[Remat]:
    places = itertools.product((False, True), repeat=5)
    wide = list(itertools.product(("again", "device", "host"), repeat=len(OFFLOADED)))
    for (attention, query, keys, output, carries), of_wide in itertools.product(places, wide):
        device = [ATTENTION] * attention + ["query"] * query + ["key", "value"] * keys + ["output"] * output
        device += [name for name, place in zip(OFFLOADED, of_wide, strict=True) if place == "device"]
        host = [BLOCK_INPUT] * carries + [name for name, place in zip(OFFLOADED, of_wide, strict=True) if place == "host"]
        if device or set(host) - {BLOCK_INPUT}:
            yield Kept(on_device=tuple(device), on_host=tuple(host))


def _sparse_policies(model: ModelConfig) -> Iterator[Remat]:
    """What experts compute and exchange is kept with everything else, or comes again. Names are those of products that there are."""
    yield "none"
    there = {ATTENTION, *products(model)}
    groups = [group for names in SPARSE_GROUPS if (group := [name for name in names if name in there])]
    for chosen, carries in itertools.product(itertools.product((False, True), repeat=len(groups)), (False, True)):
        device = [name for group, is_kept in zip(groups, chosen, strict=True) if is_kept for name in group]
        if device:
            yield Kept(on_device=tuple(device), on_host=(BLOCK_INPUT,) if carries else ())


def _powers(limit: int) -> Iterator[int]:
    value = 1
    while value <= limit:
        yield value
        value *= 2
