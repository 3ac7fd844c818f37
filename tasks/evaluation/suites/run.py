"""A suite on a model: what is kept holds, the rest is measured, and what cannot be is a row with its reason."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from phasewise.tasks.evaluation.needles import Needles
from phasewise.tasks.evaluation.suites.definition import Asked, Suite
from phasewise.tasks.evaluation.suites.kept import Kept, kept_path, read_kept, result_key, write_kept
from phasewise.tasks.evaluation.suites.known import find_definition
from phasewise.tasks.evaluation.suites.needle import Haystack, definition_of, prepare_needles
from phasewise.tasks.evaluation.suites.prepare import Hole, Prepared, prepare
from phasewise.tasks.evaluation.suites.result import SuiteResult, hole
from phasewise.tasks.progress import say
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.identity import digest_of_json

if TYPE_CHECKING:
    from phasewise.tasks.evaluation.language_model import JaxLanguageModel


class Options(NamedTuple):
    """How a suite is measured.

    Attributes:
        benchmarks: a folder with the items, as JSON lines; None is the hub.
        limit: only the first so many items of each part, for a look: such a value is compared with nothing.
        allow_code: run programs that the model writes, in a sandbox.
        haystack: gives the words of a text that the model never saw, for needles; None: there is none.
        needles: how they are asked; None is as by default.
    """

    benchmarks: Path | None
    limit: int | None = None
    allow_code: bool = False
    haystack: Haystack | None = None
    needles: Needles | None = None


class Measured(NamedTuple):
    """Of a suite: a row for each of its benchmarks, where it is kept, and which were read there."""

    results: list[SuiteResult]
    path: Path
    read: tuple[str, ...]


def run_suite(
    suite: Suite, model: "JaxLanguageModel", options: Options, *, place: Path, weights: str, about: Mapping[str, Any]
) -> Measured:
    """Measure a suite, or read what still holds. Each benchmark is kept as it ends.

    Args:
        place: the checkpoint or folder that the model is from. What is measured is written beside it.
        about: written into the file as well.

    Raises:
        ConfigError: there is no such folder of benchmarks.
        EvaluationError: an answer of the model is not finite, or lm-eval did not do as it was asked.
    """
    if options.benchmarks and not options.benchmarks.is_dir():
        raise ConfigError(f"--benchmarks must be a folder with a folder for each benchmark, found none at {options.benchmarks}.")
    named = name_model(model)
    path = kept_path(place, suite.name, weights, options.limit)
    kept = read_kept(path, named["params"])
    results: list[SuiteResult] = []
    read: list[str] = []
    for number, asked in enumerate(suite.asked):
        before = kept.get(asked.label)
        found = _measure(asked, model, options, before=before, named=named)
        if "key" not in found:
            results.append(found)
            say(f"{number + 1} of {len(suite.asked)}: {asked.label} not measured: {found['hole']}")
            continue
        if found is before:
            read.append(asked.label)
        else:
            kept[asked.label] = found
            write_kept(path, {**about, "suite": suite.name}, kept, [one.label for one in suite.asked])
            say(f"{number + 1} of {len(suite.asked)}: {_in_words(found['result'])}")
        results.append(found["result"])
    return Measured(results, path, tuple(read))


def name_model(model: "JaxLanguageModel") -> dict[str, Any]:
    """What decides a model's answers: weights, computation, tokenizer, how it begins a text, and what ends one that it writes."""
    from phasewise.trainer.state import params_digest

    return {
        "params": params_digest(model.params),
        "computation": model.config.model_dump(mode="json"),
        "tokenizer": digest_of_json([model.tokenizer.to_str(), model.begin_of_text, model.ends, model.begins_texts]),
        "seed": model.seed,
    }


def _measure(
    asked: Asked, model: "JaxLanguageModel", options: Options, *, before: Kept | None, named: Mapping[str, Any]
) -> Kept | SuiteResult:  # fmt: skip
    """What is kept, where it holds; else what is measured; else a hole."""
    if asked.length is None:
        definition = find_definition(asked.benchmark)
        prepared = prepare(definition, asked, options.benchmarks, allow_code=options.allow_code)
    else:
        needles = options.needles or Needles(length=asked.length)
        definition = definition_of(asked, needles.wording, needles.keys)
        prepared = prepare_needles(asked, model, options.haystack, needles=needles)
    if isinstance(prepared, Hole):
        return hole(definition, asked, prepared.reason)
    digest = _items_digest(prepared)
    if isinstance(digest, Hole):
        return hole(definition, asked, digest.reason)
    key = result_key(prepared, named, digest, options.limit)
    if before and before["key"] == key:
        return before
    from phasewise.tasks.evaluation.suites.measure import measure

    found = measure(model, prepared, limit=options.limit)
    if isinstance(found, Hole):
        return hole(definition, asked, found.reason)
    result, answers = found
    return Kept(key=key, params_digest=named["params"], result=result, answers=answers)


def _items_digest(prepared: Prepared) -> str | Hole:
    """Of the items' files; of the hub's, of the items themselves, which have to be loaded first."""
    if prepared.items_digest is not None:
        return prepared.items_digest
    from phasewise.tasks.evaluation.suites.hub import digest_of_hub_items

    return digest_of_hub_items(prepared)


def _in_words(result: SuiteResult) -> str:
    value, baseline = result["value"], result["baseline"]
    assert value is not None
    assert baseline is not None
    return (
        f"{result['benchmark']} {result['metric']} {value:.3f} (floor {baseline:.3f}), {result['items']:,} items, {result['seconds']:.1f} s"
    )
