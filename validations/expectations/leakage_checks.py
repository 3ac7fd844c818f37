"""What is expected of the scan for test items: tables `leakage` and `leaked_items`."""

from collections.abc import Mapping

import pandas as pd

from phasewise.validations.expectations.check import Check, Details, expect_rows
from phasewise.validations.limits import LeakageLimits

ITEMS_TOLD_ONE_BY_ONE = 3
_SCAN = "component {component}, benchmark {benchmark}"

_IS_SCANNED = Check(
    table="leakage",
    expectation="ExpectSomethingToRead",
    arguments={"column": "documents_scanned", "floor": 0},
    severity="critical",
    asks="Every cache was scanned.",
    what="no document of component {component} was scanned for items of benchmark {benchmark}",
    found="{documents_scanned} documents scanned",
    limit="more than 0 documents",
    where=_SCAN,
    what_to_do="Scan the cache of the component.",
)
_HAS_ITEMS_IN_REACH = Check(
    table="leakage",
    expectation="ExpectColumnPairValuesAToBeGreaterThanB",
    arguments={"column_A": "items", "column_B": "items_out_of_reach", "ignore_row_if": "neither"},
    severity="warning",
    asks="Each benchmark has items that the scan can find.",
    what="none of the {items} items of benchmark {benchmark} can be found by the scan: all are too short to be recognised in other text",
    found="{items_out_of_reach} of {items} items out of reach",
    limit="at least 1 item in reach",
    where="benchmark {benchmark}",
    what_to_do="Do not rest a claim of no leakage on this benchmark, or give its items their passages and answers.",
    accept_by=("benchmark",),
    narrow_by=("component",),
)
_IS_SCAN_OF_THESE_BYTES = Check(
    table="leakage",
    expectation="ExpectColumnPairValuesToBeEqual",
    arguments={"column_A": "scan_key", "column_B": "expected_scan_key", "ignore_row_if": "neither"},
    severity="critical",
    asks="What was scanned is the cache that will be read, for these items, by this rule.",
    what="the scan of component {component} was made of another cache, for other items or by another rule than those judged here",
    found="scan {scan_key}",
    limit="scan {expected_scan_key}",
    where="component {component}",
    what_to_do="Throw the kept scan away and scan the cache again.",
)


def leakage_checks(limits: LeakageLimits, tables: Mapping[str, pd.DataFrame]) -> tuple[Check, ...]:
    """Every cache was scanned, and no more items were found than allowed."""
    return (
        expect_rows("leakage", "Give the scan test items and caches."),
        _IS_SCANNED,
        _IS_SCAN_OF_THESE_BYTES,
        _HAS_ITEMS_IN_REACH,
        _has_no_leak(limits),
        _lists_what_it_counts(tables["leakage"]),
    )


def _has_no_leak(limits: LeakageLimits) -> Check:
    return Check(
        table="leakage",
        expectation="ExpectLeakedItemsWithinLimit",
        arguments={"column": "items_hit", "limit": limits.max_items},
        severity="critical",
        asks="No test item is in the training data." if limits.max_items == 0 else "Few test items are in the training data.",
        what="{items_hit:,} of {items:,} items of {benchmark} are in component {component}, file {files}",
        found="{part} of item {item}, score {score:.2f}: {excerpt}",
        limit=f"at most {limits.max_items} items with score {limits.min_score:g} or more",
        where="{files}",
        what_to_do="Remove it from the source and run again.",
        details=Details(
            table="leaked_items",
            keys=("component", "benchmark"),
            order_by="score",
            at_most=ITEMS_TOLD_ONE_BY_ONE,
            what="item {item} of {benchmark} is in component {component}, file {files}, document {documents} ({part}, score {score:.2f})",
            where="{files}",
        ),
    )


def _lists_what_it_counts(leakage: pd.DataFrame) -> Check:
    """The list of items beside the counts: as long as it must be at least, and empty where nothing was counted."""
    hits = int((leakage["items_hit"] > 0).sum()) if "items_hit" in leakage else 0
    return Check(
        table="leaked_items",
        expectation="ExpectTableRowCountToBeBetween",
        arguments={"min_value": hits, "max_value": None if hits else 0},
        severity="critical",
        asks="The list of leaked items agrees with their counts.",
        what="{observed} leaked items are listed, which does not agree with the table leakage",
        found="{observed} items listed",
        limit=f"at least {hits} items" if hits else "0 items",
        where="table leaked_items",
        what_to_do="This is a defect of the scan: throw the kept scans away and judge again.",
    )
