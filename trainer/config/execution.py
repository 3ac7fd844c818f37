"""Execution of a run. These settings change neither its batches nor its intended computation."""

from importlib.util import find_spec
from typing import Literal, NamedTuple, Self

from pydantic import Field, model_validator

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.config.model import ModelConfig

BLOCK_INPUT, ATTENTION = "block_input", "attention"
"""Names for `Kept` in addition to weights: the input of a block, and the residuals of attention's kernel."""
LANES = 128  # Splash needs block lengths that are multiples of this number of positions
AttentionKernel = Literal["auto", "xla", "splash", "cudnn"]
KERNELS = ("splash", "cudnn", "xla")  # by speed, the fastest first
CUDNN_DTYPES = ("bfloat16", "float16")
CUDNN_MAX_HEAD_DIM = 256  # on Hopper and later. On earlier GPUs cuDNN itself rejects more than 128
ExpertKernel = Literal["auto", "padded", "ragged", "megablox"]
DECIDES_BITS = ("mesh", "remat", "attention", "expert_kernel", "microbatch_sequences", "loss_chunk_tokens")
"""Fields that must be unchanged for a resume bit for bit. With other values a run resumes with the same batches."""


class Mesh(Frozen):
    """Number of devices along each axis (`trainer.sharding` explains the axes)."""

    replica: int = Field(default=1, gt=0)
    fsdp: int = Field(default=1, gt=0)
    tensor: int = Field(default=1, gt=0)
    expert: int = Field(default=1, gt=0)
    context: int = Field(default=1, gt=0)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the sizes in the order of `trainer.sharding.MESH_AXES`."""
        return self.replica, self.fsdp, self.expert, self.tensor, self.context

    @property
    def devices(self) -> int:
        """Return the number of devices."""
        return self.batch_parts * self.tensor * self.context

    @property
    def batch_parts(self) -> int:
        """Return the number of equal parts of whole rows in a batch."""
        return self.replica * self.fsdp * self.expert

    @property
    def weight_parts(self) -> int:
        """Return the number of parts of a dense weight along d_model."""
        return self.fsdp * self.expert * self.context


class Kept(Frozen):
    """Named activations of a block to store. The backward pass recomputes the others.

    `on_device`, `on_host`: names of products (like their weights: `query`, `gate`), `block_input`, or `attention` (Splash only). Without
    `block_input` in `on_host`, the block input is stored on the device.
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


class Execution(Frozen):
    """Mesh, memory and kernels. The default is one device without savings of memory."""

    mesh: Mesh = Mesh()
    remat: Remat = "none"  # recompute nothing, all except products, all of a block, all with block inputs on the host, or named activations
    attention: AttentionKernel = "auto"  # `auto`: Splash on a TPU, cuDNN on a GPU if the types fit, XLA otherwise
    # blocks, `jax.lax.ragged_dot`, Megablox with the TPU's exchange of rows, or the fastest of the platform
    expert_kernel: ExpertKernel = "auto"
    microbatch_sequences: int | None = Field(default=None, gt=0)  # sequences per gradient accumulation step
    loss_chunk_tokens: int | None = Field(default=None, gt=0)  # tokens whose logits exist at a time
    # limit of start, compilation (with the first update) and evaluation, None for no limit
    stall_seconds: float | None = Field(default=1800.0, gt=0)
    step_stall_seconds: float | None = Field(default=180.0, gt=0)  # limit of an update, its batch, and other processes
    save_stall_seconds: float | None = Field(default=900.0, gt=0)  # limit of a checkpoint, also during updates
    restore_stall_seconds: float | None = Field(default=900.0, gt=0)  # limit of reading the checkpoint of a resume


class ExecutionSettings(Frozen):
    """Execution fields that a recipe states. None leaves a field to the plan of the slice."""

    mesh: Mesh | None = None
    remat: Remat | None = None
    attention: AttentionKernel | None = None
    expert_kernel: ExpertKernel | None = None
    microbatch_sequences: int | None = Field(default=None, gt=0)
    loss_chunk_tokens: int | None = Field(default=None, gt=0)


class Instrumentation(Frozen):
    """Measurements and sinks in addition to `metrics.jsonl`. `layer_norms_every` is a number of steps, None for never."""

    layer_norms_every: int | None = Field(default=None, gt=0)
    tensorboard: bool = False
    wandb: Literal["off", "offline", "online"] = "off"
    mlflow: str | None = Field(default=None, min_length=1, exclude_if=lambda uri: uri is None)  # tracking URI


def check_sinks(instrumentation: Instrumentation) -> None:
    """Raise ConfigError if the package of a sink is not installed."""
    for extra, module, is_wanted in (
        ("tensorboard", "tensorboardX", instrumentation.tensorboard),
        ("wandb", "wandb", instrumentation.wandb != "off"),
        ("mlflow", "mlflow", instrumentation.mlflow is not None),
    ):
        if is_wanted and find_spec(module) is None:
            raise ConfigError(
                f"instrumentation.{extra} needs the package {module}, which is not installed here: "
                f"pip install 'phasewise[{extra}]', or turn it off."
            )


class Operands(NamedTuple):
    """The properties of queries, keys and values that decide whether a kernel can run."""

    dtype: str
    head_dim: int
    seq_len: int
    context: int = 1  # number of devices that share a row


def check_kernel(kernel: str, platform: str, config: ModelConfig, *, context: int = 1) -> str:
    """Return the kernel of a run of this model on this platform (`jax.default_backend()`, or the platform to compile for).

    `context` is the axis of the mesh. Raises ConfigError if the named kernel cannot run there.
    """
    dtype = "float32" if config.float32_attention else config.compute_dtype
    return choose(kernel, platform, Operands(dtype, config.head_dim, config.seq_len, context))


def choose(kernel: str, platform: str, operands: Operands) -> str:
    """Return the named kernel, or for "auto" the fastest that can run. Raises ConfigError if the named kernel cannot run."""
    if kernel == "auto":
        return next(name for name in KERNELS if refusal(name, platform, operands) is None)
    if kernel not in KERNELS:
        raise ConfigError(f"execution.attention must be one of auto, {', '.join(KERNELS)}, found {kernel}.")
    reason = refusal(kernel, platform, operands)
    if reason is not None:
        raise ConfigError(f"execution.attention = {kernel} {reason}. Take another kernel, or auto.")
    return kernel


def refusal(kernel: str, platform: str, operands: Operands) -> str | None:
    """Return why a kernel cannot run, or None."""
    dtype, head_dim, seq_len, context = operands
    if kernel == "splash":
        if platform != "tpu":
            return f"needs a TPU, found {platform}"
        if context > 1 and seq_len % (2 * LANES * context):
            return (
                f"needs 2 × context parts of a row, each a multiple of {LANES} tokens, found 2 × {context} of {seq_len} "
                "(execution.mesh, seq_len)"
            )
    if kernel == "cudnn":
        if platform not in ("gpu", "cuda"):
            return f"needs an NVIDIA GPU, found {platform}"
        if context > 1:
            return f"has no mask for queries that are a part of a row, found context {context} in execution.mesh"
        if dtype not in CUDNN_DTYPES:
            return f"needs queries, keys and values in {' or '.join(CUDNN_DTYPES)} (compute_dtype, float32_attention), found {dtype}"
        if head_dim % 8 or head_dim > CUDNN_MAX_HEAD_DIM:
            return f"needs a head_dim that is a multiple of 8 and at most {CUDNN_MAX_HEAD_DIM}, found {head_dim}"
        if seq_len % 2:
            return f"needs rows of an even number of tokens to mask segments, found {seq_len}"
    return None
