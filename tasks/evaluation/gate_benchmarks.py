"""The benchmarks of a phase's gate that lm-eval has, and needles: the digests that decide them, and their results as a gate judges them.

Items of real benchmarks come only from the folder that the scan for leaks reads (`PHASEWISE_BENCHMARKS`): no gate asks an item that the
scan did not search for. Needles are hidden in the held-out text of the recipe's main line, so a phase and its parent get the same items.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from phasewise.tasks.evaluation.benchmark_definitions import Asked, ask, find_definition
from phasewise.tasks.evaluation.harness import BenchmarkResult, ItemAnswer, NotMeasured, Prepared, prepare
from phasewise.tasks.evaluation.needles import MIN_KEYS, Needles, least_length, prepare_needles, with_room
from phasewise.tasks.evaluation.settings import BENCHMARKS_VARIABLE, MIN_LENGTH, needle_length, real_benchmarks
from phasewise.tasks.evaluation.suite import Answer, SuiteResult, measure, measuring_code
from phasewise.tasks.progress import say
from phasewise.trainer.base.errors import ConfigError, EvaluationError
from phasewise.trainer.base.identity import digest_of_json

if TYPE_CHECKING:
    from phasewise.tasks.evaluation.language_model import JaxLanguageModel

SOURCE = "the phase's evaluation.benchmarks"


def gate_key(labels: Iterable[str]) -> dict[str, str]:
    """Map each benchmark to the digest of its items, examples, definition and code.

    Raises:
        ConfigError: no folder is named, or it lacks what a benchmark needs.
    """
    named = sorted(labels)
    folder = gate_folder(named)
    return {label: _digest(label, folder, _signature(folder, label)) for label in named} if folder else {}


def gate_folder(labels: Iterable[str]) -> Path | None:
    """Return the folder of the benchmarks' items; None without labels."""
    named = sorted(labels)
    if not named:
        return None
    folder = real_benchmarks()
    if folder is None:
        raise ConfigError(
            f"the gate asks {', '.join(named)}: {BENCHMARKS_VARIABLE} must name a folder with their items, as JSON lines, and is not set. "
            "The scan searches the data for what is in it."
        )
    return folder


def gate_results(model: "JaxLanguageModel", labels: Iterable[str], folder: Path) -> list[BenchmarkResult]:
    """Measure each benchmark on all of its items."""
    results: list[BenchmarkResult] = []
    for label in sorted(labels):
        prepared = _prepared(label, folder)
        try:
            results.append(as_gate_result(*measure(model, prepared, limit=None)))
        except NotMeasured as error:
            raise EvaluationError(f"the gate asks {label}, which cannot be measured: {error}. Take it out of {SOURCE}.") from None
    return results


def as_gate_result(result: SuiteResult, answers: list[Answer]) -> BenchmarkResult:
    """Turn a row of a suite and its answers into what a gate judges: items that are right or wrong.

    The likelihoods of a benchmark whose items have several right choices, or none, tell a gate nothing: they are left out.
    """
    value, baseline, setting = result["value"], result["baseline"], result["setting"]
    assert value is not None
    assert baseline is not None
    assert setting is not None
    if wrong := next((answer for answer in answers if answer["value"] not in (0.0, 1.0)), None):
        raise EvaluationError(
            f"a gate asks benchmarks whose items are right or wrong, found the value {wrong['value']} of {wrong['id']}. "
            f"Take {result['benchmark']} out of {SOURCE}."
        )
    has_choices = all(len(answer["gold"]) == 1 and len(answer["log_likelihoods"]) > 1 for answer in answers)
    items = [
        ItemAnswer(
            id=answer["id"],
            right=bool(answer["value"]),
            baseline_right=None,
            group=None,
            gold=answer["gold"][0] if has_choices else 0,
            log_likelihoods=answer["log_likelihoods"] if has_choices else [],
        )
        for answer in answers
    ]
    return BenchmarkResult(
        benchmark=result["benchmark"],
        metric=result["metric"],
        value=value,
        stderr=result["stderr"] or 0.0,
        items=result["items"],
        baseline=baseline,
        answers=items,
        setting=setting,
    )


