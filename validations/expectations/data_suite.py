"""What is expected of the data before a phase trains on it: tables `caches`, `mixture` and `leakage`."""

from collections.abc import Mapping

import pandas as pd

from validations.expectations.check import Check, Details, expect_rows
from validations.limits import DataLimits, LeakageLimits

DATA_SUITE = "data"
_STAGE = "steps {start_step} to {stop_step}, component {component}"
_SCAN = "component {component}, benchmark {benchmark}"

CACHE_CHECKS = (
    Check(
        table="caches",
        expectation="ExpectColumnPairValuesToBeEqual",
        arguments={"column_A": "component", "column_B": "manifest_component"},
        severity="critical",
        asks="Each cache holds the component that it is named for.",
        what="the cache named for component {component} holds component {manifest_component}",
        found="{manifest_component}",
        limit="{component}",
        where="{folder}",
        what_to_do="Point the component at its own cache.",
    ),
    Check(
        table="caches",
        expectation="ExpectColumnValuesToBeInSet",
        arguments={"column": "split", "value_set": ["train"]},
        severity="critical",
        asks="Only training splits are trained on.",
        what="the cache of component {component} holds the split {split}, which must not be trained on",
        found="split {split}",
        limit="split train",
        where="{folder}",
        what_to_do="Point the component at the cache of its training split.",
    ),
    Check(
        table="caches",
        expectation="ExpectSomethingToRead",
        arguments={"column": "tokens", "floor": 0},
        severity="critical",
        asks="Each cache holds tokens.",
        what="the cache of component {component} holds no tokens",
        found="{tokens} tokens in {documents} documents",
        limit="more than 0 tokens",
        where="{folder}",
        what_to_do="Check the source's files, and its include and exclude globs, then run `phasewise data prepare` again.",
    ),
    Check(
        table="caches",
        expectation="ExpectShardsToMatchManifest",
        arguments={"column": "damaged_shards", "limit": 0},
        severity="critical",
        asks="The bytes of every shard are those that the manifest names.",
        what="{damaged_shards} of {shards} {shards:shard|shards} of component {component} {damaged_shards:does|do} not hold the bytes "
        "that the manifest names ({differences})",
        found="{damaged_shards} damaged {damaged_shards:shard|shards}",
        limit="0 damaged shards",
        where="{folder}",
        what_to_do="Delete the folder and run `phasewise data prepare` again.",
    ),
    Check(
        table="caches",
        expectation="ExpectCacheToBeFresh",
        arguments={"column": "stale_files", "limit": 0},
        severity="critical",
        asks="The sources are still what the cache was made of.",
        what="the cache of component {component} is stale: its sources differ in {stale_files} {stale_files:file|files} ({differences})",
        found="{stale_files} {stale_files:file differs|files differ}",
        limit="0 files differ",
        where="{folder}",
        what_to_do="Run `phasewise data prepare` to build a cache of the sources as they are now, or put the files back.",
    ),
    Check(
        table="caches",
        expectation="ExpectColumnValuesToBeInSet",
        arguments={"column": "files_like_tests", "value_set": [0]},
        severity="warning",
        asks="No file is named like a test split.",
        what="{files_like_tests} {files_like_tests:file|files} of component {component} {files_like_tests:is|are} named like a test split "
        "({names_like_tests})",
        found="{files_like_tests} {files_like_tests:file|files}",
        limit="0 files",
        where="{folder}",
        what_to_do="Exclude them in the source, unless you know that no benchmark is made of them.",
    ),
)
HAS_ROWS = Check(
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
IS_DRAWN = Check(
    table="mixture",
    expectation="ExpectColumnValuesToBeInSet",
    arguments={"column": "is_drawn", "value_set": [True]},
    severity="warning",
    asks="Each component of the mixture is drawn at least once in a stage.",
    what="component {component} is never drawn in steps {start_step} to {stop_step}: its share of {intended_percent:.2f} % is too small "
    "for so few sequences",
    found="0 sequences",
    limit="at least 1 sequence",
    where=_STAGE,
    what_to_do="Accept that it is absent at this scale, or train the stage for longer.",
)
IS_SCANNED = Check(
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
IS_SCAN_OF_THESE_BYTES = Check(
    table="leakage",
    expectation="ExpectColumnPairValuesToBeEqual",
    arguments={"column_A": "scan_key", "column_B": "expected_scan_key"},
    severity="critical",
    asks="What was scanned is the cache that will be read, for these items, by this rule.",
    what="the scan of component {component} was made of another cache, for other items or by another rule than those judged here",
    found="scan {scan_key}",
    limit="scan {expected_scan_key}",
    where=_SCAN,
    what_to_do="Throw the kept scan away and scan the cache again.",
)


def data_checks(limits: DataLimits, tables: Mapping[str, pd.DataFrame]) -> tuple[Check, ...]:
    """The whole suite. The components that the mixture draws must be among those that the other tables judge."""
    mixture = tables["mixture"]
    drawn = sorted(mixture["component"][mixture["sequences"] > 0].unique()) if {"component", "sequences"} <= set(mixture) else []
    return (
        expect_rows("caches", "Name the caches of the phase."),
        _judges_components("caches", drawn, "Give every component of the mixture a cache."),
        *CACHE_CHECKS,
        expect_rows("mixture", "Give the phase a mixture."),
        _has_share(limits.max_share_error_points),
        HAS_ROWS,
        IS_DRAWN,
        *(() if limits.max_epochs is None else (_is_within_epochs(limits.max_epochs),)),
        expect_rows("leakage", "Give the scan test items and caches."),
        _judges_components("leakage", drawn, "Scan the cache of every component of the mixture."),
        IS_SCANNED,
        IS_SCAN_OF_THESE_BYTES,
        _has_no_leak(limits.leakage),
    )


def _judges_components(table: str, drawn: list[str], what_to_do: str) -> Check:
    return Check(
        table=table,
        expectation="ExpectColumnDistinctValuesToContainSet",
        arguments={"column": "component", "value_set": drawn},
        severity="critical",
        asks="Every component that the mixture draws is judged.",
        what=f"table {table} does not judge every component that the mixture draws ({{observed}})",
        found="{observed}",
        limit=", ".join(drawn),
        where=f"table {table}",
        what_to_do=what_to_do,
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


def _has_no_leak(limits: LeakageLimits) -> Check:
    return Check(
        table="leakage",
        expectation="ExpectLeakedItemsWithinLimit",
        arguments={"column": "items_hit", "limit": limits.max_items},
        severity="critical",
        asks="No test item stands in the training data." if limits.max_items == 0 else "Few test items stand in the training data.",
        what="item {item} of benchmark {benchmark} stands in {documents} {documents:document|documents} of component {component}, "
        "file {files} (containment {containment:.2f})",
        found="{documents} {documents:document|documents}: {excerpt}",
        limit=f"at most {limits.max_items} items with containment {limits.min_containment:g} or more",
        where="{files}",
        what_to_do="Remove it from the source and run again.",
        details=Details("leaked_items", ("component", "benchmark"), "containment"),
    )
