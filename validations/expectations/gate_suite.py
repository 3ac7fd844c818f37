"""What is expected of a phase's last checkpoint before the next phase starts: the tables of `validations.evidence.evaluation` and
`validations.evidence.against_parent`."""

from collections.abc import Mapping

import pandas as pd

from phasewise.validations.evidence.floor import NUM_TESTS
from phasewise.validations.expectations.answer_checks import answer_checks
from phasewise.validations.expectations.check import Check, expect_rows
from phasewise.validations.expectations.parent_checks import IS_COMPARABLE, IS_WHOLE, has_not_fallen, has_not_risen, stays_likely
from phasewise.validations.limits import GateLimits

GATE_SUITE = "gate"


def gate_checks(limits: GateLimits, tables: Mapping[str, pd.DataFrame]) -> tuple[Check, ...]:
    """The whole suite. The parent is compared with where there is one."""
    checks = [
        expect_rows("asked", "Name at least one benchmark in the phase's evaluation.benchmarks."),
        _IS_MEASURED,
        expect_rows("benchmarks", "Evaluate the checkpoint on at least one benchmark."),
        expect_rows("bits_per_byte", "Evaluate the checkpoint on the held-out splits."),
        _expect_finite("benchmarks"),
        _expect_finite("bits_per_byte"),
        expect_rows("comparable", "Evaluate the checkpoint on at least one benchmark."),
        IS_WHOLE,
    ]
    if limits.must_beat_baseline and limits.floor_error_rate is not None:
        checks += [_is_above_floor(limits.floor_error_rate), _is_not_below_baseline(limits.floor_error_rate)]
    if tables["bits_per_byte"].get("has_parent", pd.Series([True])).any():
        checks.append(_keeps_to_parent(limits))
    if limits.false_refusal_rate is not None:
        checks += [IS_COMPARABLE, *_against_parent(limits, limits.false_refusal_rate, tables)]
    if limits.needle_error_rate is not None:
        checks += [expect_rows("needles", "Name needles in the phase's evaluation.benchmarks."), _finds_needles(limits.needle_error_rate)]
    if limits.exposure_error_rate is not None:
        checks += [expect_rows("exposure", "Name the items in the phase's evaluation.renderings."), _is_unseen(limits.exposure_error_rate)]
    has_parent = tables["answers"].get("against", pd.Series(["unknown"])).ne("").any() or tables["answers"].empty
    if limits.min_answer_gain_nats is not None and limits.answer_error_rate is not None and has_parent:
        checks += answer_checks(limits.min_answer_gain_nats, limits.answer_error_rate)
    return tuple(checks)


def _against_parent(limits: GateLimits, rate: float, tables: Mapping[str, pd.DataFrame]) -> list[Check]:
    """Falls and rises where the table `comparable` says that they are asked for, or says nothing; likelihoods where there are any."""
    checks: list[Check] = []
    for table, column, check in (
        ("falls", "asks_fall", has_not_fallen(limits, rate)),
        ("rises", "asks_rise", has_not_risen(limits, rate)),
    ):
        if tables["comparable"].get(column, pd.Series([True])).any() or len(tables[table]):
            checks += [expect_rows(table, "Compare the checkpoint with its parent, item by item."), check]
    likelihoods = tables["likelihoods"]
    if len(likelihoods) or not len(likelihoods.columns):
        checks.append(stays_likely(rate))
    return checks


_IS_MEASURED = Check(
    table="asked",
    expectation="ExpectColumnValuesToBeInSet",
    arguments={"column": "measured", "value_set": [True]},
    severity="critical",
    asks="Every benchmark that the phase names was measured.",
    what="the phase names the benchmark {name}, and it was not measured",
    found="no result",
    limit="a result of each",
    where="{name}",
    what_to_do="Evaluate the checkpoint again, or take the benchmark out of the phase's evaluation.benchmarks.",
)


def _expect_finite(table: str) -> Check:
    return Check(
        table=table,
        expectation="ExpectColumnValuesToBeInSet",
        arguments={"column": "finite", "value_set": [True]},
        severity="critical",
        asks="Every response of the model was a finite number.",
        what="{name} rests on responses of the model that are not finite numbers",
        found="{value}",
        limit="finite numbers only",
        where="{name}",
        what_to_do="The model has diverged: go back to the last good checkpoint.",
    )


