"""What a training run is, as data: frozen, complete, and refused where it is wrong.

`RunConfig` is everything that `python -m trainer RUN.json` needs. Every value is absolute and resolved; no default of a library
decides anything. `None` is off.
"""

from itertools import pairwise
from typing import Annotated, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, RootModel, model_validator

from trainer.storage import digest_of_json

T = TypeVar("T")
Component = str
Percent = Annotated[float, Field(ge=0, le=100)]
MixtureShares = dict[Component, Percent]


class Frozen(BaseModel):
    """Immutable, and a misspelt field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Steps(RootModel[tuple[tuple[int, T], ...]], Generic[T]):
    """A value that changes at given steps: `((0, 8192), (18_500, 7680))` is 8192 until step 18,500 and 7680 from there on.

    The first entry holds before its own step too.
    """

    model_config = ConfigDict(frozen=True)

    @model_validator(mode="after")
    def _steps_increase(self) -> "Steps[T]":
        if not self.root:
            raise ValueError("a value by steps needs at least one entry, such as [[0, 1024]]")
        for (before, _), (after, _) in pairwise(self.root):
            if after <= before:
                raise ValueError(f"steps must increase, but {after} follows {before}")
        return self

    def at(self, step: int) -> T:
        """The value in force when `step` updates have been applied."""
        return next((value for start, value in reversed(self.root) if start <= step), self.root[0][1])

    def within(self, start_step: int, stop_step: int) -> tuple[tuple[int, T], ...]:
        """The entries in force over `[start_step, stop_step)`, the first one moved to `start_step`."""
        inside = tuple(entry for entry in self.root if start_step < entry[0] < stop_step)
        return ((start_step, self.at(start_step)), *inside)


def always(value: T) -> Steps[T]:
    """The same value at every step."""
    return Steps(((0, value),))


class Llama3RopeScaling(Frozen):
    """The frequency-dependent stretch of Llama 3.1; `original_max_positions` is in tokens."""

    factor: float = Field(gt=0)
    low_frequency_factor: float = Field(gt=0)
    high_frequency_factor: float = Field(gt=0)
    original_max_positions: int = Field(gt=0)


class Rope(Frozen):
    """Rotary position embedding."""

    theta: float = Field(gt=0)
    scaling: Llama3RopeScaling | None


class ModelConfig(Frozen):
    """A Llama decoder. The same words as the field: `d_model`, `d_ff`, `head_dim`, `num_query_heads`, `num_kv_heads`."""

    vocab_size: int = Field(gt=0)
    seq_len: int = Field(gt=1)
    num_layers: int = Field(gt=0)
    d_model: int = Field(gt=0)
    d_ff: int = Field(gt=0)
    num_query_heads: int = Field(gt=0)
    num_kv_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0, multiple_of=2)
    rope: Rope
    rms_norm_epsilon: float = Field(gt=0)
    initializer_std: float = Field(gt=0)
    compute_dtype: Literal["float32", "bfloat16"]

    @model_validator(mode="after")
    def _heads_group(self) -> "ModelConfig":
        if self.num_query_heads % self.num_kv_heads:
            raise ValueError(f"num_query_heads must be a multiple of num_kv_heads, found {self.num_query_heads} and {self.num_kv_heads}")
        return self


class AdamW(Frozen):
    """AdamW with the decay added before the learning rate is applied: effective decay = learning rate × `weight_decay`."""

    beta1: float = Field(ge=0, lt=1)
    beta2: float = Field(ge=0, lt=1)
    epsilon: float = Field(gt=0)
    weight_decay: float = Field(ge=0)


class LearningRateSegment(Frozen):
    """From `start` at `start_step` to `end` at `end_step`. `inverse` moves the reciprocal linearly, as WSD-S decays do."""

    kind: Literal["constant", "linear", "cosine", "inverse"]
    start_step: int = Field(ge=0)
    end_step: int = Field(gt=0)
    start: float = Field(ge=0)
    end: float = Field(ge=0)

    @model_validator(mode="after")
    def _is_possible(self) -> "LearningRateSegment":
        if self.end_step <= self.start_step:
            raise ValueError(f"a segment must end after it starts, found {self.start_step} → {self.end_step}")
        if self.kind == "constant" and self.start != self.end:
            raise ValueError(f"a constant segment has one value, found {self.start} → {self.end}")
        if self.kind == "inverse" and min(self.start, self.end) <= 0:
            raise ValueError(f"an inverse segment needs positive values, found {self.start} → {self.end}")
        return self


class Stability(Frozen):
    """What keeps a run steady. `max_grad_norm` clips the global gradient norm; `z_loss` weighs mean(logsumexp²)."""

    max_grad_norm: Steps[Annotated[float, Field(gt=0, allow_inf_nan=False)] | None]
    z_loss: Steps[Annotated[float, Field(ge=0, allow_inf_nan=False)] | None]
    ema_decay: float | None = Field(ge=0, lt=1)


class DataOrder(Frozen):
    """How sequences are drawn: one permutation per component, keyed by seed and component name, and blocks of the mixture.

    `cut_blocks` lets a mixture start inside a block also where another step would do: the block before it is cut short.
    """

    seed: int
    permutation: Literal["linear", "feistel", "feistel_levanter"]
    block_sequences: int = Field(gt=0)
    cut_blocks: bool = False


class CheckpointPolicy(Frozen):
    """One every `every_steps`, kept for ever where `keep_all`, else only the last; temporary ones every `every_minutes`.

    The one at a phase's end is always kept.
    """

    every_steps: int = Field(gt=0)
    every_minutes: float | None = Field(gt=0)
    keep_all: bool


class StartFrom(Frozen):
    """The checkpoint a phase starts from; `fresh` names the parts of the state that are made anew and not carried.

    `params_digest` is that of the weights that must be found there.
    """

    checkpoint: str
    params_digest: str
    fresh: tuple[Literal["ema", "optimizer"], ...]


def sequences_between(batch: Steps[int], start_step: int, stop_step: int) -> int:
    """Sequences that the updates `[start_step, stop_step)` consume."""
    entries = [*batch.within(start_step, stop_step), (stop_step, 0)]
    return sum(size * (after - step) for (step, size), (after, _) in pairwise(entries))


def check_mixture(step: int, shares: MixtureShares) -> None:
    """Refuse shares that do not sum to 100 %."""
    total = sum(shares.values())
    if abs(total - 100) > 0.05:
        raise ValueError(f"the mixture from step {step} must sum to 100 %, found {total:.2f} % over {len(shares)} components")


def check_segments(segments: tuple[LearningRateSegment, ...], start_step: int, stop_step: int) -> None:
    """Refuse segments that leave a step without a learning rate, or give it two."""
    if not segments or segments[0].start_step != start_step or segments[-1].end_step < stop_step:
        covered = f"{segments[0].start_step} → {segments[-1].end_step}" if segments else "nothing"
        raise ValueError(f"the learning rate must cover steps {start_step} → {stop_step}, found {covered}")
    for before, after in pairwise(segments):
        if before.end_step != after.start_step:
            raise ValueError(f"learning-rate segments must join: one ends at {before.end_step}, the next starts at {after.start_step}")


class RunConfig(Frozen):
    """One phase, resolved. `batch` and `mixture` reach back to step 0 of the lineage, because the data order does.

    Attributes:
        caches: component → folder of its token cache; every component that the phase draws from.
        verdict: the JSON file that says these caches passed judgement.
        output: the run's folder: metrics, heartbeat, checkpoints, result.
    """

    recipe: str
    scale: str
    phase: str
    start_step: int = Field(ge=0)
    stop_step: int = Field(gt=0)
    seed: int
    model: ModelConfig
    optimizer: AdamW
    learning_rate: tuple[LearningRateSegment, ...]
    stability: Stability
    batch: Steps[Annotated[int, Field(gt=0)]]
    mixture: Steps[MixtureShares]
    order: DataOrder
    checkpoints: CheckpointPolicy
    start: StartFrom | None
    caches: dict[Component, str]
    verdict: str
    output: str

    @property
    def digest(self) -> str:
        """What a result names when it says which run it is of: settings, caches (by key) and the weights it started from."""
        return digest_of_json(self.model_dump(mode="json"))

    @model_validator(mode="after")
    def _is_whole(self) -> "RunConfig":
        if self.stop_step <= self.start_step:
            raise ValueError(f"stop_step must be after start_step, found {self.start_step} → {self.stop_step}")
        check_segments(self.learning_rate, self.start_step, self.stop_step)
        for step, shares in self.mixture.root:
            check_mixture(step, shares)
        drawn = {name for _, shares in self.mixture.within(self.start_step, self.stop_step) for name, share in shares.items() if share}
        if missing := sorted(drawn - set(self.caches)):
            raise ValueError(f"no cache is named for {', '.join(missing)}")
        return self
