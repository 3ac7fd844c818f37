"""One phase, resolved, as in `RUN.json`; its digests, and the comparison of two runs field by field."""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise, zip_longest
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, model_validator

from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import digest_of_json
from phasewise.trainer.config.execution import Execution, Instrumentation
from phasewise.trainer.config.model import ModelConfig
from phasewise.trainer.config.optimization import LearningRateSegment, Optimizer, Recovery, Stability, Steps, check_segments

Component = str
PackingKind = Literal["chunk", "pad", "greedy"]
LossOn = Literal["all", "answers"]
MixtureShares = dict[Component, Annotated[float, Field(ge=0, le=100)]]
StatePart = Literal["ema", "optimizer", "rolling", "balancing", "qk_norm"]
"""The parts that a hand-off can make fresh or graft: the moving average, the optimizer's state, the windows of norms and losses, the
momentum of the routers' biases, QK-norm's gains."""

ADDED_LATER: dict[str, bool | int | float | str | None] = {
    "attend_within_documents": True,
    "global_attention_every": None,
    "attention_gate": False,
    "post_norms": False,
    "embedding_scale": 1.0,
    "initializer_cutoff": None,
    "experts": None,
    "expert_kernel": "auto",
    "expert": 1,
    "context": 1,
    "step_stall_seconds": 180.0,
    "save_stall_seconds": 900.0,
    "restore_stall_seconds": 900.0,
    "recovery": None,
    "buffer_documents": None,
    "packing": "chunk",
    "loss_on": "all",
    "max_adam_grad_norm": None,
}
"""Field that came later → the value that all earlier runs had: with this value it is in no digest, so an earlier run keeps its digest. The
commit that adds a field adds it here, for good. The name must be unique in the whole configuration, and not a component's."""

_EXECUTION = "it changes how an update is computed, or how long one may take, and not what an update computes"
_INSTRUMENTATION = "metrics and their sinks change no update"
_SAVING = "when the state is saved, and for how long a checkpoint is kept, changes no update"
MAY_CHANGE: Mapping[str, str] = {
    "learning_rate": "the updates after the checkpoint are still to come; at every update before it the learning rate is compared",
    "stop_step": "the last update is still to come: it must not lie before the checkpoint",
    "until_step": "on which slice the updates are computed changes none of them",
    "execution.mesh": _EXECUTION,
    "execution.remat": _EXECUTION,
    "execution.attention": _EXECUTION,
    "execution.expert_kernel": _EXECUTION,
    "execution.microbatch_sequences": _EXECUTION,
    "execution.loss_chunk_tokens": _EXECUTION,
    "execution.stall_seconds": _EXECUTION,
    "execution.step_stall_seconds": _EXECUTION,
    "execution.save_stall_seconds": _EXECUTION,
    "execution.restore_stall_seconds": _EXECUTION,
    "instrumentation.layer_norms_every": _INSTRUMENTATION,
    "instrumentation.tensorboard": _INSTRUMENTATION,
    "instrumentation.wandb": _INSTRUMENTATION,
    "evaluation": "the loss on held-out text is measured, and changes no update",
    "checkpoints.every_steps": _SAVING,
    "checkpoints.every_minutes": _SAVING,
    "checkpoints.keep_all": _SAVING,
    "checkpoints.at_steps": _SAVING,
    "verdict": "a path; the trainer reads the verdict again at each start",
    "output": "a path; a run may be moved",
    "caches": "paths; the content of each cache is compared with the data order contract of the checkpoint",
    "cache_digests": "a name for the content of a cache, which the data order contract compares",
    "start.checkpoint": "a path; start.params_digest binds the weights that are there",
    "start.graft[].checkpoint": "a path; start.graft[].params_digest binds the weights that are there",
}
"""Field of a run → why a run may resume with another value, also of all fields below it. Every other field, a new one too, binds
a checkpoint: the trainer refuses to resume with another value (`trainer.checkpoints.resume`)."""
BIND_THE_RESULT = ("learning_rate", "stop_step", "checkpoints")
"""Fields that may change while a run continues, and that a finished result is bound to: if one changes, a launcher trains again."""
MAX_CHARACTERS = 60
NOTHING = "nothing"
_NAMED_BY_KEY = re.compile(r"(train|held_out)-[0-9a-f]{16}")