def _prepared(label: str, folder: Path) -> Prepared:
    asked = ask(label, SOURCE)
    try:
        return prepare(find_definition(asked.benchmark), asked, folder, allow_code=False)
    except NotMeasured as error:
        raise ConfigError(
            f"the gate asks {label}, and {folder} ({BENCHMARKS_VARIABLE}) does not have what it needs: {error}. Put it there, or "
            f"take {label} out of {SOURCE}."
        ) from None


def _signature(folder: Path, label: str) -> tuple[tuple[str, int, int], ...]:
    """The files that a benchmark may read, with size and time of change: while these are the same its digest is not computed again."""
    definition = find_definition(label.partition(":")[0])
    splits = {part.split or definition.split for part in definition.parts} | {definition.shots_split or definition.split}
    places = {folder / part.file.format(split=split) for part in definition.parts for split in splits}
    found = [(str(place), place.stat()) for place in sorted(places) if place.is_file()]
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in found)


@lru_cache(maxsize=256)
def _digest(label: str, folder: Path, _signature: tuple[tuple[str, int, int], ...]) -> str:
    prepared = _prepared(label, folder)
    return digest_of_json([label, prepared.items_digest, prepared.definition_digest, measuring_code()])


def needle_key(labels: Iterable[str], haystack: Mapping[str, str]) -> dict[str, str]:
    """Map each benchmark to the digest of everything that decides its score, except the model and its tokenizer.

    Args:
        haystack: component → digest of its held-out text.
    """
    return {label: digest_of_json([label, dict(sorted(haystack.items())), measuring_code()]) for label in sorted(labels)}


def check_room(phase: str, labels: Sequence[str], tokenizer: Tokenizer) -> None:
    """Refuse lengths without room for two needles, by the tokenizer that the phase trains with.

    Raises:
        ConfigError: with the least length.
    """
    if not labels:
        return
    needles = Needles(length=MIN_LENGTH, keys=MIN_KEYS)
    least = least_length(needles, lambda text: 1 + len(tokenizer.encode(text, add_special_tokens=False).ids))
    if short := [label for label in labels if (needle_length(label) or 0) < least]:
        raise ConfigError(
            f"phase {phase} cannot be asked {', '.join(short)} (evaluation.benchmarks): {needles.keys} needles, their question and its "
            f"answer take up to {least} tokens of its tokenizer. Take {short[0].partition(':')[0]}:{least} or more, or take it out."
        )


def needle_results(model: "JaxLanguageModel", labels: Iterable[str], words: Sequence[str]) -> list[BenchmarkResult]:
    """Measure each benchmark on all of its items. A short one has fewer needles, down to two, which is logged.

    Args:
        words: of the text that needles are hidden in.
    """
    results: list[BenchmarkResult] = []
    for label in sorted(labels):
        length = needle_length(label) or 0
        asked = Asked(benchmark=label.partition(":")[0], shots=0, source=SOURCE, length=length)
        wanted = Needles(length=max(MIN_LENGTH, length))
        needles = with_room(wanted, lambda text: len(model.tok_encode(text)))
        if needles.keys < wanted.keys:
            say(f"{label}: {needles.keys} needles in a text in place of {wanted.keys}, for which it has no room")
        try:
            prepared = prepare_needles(asked, model, lambda: words, needles=needles)
            results.append(as_gate_result(*measure(model, prepared, limit=None)))
        except NotMeasured as error:
            raise EvaluationError(f"the phase names {label}, which cannot be measured: {error}. Take it out of {SOURCE}.") from None
    return results


def words_of_held_out(caches: Mapping[str, Path], tokenizer: Tokenizer) -> list[str]:
    """The words of the first documents of each component's held-out cache."""
    from phasewise.tasks.evaluation.held_out import read_held_out_texts

    texts = read_held_out_texts(caches, tokenizer)
    return [word for documents in texts.values() for document in documents for word in document.text.split()]
