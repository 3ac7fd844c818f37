"""What is expected of the token caches: tables `caches` and `differences`."""

from collections.abc import Mapping

import pandas as pd

from phasewise.validations.evidence.differences import CHANGED, DAMAGED, NONE, UNSELECTED
from phasewise.validations.expectations.check import Check, expect_rows

TOLD_BY_THEIR_OWN_CHECKS = (NONE, DAMAGED, UNSELECTED, CHANGED)

CACHE_CHECKS = (
    expect_rows("caches", "Name the caches of the phase."),
    Check(
        table="caches",
        expectation="ExpectColumnPairValuesToBeEqual",
        arguments={"column_A": "component", "column_B": "manifest_component", "ignore_row_if": "neither"},
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
        expectation="ExpectTrainingSplit",
        arguments={"column": "split", "allowed": ["train"]},
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
        expectation="ExpectNoFileNamedLikeATest",
        arguments={"column": "files_like_tests", "limit": 0},
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

_DIFFERENCE_CHECKS = (
    expect_rows("differences", "Verify the caches of the phase."),
    Check(
        table="differences",
        expectation="ExpectCachedFilesToBeSelected",
        arguments={"column": "kind", "refused": [UNSELECTED]},
        severity="critical",
        asks="No cache holds a file that its source leaves out by now.",
        what="file {file} is in the cache of component {component}, and the source does not select it any more ({expected})",
        found="{file}: {found}",
        limit="{expected}",
        where="{folder}",
        what_to_do="{what_to_do}",
    ),
    Check(
        table="differences",
        expectation="ExpectShardsToMatchManifest",
        arguments={"column": "kind", "refused": [DAMAGED]},
        severity="critical",
        asks="The bytes of every shard are those that the manifest names.",
        what="{file} of component {component} does not hold the bytes that the manifest names",
        found="{found}",
        limit="{expected}",
        where="{folder}",
        what_to_do="{what_to_do}",
    ),
    Check(
        table="differences",
        expectation="ExpectCacheToBeFresh",
        arguments={"column": "kind", "refused": [CHANGED]},
        severity="critical",
        asks="The source files are still those that the cache was made of.",
        what="the cache of component {component} is stale: {what}: {file} (expected {expected}, found {found})",
        found="{found}",
        limit="{expected}",
        where="{folder}",
        what_to_do="{what_to_do}",
    ),
    Check(
        table="differences",
        expectation="ExpectCacheToBeMadeAsConfigured",
        arguments={"column": "kind", "allowed": list(TOLD_BY_THEIR_OWN_CHECKS)},
        severity="critical",
        asks="Each cache is made by the settings, the code and the tokenizer that are configured now.",
        what="the cache of component {component} is not what is configured: {what}: {file} (expected {expected}, found {found})",
        found="{found}",
        limit="{expected}",
        where="{folder}",
        what_to_do="{what_to_do}",
    ),
)


def left_out_checks(max_left_out_percent: float | None) -> tuple[Check, ...]:
    """How much of a component is not trained on: everything that is left out counts, and no limit is passed without a word."""
    if max_left_out_percent is None:
        return ()
    check = Check(
        table="caches",
        expectation="ExpectLeftOutWithinLimit",
        arguments={"column": "left_out_percent", "limit": max_left_out_percent},
        severity="warning",
        asks="Most documents of each component are taken.",
        what="of the documents of component {component} {left_out_percent:.1f} % are left out: {left_out}",
        found="{left_out_percent:.1f} % of the documents",
        limit=f"at most {max_left_out_percent:g} %",
        where="{folder}",
        what_to_do="Look at the reasons: correct the source's fields and filters, or let the recipe accept that so much is left out.",
        accept_by=("component",),
    )
    return (check,)


def difference_checks(tables: Mapping[str, pd.DataFrame]) -> tuple[Check, ...]:
    """What the caches were verified for; it must be the judged caches that were verified."""
    judged = sorted(tables["caches"]["manifest_digest"]) if "manifest_digest" in tables["caches"] else []
    return (*_DIFFERENCE_CHECKS, _is_of_these_caches(judged))


def _is_of_these_caches(judged: list[str]) -> Check:
    return Check(
        table="differences",
        expectation="ExpectVerifiedCacheToBeTheJudgedOne",
        arguments={"column": "manifest_digest", "allowed": judged},
        severity="critical",
        asks="What was verified is the caches that are judged.",
        what="the cache of component {component} was verified as another than the one that is judged",
        found="manifest {manifest_digest}",
        limit="the manifest of a judged cache",
        where="{folder}",
        what_to_do="Judge again, while nobody prepares data.",
    )
