"""One resolved phase as in `RUN.json`, its digests, and the comparison of two runs by field."""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise, zip_longest
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, model_validator

from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import digest_of_json
from phasewise.trainer.config.execution import DECIDES_BITS, Execution, Instrumentation
from phasewise.trainer.config.model import ModelConfig
from phasewise.trainer.config.optimization import LearningRateSegment, Optimizer, Recovery, Stability, Steps, check_segments

Component = str
PackingKind = Literal["chunk", "pad", "greedy"]
LossOn = Literal["all", "answers"]
MixtureShares = dict[Component, Annotated[float, Field(ge=0, le=100)]]
StatePart = Literal["ema", "optimizer", "rolling", "balancing", "qk_norm"]
"""Parts that a hand-off can reset or graft: moving average, optimizer state, windows of norms and losses, momentum of the routers' biases,
QK-norm's gains."""

ADDED_LATER: dict[str, bool | int | float | str | None] = {
    "attend_within_documents": True, "global_attention_every": None, "attention_gate": False, "post_norms": False, "embedding_scale": 1.0,
    "initializer_cutoff": None, "experts": None, "expert_kernel": "auto", "expert": 1, "context": 1, "step_stall_seconds": 180.0,
    "save_stall_seconds": 900.0, "restore_stall_seconds": 900.0, "recovery": None, "buffer_documents": None, "buffer_over": "component",
    "packing": "chunk", "loss_on": "all", "max_adam_grad_norm": None, "skip_on": "loss_and_grad_norm",
    "newton_schulz_coefficients": "jordan",
}  # fmt: skip
"""Later field → value of all earlier runs. No digest has a field with this value, so earlier runs keep their digests. The commit adding a
field adds it here, for good. The name must be unique in the whole configuration, and must not be a component."""

MAY_CHANGE = (
    "learning_rate",  # compared at every update before the checkpoint
    "stop_step",  # not before the checkpoint
    "until_step",
    *(f"execution.{name}" for name in DECIDES_BITS),  # change the computation of an update, not its result
    *(f"execution.{name}" for name in ("stall_seconds", "step_stall_seconds", "save_stall_seconds", "restore_stall_seconds")),
    *(f"instrumentation.{name}" for name in ("layer_norms_every", "tensorboard", "wandb", "mlflow")),
    "evaluation",
    *(f"checkpoints.{name}" for name in ("every_steps", "every_minutes", "keep_all", "at_steps")),
    "verdict",  # a path: the trainer reads the verdict at each start
    "output",
    "caches",  # paths: the data order contract of a checkpoint has the content
    "cache_digests",
    "start.checkpoint",  # a path: `start.params_digest` binds the weights
    "start.graft[].checkpoint",
)
"""Fields that may change in a resume, because they do not decide earlier updates. All other fields bind a checkpoint, including new
fields: the trainer refuses to resume with another value (`trainer.checkpoints.checkpointer`)."""
BIND_THE_RESULT = ("learning_rate", "stop_step", "checkpoints")
"""Fields that may change in a resume and bind a finished result: after a change, a launcher trains again."""
MAX_CHARACTERS = 60
NOTHING = "nothing"
_NAMED_BY_KEY = re.compile(r"(train|held_out)-[0-9a-f]{16}")


class DataOrder(Frozen):
    """Order of sequences: one permutation per component from seed and component name, and blocks of the mixture."""

    seed: int = Field(ge=0, lt=2**64)
    permutation: Literal["linear", "linear_levanter", "feistel", "feistel_levanter"]
    block_sequences: int = Field(gt=0)
    first_step: int = Field(default=0, ge=0)  # start of the order. Earlier draws of the lineage are ignored.
    # `floor`: round down, and add the rest to the largest share (Levanter)
    rounding: Literal["largest_remainder", "floor"] = "largest_remainder"
    cut_blocks: bool = False  # a mixture may start inside a block, which shortens the previous block
    # None permutes rows. A number permutes documents: see `trainer.data.document_buffer`.
    buffer_documents: int | None = Field(default=None, gt=0, le=2**23)
    buffer_over: Literal["component", "mixture"] = "component"  # a buffer per component, or one over the mixed stream of documents


class CheckpointPolicy(Frozen):
    """Checkpoints every `every_steps`, kept for ever with `keep_all`, and temporary checkpoints every `every_minutes`.

    Checkpoints after `at_steps` updates and at a phase's end are always kept.
    """

    every_steps: int = Field(gt=0)
    every_minutes: float | None = Field(gt=0)
    keep_all: bool
    at_steps: tuple[int, ...] = ()

    def keeps(self, step: int) -> bool:
        """Whether the checkpoint of step `step` is kept, apart from the phase's end."""
        return step in self.at_steps or (self.keep_all and step % self.every_steps == 0)


