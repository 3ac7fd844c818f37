"""How a difference between the code as it was run and the retrospectives is written down."""

from flows.recipes.phase import Discrepancy


def note(field: str, *, code: str, retrospective: str, source: str) -> Discrepancy:
    """A row of a phase's `discrepancies`."""
    return Discrepancy(field=field, code=code, retrospective=retrospective, source=source)


ALL_MATH_CACHE = note(
    "mixture",
    code="all_math reads the cache all_math-9d507c, the one that held GSM8K test items in Bison; here its test split is left out",
    retrospective="names contamination for the 32B's Bison only",
    source="exp600; exp1529; Marin 32B retrospective",
)


def rounded_down(*, delivered: str, source: str) -> Discrepancy:
    """Shares that the record's blocks lost by rounding down; here they are rounded by largest remainder."""
    return note(
        "mixture",
        code=f"shares rounded down in blocks of 2,048: {delivered}; here by largest remainder",
        retrospective="the intended shares",
        source=source,
    )


ALL_MATH_SIZE = note(
    "mixture",
    code="the glob of all_math takes tinyGSM-MIND in, so its size, 4.22 B tokens, and its epochs are underestimated",
    retrospective="not mentioned; a comment of the code says that GSM-MIND is excluded",
    source="exp600; exp1529",
)
