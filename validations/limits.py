"""What a recipe allows: the numbers that verdicts are measured against. None has a default."""

from pydantic import Field

from trainer.config import Frozen


class LeakageLimits(Frozen):
    """When a training document counts as containing a test item, and how many such items may be found.

    Attributes:
        ngram_words: length of the word n-grams that are compared.
        min_containment: the share of an item's distinct n-grams that must stand in one document to make it a hit.
        max_items: items that may be hit, for each component and benchmark.
    """

    ngram_words: int = Field(gt=0)
    min_containment: float = Field(gt=0, le=1)
    max_items: int = Field(ge=0)


class DataLimits(Frozen):
    """What the data of a phase must keep to.

    Attributes:
        max_share_error_points: realised against intended share of a component, in percentage points, over each stage.
        max_epochs: how often each row of a component may have been seen since step 0. `None` is unlimited.
    """

    max_share_error_points: float = Field(ge=0)
    max_epochs: float | None = Field(gt=0)
    leakage: LeakageLimits


class GateLimits(Frozen):
    """What a phase's last checkpoint must keep to before the next phase may start.

    Attributes:
        max_increase_bits_per_byte: macro bits per byte over the held-out components, above the parent's.
        must_beat_baseline: whether each benchmark must be strictly above its dumb baseline.
    """

    max_increase_bits_per_byte: float
    must_beat_baseline: bool
