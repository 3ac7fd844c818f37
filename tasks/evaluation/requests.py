"""What lm-eval asks of a model, and what an answer must be: there, and finite. Importing this module does not import lm-eval."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from phasewise.tasks.evaluation.sampling import Sampling
from phasewise.trainer.base.errors import ConfigError, EvaluationError

DEFAULT_MAX_NEW_TOKENS = 256
"""Where a benchmark names none; lm-eval's own models take the same."""
MAX_NEW_TOKENS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""Names of one thing, in lm-eval's order: the first that is there counts."""
KNOWN = {"until", "do_sample", "temperature", "top_k", "top_p", *MAX_NEW_TOKENS}
SHOWN_CHARACTERS = 60


class Generation(NamedTuple):
    """How texts are grown: where they stop, and how their tokens are chosen."""

    stops: tuple[str, ...]
    max_new_tokens: int
    sampling: Sampling


def read_generation(settings: Mapping[str, Any]) -> Generation:
    """A benchmark's `generation_kwargs`. It is greedy unless sampling is asked for.

    Raises:
        ConfigError: a setting has a value that it cannot have, or is one that is not known here: left out, it would change answers.
    """
    if unknown := sorted(settings.keys() - KNOWN):
        raise ConfigError(
            f"generation_kwargs must be of {', '.join(sorted(KNOWN))}, found {', '.join(unknown)}: take it out of the benchmark."
        )
    until = settings.get("until") or ()
    stops = (until,) if isinstance(until, str) else tuple(until)
    counts = (settings[name] for name in MAX_NEW_TOKENS if settings.get(name) is not None)
    max_new_tokens = int(next(counts, DEFAULT_MAX_NEW_TOKENS))
    if max_new_tokens < 1:
        raise ConfigError(
            f"a benchmark must ask for one new token at least, found max_gen_toks {max_new_tokens}: correct its generation_kwargs."
        )
    return Generation(tuple(stop for stop in stops if stop), max_new_tokens, _read_sampling(settings))


def _read_sampling(settings: Mapping[str, Any]) -> Sampling:
    temperature = float(settings.get("temperature") or 0.0)
    do_sample = settings.get("do_sample")
    if do_sample and not temperature:
        temperature = 1.0
    sampling = Sampling(0.0 if do_sample is False else temperature, int(settings.get("top_k") or 0), float(settings.get("top_p") or 1.0))
    if sampling.temperature < 0 or sampling.top_k < 0 or not 0 < sampling.top_p <= 1:
        raise ConfigError(
            f"sampling needs a temperature of 0 or more, a top_k of 0 or more and a top_p above 0 and up to 1, found {dict(settings)}: "
            "correct the benchmark's generation_kwargs."
        )
    return sampling


def before_first(text: str, stops: tuple[str, ...]) -> str:
    """`text` up to the first occurrence of any stop string."""
    return text[: min((found for stop in stops if (found := text.find(stop)) >= 0), default=len(text))]


def check_finite(value: float, number: int, strings: Sequence[str]) -> float:
    """The value, where it is a number.

    Raises:
        EvaluationError: it is not finite; the message names the request. lm-eval would score it without a word.
    """
    if not math.isfinite(value):
        raise EvaluationError(
            f"a model must answer every request with a finite number, found {value} for {name_request(number, strings)}. "
            "Its weights have diverged, or its checkpoint is damaged: evaluate an earlier one."
        )
    return value


def name_request(number: int, strings: Sequence[str]) -> str:
    """A request in words: its number among those of its kind, and the end of each of its texts."""
    return f"request {number} ({' → '.join(repr(_end_of(string)) for string in strings)})"


def _end_of(string: str) -> str:
    return string if len(string) <= SHOWN_CHARACTERS else f"…{string[-SHOWN_CHARACTERS:]}"
