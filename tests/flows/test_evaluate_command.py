from typing import Any

import pytest

from phasewise.flows.cli.evaluate import print_evaluation
from tests.validations.made_answers import guessed_result


def test_each_value_is_reported_with_its_error_and_what_a_model_at_the_floor_would_do(capsys: pytest.CaptureFixture[str]) -> None:
    evaluation: dict[str, Any] = {
        "phase": "kestrel",
        "weights": "last",
        "checkpoint": "runs/kestrel/40",
        "results": [guessed_result(right=60, first=140)],
        "bits_per_byte": {"law": 1.5},
        "macro_bits_per_byte": 1.5,
        "gate": ["continuation acc: 0.300, not compared with a parent"],
    }
    print_evaluation(evaluation)
    said = capsys.readouterr().out.splitlines()
    assert said[1] == "  continuation acc 0.300 ± 0.032 (dumb baseline 0.250)"
    assert said[2] == (
        "    60 of 200 right, p = 0.062 (exact binomial); right answers +2.000 nats likelier than the others (p = 7.8e-15); both: 1.6e-14"
    )
    assert said[3] == "  gate: continuation acc: 0.300, not compared with a parent"
