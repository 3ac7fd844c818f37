"""One phase, resolved: what `RUN.json` holds."""

import re
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import digest_of_json
from phasewise.trainer.config.added import without_added
from phasewise.trainer.config.execution import Execution, Instrumentation
from phasewise.trainer.config.identity import bound_by_result
from phasewise.trainer.config.model import ModelConfig
from phasewise.trainer.config.optimizer import Optimizer
from phasewise.trainer.config.recovery import Recovery
from phasewise.trainer.config.schedule import LearningRateSegment, check_segments
from phasewise.trainer.config.schema import Steps
from phasewise.trainer.config.stability import Stability

Component = str
PackingKind = Literal["chunk", "pad", "greedy"]
LossOn = Literal["all", "answers"]
Percent = Annotated[float, Field(ge=0, le=100)]
MixtureShares = dict[Component, Percent]
StatePart = Literal["ema", "optimizer", "rolling", "balancing", "qk_norm"]
"""What a hand-off can make fresh or graft: the moving average, the optimizer's state, the windows of norms and losses, the momentum of the
routers' biases, QK-norm's gains."""


class DataOrder(Frozen):
    """How sequences are drawn: one permutation per component, keyed by seed and component name, and blocks of the mixture.

    Attributes:
        first_step: where the order begins: of what the lineage drew before this step it knows nothing.
        rounding: how shares become counts of a block; `floor` rounds all down, and the largest takes what is left, as Levanter does.
        cut_blocks: a mixture may start inside a block; the block before it is cut short.
        buffer_documents: rows are filled from a buffer of documents for each component, which is filled up to twice as many when so few
            are left (`trainer.data.document_buffer`); the permutation is then that of the documents. None cuts all documents, one after
            the other, into rows, and permutes these.
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
        """Whether what is saved after so many updates stays; that of a phase's end stays beside it."""
        return step in self.at_steps or (self.keep_all and step % self.every_steps == 0)


class Graft(Frozen):
    """A part of the state that comes from another checkpoint than the rest; `params_digest` is that of the weights found there."""

    part: StatePart
    checkpoint: str
    params_digest: str


class StartFrom(Frozen):
    """The checkpoint a phase starts from. What is neither `fresh` nor grafted is carried, and must be there.

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


def sequences_between(batch: Steps[int], start_step: int, stop_step: int) -> int:
    """Sequences that the updates `[start_step, stop_step)` consume."""
    entries = [*batch.within(start_step, stop_step), (stop_step, 0)]
    return sum(size * (after - step) for (step, size), (after, _) in pairwise(entries))


def check_mixture(step: int, shares: MixtureShares) -> None:
    """Refuse shares that do not sum to 100 %."""
    total = sum(shares.values())
    if abs(total - 100) > 0.05:
        raise ValueError(f"the mixture from step {step} must sum to 100 %, found {total:.2f} % over {len(shares)} components")


def check_rows(packing: PackingKind, loss_on: LossOn, order: DataOrder) -> None:
    """Refuse a document buffer whose rows would not be filled as the rest says."""
    if order.buffer_documents is not None and (packing, loss_on) != ("chunk", "all"):
        raise ValueError(
            f"order.buffer_documents must go with packing chunk and loss_on all, found packing {packing} and loss_on {loss_on}: a buffer "
            "fills rows with parts of documents. Set order.buffer_documents to null, or take the others out"
        )


_NAMED_BY_KEY = re.compile(r"(train|held_out)-[0-9a-f]{16}")


class RunConfig(Frozen):
    """One phase, resolved. `batch` and `mixture` reach back to step 0 of the lineage, because the data order does.

    Attributes:
        caches: component → folder of its token cache; every component that the phase draws from.
        packing: how documents become rows (`trainer.data.packing`): `chunk` cuts all of them, one after the other, into full rows; `pad`
            gives each a row of its own; `greedy` fills rows with whole ones. The last two cut what is longer than a row, and pad.
        loss_on: which tokens are predicted: all, or those of the answers alone, which are spans of the caches. Where packing is not
            `chunk`, neither padding nor the first token of a document is.
        cache_digests: component → digest of its cache's manifest, where the folder's name does not say what is in it.
        recovery: what is done where the loss is no number or jumps; None stops.
        verdict: the JSON file that says these caches passed judgement.
        output: the run's folder: metrics, heartbeat, checkpoints, result.
        until_step: the trainer saves after this update and ends: the phase goes on on another slice. None is to the phase's end.
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
        """What a result names when it says which run it is of: settings, the bytes of its caches, and the weights it started from.

        How it is carried out and watched is not in it: a run goes on when it is moved to another mesh. Nor is any place: it goes on when
        its home is moved. Nor is a field that came later and has the value that all runs had before (`trainer.config.added`).
        """
        return digest_of_json(without_added(self.decisive))

    @property
    def decisive(self) -> dict[str, Any]:
        """What the digest is of: every setting that decides the weights, the content of each cache, and no place."""
        return {**bound_by_result(self.model_dump(mode="json")), "caches": {name: self.cache_name(name) for name in self.caches}}

    @property
    def digest_with_places(self) -> str:
        """What results of before named: the same with the paths in it."""
        without = {"execution", "instrumentation", "evaluation", "until_step", "cache_digests"}
        return digest_of_json(without_added(self.model_dump(mode="json", exclude=without)))

    def cache_name(self, component: Component) -> str:
        """What names the bytes of a cache: its digest, or the folder's name where that is made of its key, or else its place."""
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
