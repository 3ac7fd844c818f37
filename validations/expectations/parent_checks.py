"""What is expected of a checkpoint's scores beside its parent's: tables `comparable`, `falls`, `rises` and `likelihoods`."""

from phasewise.validations.expectations.check import Check
from phasewise.validations.limits import GateLimits

IS_WHOLE = Check(
    table="comparable",
    expectation="ExpectTheWholeBenchmark",
    arguments={"column": "is_whole", "allowed": [True]},
    severity="critical",
    asks="Every item of each benchmark was asked.",
    what="{name} is not the score of the whole benchmark: {limited}",
    found="{limited}",
    limit="every item, put as the evaluation says",
    where="{name}",
    what_to_do="Evaluate the checkpoint again without a limit on the items.",
)
IS_COMPARABLE = Check(
    table="comparable",
    expectation="ExpectScoresToBeComparable",
    arguments={"column": "is_comparable", "allowed": [True]},
    severity="critical",
    asks="Each benchmark that the parent was measured on was put to both in the same way.",
    what="{name} cannot be compared with {against}'s: {differs}",
    found="{differs}",
    limit="the same version, shots, filter, items, prompts and precision, and a known point of the schedule",
    where="{name}",
    what_to_do="Evaluate {against} again as this phase is evaluated, with `phasewise evaluate`, and judge again.",
)


def has_not_fallen(limits: GateLimits, rate: float) -> Check:
    """No fall beyond what the recipe allows is more than chance, over all benchmarks together."""
    return Check(
        table="falls",
        expectation="ExpectNoFallBelowTheParent",
        arguments={"column": "adjusted_p_value", "floor": rate},
        severity="critical",
        asks=f"No benchmark fell below the parent's score by more than {_percent(limits.max_score_fall)} of its items, beyond chance.",
        what="{name} fell from {against}'s {parent:.3f} to {value:.3f}, by {difference:+.3f} ({low:+.3f} to {high:+.3f}) on the same "
        "{items} items: {lost} lost, {gained} gained",
        found="p = {adjusted_p_value:.2g} over {tests} {tests:test|tests}",
        limit=f"p above {rate:g}, the share of checkpoints as good as their parent that may be refused",
        where="{name}",
        what_to_do="Look at the items that were lost, at the phase's data for this benchmark (`phasewise scan`), and at how it is put: a "
        "model that saw the items in another format can fall too.",
    )


def has_not_risen(limits: GateLimits, rate: float) -> Check:
    """No rise is beyond what a phase can bring."""
    return Check(
        table="rises",
        expectation="ExpectNoImpossibleRise",
        arguments={"column": "adjusted_p_value", "floor": rate},
        severity="critical",
        asks=f"No benchmark rose by more than {_percent(limits.max_score_rise)} of its items, beyond chance, as test items in the data do.",
        what="{name} rose from {against}'s {parent:.3f} to {value:.3f}, by {difference:+.3f} ({low:+.3f} to {high:+.3f}) on the same "
        "{items} items, which is more than a phase brings",
        found="p = {adjusted_p_value:.2g} over {tests} {tests:test|tests} that the true rise is at most {limit:g}",
        limit=f"p above {rate:g}",
        where="{name}",
        what_to_do="Look for the benchmark's items in the data of the phase (`phasewise scan`). If the rise is real, allow a larger "
        "max_score_rise in the recipe.",
    )


def stays_likely(rate: float) -> Check:
    """It warns: right choices become less likely before scores fall, and also where a model has only become less sure of itself."""
    return Check(
        table="likelihoods",
        expectation="ExpectRightAnswersToStayLikely",
        arguments={"column": "adjusted_p_value", "floor": rate},
        severity="warning",
        asks="The right answers of no benchmark became less likely than they were to the parent, by more than chance.",
        what="the right answers of {name} have become less likely than they were to {against}: {difference:+.4f} of probability "
        "({low:+.4f} to {high:+.4f}) on {items} items",
        found="p = {adjusted_p_value:.2g} over {tests} {tests:test|tests}",
        limit=f"p above {rate:g}",
        where="{name}",
        what_to_do="The score may still be the same. Look at the benchmark in the next phase, and at the data of this one.",
    )


def _percent(share: float | None) -> str:
    return "any share" if share is None else f"{100 * share:g} %"
