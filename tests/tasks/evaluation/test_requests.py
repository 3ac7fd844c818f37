from typing import Any

import pytest

from phasewise.tasks.evaluation.language_model import Generation, Sampling, check_finite, name_request, read_generation
from phasewise.trainer.base.errors import ConfigError, EvaluationError


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, Generation((), 256, Sampling())),
        ({"until": "\n", "max_gen_toks": 4, "do_sample": False, "temperature": 0.7}, Generation(("\n",), 4, Sampling())),
        ({"until": ["a", ""], "max_tokens": 9, "max_new_tokens": 3}, Generation(("a",), 3, Sampling())),
        ({"do_sample": True}, Generation((), 256, Sampling(1.0))),
        ({"temperature": 0.5, "top_k": 3, "top_p": 0.9}, Generation((), 256, Sampling(0.5, 3, 0.9))),
    ],
)
def test_what_a_benchmark_asks_for(settings: dict[str, Any], expected: Generation) -> None:
    assert read_generation(settings) == expected


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_beams": 4}, "found num_beams"),
        ({"max_gen_toks": 0}, "one new token at least"),
        ({"temperature": -1.0, "do_sample": True}, "temperature of 0 or more"),
        ({"top_p": 1.5}, "top_p above 0"),
    ],
)
def test_what_cannot_be_done_is_refused_not_left_out(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_generation(settings)


def test_an_answer_must_be_a_number() -> None:
    assert check_finite(-3.0, 0, ["a"]) == -3.0
    for value in (float("nan"), float("-inf")):
        with pytest.raises(EvaluationError, match=r"request 7 \('a' → '…x+'\)"):
            check_finite(value, 7, ["a", "x" * 100])
    assert name_request(2, ["a\nb"]) == r"request 2 ('a\nb')"
