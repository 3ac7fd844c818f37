"""What is compiled, and its result: the two files of `python -m phasewise.trainer.preflight SPEC.json RESULT.json`."""

from typing import Literal

from pydantic import Field

from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.config import (
    CheckpointPolicy,
    DataOrder,
    Execution,
    LearningRateSegment,
    LossOn,
    ModelConfig,
    Optimizer,
    PackingKind,
    RollingLimit,
    RunConfig,
    Stability,
    always,
)

Platform = Literal["tpu", "gpu", "cpu"]
Link = Literal["ici", "dcn"]
"""The links between the chips of a slice, or the data-centre network between slices."""
NO_DATA = "none"


class Speeds(Frozen):
    """What a chip can do in a second. Networks: bytes sent, in one direction.

    Attributes:
        flops: dense, bfloat16.
        dcn_bytes: this chip's part of its host's network card.
        host_bytes: between the chip and its host's memory.
    """

    flops: float = Field(gt=0)
    hbm_bytes: float = Field(gt=0)
    ici_bytes: float = Field(gt=0)
    dcn_bytes: float = Field(gt=0)
    host_bytes: float = Field(gt=0)


class Topology(Frozen):
    """A slice, or several alike, as the compiler for TPUs names it; or so many devices of this machine's CPU.

    Attributes:
        name: chip and chips along each axis: `v5e:16x16`.
        chips_per_host: along each axis, and
        chip_config: how a chip's cores are used; None is what the compiler takes by itself.
        devices: of a CPU; None where the name says it.
    """

    name: str
    num_slices: int = Field(gt=0)
    chip_config: str | None = None
    chips_per_host: tuple[int, int, int] | None = None
    platform: Platform = "tpu"
    devices: int | None = Field(default=None, gt=0)


class StepShape(Frozen):
    """All of a phase that decides its compiled step. What a schedule changes is an argument of the step, and not in here.

    Attributes:
        keeps_average: whether a moving average of the weights is kept.
        clips_update_rms: whether the phase ever clips by the update's root mean square.
        update_norm_window, skip_step_window: lengths of the rolling windows; None where the phase never has them.
        packing, loss_on: where one is not the first of its kind, the step is also given which tokens are predicted.
    """

    model: ModelConfig
    optimizer: Optimizer
    batch_sequences: int = Field(gt=0)
    keeps_average: bool
    clips_update_rms: bool
    update_norm_window: int | None
    skip_step_window: int | None
    packing: PackingKind = "chunk"
    loss_on: LossOn = "all"


class Spec(Frozen):
    """One compilation.

    Attributes:
        machine_code: go on until the machine code is there. Else the compiler is left once every buffer has its place, which is when
            memory, layout and collectives are decided; what is left takes 20 times as long and changes none of them.
    """

    step: StepShape
    execution: Execution
    topology: Topology
    machine_code: bool = False


class Memory(Frozen):
    """Bytes on one chip. `temporaries` is what the step needs beside its arguments; the peak holds both."""

    arguments: int
    temporaries: int
    peak: int
    host: int


class Collective(Frozen):
    """All operations of one kind along the same axis of the mesh.

    Attributes:
        kind: all-gather, all-reduce, reduce-scatter, all-to-all or collective-permute.
        axis: the axes of the mesh that it goes along, such as `fsdp`.
        count: how many there are in a step, loops multiplied in.
        bytes: what a chip sends in a step, by the shortest way: an all-reduce of n bytes over k chips sends 2 · n · (k - 1) / k.
    """

    kind: str
    axis: str
    link: Link
    count: int
    bytes: int


class Result(Frozen):
    """The result of one compilation.

    Attributes:
        refusal: what the compiler said where it refused the step; None where it did not.
        memory: None where the compiler did not get as far.
        limit_bytes: the chip's memory that a program may use, as the compiler has it.
        hbm_bytes: what a chip reads from and writes to its memory in a step, each operation's operands and results once.
        host_traffic_bytes: what it sends to its host's memory and reads from it.
        update_flops: what a chip multiplies outside the forward and backward pass: the steps of Muon.
        flops_by_xla: XLA's own count, before the step was cut into parts, for the whole batch; it counts the body of a loop once.
        lower_seconds, compile_seconds: tracing, and the compiler up to where it was left.
        host_bytes: the most memory that the compiling process held.
    """

    refusal: str | None
    memory: Memory | None
    limit_bytes: int
    collectives: tuple[Collective, ...]
    hbm_bytes: int
    host_traffic_bytes: int
    update_flops: int
    flops_by_xla: float | None
    lower_seconds: float
    compile_seconds: float
    host_bytes: int


def run_of(step: StepShape, execution: Execution) -> RunConfig:
    """A run of one update on no data, whose step is the phase's: the same functions build it as in training."""

    def limit(window: int | None) -> RollingLimit | None:
        return None if window is None else RollingLimit(window=window, min_samples=2, sigmas=1.0)

    stability = Stability(
        max_grad_norm=always(1.0),
        max_update_rms=always(1.0 if step.clips_update_rms else None),
        max_update_norm=always(limit(step.update_norm_window)),
        skip_step=always(limit(step.skip_step_window)),
        z_loss=always(None),
        ema_decay=always(0.5 if step.keeps_average else None),
    )
    return RunConfig(
        recipe="preflight",
        scale="full",
        phase="preflight",
        start_step=0,
        stop_step=1,
        seed=0,
        model=step.model,
        optimizer=step.optimizer,
        learning_rate=(LearningRateSegment(kind="constant", start_step=0, end_step=1, start=1.0, end=1.0),),
        stability=stability,
        batch=always(step.batch_sequences),
        mixture=always({NO_DATA: 100.0}),
        order=DataOrder(seed=0, permutation="feistel", block_sequences=1),
        checkpoints=CheckpointPolicy(every_steps=1, every_minutes=None, keep_all=False),
        start=None,
        caches={NO_DATA: ""},
        verdict="",
        output="",
        packing=step.packing,
        loss_on=step.loss_on,
        execution=execution,
    )