class Graft(Frozen):
    """A part of the state from another checkpoint. `params_digest` is the digest of that checkpoint's weights."""

    part: StatePart
    checkpoint: str
    params_digest: str


class StartFrom(Frozen):
    """The checkpoint that a phase starts from, with the expected digest of its weights.

    A part of the state that is neither `fresh` nor grafted is carried, and the checkpoint must have it.
    """

    checkpoint: str
    params_digest: str
    fresh: tuple[StatePart, ...]
    graft: tuple[Graft, ...] = ()


class LossEvaluation(Frozen):
    """Loss of the weights and of their moving average on held-out text, every `every_steps`."""

    every_steps: int = Field(gt=0)
    sequences: int = Field(gt=0)  # first rows per component
    caches: dict[Component, str] = Field(min_length=1)  # folder of each held-out token cache
    own_text: str | None = None  # file with rows of text outside all components, by subset (`tasks.evaluation.corpus_fit.write_rows`)


class RunConfig(Frozen):
    """One resolved phase. `batch` and `mixture` start at step 0 of the lineage, like the data order."""

    recipe: str
    scale: str
    phase: str
    start_step: int = Field(ge=0)
    stop_step: int = Field(gt=0)
    seed: int
    model: ModelConfig
    optimizer: Optimizer
    learning_rate: tuple[LearningRateSegment, ...]
    stability: Stability
    batch: Steps[Annotated[int, Field(gt=0)]]
    mixture: Steps[MixtureShares]
    order: DataOrder
    checkpoints: CheckpointPolicy
    start: StartFrom | None
    caches: dict[Component, str]  # folder of the token cache of every component that the phase draws from
    # digest of the cache's manifest, if the folder's name does not identify its content
    cache_digests: dict[Component, str] = Field(default={})
    verdict: str  # JSON file with the verdict on these caches
    output: str  # the run's folder: metrics, heartbeat, checkpoints, result
    recovery: Recovery | None = None
    packing: PackingKind = "chunk"  # layout of documents in rows (`trainer.data.packing`)
    loss_on: LossOn = "all"  # predicted tokens. Answers are spans in the caches.
    evaluation: LossEvaluation | None = None
    execution: Execution = Execution()
    instrumentation: Instrumentation = Instrumentation()
    until_step: int | None = None  # last update on this slice, after which the trainer saves and ends. None is the phase's end.

    @property
    def last_step(self) -> int:
        """The last update of the phase, or the last update on this slice."""
        return self.stop_step if self.until_step is None else self.until_step

    @property
    def keeps_average(self) -> bool:
        """Whether the phase has a moving average of the weights at any step."""
        return any(decay is not None for _, decay in self.stability.ema_decay.within(self.start_step, self.stop_step))

    @property
    def digest(self) -> str:
        """The identity of a result: settings, content of the caches, and the weights at the start.

        Excluded are execution and instrumentation (a run continues on another mesh), paths (a home may be moved), and fields of
        `ADDED_LATER` with the value of earlier runs.
        """
        return digest_of_json(without_added(self.decisive))

    @property
    def decisive(self) -> dict[str, Any]:
        """The content of the digest: every setting that decides the weights, and the content of each cache, without paths."""
        paths = [path for path in MAY_CHANGE if path.partition(".")[0] not in BIND_THE_RESULT]
        return {**without_fields(self.model_dump(mode="json"), paths), "caches": {name: self.cache_name(name) for name in self.caches}}

    def cache_name(self, component: Component) -> str:
        """Return the identity of a cache's content: its digest, or the folder's name if it contains the key, or else its path."""
        folder = self.caches[component]
        name = folder.rstrip("/").rpartition("/")[2]
        return self.cache_digests.get(component) or (name if _NAMED_BY_KEY.fullmatch(name) else folder)

    @model_validator(mode="after")
    def _is_whole(self) -> "RunConfig":
        if self.stop_step <= self.start_step:
            raise ValueError(f"stop_step must be after start_step, found {self.start_step} → {self.stop_step}")
        if self.until_step is not None and not self.start_step < self.until_step < self.stop_step:
            raise ValueError(
                f"until_step must be after start_step and before stop_step, found {self.until_step} in {self.start_step} → {self.stop_step}"
            )
        if self.order.first_step > self.start_step:
            raise ValueError(f"order.first_step must be at most start_step, found {self.order.first_step} after {self.start_step}")
        check_segments(self.learning_rate, self.start_step, self.stop_step)
        for step, shares in self.mixture.root:
            check_mixture(step, shares)
        part = self.execution.microbatch_sequences
        for step, size in self.batch.within(self.start_step, self.stop_step):
            if part is not None and size > part and size % part:
                raise ValueError(f"microbatch_sequences must divide every larger batch, found {part} for {size} sequences from step {step}")
        drawn = {name for _, shares in self.mixture.within(self.start_step, self.stop_step) for name, share in shares.items() if share}
        check_rows(self.packing, self.loss_on, self.order)
        if missing := sorted(drawn - set(self.caches)):
            raise ValueError(f"caches must name a folder for every component, found none for {', '.join(missing)}")
        return self


