"""The benchmarks of a phase's gate from lm-eval, and needles: their keys, and their results in the gate's shape.

Real items come only from `PHASEWISE_BENCHMARKS` and from the recipe's own folder: a gate uses only items that the scan searched for.
Needles are hidden in held-out text of the recipe's main line, so a phase and its parent get equal items.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from phasewise.tasks.evaluation.benchmark_definitions import Asked, Definition, ask
from phasewise.tasks.evaluation.harness import BenchmarkResult, ItemAnswer, NotMeasured, Prepared, prepare
from phasewise.tasks.evaluation.needles import MIN_KEYS, Needles, least_length, prepare_needles
from phasewise.tasks.evaluation.own_benchmarks import find_benchmark, include_of
from phasewise.tasks.evaluation.settings import BENCHMARKS_VARIABLE, MIN_LENGTH, ItemFolders, needle_length, real_benchmarks
from phasewise.tasks.evaluation.suite import MEASURING, Answer, SuiteResult, measure
from phasewise.tasks.progress import say
from phasewise.trainer.base.errors import ConfigError, EvaluationError
from phasewise.trainer.base.identity import code_digest, digest_of_json

if TYPE_CHECKING:
    from phasewise.tasks.evaluation.language_model import JaxLanguageModel

SOURCE = "the phase's evaluation.benchmarks"


def gate_key(labels: Iterable[str], include: str | None = None) -> dict[str, str]:
    """Return label → digest of items, examples, definition and code, or raise a ConfigError as `gate_folders`."""
    named = sorted(labels)
    folders = gate_folders(named, include)
    keys: dict[str, str] = {}
    for label in named:
        # While size and time of the possible files are equal, the digest is not computed again
        definition = _definition(label, folders)
        splits = {part.split or definition.split for part in definition.parts} | {definition.shots_split or definition.split}
        folder = definition.folder or folders.benchmarks or Path()
        paths = sorted({folder / file for part in definition.parts for split in splits for file in part.files_of(split)})
        stats = [(str(path), path.stat()) for path in paths if path.is_file()]
        signature = tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)
        keys[label] = _digest(label, folders, (definition.texts_digest, signature))
    return keys


@lru_cache(maxsize=256)
def _digest(label: str, folders: ItemFolders, _signature: tuple[str, tuple[tuple[str, int, int], ...]]) -> str:
    prepared = prepare_item_files(label, folders)
    return digest_of_json([label, prepared.items_digest, prepared.definition_digest, code_digest(*MEASURING)])


def _definition(label: str, folders: ItemFolders) -> Definition:
    return find_benchmark(label.partition(":")[0], folders.include)


def prepare_item_files(label: str, folders: ItemFolders) -> Prepared:
    """Prepare a benchmark of a gate from its files, or raise a ConfigError."""
    definition = _definition(label, folders)
    try:
        return prepare(definition, ask(label, SOURCE), folders.benchmarks, allow_code=False)
    except NotMeasured as error:
        lacking = f"the gate asks {label}, and {folders.benchmarks} ({BENCHMARKS_VARIABLE}) lacks its files: {error}. Add them"
        wrong = f"the gate asks {label}, which cannot be measured: {error}. Correct it"
        raise ConfigError(f"{wrong if definition.folder or definition.runs_code else lacking}, or remove the benchmark.") from None


def gate_folders(labels: Iterable[str], include: str | None) -> ItemFolders:
    """Return the folders of the benchmarks' items. A ConfigError reports an unknown benchmark, or a missing variable."""
    own = include_of(include)
    outside = [label for label in sorted(labels) if find_benchmark(label.partition(":")[0], own).folder is None]
    folders = ItemFolders(benchmarks=real_benchmarks() if outside else None, include=own)
    if outside and folders.benchmarks is None:
        raise ConfigError(
            f"the gate asks {', '.join(outside)}: {BENCHMARKS_VARIABLE} must name a folder with their items, as JSON lines, and is not "
            "set. The scan searches the training data for these items."
        )
    return folders


