"""What is expected of the step from the parent phase to this one: table `hand_off`."""

from phasewise.validations.evidence.hand_off import DECLARED_NOT_FOUND, STATUSES, UNDECLARED
from phasewise.validations.expectations.check import Check, expect_rows

HAND_OFF_CHECKS = (
    expect_rows("hand_off", "Compare the phase with its parent, or say that it starts from scratch."),
    Check(
        table="hand_off",
        expectation="ExpectChangesToBeDeclared",
        arguments={"column": "status", "refused": [UNDECLARED]},
        severity="critical",
        asks="The hand-off changes nothing that it does not declare.",
        what="the hand-off changes {name} without declaring it: {before} → {after}",
        found="{before} → {after}",
        limit="declared changes only",
        where="hand-off, {name}",
        what_to_do="Declare it in the recipe's hand-off, take it back, or train the parent again as the recipe has it now.",
    ),
    Check(
        table="hand_off",
        expectation="ExpectDeclaredChangesToBeFound",
        arguments={"column": "status", "refused": [DECLARED_NOT_FOUND]},
        severity="warning",
        asks="The hand-off declares nothing that it does not change.",
        what="the hand-off declares a change of {name}, and there is none",
        found="no change of {name}",
        limit="what is declared is changed",
        where="hand-off, {name}",
        what_to_do="Take it out of the hand-off's `declares`, or make the change that was meant.",
        accept_by=("name",),
    ),
    Check(
        table="hand_off",
        expectation="ExpectHandOffToBeCompared",
        arguments={"column": "status", "allowed": list(STATUSES)},
        severity="critical",
        asks="Every change was compared with what is declared.",
        what="of {name} it is not known whether the hand-off declares and changes it (status {status})",
        found="status {status}",
        limit=", ".join(STATUSES),
        where="hand-off, {name}",
        what_to_do="This is a defect of the evidence: judge again.",
    ),
)
