"""How likely a model finds the answers of test items under two renderings, and those of items of the same kind that nobody has seen.

A gate asks by it whether the model has seen the items (`validations.evidence.fragility`).
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from pydantic import Field, field_validator

from phasewise.trainer.base.errors import DataError, EvaluationError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import digest_of_file, digest_of_json
from phasewise.trainer.base.storage import as_path, parse_json

if TYPE_CHECKING:
    from phasewise.tasks.evaluation.language_model import JaxLanguageModel

MIN_ITEMS = 8
_FIELD = re.compile(r"\{(\w+)\}")


class Renderings(Frozen):
    """Two renderings of the same test items, and where the items are.

    Attributes:
        items: the test items, as JSON lines: a path or a URL.
        reference: items of the same kind that are in no data, such as those that are made for the purpose by the benchmark's own rules.
        prompt: what comes before an answer; `{question}` is the field of that name.
        answer: the field with the answer, in its first rendering.
        left_out: a regular expression. What it matches in the answer is not in the second rendering, such as calculator tags, `<<.*?>>`.
    """

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


class Rendered(NamedTuple):
    """One item."""

    prompt: str
    first: str
    second: str


class ReadNats(TypedDict):
    """Log-likelihoods in nats of the answers under the first and the second rendering; how many items the model cannot see whole."""

    first: list[float]
    second: list[float]
    too_long: int


class ReadRenderings(TypedDict):
    """What an evaluation has of it. `rule` is the digest of how the items are rendered."""

    rule: str
    items_digest: str
    reference_digest: str
    items: ReadNats
    reference: ReadNats


def renderings_key(renderings: Renderings) -> dict[str, str]:
    """The digests of what decides it beside the model: the rule, and both files.

    Raises:
        DataError: a file is not there.
    """
    return {
        "rule": digest_of_json([renderings.prompt, renderings.answer, renderings.left_out]),
        "items_digest": _digest(renderings.items),
        "reference_digest": _digest(renderings.reference),
    }


def check_renderings(renderings: Renderings) -> None:
    """Refuse files that tell nothing.

    Raises:
        DataError: as `read_items`; or an item is in both files.
    """
    items, reference = (read_items(renderings, url) for url in (renderings.items, renderings.reference))
    if shared := {*items} & {*reference}:
        example = sorted(shared)[0].prompt[:80]
        raise DataError(
            f"items of the reference must be in no data and no benchmark, and {len(shared)} of {renderings.reference} are in "
            f"{renderings.items} too, such as {example!r}. Take them out of the reference."
        )


def read_items(renderings: Renderings, url: str) -> list[Rendered]:
    """The items of a file whose two renderings differ.

    Raises:
        DataError: the file is not there, has lines of another form, or fewer than eight such items.
    """
    found: list[Rendered] = []
    try:
        lines = as_path(url).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{url} must be a file of JSON lines with the items of two renderings, and cannot be read: {error}.") from None
    for number, line in enumerate(lines, start=1):
        if line.strip():
            item = _render(renderings, _row(line, f"{url}, line {number}"), f"{url}, line {number}")
            found += [item] if item.first != item.second else []
    if len(found) < MIN_ITEMS:
        raise DataError(
            f"{url} must have at least {MIN_ITEMS} items whose two renderings differ, found {len(found)}: "
            f"left_out {renderings.left_out!r} matches nothing in the field {renderings.answer} of the others."
        )
    return found


def measure_renderings(model: "JaxLanguageModel", renderings: Renderings) -> ReadRenderings:
    """Every item of both files that the model can see whole.

    Raises:
        DataError: as `check_renderings`.
        EvaluationError: fewer than eight items of a file are short enough, or an answer of the model is not finite.
    """
    check_renderings(renderings)
    key = renderings_key(renderings)
    nats = {url: _read_nats(model, read_items(renderings, url), url) for url in (renderings.items, renderings.reference)}
    return ReadRenderings(
        rule=key["rule"],
        items_digest=key["items_digest"],
        reference_digest=key["reference_digest"],
        items=nats[renderings.items],
        reference=nats[renderings.reference],
    )


def _read_nats(model: "JaxLanguageModel", items: Sequence[Rendered], url: str) -> ReadNats:
    from lm_eval.api.instance import Instance

    seen = [item for item in items if _is_seen(model, item)]
    if len(seen) < MIN_ITEMS:
        raise EvaluationError(
            f"at least {MIN_ITEMS} items of {url} must fit in the {model.max_length} tokens that the model sees, found {len(seen)} of "
            f"{len(items)}. Take renderings out of the phase's evaluation, or name shorter items."
        )
    pairs = [(item.prompt, answer) for item in seen for answer in (item.first, item.second)]
    requests = [Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(pairs)]
    nats = [score for score, _ in model.loglikelihood(requests)]
    return ReadNats(first=nats[::2], second=nats[1::2], too_long=len(items) - len(seen))


def _is_seen(model: "JaxLanguageModel", item: Rendered) -> bool:
    return max(len(model.tok_encode(item.prompt + answer)) for answer in (item.first, item.second)) <= model.max_length


def _row(line: str, where: str) -> dict[str, Any]:
    try:
        row = parse_json(line)
    except ValueError as error:
        raise DataError(f"{where} must be a JSON object, and is not: {error}.") from None
    if not isinstance(row, dict):
        raise DataError(f"{where} must be a JSON object, found {type(row).__name__}.")
    return row


def _render(renderings: Renderings, row: dict[str, Any], where: str) -> Rendered:
    wanted = {*_FIELD.findall(renderings.prompt), renderings.answer}
    if wrong := sorted(name for name in wanted if not isinstance(row.get(name), str)):
        raise DataError(
            f"{where} must have the {'field' if len(wrong) == 1 else 'fields'} {', '.join(wrong)} with text, found {sorted(row)}."
        )
    first = f" {row[renderings.answer]}"
    prompt = _FIELD.sub(lambda found: row[found[1]], renderings.prompt)
    return Rendered(prompt, first, re.sub(renderings.left_out, "", first))


def _digest(url: str) -> str:
    try:
        return digest_of_file(url)
    except OSError as error:
        raise DataError(f"{url} must have the items of two renderings, and cannot be read: {error}.") from None
