"""Input and output of one compilation: the two files of `python -m phasewise.trainer.preflight SPEC.json RESULT.json`."""

from typing import Literal

from pydantic import Field

from phasewise.trainer import config
from phasewise.trainer.base.frozen import Frozen

Platform = Literal["tpu", "gpu", "cpu"]
Link = Literal["ici", "dcn"]  # links between the chips of a slice, or the data-centre network between slices
NO_DATA = "none"


class Speeds(Frozen):
    """Speeds of a chip per second: dense bfloat16, and bytes in one direction. `dcn_bytes` is a share of the host's network card."""

    flops: float = Field(gt=0)
    hbm_bytes: float = Field(gt=0)
    ici_bytes: float = Field(gt=0)
    dcn_bytes: float = Field(gt=0)
    host_bytes: float = Field(gt=0)


class Topology(Frozen):
    """One or several equal slices in the notation of the TPU compiler, or devices of this machine's CPU."""

    name: str  # chip and chips along each axis: `v5e:16x16`
    num_slices: int = Field(gt=0)
    chip_config: str | None = None  # use of a chip's cores, None for the compiler's default
    chips_per_host: tuple[int, int, int] | None = None
    platform: Platform = "tpu"
    devices: int | None = Field(default=None, gt=0)  # only for a CPU


class StepShape(Frozen):
    """All settings of a phase that decide its compiled step. Unusual `packing` and `loss_on` add targets as an argument."""

    model: config.ModelConfig
    optimizer: config.Optimizer
    batch_sequences: int = Field(gt=0)
    keeps_average: bool
    clips_update_rms: bool
    update_norm_window: int | None
    skip_step_window: int | None
    skip_on: config.SkipOn = "loss_and_grad_norm"
    packing: config.PackingKind = "chunk"
    loss_on: config.LossOn = "all"


class Spec(Frozen):
    """One compilation. Without `machine_code` it stops after buffer assignment (memory, collectives) in 1/20 of the time."""

    step: StepShape
    execution: config.Execution
    topology: Topology
    machine_code: bool = False


class Memory(Frozen):
    """Bytes on one chip. The peak is the sum of arguments and temporaries."""

    arguments: int
    temporaries: int
    peak: int
    host: int


class Collective(Frozen):
    """All operations of one kind along the same axes of the mesh in a step."""

    kind: str
    axis: str
    link: Link
    count: int
    bytes: int  # sent by a chip on the shortest path: 2 · n · (k - 1) / k for an all-reduce of n bytes over k chips


class Result(Frozen):
    """The result of one compilation. Traffic and FLOPs are per chip and step."""

    refusal: str | None  # the compiler's message if it refused the step
    memory: Memory | None  # None if compilation ended before buffer assignment
    limit_bytes: int  # the chip's memory for a program, from the compiler
    collectives: tuple[Collective, ...]
    hbm_bytes: int
    host_traffic_bytes: int
    update_flops: int  # products outside forward and backward pass, the steps of Muon
    flops_by_xla: float | None  # XLA's count before partitioning, for the whole batch. The body of a loop counts once.
    lower_seconds: float
    compile_seconds: float
    host_bytes: int  # peak memory of the compiling process


def run_of(step: StepShape, execution: config.Execution) -> config.RunConfig:
    """Return a run of one update without data, whose step is the phase's step. Training builds its step by the same functions."""
    windows, skip_on = (step.update_norm_window, step.skip_step_window), step.skip_on
    limits = [None if window is None else config.SkipLimit(window=window, min_samples=2, sigmas=1.0, skip_on=skip_on) for window in windows]
    stability = config.Stability(
        max_grad_norm=config.always(1.0),
        max_update_rms=config.always(1.0 if step.clips_update_rms else None),
        max_update_norm=config.always(limits[0]),
        skip_step=config.always(limits[1]),
        z_loss=config.always(None),
        ema_decay=config.always(0.5 if step.keeps_average else None),
    )
    return config.RunConfig(
        recipe="preflight", scale="full", phase="preflight", start_step=0, stop_step=1, seed=0, start=None, verdict="", output="",
        model=step.model,
        optimizer=step.optimizer,
        learning_rate=(config.LearningRateSegment(kind="constant", start_step=0, end_step=1, start=1.0, end=1.0),),
        stability=stability,
        batch=config.always(step.batch_sequences),
        mixture=config.always({NO_DATA: 100.0}),
        order=config.DataOrder(seed=0, permutation="feistel", block_sequences=1),
        checkpoints=config.CheckpointPolicy(every_steps=1, every_minutes=None, keep_all=False),
        caches={NO_DATA: ""},
        packing=step.packing,
        loss_on=step.loss_on,
        execution=execution,
    )  # fmt: skip
