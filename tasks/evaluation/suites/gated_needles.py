"""Needles (`niah:LENGTH`) that a phase names: what decides them, whether there is room for them, and their results as a gate judges them.

They are hidden in the held-out text of the recipe's main line, so a phase and its parent are asked the same items.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from phasewise.tasks.evaluation.answers import BenchmarkResult
from phasewise.tasks.evaluation.measured import needle_length
from phasewise.tasks.evaluation.needle_lengths import MIN_LENGTH
from phasewise.tasks.evaluation.needles import MIN_KEYS, Needles, least_length, with_room
from phasewise.tasks.evaluation.suites.definition import Asked
from phasewise.tasks.evaluation.suites.gated import SOURCE, as_gate_result
from phasewise.tasks.evaluation.suites.kept import measuring_code
from phasewise.tasks.evaluation.suites.needle import prepare_needles
from phasewise.tasks.evaluation.suites.prepare import Hole
from phasewise.tasks.progress import say
from phasewise.trainer.base.errors import ConfigError, EvaluationError
from phasewise.trainer.base.identity import digest_of_json

if TYPE_CHECKING:
    from phasewise.tasks.evaluation.language_model import JaxLanguageModel


def needle_key(labels: Iterable[str], haystack: Mapping[str, str]) -> dict[str, str]:
    """Benchmark → digest of everything that decides its score beside the model and its tokenizer.

    Args:
        haystack: component → digest of its held-out text.
    """
    return {label: digest_of_json([label, dict(sorted(haystack.items())), measuring_code()]) for label in sorted(labels)}


def check_room(phase: str, labels: Sequence[str], tokenizer: Tokenizer) -> None:
    """Refuse lengths that have no room for two needles and nothing else, by the tokenizer that the phase trains with.

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
    """Each benchmark on all of its items. A short one has fewer needles, down to two: as many as there is room for, which is said.

    Args:
        words: of the text that needles are hidden in.

    Raises:
        EvaluationError: a benchmark cannot be put to this model, or an answer is not finite.
    """
    from phasewise.tasks.evaluation.suites.measure import measure  # it imports NumPy and more, which a question of what holds does without

    results: list[BenchmarkResult] = []
    for label in sorted(labels):
        asked = Asked(benchmark=label.partition(":")[0], shots=0, source=SOURCE, length=needle_length(label))
        prepared = prepare_needles(asked, model, lambda: words, needles=_needles(label, model))
        found = prepared if isinstance(prepared, Hole) else measure(model, prepared, limit=None)
        if isinstance(found, Hole):
            raise EvaluationError(f"the phase names {label}, which cannot be measured: {found.reason}. Take it out of {SOURCE}.")
        results.append(as_gate_result(*found))
    return results


def _needles(label: str, model: "JaxLanguageModel") -> Needles:
    wanted = Needles(length=max(MIN_LENGTH, needle_length(label) or 0))
    found = with_room(wanted, lambda text: len(model.tok_encode(text)))
    if found.keys < wanted.keys:
        say(f"{label}: {found.keys} needles in a text in place of {wanted.keys}, for which it has no room")
    return found


def words_of_held_out(caches: Mapping[str, Path], tokenizer: Tokenizer) -> list[str]:
    """The words of the first documents of each component's held-out cache."""
    from phasewise.tasks.evaluation.held_out import read_held_out_texts

    texts = read_held_out_texts(caches, tokenizer)
    return [word for documents in texts.values() for document in documents for word in document.text.split()]
