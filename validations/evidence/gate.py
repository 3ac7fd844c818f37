"""Every table that a gate judges."""

import pandas as pd

from phasewise.validations.evidence.against_parent import against_parent
from phasewise.validations.evidence.answers import answers_table
from phasewise.validations.evidence.comparable import Evaluation
from phasewise.validations.evidence.evaluation import BENCHMARK, BITS_PER_BYTE, asked_evidence, gate_evidence
from phasewise.validations.evidence.exposure import exposure_table
from phasewise.validations.evidence.needles import needle_table, without_needles
from phasewise.validations.limits import GateLimits


def gate_tables(evaluation: Evaluation, parent: Evaluation | None, limits: GateLimits) -> dict[str, pd.DataFrame]:
    """By their names.

    Args:
        parent: the evaluation of the phase that this one starts from; None where it starts from scratch.

    Raises:
        DataError: as `gate_evidence`, `against_parent`, `needle_table`, `exposure_table` and `answers_table`.
    """
    others = without_needles(evaluation)
    evidence = gate_evidence(others, parent, floor_error_rate=limits.asked_floor_error_rate)
    compared = against_parent(others, parent, limits)
    return {
        "asked": asked_evidence(evaluation),
        "benchmarks": evidence[evidence["kind"] == BENCHMARK].reset_index(drop=True),
        "bits_per_byte": evidence[evidence["kind"] == BITS_PER_BYTE].reset_index(drop=True),
        "comparable": compared.comparable,
        "falls": compared.falls,
        "rises": compared.rises,
        "likelihoods": compared.likelihoods,
        "needles": needle_table(evaluation, parent),
        "exposure": exposure_table(evaluation, parent),
        "answers": answers_table(evaluation, limits),
    }
