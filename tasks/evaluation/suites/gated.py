"""The real benchmarks of a phase's gate: what decides them, and their results in the form that a gate judges.

Their items come from the folder that the scan for leaks reads (`PHASEWISE_BENCHMARKS`), and from nowhere else: no gate asks an item that
was not searched for in the data.
"""

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from phasewise.tasks.evaluation.answers import BenchmarkResult, ItemAnswer
from phasewise.tasks.evaluation.suites.definition import Asked
from phasewise.tasks.evaluation.suites.folder import BENCHMARKS_VARIABLE, real_benchmarks
from phasewise.tasks.evaluation.suites.kept import measuring_code
from phasewise.tasks.evaluation.suites.known import find_definition
from phasewise.tasks.evaluation.suites.prepare import Hole, Prepared, prepare
from phasewise.tasks.evaluation.suites.result import Answer, SuiteResult
from phasewise.trainer.base.errors import ConfigError, EvaluationError
from phasewise.trainer.base.identity import digest_of_json

if TYPE_CHECKING:
    from phasewise.tasks.evaluation.language_model import JaxLanguageModel

SOURCE = "the phase's evaluation.benchmarks"
KEPT_DIGESTS = 256


def gate_key(labels: Iterable[str]) -> dict[str, str]:
    """Benchmark → digest of everything that decides its score beside the model: items, examples, definition, code.

    Raises:
        ConfigError: no folder is named, or it lacks what a benchmark needs.
    """
    named = sorted(labels)
    folder = gate_folder(named)
    return {label: _digest(label, folder, _signature(folder, label)) for label in named} if folder else {}


def gate_folder(labels: Iterable[str]) -> Path | None:
    """Where the items of these benchmarks are; None where there are no labels.

    Raises:
        ConfigError: no folder is named.
    """
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
    """Each benchmark on all of its items.

    Raises:
        ConfigError: the folder lacks what a benchmark needs.
        EvaluationError: a benchmark cannot be put to this model, or an answer is not finite.
    """
    from phasewise.tasks.evaluation.suites.measure import measure  # it imports NumPy and more, which a question of what holds does without

    results: list[BenchmarkResult] = []
    for label in sorted(labels):
        found = measure(model, _prepared(label, folder), limit=None)
        if isinstance(found, Hole):
            raise EvaluationError(f"the gate asks {label}, which cannot be measured: {found.reason}. Take it out of {SOURCE}.")
        results.append(as_gate_result(*found))
    return results


def as_gate_result(result: SuiteResult, answers: list[Answer]) -> BenchmarkResult:
    """A row of a suite, and its answers, as a gate judges them.

    Raises:
        EvaluationError: an item is not simply right or wrong.
    """
    value, baseline, setting = result["value"], result["baseline"], result["setting"]
    assert value is not None
    assert baseline is not None
    assert setting is not None
    has_choices = all(len(answer["gold"]) == 1 and len(answer["log_likelihoods"]) > 1 for answer in answers)
    return BenchmarkResult(
        benchmark=result["benchmark"],
        metric=result["metric"],
        value=value,
        stderr=result["stderr"] or 0.0,
        items=result["items"],
        baseline=baseline,
        answers=[_item(result["benchmark"], answer, has_choices=has_choices) for answer in answers],
        setting=setting,
    )


def _item(benchmark: str, answer: Answer, *, has_choices: bool) -> ItemAnswer:
    """Where an item has several right choices, or none to choose from, the likelihoods of the benchmark tell a gate nothing."""
    if answer["value"] not in (0.0, 1.0):
        raise EvaluationError(
            f"a gate asks benchmarks whose items are right or wrong, found the value {answer['value']} of {answer['id']}. "
            f"Take {benchmark} out of {SOURCE}."
        )
    return ItemAnswer(
        id=answer["id"],
        right=bool(answer["value"]),
        baseline_right=None,
        group=None,
        gold=answer["gold"][0] if has_choices else 0,
        log_likelihoods=answer["log_likelihoods"] if has_choices else [],
    )


def _asked(label: str) -> Asked:
    name, _, shots = label.partition(":")
    return Asked(benchmark=name, shots=int(shots), source=SOURCE)


def _prepared(label: str, folder: Path) -> Prepared:
    asked = _asked(label)
    prepared = prepare(find_definition(asked.benchmark), asked, folder, allow_code=False)
    if isinstance(prepared, Hole):
        raise ConfigError(
            f"the gate asks {label}, and {folder} ({BENCHMARKS_VARIABLE}) does not have what it needs: {prepared.reason}. Put it there, or "
            f"take {label} out of {SOURCE}."
        )
    return prepared


def _signature(folder: Path, label: str) -> tuple[tuple[str, int, int], ...]:
    """The files that a benchmark may read, with size and time of change: while these are the same its digest is not worked out again."""
    definition = find_definition(_asked(label).benchmark)
    splits = {part.split or definition.split for part in definition.parts} | {definition.shots_split or definition.split}
    places = {folder / part.file.format(split=split) for part in definition.parts for split in splits}
    found = [(str(place), place.stat()) for place in sorted(places) if place.is_file()]
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in found)


@lru_cache(maxsize=KEPT_DIGESTS)
def _digest(label: str, folder: Path, _signature: tuple[tuple[str, int, int], ...]) -> str:
    prepared = _prepared(label, folder)
    return digest_of_json([label, prepared.items_digest, prepared.definition_digest, measuring_code()])
