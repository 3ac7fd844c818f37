"""How a phase is carried out on its slice: mesh, what is kept of the forward pass and where, parts of the batch, chunks of the loss."""

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

from pydantic import Field

from phasewise.tasks.preflight.slices import Slice
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.config import (
    ATTENTION,
    BLOCK_INPUT,
    LANES,
    AttentionKernel,
    Execution,
    Kept,
    Mesh,
    ModelConfig,
    Remat,
    Stability,
    Steps,
)
from phasewise.trainer.preflight.spec import Platform, Spec, StepShape

LOSS_TOKENS_A_CHIP = 2048
"""Logits of so many tokens exist at a time on a chip: 1 GiB at Llama 3's vocabulary. More need memory; with
fewer, the head's gradient is summed over the chips more often: once a chunk."""
GIB = 2**30
DENSE_PRODUCTS = {"query", "key", "value", "output", "gate", "up", ATTENTION}
"""All that the backward pass of a dense block needs."""


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


class Setup(Frozen):
    """Attributes:
    stretches: start and stop step of each, where the phase comes back to the same slice and batch.
    """

    phase: str
    slice: str
    stretches: tuple[tuple[int, int], ...]
    step: StepShape

    @property
    def steps(self) -> int:
        """Updates of all stretches."""
        return sum(stop - start for start, stop in self.stretches)

    @property
    def words(self) -> str:
        """For people."""
        return f"{self.phase}, {self.step.batch_sequences:,} sequences on {self.slice}"


def step_shape(phase: Any, batch_sequences: int) -> StepShape:
    """Select everything of a phase of a recipe, or of a run, that decides its compiled step."""
    stability: Stability = phase.stability

    def ever(values: Steps[Any]) -> list[Any]:
        return [value for _, value in values.within(phase.start_step, phase.stop_step) if value is not None]

    return StepShape(
        model=phase.model,
        optimizer=phase.optimizer,
        batch_sequences=batch_sequences,
        keeps_average=bool(ever(stability.ema_decay)),
        clips_update_rms=bool(ever(stability.max_update_rms)),
        update_norm_window=next((limit.window for limit in ever(stability.max_update_norm)), None),
        skip_step_window=next((limit.window for limit in ever(stability.skip_step)), None),
        packing=phase.packing,
        loss_on=phase.loss_on,
    )


class Plan(Frozen):
    """Everything of `Execution` that preflight decides.

    Attributes:
        parts: how many parts of the batch the gradients are summed over.
        mesh: None is the slice's mesh by rule: copies over slices, weights cut over all chips of a slice.
        loss_tokens_a_chip: logits of so many tokens exist at a time on a chip, whole or cut over `tensor`.
    """

    remat: Remat
    parts: int = Field(default=1, gt=0)
    mesh: Mesh | None = None
    loss_tokens_a_chip: int = Field(default=LOSS_TOKENS_A_CHIP, gt=0)

    def mesh_on(self, where: Slice) -> Mesh:
        """The mesh on this slice."""
        return self.mesh or where.mesh

    @property
    def words(self) -> str:
        """For people; a mesh by rule and the usual chunks of the loss are not mentioned."""
        words = [kept_in_words(self.remat)]
        if self.parts > 1:
            words.append(f"gradients over {self.parts} parts")
        if self.mesh:
            words.append(f"mesh {self.mesh.replica} × {self.mesh.fsdp} × {self.mesh.tensor}")
            words += [f"experts over {self.mesh.expert}"] if self.mesh.expert > 1 else []
            words += [f"positions over {self.mesh.context}"] if self.mesh.context > 1 else []
        if self.loss_tokens_a_chip != LOSS_TOKENS_A_CHIP:
            words.append(f"loss of {self.loss_tokens_a_chip:,} tokens at a time")
        return ", ".join(words)


def kept_in_words(remat: Remat) -> str:
    """What of the forward pass is kept for the backward pass, for people."""
    match remat:
        case "none":
            return "everything kept"
        case "dots":
            return "products kept"
        case "full":
            return "blocks computed again"
        case "offload":
            return "blocks computed again, carries offloaded"
        case Kept():
            on_host = ["carries" if name == BLOCK_INPUT else name for name in remat.on_host]
            on_device = set(remat.on_device)
            if not on_device >= DENSE_PRODUCTS:
                on_device = " ".join(remat.on_device)
            else:
                on_device = "all products but the experts', and attention" if "router" in on_device else "products and attention"
            words = [f"{on_device} kept"] if on_device else []
            return ", ".join([*words, f"{' '.join(on_host)} offloaded"] if on_host else words) or "blocks computed again"


def batch_refusal(batch_sequences: int, where: Slice) -> str | None:
    """Why a batch cannot be cut over a slice's devices; None where it can."""
    parts = where.devices
    if batch_sequences % parts == 0:
        return None
    below, above = batch_sequences // parts * parts, -(-batch_sequences // parts) * parts
    instead = f"{below:,} or {above:,}" if below else f"{above:,}"
    places = "chips" if where.chip.devices == 1 else "devices"
    return (
        f"a batch of {batch_sequences:,} sequences cannot be cut into equal parts over {where.count} × {where.devices_of_each} = {parts:,} "
        f"{places} of {where.name} ({batch_sequences / parts:.2f} each): {instead} would do, or another slice."
    )


def mesh_refusal(step: StepShape, where: Slice) -> str:
    """Why no mesh of a sparse model fits its batch and the slice's devices."""
    experts = step.model.experts
    assert experts is not None
    return (
        f"no mesh cuts {experts.num_experts} experts, d_model {step.model.d_model:,} and a batch of {step.batch_sequences:,} sequences "
        f"into equal parts over {where.count} × {where.devices_of_each} devices of {where.name}: take another slice, or another batch."
    )


def spec_for(step: StepShape, where: Slice, plan: Plan, *, machine_code: bool = False) -> Spec:
    """The plan as something that can be compiled, and as what the trainer executes."""
    tokens = step.batch_sequences // plan.parts * step.model.seq_len
    chunk = plan.loss_tokens_a_chip * where.devices
    mesh = plan.mesh_on(where)
    # The quickest kernel that can run there, by its name: "auto" would ask the machine at hand
    from phasewise.trainer.kernels.attention import check_kernel  # it imports jax

    execution = Execution(
        mesh=mesh,
        remat=plan.remat,
        attention=cast(AttentionKernel, check_kernel("auto", where.chip.platform, step.model, context=mesh.context)),
        expert_kernel="auto" if step.model.experts is None else ("megablox" if where.chip.platform == "tpu" else "padded"),
        microbatch_sequences=None if plan.parts == 1 else step.batch_sequences // plan.parts,
        loss_chunk_tokens=chunk if chunk < tokens else None,
    )
    return Spec(step=step, execution=execution, topology=where.topology, machine_code=machine_code)


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
    from phasewise.trainer.sharding import check_mesh  # it imports jax

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
    from phasewise.trainer.preflight.roofline import products  # it imports jax

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