class DataOrder(Frozen):
    """How sequences are drawn: one permutation per component, keyed by seed and component name, and blocks of the mixture.

    Attributes:
        first_step: the order begins here and ignores what the lineage drew before.
        rounding: how shares become counts of a block; `floor` rounds all down, and the largest takes the rest, as Levanter does.
        cut_blocks: a mixture may start inside a block; the block before it is cut short.
        buffer_documents: rows are filled from a buffer of documents for each component, which is refilled to twice as many when so few
            are left (`trainer.data.document_buffer`); the permutation is then that of the documents. None cuts the concatenated documents
            into rows, and permutes these.
    """

    seed: int = Field(ge=0, lt=2**64)
    permutation: Literal["linear", "feistel", "feistel_levanter"]
    block_sequences: int = Field(gt=0)
    first_step: int = Field(default=0, ge=0)
    rounding: Literal["largest_remainder", "floor"] = "largest_remainder"
    cut_blocks: bool = False
    buffer_documents: int | None = Field(default=None, gt=0, le=2**23)


class CheckpointPolicy(Frozen):
    """One every `every_steps`, kept for ever where `keep_all`, else only the last; temporary ones every `every_minutes`.

    Those after `at_steps` updates and at a phase's end are always kept.
    """

    every_steps: int = Field(gt=0)
    every_minutes: float | None = Field(gt=0)
    keep_all: bool
    at_steps: tuple[int, ...] = ()

    def keeps(self, step: int) -> bool:
        """Return whether the checkpoint after so many updates is kept; that of a phase's end always is."""
        return step in self.at_steps or (self.keep_all and step % self.every_steps == 0)


class Graft(Frozen):
    """A part of the state from another checkpoint than the rest; `params_digest` is that of the weights found there."""

    part: StatePart
    checkpoint: str
    params_digest: str


class StartFrom(Frozen):
    """The checkpoint a phase starts from. A part that is neither `fresh` nor grafted is carried, and must be there.

    `params_digest` is that of the weights that must be found there.
    """

    checkpoint: str
    params_digest: str
    fresh: tuple[StatePart, ...]
    graft: tuple[Graft, ...] = ()


class LossEvaluation(Frozen):
    """The loss on held-out text, each `every_steps`, of the weights and of their moving average.

    Attributes:
        sequences: of each component, the first so many rows of its cache.
        caches: component → folder of its held-out token cache.
    """

    every_steps: int = Field(gt=0)
    sequences: int = Field(gt=0)
    caches: dict[Component, str] = Field(min_length=1)