def sequences_between(batch: Steps[int], start_step: int, stop_step: int) -> int:
    """Return the number of sequences that the updates `[start_step, stop_step)` consume."""
    entries = [*batch.within(start_step, stop_step), (stop_step, 0)]
    return sum(size * (after - step) for (step, size), (after, _) in pairwise(entries))


def check_mixture(step: int, shares: MixtureShares) -> None:
    """Refuse shares that do not sum to 100 %."""
    total = sum(shares.values())
    if abs(total - 100) > 0.05:
        raise ValueError(f"the mixture from step {step} must sum to 100 %, found {total:.2f} % over {len(shares)} components")


def check_rows(packing: PackingKind, loss_on: LossOn, order: DataOrder) -> None:
    """Refuse a document buffer with another packing, or a loss on answers, and a buffer over the mixture without a size."""
    if order.buffer_over == "mixture" and order.buffer_documents is None:
        raise ValueError("order.buffer_over mixture must go with buffer_documents, found none: set order.buffer_documents")
    if order.buffer_documents is not None and (packing, loss_on) != ("chunk", "all"):
        raise ValueError(
            f"order.buffer_documents must go with packing chunk and loss_on all, found packing {packing} and loss_on {loss_on}: a buffer "
            "fills rows with parts of documents. Set order.buffer_documents to null, or remove packing and loss_on"
        )


class Difference(NamedTuple):
    """One field of a run, such as `stability.max_grad_norm[0][1]`, with both values as text."""

    field: str
    before: str
    now: str

    def __str__(self) -> str:
        return f"{self.field}: {self.before} → {self.now}"


def without_added(settings: Any) -> Any:
    """Return settings as JSON, without the fields of `ADDED_LATER` that have the value of earlier runs."""
    if isinstance(settings, dict):
        kept: dict[str, Any] = {}
        for name, value in settings.items():
            # compare types, because 1 == True: a share of 1 % is not a flag
            if not (name in ADDED_LATER and type(value) is type(ADDED_LATER[name]) and value == ADDED_LATER[name]):
                kept[name] = without_added(value)
        return kept
    if isinstance(settings, list | tuple):
        return [without_added(value) for value in settings]
    return settings


def differences_between(before: Any, now: Any, field: str = "") -> Iterator[Difference]:
    """Yield the fields with different values in two JSON values. A missing field has the value `NOTHING`."""
    if before == now:
        return
    if isinstance(before, dict) and isinstance(now, dict):
        for name in {**before, **now}:
            yield from differences_between(before.get(name, NOTHING), now.get(name, NOTHING), f"{field}.{name}" if field else name)
    elif isinstance(before, list) and isinstance(now, list):
        for number, (was, item) in enumerate(zip_longest(before, now, fillvalue=NOTHING)):
            yield from differences_between(was, item, f"{field}[{number}]")
    else:
        words = ("off" if value is None else str(value) for value in (before, now))
        yield Difference(field, *(text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]} …" for text in words))


def without_fields(settings: Mapping[str, Any], paths: Iterable[str]) -> dict[str, Any]:
    """Return settings as JSON without the fields at these paths, such as `execution.mesh` or `start.graft[].checkpoint`."""
    kept = dict(settings)
    for path in paths:
        name, _, below = path.partition(".")
        is_list, name = name.endswith("[]"), name.removesuffix("[]")
        if not below:
            kept.pop(name, None)
        elif is_list and isinstance(kept.get(name), list):
            kept[name] = [without_fields(item, [below]) for item in kept[name]]
        elif isinstance(kept.get(name), dict):
            kept[name] = without_fields(kept[name], [below])
            if not kept[name]:
                del kept[name]
    return kept
