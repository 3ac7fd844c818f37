"""How a run is carried out: nothing here changes which batches it sees or what it is meant to compute."""

from typing import Literal, Self

from pydantic import Field, model_validator

from phasewise.trainer.base.frozen import Frozen


class Mesh(Frozen):
    """Devices along each axis; their product is the number of devices.

    `replica` holds copies, `fsdp` cuts weights, `tensor` cuts heads, `expert` deals out experts, `context` cuts each row along its
    positions, and weights as `fsdp` does. `replica`, `fsdp` and `expert` cut the rows of the batch.
    """

    replica: int = Field(default=1, gt=0)
    fsdp: int = Field(default=1, gt=0)
    tensor: int = Field(default=1, gt=0)
    expert: int = Field(default=1, gt=0)
    context: int = Field(default=1, gt=0)

    @property
    def devices(self) -> int:
        """How many there are."""
        return self.batch_parts * self.tensor * self.context

    @property
    def batch_parts(self) -> int:
        """Into how many equal parts of whole rows a batch is cut."""
        return self.replica * self.fsdp * self.expert

    @property
    def weight_parts(self) -> int:
        """Into how many parts a weight that is no expert's is cut along d_model."""
        return self.fsdp * self.expert * self.context


BLOCK_INPUT, ATTENTION = "block_input", "attention"
"""What a policy can name beside the products of a block, which have the names of their weights: what goes from block to block, and what
attention's kernel needs in its backward pass."""

LANES = 128
"""Splash takes rows, and parts of rows, in blocks whose lengths are multiples of so many positions."""


class Kept(Frozen):
    """What a block's backward pass finds again by name; everything else of the block is computed again.

    Attributes:
        on_device, on_host: names of products (`query`, `gate`: as their weights), `block_input`, or `attention`. What goes from block to
            block is kept on the device where `on_host` does not name it. `attention` is kept where the kernel is Splash; the others
            do not name what they need.
    """

    on_device: tuple[str, ...] = ()
    on_host: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _once(self) -> Self:
        names = (*self.on_device, *self.on_host)
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"each product can be kept in one place, found {', '.join(twice)} twice in execution.remat: leave one.")
        return self


Remat = Literal["none", "dots", "full", "offload"] | Kept
AttentionKernel = Literal["auto", "xla", "splash", "cudnn"]
ExpertKernel = Literal["auto", "padded", "ragged", "megablox"]
DECIDES_BITS = ("mesh", "remat", "attention", "expert_kernel", "microbatch_sequences", "loss_chunk_tokens")
"""What a run that goes on must have as before to go on bit for bit. With another one it goes on with the same batches."""


class Execution(Frozen):
    """Mesh, memory and kernels. The defaults are one device without savings.

    Attributes:
        remat: what the backward pass computes again: nothing, all but the products with weights, or all of a block; `offload` computes
            all again and keeps what goes from block to block in the host's memory. Or what is kept, and where, by name.
        attention: the kernel; "auto" takes Splash on a TPU, cuDNN on a GPU where the types fit, XLA elsewhere.
        expert_kernel: how experts are computed: in blocks, by `jax.lax.ragged_dot`, or on TPUs by Megablox, with which rows also travel
            between devices by the exchange that only TPUs have; "auto" takes what the platform is quickest with.
        microbatch_sequences: gradients are summed over parts of the batch of so many sequences; None is the whole batch at once.
        loss_chunk_tokens: logits of so many tokens exist at a time; None is all.
        stall_seconds: a process that starts, compiles or evaluates for so long is ended; the first update counts as compiling. None, here
            and in the next three, is never.
        step_stall_seconds: the same, once updates run, for one of them, for the wait for its batch, and for the wait for other processes.
        save_stall_seconds: the same, for writing one checkpoint, also while updates go on.
        restore_stall_seconds: the same, for checking and reading the checkpoint to go on from.
    """

    mesh: Mesh = Mesh()
    remat: Remat = "none"
    attention: AttentionKernel = "auto"
    expert_kernel: ExpertKernel = "auto"
    microbatch_sequences: int | None = Field(default=None, gt=0)
    loss_chunk_tokens: int | None = Field(default=None, gt=0)
    stall_seconds: float | None = Field(default=1800.0, gt=0)
    step_stall_seconds: float | None = Field(default=180.0, gt=0)
    save_stall_seconds: float | None = Field(default=900.0, gt=0)
    restore_stall_seconds: float | None = Field(default=900.0, gt=0)


class Instrumentation(Frozen):
    """What is measured and where it goes beside `metrics.jsonl`.

    Attributes:
        layer_norms_every: norms of every weight of every layer, each so many steps; None is never.
        tensorboard: event files in the run's folder.
        wandb: a Weights & Biases run; "offline" writes it to the run's folder only.
    """

    layer_norms_every: int | None = Field(default=None, gt=0)
    tensorboard: bool = False
    wandb: Literal["off", "offline", "online"] = "off"