class RunConfig(Frozen):
    """One phase, resolved. `batch` and `mixture` reach back to step 0 of the lineage, because the data order does.

    Attributes:
        caches: component → folder of its token cache; every component that the phase draws from.
        packing: how documents become rows (`trainer.data.packing`): `chunk` cuts all of them, one after the other, into full rows; `pad`
            gives each a row of its own; `greedy` fills rows with whole ones. The last two cut what is longer than a row, and pad.
        loss_on: which tokens are predicted: all, or those of the answers alone, which are spans of the caches. Where packing is not
            `chunk`, neither padding nor the first token of a document is.
        cache_digests: component → digest of its cache's manifest, where the folder's name does not name its content.
        verdict: the JSON file of the verdict on these caches.
        output: the run's folder: metrics, heartbeat, checkpoints, result.
        until_step: the trainer saves after this update and ends: the phase continues on another slice. None is to the phase's end.
    """

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
    caches: dict[Component, str]
    cache_digests: dict[Component, str] = Field(default={})
    verdict: str
    output: str
    recovery: Recovery | None = None
    packing: PackingKind = "chunk"
    loss_on: LossOn = "all"
    evaluation: LossEvaluation | None = None
    execution: Execution = Execution()
    instrumentation: Instrumentation = Instrumentation()
    until_step: int | None = None

    @property
    def last_step(self) -> int:
        """The update after which the trainer ends: the phase's last, or the last on its slice."""
        return self.stop_step if self.until_step is None else self.until_step

    @property
    def keeps_average(self) -> bool:
        """Whether a moving average of the weights is kept at any step of the phase."""
        return any(decay is not None for _, decay in self.stability.ema_decay.within(self.start_step, self.stop_step))

    @property
    def digest(self) -> str:
        """The identity of a result: settings, the bytes of its caches, and the weights it started from.

        Execution and instrumentation are not in it: a run continues on another mesh. Nor is a path: a home may be moved. Nor is a field of
        `ADDED_LATER` with the value of earlier runs.
        """
        return digest_of_json(without_added(self.decisive))

    @property
    def decisive(self) -> dict[str, Any]:
        """The content of the digest: every setting that decides the weights, the content of each cache, and no path."""
        paths = [path for path in MAY_CHANGE if path.partition(".")[0] not in BIND_THE_RESULT]
        return {**_without(self.model_dump(mode="json"), paths), "caches": {name: self.cache_name(name) for name in self.caches}}

    @property
    def digest_with_places(self) -> str:
        """The digest that earlier results named: the same with paths."""
        without = {"execution", "instrumentation", "evaluation", "until_step", "cache_digests"}
        return digest_of_json(without_added(self.model_dump(mode="json", exclude=without)))

    def cache_name(self, component: Component) -> str:
        """Return the name of a cache's bytes: its digest, or the folder's name if that is made of its key, or else its path."""
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
            raise ValueError(f"no cache is named for {', '.join(missing)}")
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
    """Refuse a document buffer with another packing, or a loss on answers."""
    if order.buffer_documents is not None and (packing, loss_on) != ("chunk", "all"):
        raise ValueError(
            f"order.buffer_documents must go with packing chunk and loss_on all, found packing {packing} and loss_on {loss_on}: a buffer "
            "fills rows with parts of documents. Set order.buffer_documents to null, or take the others out"
        )


class Difference(NamedTuple):
    """One field of a run, such as `stability.max_grad_norm[0][1]`, with both values in words."""

    field: str
    before: str
    now: str

    def __str__(self) -> str:
        return f"{self.field}: {self.before} → {self.now}"


def bound_by_checkpoint(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run as JSON, without the fields that may change when it resumes."""
    return _without(settings, MAY_CHANGE)


def without_added(settings: Any) -> Any:
    """Return settings as JSON, without the fields of `ADDED_LATER` that have the value of earlier runs."""
    if isinstance(settings, dict):
        kept: dict[str, Any] = {}
        for name, value in settings.items():
            # 1 is not True here: a component of that name, with a share of one percent, would be another thing.
            if not (name in ADDED_LATER and type(value) is type(ADDED_LATER[name]) and value == ADDED_LATER[name]):
                kept[name] = without_added(value)
        return kept
    if isinstance(settings, list | tuple):
        return [without_added(value) for value in settings]
    return settings


def differences_between(before: Any, now: Any, field: str = "") -> Iterator[Difference]:
    """Yield the fields in which two values as JSON differ. A missing field has the value `NOTHING`."""
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


def _without(settings: Mapping[str, Any], paths: Iterable[str]) -> dict[str, Any]:
    kept = dict(settings)
    for path in paths:
        name, _, below = path.partition(".")
        is_list, name = name.endswith("[]"), name.removesuffix("[]")
        if not below:
            kept.pop(name, None)
        elif is_list and isinstance(kept.get(name), list):
            kept[name] = [_without(item, [below]) for item in kept[name]]
        elif isinstance(kept.get(name), dict):
            kept[name] = _without(kept[name], [below])
            if not kept[name]:
                del kept[name]
    return kept
