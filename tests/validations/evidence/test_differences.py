from pathlib import Path

import pytest

from phasewise.trainer.data.manifest import read_manifest
from phasewise.validations.evidence.caches import DIFFERENCE_COLUMNS, differences_evidence
from tests.validations.conftest import PROSE, CacheMaker


def found(what: str) -> dict[str, str]:
    return {"what": what, "file": "test.json", "expected": "left out", "found": "in the cache", "remedy": "take it out"}


def test_each_difference_has_a_row_and_a_component_without_any_says_so(caches: CacheMaker):
    folders = {name: caches.write(name, [text]) for name, text in PROSE.items()}
    table = differences_evidence({"wikipedia": [found("file no longer selected"), found("shard damaged")], "starcoderdata": []}, folders)
    assert tuple(table.columns) == DIFFERENCE_COLUMNS
    assert table[["component", "what", "file", "what_to_do"]].to_numpy().tolist() == [
        ["wikipedia", "file no longer selected", "test.json", "Take it out."],
        ["wikipedia", "shard damaged", "test.json", "Take it out."],
        ["starcoderdata", "none", "", ""],
    ]
    assert table["manifest_digest"].unique().tolist() == [read_manifest(folder).digest for folder in folders.values()]
    assert table["folder"].unique().tolist() == [str(folder) for folder in folders.values()]


@pytest.mark.parametrize(
    ("what", "kind"),
    [
        ("shard damaged", "damaged"),
        ("file no longer selected", "no longer selected"),
        ("file added", "files changed"),
        ("file removed", "files changed"),
        ("content changed", "files changed"),
        ("tokenizer changed", "made otherwise"),
        ("what nobody has thought of", "made otherwise"),
    ],
)
def test_every_difference_has_a_kind(tmp_path: Path, what: str, kind: str):
    table = differences_evidence({"math": [found(what)]}, {"math": tmp_path})
    assert table[["kind", "manifest_digest"]].to_numpy().tolist() == [[kind, "none"]]


def test_a_component_that_was_not_verified_has_no_row(tmp_path: Path):
    table = differences_evidence({"web": []}, {"math": tmp_path, "web": tmp_path})
    assert table["component"].tolist() == ["web"]
