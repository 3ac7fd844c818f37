"""What is expected of the mixture: table `mixture`."""

from phasewise.validations.expectations.check import Check, expect_rows
from phasewise.validations.limits import DataLimits

_STAGE = "steps {start_step} to {stop_step}, component {component}"

_HAS_ROWS = Check(
    table="mixture",
    expectation="ExpectSomethingToRead",
    arguments={"column": "rows", "floor": 0},
    severity="critical",
    asks="Each component has at least one whole row to draw.",
    what="component {component} belongs to the mixture of steps {start_step} to {stop_step}, but its cache does not fill one row",
    found="{rows} rows",
    limit="at least 1 row",
    where=_STAGE,
    what_to_do="Add data to the component, or take it out of the mixture.",
)
_IS_DRAWN = Check(
    table="mixture",
    expectation="ExpectComponentToBeDrawn",
    arguments={"column": "is_drawn", "allowed": [True]},
    severity="warning",
    asks="Each component of the mixture is drawn at least once in a stage.",
    what="component {component} is never drawn in steps {start_step} to {stop_step}: its share of {intended_percent:.2f} % is too small "
    "for so few sequences",
    found="0 sequences",
    limit="at least 1 sequence",
    where=_STAGE,
    what_to_do="Let the recipe accept that it is absent (`accepts`), or train the stage for longer.",
    accept_by=("component",),
    narrow_by=("start_step",),
)
_IS_INTENDED = Check(
    table="mixture",
    expectation="ExpectShareToBeIntended",
    arguments={"column": "intended_percent", "floor": 0},
    severity="critical",
    asks="No component is drawn that the recipe gives no share.",
    what="component {component} is drawn {sequences} {sequences:time|times} in steps {start_step} to {stop_step}, where its share is 0 %",
    found="{sequences} {sequences:sequence|sequences}",
    limit="0 sequences",
    where=_STAGE,
    what_to_do="Give the component a share in the recipe, or look for the fault in the mixture's schedule.",
)
_STARTS_ON_GRID = Check(
    table="mixture",
    expectation="ExpectStagesToStartOnTheBlockGrid",
    arguments={"column": "undeclared_cut_sequences", "limit": 0},
    severity="warning",
    asks="Each stage starts where a block of the mixture ends, or the recipe says that it may cut one.",
    what="the stage from step {start_step} to {stop_step} starts inside a block: the block before it is cut short after "
    "{undeclared_cut_sequences} sequences",
    found="a block of {undeclared_cut_sequences} sequences",
    limit="whole blocks only",
    where="step {start_step}",
    what_to_do="Start the stage at a step where a block ends, or let the recipe's order declare `cut_blocks`.",
)


def mixture_checks(limits: DataLimits) -> tuple[Check, ...]:
    """What the schedule draws against what the recipe intends."""
    return (
        expect_rows("mixture", "Give the phase a mixture."),
        _has_share(limits.max_share_error_points),
        *(() if limits.max_share_error_percent is None else (_keeps_share(limits.max_share_error_percent),)),
        _IS_INTENDED,
        _HAS_ROWS,
        _IS_DRAWN,
        _STARTS_ON_GRID,
        *(() if limits.max_epochs is None else (_is_within_epochs(limits.max_epochs),)),
    )


def _has_share(max_error_points: float) -> Check:
    return Check(
        table="mixture",
        expectation="ExpectShareErrorWithinLimit",
        arguments={"column": "error_points", "limit": max_error_points},
        severity="critical",
        asks="Each component is drawn as often as the recipe intends.",
        what="component {component} makes up {realised_percent:.2f} % of steps {start_step} to {stop_step}, the recipe intends "
        "{intended_percent:.2f} %",
        found="{error_points:.2f} percentage points off",
        limit=f"{max_error_points:g} percentage points",
        where=_STAGE,
        what_to_do="Choose a larger block, or a share that the block can express.",
    )


def _keeps_share(max_error_percent: float) -> Check:
    return Check(
        table="mixture",
        expectation="ExpectBlockToKeepShare",
        arguments={"column": "block_error_percent", "limit": max_error_percent},
        severity="critical",
        asks="A block of the mixture keeps each component's share, small ones too.",
        what="component {component} has {block_sequences} {block_sequences:sequence|sequences} in a block, {block_percent:.3g} %, where "
        "the recipe intends {intended_percent:.3g} %",
        found="{block_error_percent:.0f} % off its share",
        limit=f"{max_error_percent:g} % of its share",
        where=_STAGE,
        what_to_do="Choose a larger block, a share that the block can express, or rounding by largest_remainder.",
    )


def _is_within_epochs(max_epochs: float) -> Check:
    return Check(
        table="mixture",
        expectation="ExpectEpochsWithinLimit",
        arguments={"column": "epochs_since_step_0", "limit": max_epochs},
        severity="critical",
        asks="No component is repeated more often than the recipe allows.",
        what="by step {stop_step} component {component} has been seen {epochs_since_step_0:.2f} times over",
        found="{epochs_since_step_0:.2f} epochs of {rows} rows",
        limit=f"{max_epochs:g} epochs",
        where="steps 0 to {stop_step}, component {component}",
        what_to_do="Lower its share, add data to it, or allow more epochs in the recipe.",
    )
