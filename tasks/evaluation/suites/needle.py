"""MK-NIAH as benchmarks of lm-eval, at any length: made for a model, by the tokens of its own tokenizer, from a text that it never saw.

`niah:8192` is a choice among the values of all keys in a text of 8,192 tokens, and `niah_written:8192` has the model write the value.
"""

import json
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phasewise.tasks.evaluation.needles import MAX_NEW_TOKENS, MIN_LENGTH, NeedleItem, Needles, Wording, build_items
from phasewise.tasks.evaluation.suites.definition import Asked, Definition, Part, Suite
from phasewise.tasks.evaluation.suites.prepare import Hole, Prepared, PreparedPart
from phasewise.trainer.base.errors import ConfigError, DataError
from phasewise.trainer.base.identity import digest_of_bytes, digest_of_json

if TYPE_CHECKING:
    from phasewise.tasks.evaluation.language_model import JaxLanguageModel

NAME, WRITTEN = "niah", "niah_written"
HERE = "after MK-NIAH of RULER, which Trinity's report names; items, words and depths are this project's"
PARTS_OF_ROW = (4, 2, 1)
"""Where no length is named: a quarter, half and all of what the model reads."""
FOLDER = "niah"
Haystack = Callable[[], Sequence[str]]


def names_needles(suite: str) -> bool:
    """Whether a suite's name means needles: `niah`, or `niah:LENGTH[,LENGTH…]`."""
    return suite.partition(":")[0] == NAME


def lengths_of(suite: str) -> tuple[int, ...]:
    """The lengths that a suite's name has; none where the model decides.

    Raises:
        ConfigError: one is no number, too short, or named twice.
    """
    _, colon, named = suite.partition(":")
    words = named.split(",") if colon else []
    lengths = tuple(int(word) for word in words if word.isascii() and word.isdigit())
    if len(lengths) < len(words) or len(set(lengths)) < len(lengths) or any(length < MIN_LENGTH for length in lengths):
        raise ConfigError(
            f"--suite {NAME}:LENGTH[,LENGTH…] must have lengths in tokens, each once and {MIN_LENGTH} or more, found {suite!r}: for "
            f"example {NAME}:4096,8192."
        )
    return lengths


def needle_suite(lengths: Sequence[int], max_length: int) -> Suite:
    """Both benchmarks at each length.

    Args:
        lengths: none are parts of `max_length`, the tokens that the model reads.
    """
    chosen = list(lengths) or sorted({max(MIN_LENGTH, max_length // part) for part in PARTS_OF_ROW})
    asked = tuple(Asked(benchmark=name, shots=0, source=HERE, length=length) for length in chosen for name in (NAME, WRITTEN))
    named = "-".join([NAME, *map(str, lengths)])
    return Suite(name=named, about="a value among several, hidden in a long text", asked=asked)


def words_of_folder(benchmarks: Path) -> Sequence[str]:
    """The words of the text files in the folder `niah` of a folder of benchmarks.

    Raises:
        DataError: there are none.
    """
    files = sorted((benchmarks / FOLDER).glob("*.txt"))
    words = [word for file in files for word in file.read_text(encoding="utf-8").split()]
    if not words:
        raise DataError(f"no text to hide needles in: put one that the model never saw into {FOLDER}/*.txt of the folder of --benchmarks")
    return words


def definition_of(asked: Asked, wording: Wording, keys: int) -> Definition:
    """What a row says of the benchmark."""
    is_written = asked.benchmark == WRITTEN
    return Definition(
        name=asked.benchmark,
        parts=(Part(task=f"{asked.benchmark}_{asked.length}", file=f"{FOLDER}/*.txt"),),
        metric="exact_match" if is_written else "acc",
        filter="first-word" if is_written else "none",
        shots_split=None,
        settings=_written() if is_written else _choice(),
        remark=f"{keys} keys, in words of this project" if wording == Wording() else f"{keys} keys, in words of its own",
    )


def prepare_needles(
    asked: Asked, model: "JaxLanguageModel", haystack: Haystack | None, *, needles: Needles | None = None
) -> Prepared | Hole:
    """What lm-eval needs to put the items of one length to a model, or why they cannot be put.

    Args:
        haystack: gives the words of the text; None: there is none.
        needles: number of keys, depths and words; its length is that of `asked`.
    """
    assert asked.length is not None
    if asked.length > model.max_length:
        return Hole(
            f"its items have {asked.length:,} tokens, and the model reads {model.max_length:,}: the needle would be cut off. With "
            f"--context {asked.length} it reads more than it was trained on"
        )
    wanted = (needles or Needles(length=asked.length)).but(length=asked.length)
    if haystack is None:
        return Hole(f"no text to hide needles in: give one with --benchmarks DIR, in DIR/{FOLDER}/*.txt")
    try:
        items = build_items(wanted, haystack(), lambda text: len(model.tok_encode(text)))
    except DataError as error:
        return Hole(str(error))
    if too_long := [item.id for item in items if item.tokens + MAX_NEW_TOKENS > asked.length]:
        return Hole(f"{len(too_long)} of its prompts are longer than the {asked.length:,} tokens that they must have with an answer")
    return _prepared(definition_of(asked, wanted.wording, wanted.keys), asked, items)


def _prepared(definition: Definition, asked: Asked, items: Sequence[NeedleItem]) -> Prepared:
    lines = "".join(json.dumps(item.model_dump(mode="json"), sort_keys=True) + "\n" for item in items).encode()
    task = definition.parts[0].task
    data = {"dataset_path": "json", "dataset_name": None, "fewshot_split": None, "task": task, "num_fewshot": 0}
    part = PreparedPart(task, definition.settings | data, {"test": lines})
    return Prepared(
        definition, asked, (part,),
        items_digest=digest_of_json([[task, "test", digest_of_bytes(lines)]]),
        definition_digest=digest_of_json([version("lm_eval"), definition.metric, definition.filter, part.definition]),
    )  # fmt: skip


def _choice() -> dict[str, Any]:
    """The value asked for against those of the other keys, by likelihood."""
    return {
        "output_type": "multiple_choice", "test_split": "test", "doc_to_text": "{{prompt}}", "doc_to_choice": "{{choices}}",
        "doc_to_target": "gold", "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
        "metadata": {"version": 1.0},
    }  # fmt: skip


def _written() -> dict[str, Any]:
    """The first word that the model writes, without a full stop or comma behind it, must be the value."""
    first = [{"function": "regex", "regex_pattern": r"([^\s.,]+)", "group_select": 0}, {"function": "take_first"}]
    return {
        "output_type": "generate_until", "test_split": "test", "doc_to_text": "{{prompt}}", "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["\n", "."], "do_sample": False, "temperature": 0.0, "max_gen_toks": MAX_NEW_TOKENS},
        "filter_list": [{"name": "first-word", "filter": first}],
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}], "metadata": {"version": 1.0},
    }  # fmt: skip
