"""A budget: of a component that has more text than a run draws, as many whole files as the run needs, and no more.

The files come in the order of the SHA-256 of their names, so that they are a sample of the whole and not its first folders, and so that a
larger budget begins with the files of a smaller one. Nothing but names and listed sizes decides the choice: it is known before a byte is
read. How many tokens a file holds is an assumption, stated below; what it came to is in the cache's manifest, and a cache that came out too
small is refused before training.
"""

from collections.abc import Mapping

from pydantic import Field

from phasewise.tasks.data.formats.streams import is_packed
from phasewise.tasks.data.parts import Bundle, part_bytes
from phasewise.tasks.data.reading import pieces_of
from phasewise.tasks.data.source import Source
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import digest_of_bytes
from phasewise.trainer.data.manifest import SourceFile

MARGIN = 1.25
"""By default so much more is read than is drawn: files differ, filters and copies take some away."""
PLAIN_BYTES_A_TOKEN = 5.0
"""Of a file of text: about 4.4 bytes of English a token of a vocabulary of 128,000, and what JSON puts around them."""
PACKING = {"packed": 2.5, "parquet": 2.0, "plain": 1.0}
"""By how much a file is smaller than its text, assumed."""
TRAIN_SHARE = 15 / 16
"""One document in sixteen is held out."""


class Budget(Frozen):
    """What of a component is read.

    Attributes:
        tokens: to train on, which were asked for.
        files, bytes: what was chosen for them; `of_files`, `of_bytes` what the source has.
        part_bytes: how much text a part of the documents holds: that of the whole source, so that a larger budget has the same parts.
    """

    tokens: int = Field(gt=0)
    files: int = Field(gt=0)
    of_files: int = Field(gt=0)
    bytes: int = Field(ge=0)
    of_bytes: int = Field(ge=0)
    part_bytes: int = Field(gt=0)

    @property
    def words(self) -> str:
        """How much of how much."""
        return f"{self.files:,} of {self.of_files:,} files, {self.bytes / 1e9:,.2f} of {self.of_bytes / 1e9:,.2f} GB"


class Budgeted(Source):
    """A source of which a part is read. Manifests say so: `described` has the budget."""

    budget: Budget


def budgeted(source: Source, budget: Budget | None) -> Source:
    """The source with its budget; itself where all of it is read."""
    return source if budget is None else Budgeted.model_validate({**source.model_dump(), "budget": budget.model_dump()})


def choose(source: Source, sizes: Mapping[str, int], tokens: int) -> tuple[tuple[str, ...], Budget | None]:
    """The files that hold about so many tokens to train on, in the order in which they are read; None with all of them, sorted by name.

    Args:
        sizes: file → bytes, of all that the source selects.
    """
    order = sorted(sizes, key=lambda name: (digest_of_bytes(name.encode()), name))
    chosen, found = list[str](), 0.0
    for name in order:
        if found >= tokens:
            break
        chosen.append(name)
        found += assumed_tokens(source, name, sizes[name])
    if len(chosen) == len(order):
        return tuple(sorted(sizes)), None
    everything = [SourceFile(name=name, size_bytes=size, digest="") for name, size in sizes.items()]
    budget = Budget(
        tokens=tokens,
        files=len(chosen),
        of_files=len(order),
        bytes=sum(sizes[name] for name in chosen),
        of_bytes=sum(sizes.values()),
        part_bytes=part_bytes(everything),
    )
    return tuple(chosen), budget


def assumed_tokens(source: Source, name: str, size_bytes: int) -> float:
    """Tokens to train on that a file of this size is taken to hold."""
    return TRAIN_SHARE * size_bytes * PACKING[_packing(source, name)] / PLAIN_BYTES_A_TOKEN


def bundles_by_piece(component: str, source: Source, files: tuple[SourceFile, ...]) -> tuple[Bundle, ...]:
    """A bundle a piece, so that what is read for more files begins with the bundles of fewer."""
    return tuple(Bundle(component, source, (piece,), number) for number, piece in enumerate(pieces_of(source, files)))


def shared(needs: Mapping[str, int], max_tokens: int | None) -> dict[str, int]:
    """Component → tokens that are asked for: its need with a margin, or, of so many in all, its share of what all need."""
    if max_tokens is None:
        return {name: max(1, round(MARGIN * need)) for name, need in needs.items()}
    total = sum(needs.values())
    return {name: max(1, round(max_tokens * need / total)) for name, need in needs.items()}


def _packing(source: Source, name: str) -> str:
    if source.format == "parquet":
        return "parquet"
    return "packed" if is_packed(name) else "plain"
