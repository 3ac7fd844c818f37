"""What is expected of the rows that documents become: table `packing`. All of it warns, and a recipe may accept it."""

from phasewise.validations.expectations.check import Check, expect_rows
from phasewise.validations.limits import PackingLimits

_WHERE = "component {component}, packing {packing}, loss on {loss_on}"


def packing_checks(limits: PackingLimits) -> tuple[Check, ...]:
    """Those that the recipe has limits for."""
    return (
        expect_rows("packing", "Give the phase components with at least one whole row."),
        *(() if limits.min_counted_percent is None else (_counts(limits.min_counted_percent),)),
        *(() if limits.max_cut_percent is None else (_is_whole(limits.max_cut_percent),)),
        *(() if limits.max_padding_percent is None else (_is_full(limits.max_padding_percent),)),
    )


def _counts(min_counted_percent: float) -> Check:
    return Check(
        table="packing",
        expectation="ExpectTokensToCount",
        arguments={"column": "counted_percent", "floor": min_counted_percent},
        severity="warning",
        asks="Enough of each component's tokens are predicted.",
        what="of component {component} {counted_percent:.2f} % of the tokens are predicted, and {rows_without_target} of {rows} rows have "
        "nothing that is: the rest is computed and teaches nothing",
        found="{counted_percent:.2f} % of {tokens} tokens",
        limit=f"above {min_counted_percent:g} %",
        where=_WHERE,
        what_to_do="Look at the component's answers: they may be short, or lie behind the first row's length of their conversations.",
        accept_by=("component",),
    )


def _is_whole(max_cut_percent: float) -> Check:
    return Check(
        table="packing",
        expectation="ExpectDocumentsToFitTheirRows",
        arguments={"column": "documents_cut_percent", "limit": max_cut_percent},
        severity="warning",
        asks="Few documents are longer than a row.",
        what="of component {component} {documents_cut} of {documents} documents are longer than a row and are cut, and {tokens_cut} tokens "
        "are never trained on",
        found="{documents_cut_percent:.2f} % of the documents",
        limit=f"at most {max_cut_percent:g} %",
        where=_WHERE,
        what_to_do="Take longer rows, or leave out or split the long documents.",
        accept_by=("component",),
    )


def _is_full(max_padding_percent: float) -> Check:
    return Check(
        table="packing",
        expectation="ExpectRowsToBeFull",
        arguments={"column": "padding_percent", "limit": max_padding_percent},
        severity="warning",
        asks="Little of each component's rows is padding.",
        what="of the rows of component {component} {padding_percent:.1f} % is padding, which is computed and teaches nothing",
        found="{padding_percent:.1f} % of {places} places",
        limit=f"at most {max_padding_percent:g} %",
        where=_WHERE,
        what_to_do="Pack greedily, or take shorter rows.",
        accept_by=("component",),
    )
