"""How a phase is carried out on its slice: the plans that are tried, in order, and what can be said of one before it is compiled."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from tasks.preflight.slices import Slice
from trainer.base.frozen import Frozen
from trainer.config import Execution, Mesh, ModelConfig, Muon
from trainer.flops import matrix_parameters
from trainer.preflight.spec import Spec, StepShape

LOSS_TOKENS_A_CHIP = 2048
"""Logits of so many tokens exist at a time on a chip: 1 GiB at Llama 3's vocabulary. Fewer save little memory, and the head's gradient is
summed over the chips once a chunk."""
FLOAT32_BYTES, COMPUTE_BYTES = 4, {"float32": 4, "bfloat16": 2}
GIB = 2**30


class Plan(Frozen):
    """Which memory is saved, and how. `parts` is how many parts of the batch the gradients are summed over."""

    remat: Literal["dots", "full", "offload"]
    parts: int = Field(default=1, gt=0)

    @property
    def words(self) -> str:
        """For people."""
        kept = {"dots": "products kept", "full": "blocks computed again", "offload": "blocks computed again, carries offloaded"}[self.remat]
        return kept if self.parts == 1 else f"{kept}, gradients over {self.parts} parts"


PLANS = (Plan(remat="dots"), Plan(remat="full"), Plan(remat="offload"), *(Plan(remat="offload", parts=parts) for parts in (2, 4, 8, 16)))
"""From the least that is computed again to the least memory."""


def plans_for(batch_sequences: int, mesh: Mesh) -> Iterator[Plan]:
    """The plans whose parts of the batch the mesh divides."""
    for plan in PLANS:
        if batch_sequences % plan.parts == 0 and (batch_sequences // plan.parts) % (mesh.replica * mesh.fsdp) == 0:
            yield plan


def batch_refusal(batch_sequences: int, where: Slice) -> str | None:
    """Why a batch cannot be cut over a slice's chips; None where it can."""
    parts = where.mesh.replica * where.mesh.fsdp
    if batch_sequences % parts == 0:
        return None
    below, above = batch_sequences // parts * parts, -(-batch_sequences // parts) * parts
    instead = f"{below:,} or {above:,}" if below else f"{above:,}"
    return (
        f"a batch of {batch_sequences:,} sequences cannot be cut into equal parts over {where.count} × {where.chips_of_each} = {parts:,} "
        f"chips of {where.name} ({batch_sequences / parts:.2f} a chip): {instead} would do, or another slice."
    )


def spec_for(step: StepShape, where: Slice, plan: Plan, *, machine_code: bool = False) -> Spec:
    """The plan as something that can be compiled."""
    tokens = step.batch_sequences // plan.parts * step.model.seq_len
    chunk = LOSS_TOKENS_A_CHIP * where.chips
    execution = Execution(
        mesh=where.mesh,
        remat=plan.remat,
        attention="splash",
        microbatch_sequences=None if plan.parts == 1 else step.batch_sequences // plan.parts,
        loss_chunk_tokens=chunk if chunk < tokens else None,
    )
    return Spec(step=step, execution=execution, topology=where.topology, machine_code=machine_code)


def least_bytes(step: StepShape, where: Slice, plan: Plan) -> int:
    """A bound from below of what a chip must hold: the state, and what is kept of the forward pass."""
    tokens = step.batch_sequences // plan.parts * step.model.seq_len // where.chips
    kept = {"dots": kept_a_token(step.model), "full": carry_a_token(step.model), "offload": 0}[plan.remat]
    return state_bytes(step) // where.mesh.fsdp + tokens * kept


def state_bytes(step: StepShape) -> int:
    """Weights, moments and average, without gains."""
    copies = 1 + (1 if isinstance(step.optimizer, Muon) else 2) + step.keeps_average
    embedding = 0 if step.model.tied_head else step.model.vocab_size * step.model.d_model
    return FLOAT32_BYTES * copies * (matrix_parameters(step.model) + embedding)


def carry_a_token(model: ModelConfig) -> int:
    """Bytes of the values that go from block to block."""
    return COMPUTE_BYTES[model.compute_dtype] * model.num_layers * model.d_model


def kept_a_token(model: ModelConfig) -> int:
    """Bytes of the carries and of every product with a weight."""
    heads = (model.num_query_heads + 2 * model.num_kv_heads) * model.head_dim
    products = heads + 2 * model.d_model + 2 * model.d_ff
    return carry_a_token(model) + COMPUTE_BYTES[model.compute_dtype] * model.num_layers * products


def estimate_refusal(step: StepShape, where: Slice, plan: Plan) -> str | None:
    """Why a plan is not worth compiling: what it must hold at least is more than the chip has; None where it may fit."""
    least = least_bytes(step, where, plan) / GIB
    if least <= where.chip.memory_gib:
        return None
    return f"needs at least {least:.1f} GiB of {where.chip.memory_gib:g} (estimated; not compiled)"
