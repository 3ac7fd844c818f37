"""How a phase is carried out on its slice: mesh, what is kept of the forward pass and where, parts of the batch, chunks of the loss."""

from typing import cast

from pydantic import Field

from phasewise.tasks.preflight.slices import Slice
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.config import ATTENTION, BLOCK_INPUT, AttentionKernel, Execution, ExpertKernel, Kept, Mesh, ModelConfig, Remat
from phasewise.trainer.preflight.spec import Spec, StepShape

LOSS_TOKENS_A_CHIP = 2048
"""Logits of so many tokens exist at a time on a chip: 1 GiB at Llama 3's vocabulary. More need memory; with
fewer, the head's gradient is summed over the chips more often: once a chunk."""
GIB = 2**30
DENSE_PRODUCTS = {"query", "key", "value", "output", "gate", "up", ATTENTION}
"""All that the backward pass of a dense block needs."""


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
            on_device = _named(remat)
            words = [f"{on_device} kept"] if on_device else []
            return ", ".join([*words, f"{' '.join(on_host)} offloaded"] if on_host else words) or "blocks computed again"


def _named(kept: Kept) -> str:
    on_device = set(kept.on_device)
    if not on_device >= DENSE_PRODUCTS:
        return " ".join(kept.on_device)
    return "all products but the experts', and attention" if "router" in on_device else "products and attention"


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
    execution = Execution(
        mesh=mesh,
        remat=plan.remat,
        attention=attention_on(where, step.model, mesh),
        expert_kernel=experts_on(where, step.model),
        microbatch_sequences=None if plan.parts == 1 else step.batch_sequences // plan.parts,
        loss_chunk_tokens=chunk if chunk < tokens else None,
    )
    return Spec(step=step, execution=execution, topology=where.topology, machine_code=machine_code)


def attention_on(where: Slice, model: ModelConfig, mesh: Mesh) -> AttentionKernel:
    """The quickest kernel that can run there, by its name: "auto" would ask the machine at hand."""
    from phasewise.trainer.kernels.attention import check_kernel  # it imports jax

    return cast(AttentionKernel, check_kernel("auto", where.chip.platform, model, context=mesh.context))


def experts_on(where: Slice, model: ModelConfig) -> ExpertKernel:
    """The same for experts; a model without has no choice to make."""
    if model.experts is None:
        return "auto"
    return "megablox" if where.chip.platform == "tpu" else "padded"
