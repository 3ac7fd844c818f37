"""Settings of a phase's evaluation: names of benchmarks, the bound on held-out text, and test items under two renderings.

A gate compares two renderings to detect items in the training data (`validations.evidence.fragility`). Importing this module is cheap.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import Field, field_validator

from phasewise.trainer.base.errors import ConfigError, DataError, EvaluationError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import digest_of_file, digest_of_json
from phasewise.trainer.base.storage import as_path, parse_json
from phasewise.validations.limits import is_needle

if TYPE_CHECKING:
    from phasewise.tasks.evaluation.language_model import JaxLanguageModel

MADE_BENCHMARKS = ("word_order", "next_word")  # built from held-out text by `tasks.evaluation.made_benchmarks`
BENCHMARKS_VARIABLE = "PHASEWISE_BENCHMARKS"
OwnBenchmark = tuple[str, str]
"""A label outside `benchmarks.yaml` with `evaluation.include` or an empty text, or `OWN_TEXT` with `evaluation.held_out`."""
MIN_LENGTH = 64  # least tokens of a text with needles, for any tokenizer
MIN_ITEMS = 8
_FIELD = re.compile(r"\{(\w+)\}")


class Renderings(Frozen):
    """Two renderings of test items in JSON lines, with and without matches of `left_out`, and such `reference` items outside all data."""

    items: str = Field(min_length=1)
    reference: str = Field(min_length=1)
    prompt: str = Field(min_length=1)
    answer: str = Field(min_length=1)
    left_out: str = Field(min_length=1)

    @field_validator("left_out")
    @classmethod
    def _is_a_pattern(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"left_out must be a regular expression, found {pattern!r}: {error}") from None
        return pattern


class ItemFolders(NamedTuple):
    """Folders with items of a gate: `PHASEWISE_BENCHMARKS`, and the own benchmarks of a recipe (`evaluation.include`)."""

    benchmarks: Path | None = None
    include: Path | None = None


class Measured(Frozen):
    """Names of benchmarks, the bound on each component's held-out tokens (None is all), optional renderings, own benchmarks and text."""

    benchmarks: tuple[str, ...]
    held_out_tokens: int | None
    renderings: Renderings | None = None
    include: str | None = None
    held_out: str | None = None
    every_steps: int | None = None


class Rendered(NamedTuple):
    """The prompt of an item, and its answer under both renderings."""

    prompt: str
    first: str
    second: str


def made_of(names: Iterable[str]) -> tuple[str, ...]:
    """Select the benchmarks from held-out text."""
    return tuple(name for name in names if name in MADE_BENCHMARKS)


def real_of(names: Iterable[str]) -> tuple[str, ...]:
    """Select lm-eval's benchmarks, such as `arc_easy:10`."""
    return tuple(name for name in names if name not in MADE_BENCHMARKS and not is_needle(name))


def needles_of(names: Iterable[str]) -> tuple[str, ...]:
    """Select the benchmarks of needles, such as `niah:4096`."""
    return tuple(name for name in names if is_needle(name))


def needle_length(name: str) -> int | None:
    """Read the tokens in the name of a benchmark of needles, or return None."""
    _, _, length = name.partition(":")
    return int(length) if length.isascii() and length.isdigit() and str(int(length)) == length else None


def real_benchmarks() -> Path | None:
    """Return the folder in `PHASEWISE_BENCHMARKS`, for the scan and the gates. A ConfigError reports a missing folder."""
    if not (named := os.environ.get(BENCHMARKS_VARIABLE)):
        return None
    path = as_path(named)
    if not path.exists():
        raise ConfigError(f"{BENCHMARKS_VARIABLE} names {named}, which does not exist: correct it, or leave it unset.")
    return path


def renderings_key(renderings: Renderings) -> dict[str, str]:
    """Digest the rule and both files, or raise a DataError if a file is missing."""
    key = {"rule": digest_of_json([renderings.prompt, renderings.answer, renderings.left_out])}
    for name, url in (("items_digest", renderings.items), ("reference_digest", renderings.reference)):
        try:
            key[name] = digest_of_file(url)
        except OSError as error:
            raise DataError(f"{url} must have the items of two renderings, and cannot be read: {error}.") from None
    return key


def own_text_key(url: str) -> str:
    """Digest the files of an own held-out text, or raise a ConfigError if there is none."""
    path = as_path(url).expanduser()
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    if not files or not path.exists():
        raise ConfigError(f"evaluation.held_out: expected a file or a folder with text, found none at {url}. Correct the path.")
    return digest_of_json([[str(file.relative_to(path)), digest_of_file(file)] for file in files])


def check_renderings(renderings: Renderings) -> None:
    """Raise a DataError for invalid files, or for items in both files."""
    items, reference = (read_items(renderings, url) for url in (renderings.items, renderings.reference))
    if shared := {*items} & {*reference}:
        example = sorted(shared)[0].prompt[:80]
        raise DataError(
            f"items of the reference must be in no data and no benchmark, and {len(shared)} of {renderings.reference} are in "
            f"{renderings.items} too, such as {example!r}. Take them out of the reference."
        )


def read_items(renderings: Renderings, url: str) -> list[Rendered]:
    """Read the items with two different renderings. A DataError reports malformed lines, or fewer than `MIN_ITEMS` items."""
    wanted = {*_FIELD.findall(renderings.prompt), renderings.answer}
    found: list[Rendered] = []
    try:
        lines = as_path(url).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{url} must be a file of JSON lines with the items of two renderings, and cannot be read: {error}.") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{url}, line {number}"
        try:
            row: Any = parse_json(line)
        except ValueError as error:
            raise DataError(f"{where} must be a JSON object, and is not: {error}.") from None
        if not isinstance(row, dict):
            raise DataError(f"{where} must be a JSON object, found {type(row).__name__}.")
        if wrong := sorted(name for name in wanted if not isinstance(row.get(name), str)):
            raise DataError(
                f"{where} must have the {'field' if len(wrong) == 1 else 'fields'} {', '.join(wrong)} with text, found {sorted(row)}."
            )
        first = f" {row[renderings.answer]}"
        second = re.sub(renderings.left_out, "", first)
        if first != second:
            found.append(Rendered(_FIELD.sub(lambda field, row=row: row[field[1]], renderings.prompt), first, second))
    if len(found) < MIN_ITEMS:
        raise DataError(
            f"{url} must have at least {MIN_ITEMS} items whose two renderings differ, found {len(found)}: "
            f"left_out {renderings.left_out!r} matches nothing in the field {renderings.answer} of the others."
        )
    return found


def measure_renderings(model: "JaxLanguageModel", renderings: Renderings) -> dict[str, Any]:
    """Measure every item of both files within the context length."""
    check_renderings(renderings)
    found: dict[str, Any] = renderings_key(renderings)
    for name, url in (("items", renderings.items), ("reference", renderings.reference)):
        items = read_items(renderings, url)
        seen = [
            item
            for item in items
            if max(len(model.tok_encode(item.prompt + answer)) for answer in (item.first, item.second)) <= model.max_length
        ]
        if len(seen) < MIN_ITEMS:
            raise EvaluationError(
                f"at least {MIN_ITEMS} items of {url} must fit in the {model.max_length} tokens that the model sees, found {len(seen)} of "
                f"{len(items)}. Take renderings out of the phase's evaluation, or name shorter items."
            )
        scores = model.log_likelihoods([(item.prompt, answer) for item in seen for answer in (item.first, item.second)])
        found[name] = {"first": scores[::2], "second": scores[1::2], "too_long": len(items) - len(seen)}
    return found