def _is_above_floor(error_rate: float) -> Check:
    """Accuracy or likelihood says so, the one that tells more; the p-value of the table counts for both."""
    return Check(
        table="benchmarks",
        expectation="ExpectScoreToBeAboveTheFloor",
        arguments={"column": "floor_p_value", "limit": error_rate},
        severity="critical",
        asks="Of every benchmark, accuracy or the likelihood of the right answers shows that the model is above the floor.",
        what="{name} does not tell the model from one that knows nothing: {right} of {items} right, {value:.3f} ± {stderr:.3f} against the "
        "{baseline:.3f} of the dumb baseline (p = {accuracy_p_value:.2g}, {accuracy_test}), and {likelihoods}",
        found="p = {floor_p_value:.2g} of both tests together",
        limit=f"at most {error_rate:g}, the share of models at the floor that may pass",
        where="{name}",
        what_to_do="Train for longer, or check that the benchmark suits a model of this size.",
    )


def _finds_needles(error_rate: float) -> Check:
    """As for other benchmarks, either test may say so."""
    return Check(
        table="needles",
        expectation="ExpectScoreToBeAboveTheFloor",
        arguments={"column": "floor_p_value", "limit": error_rate},
        severity="critical",
        asks="At every length, accuracy or the likelihood of the right values shows that the model finds needles.",
        what="{name} does not tell the model from one that finds no needle: {right} of {items} right, {value:.3f} ± {stderr:.3f} against "
        "the {baseline:.3f} of a guess, and {likelihoods}",
        found="p = {floor_p_value:.2g} of both tests together",
        limit=f"at most {error_rate:g}, the share of models that find none and may pass",
        where="{name}",
        what_to_do="Train for longer on rows of that length, take the length out of evaluation.benchmarks, or only measure it "
        "(gates.model.needle_error_rate null).",
    )


def _is_not_below_baseline(error_rate: float) -> Check:
    """Likelihood does not help a model whose first choices are worse than a dumb answer's. Each test has its part of the error rate."""
    return Check(
        table="benchmarks",
        expectation="ExpectAccuracyNotToBeBelowTheBaseline",
        arguments={"column": "below_p_value", "floor": error_rate / NUM_TESTS},
        severity="critical",
        asks="No benchmark is below its dumb baseline by more than its error.",
        what="{name} is {value:.3f} ± {stderr:.3f}, {right} of {items} right, below the {baseline:.3f} of its dumb baseline by more than "
        "its error (p = {below_p_value:.2g}, {accuracy_test})",
        found="p = {below_p_value:.2g}",
        limit=f"above {error_rate / NUM_TESTS:g}",
        where="{name}",
        what_to_do="A model that is worse than guessing has learned something wrong: look at the data, the tokenizer and the benchmark.",
    )


def _keeps_to_parent(limits: GateLimits) -> Check:
    return Check(
        table="bits_per_byte",
        expectation="ExpectLossToParentWithinLimit",
        arguments={"column": "increase_bits_per_byte", "limit": limits.max_increase_bits_per_byte},
        severity="critical",
        asks="The phase does not make the model worse than its parent by more than the recipe allows.",
        what="{name} went from the parent's {parent:.4f} to {value:.4f}, by {increase_bits_per_byte:+.4f}, on what both were measured on: "
        "{components}",
        found="{increase_bits_per_byte:+.4f} bits per byte",
        limit=f"at most {limits.max_increase_bits_per_byte:+g} bits per byte",
        where="{name}",
        what_to_do="Look at the phase's loss, learning rate and mixture, or allow a larger increase in the recipe.",
    )


def _is_unseen(error_rate: float) -> Check:
    return Check(
        table="exposure",
        expectation="ExpectTestItemsToBeUnseen",
        arguments={"column": "adjusted_p_value", "floor": error_rate},
        severity="critical",
        asks="The model reads test items under two renderings as it reads items of the same kind that nobody has seen.",
        what="the {measure} of {items} test items lies {difference_nats:+.2f} nats from that of {reference_items} unseen ones, {since}: "
        "the model has seen them, or the two kinds differ",
        found="p = {adjusted_p_value:.2g} of three tests together",
        limit=f"p above {error_rate:g}, the share of models that never saw them and may be refused",
        where="{measure}",
        what_to_do="Look for the items in the phase's data (`phasewise scan`), under both renderings. Where they are not there, check that "
        "the reference is of the same kind: as long, and about the same.",
    )
