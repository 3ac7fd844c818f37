import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.validations.test_gate import BETTER, LIMITS
from tests.validations.test_verdict import PLANTED
from validations.data_docs import build_data_docs
from validations.limits import DataLimits
from validations.verdict import DataEvidence, Verdict, judge_data, judge_gate


@pytest.fixture
def verdicts(data_evidence: Callable[..., DataEvidence], limits: DataLimits, tmp_path: Path) -> list[Verdict]:
    evidence = data_evidence(extra={"starcoderdata": [PLANTED]})
    return [
        judge_data("marin-8b/proxy/kestrel data", evidence, limits=limits, folder=tmp_path / "data"),
        judge_gate("marin-8b/proxy/kestrel gate", BETTER, parent_evaluation=None, limits=LIMITS, folder=tmp_path / "gate"),
    ]


def test_every_table_of_every_verdict_has_a_page_also_when_built_again(verdicts: list[Verdict], tmp_path: Path):
    build_data_docs(tmp_path / "docs", verdicts)
    index = build_data_docs(tmp_path / "docs", verdicts)
    assert index == tmp_path / "docs" / "index.html"
    assert len(list((index.parent / "validations").rglob("*.html"))) == 5
    linked = re.findall(r"href=\"([^\"]+)\"", index.read_text())
    assert len(linked) == 5
    assert all((index.parent / unquote(link)).is_file() for link in linked)
    pages = " ".join(page.read_text() for page in (tmp_path / "docs").rglob("*.html"))
    assert "No test item stands in the training data." in pages
    assert "Every benchmark is above its dumb baseline." in pages
    assert {path.name for path in tmp_path.iterdir()} == {"docs", "data", "gate", "train"}


def test_the_index_says_what_failed_and_no_page_fetches_anything(verdicts: list[Verdict], tmp_path: Path):
    index = build_data_docs(tmp_path / "docs", verdicts)
    assert "item mc-0012 of benchmark continuation stands in 1 document" in index.read_text()
    for page in index.parent.rglob("*.html"):
        assert not re.search(r"(src|url\()[^>]{0,3}https?:|<link[^>]*https?:", page.read_text()), page
