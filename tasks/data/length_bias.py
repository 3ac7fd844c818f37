"""Which documents of a component are trained on, by their length: longer ones more often (Trinity Large report, §3.5).

A document is taken where a number from 0 to 1, which its digest and the seed decide, is below its chance. So it is the same for everyone,
in any order of reading, and whoever raises a chance takes more documents and drops none.
"""

import hashlib

from pydantic import Field, model_validator

from phasewise.trainer.base.frozen import Frozen

REASON = "length bias"
"""Under it a manifest counts the documents that were not taken."""


class LengthBias(Frozen):
    """The chance of a document of n tokens is `ceiling` · n / `full_tokens`, but at least `floor` and at most `ceiling`.

    Attributes:
        full_tokens: from this length on a document has the highest chance; the tokens that begin and end it do not count.
        seed: another one takes other documents.
    """

    floor: float = Field(ge=0, le=1)
    ceiling: float = Field(gt=0, le=1)
    full_tokens: int = Field(gt=0)
    seed: int = 0

    @model_validator(mode="after")
    def _rises(self) -> "LengthBias":
        if self.floor > self.ceiling:
            raise ValueError(f"the chance of a short document must be at most that of a long one, found {self.floor} and {self.ceiling}")
        return self

    def chance(self, tokens: int) -> float:
        """How likely a document of so many tokens is taken."""
        return max(self.floor, self.ceiling * min(1.0, tokens / self.full_tokens))

    def takes(self, document: str, tokens: int) -> bool:
        """Whether the document of this digest is taken."""
        drawn = hashlib.sha256(f"length bias {self.seed} {document}".encode()).digest()
        return int.from_bytes(drawn[:8], "big") < self.chance(tokens) * 2**64