def gate_results(model: "JaxLanguageModel", labels: Iterable[str], folders: ItemFolders) -> list[BenchmarkResult]:
    """Measure each benchmark on all of its items."""
    results: list[BenchmarkResult] = []
    for label in sorted(labels):
        prepared = prepare_item_files(label, folders)
        try:
            results.append(as_gate_result(*measure(model, prepared, limit=None)))
        except NotMeasured as error:
            raise EvaluationError(f"the gate asks {label}, which cannot be measured: {error}. Take it out of {SOURCE}.") from None
    return results


def as_gate_result(result: SuiteResult, answers: list[Answer]) -> BenchmarkResult:
    """Convert a suite's row to the gate's shape, with binary items. Likelihoods count only for items with one right choice."""
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
            id=answer["id"], right=bool(answer["value"]), baseline_right=None, group=None,
            gold=answer["gold"][0] if has_choices else 0, log_likelihoods=answer["log_likelihoods"] if has_choices else [],
            **({"ungraded": True} if answer["ungraded"] else {}),
        )
        for answer in answers
    ]  # fmt: skip
    return BenchmarkResult(
        benchmark=result["benchmark"], metric=result["metric"], value=value, stderr=result["stderr"] or 0.0, items=result["items"],
        baseline=baseline, answers=items, setting=setting,
    )  # fmt: skip


def needle_key(labels: Iterable[str], haystack: Mapping[str, str]) -> dict[str, str]:
    """Return label → digest of code and haystack, a mapping of components to digests of held-out text."""
    return {label: digest_of_json([label, dict(sorted(haystack.items())), code_digest(*MEASURING)]) for label in sorted(labels)}


def check_room(phase: str, labels: Sequence[str], tokenizer: Tokenizer) -> None:
    """Raise a ConfigError with the least length if a length has no room for two needles."""
    if not labels:
        return
    needles = Needles(length=MIN_LENGTH, keys=MIN_KEYS)
    least = least_length(needles, lambda text: 1 + len(tokenizer.encode(text, add_special_tokens=False).ids))
    if short := [label for label in labels if (needle_length(label) or 0) < least]:
        raise ConfigError(
            f"phase {phase} is too short for {', '.join(short)} (evaluation.benchmarks): {needles.keys} needles, question and answer take "
            f"up to {least} tokens. Take {short[0].partition(':')[0]}:{least} or more, or remove the benchmark."
        )


def needle_results(model: "JaxLanguageModel", labels: Iterable[str], words: Sequence[str]) -> list[BenchmarkResult]:
    """Measure each benchmark on all of its items, hidden in the text of `words`. A log line reports a reduced number of needles."""
    results: list[BenchmarkResult] = []
    for label in sorted(labels):
        length = needle_length(label) or 0
        asked = Asked(benchmark=label.partition(":")[0], shots=0, source=SOURCE, length=length)
        wanted = Needles(length=max(MIN_LENGTH, length))
        fewer = (wanted.but(keys=keys) for keys in range(wanted.keys, MIN_KEYS, -1))
        fits = (one for one in fewer if least_length(one, lambda text: len(model.tok_encode(text))) <= one.length)
        needles = next(fits, wanted.but(keys=MIN_KEYS))
        if needles.keys < wanted.keys:
            say(f"{label}: {needles.keys} needles in a text in place of {wanted.keys}, for which it has no room")
        try:
            prepared = prepare_needles(asked, model, lambda: words, needles=needles)
            results.append(as_gate_result(*measure(model, prepared, limit=None)))
        except NotMeasured as error:
            raise EvaluationError(f"the phase names {label}, which cannot be measured: {error}. Take it out of {SOURCE}.") from None
    return results


def words_of_held_out(caches: Mapping[str, Path], tokenizer: Tokenizer) -> list[str]:
    """Read the words of the first documents of each held-out cache."""
    from phasewise.tasks.evaluation.held_out import read_held_out_texts

    texts = read_held_out_texts(caches, tokenizer)
    return [word for documents in texts.values() for document in documents for word in document.text.split()]
