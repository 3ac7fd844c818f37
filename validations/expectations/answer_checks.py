"""What is expected of the answers of held-out conversations beside the parent: table `answers`."""

from phasewise.validations.expectations.check import Check, expect_rows

_REMEDY = (
    "Look at the phase's loss on answers, at its learning rate, and at whether the chat template of the data is the one that was meant."
)


def answer_checks(min_gain_nats: float, error_rate: float) -> list[Check]:
    """They are likelier, over all components together; where those of one component are less likely, it warns."""
    return [
        expect_rows("answers", "Evaluate the checkpoint on held-out conversations: its phase must have loss_on answers."),
        Check(
            table="answers",
            expectation="ExpectAnswersToBecomeLikelier",
            arguments={"column": "judged_p_value", "limit": error_rate},
            severity="critical",
            asks=f"The answers of held-out conversations became likelier by more than {min_gain_nats:g} nats a token, beyond chance.",
            what="the answers of {conversations} held-out conversations ({component}) went from {against}'s {parent_nats_per_token:.4f} to "
            "{nats_per_token:.4f} nats a token, likelier by {gain_nats:+.4f} ({low:+.4f} to {high:+.4f})",
            found="p = {rise_p_value:.2g} that they are likelier by no more than {limit:g}",
            limit=f"at most {error_rate:g}, the share of checkpoints that are no likelier and may pass",
            where="{component}",
            what_to_do=_REMEDY,
        ),
        Check(
            table="answers",
            expectation="ExpectAnswersOfEachToStayLikely",
            arguments={"column": "fall_p_value", "floor": error_rate},
            severity="warning",
            asks="The answers of no component became less likely than they were to the parent, by more than chance.",
            what="the answers of {component} have become less likely than they were to {against}: {gain_nats:+.4f} nats a token "
            "({low:+.4f} to {high:+.4f}) on {conversations} held-out conversations",
            found="p = {fall_p_value:.2g} over all components",
            limit=f"p above {error_rate:g}",
            where="{component}",
            what_to_do=_REMEDY,
        ),
    ]
