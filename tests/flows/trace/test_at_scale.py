"""Questions about Marin 8B's phases at full scale, over caches of 10^9 rows whose indices are made up."""

from pathlib import Path

import pytest

from experiments.bench.trace import ask, write_world
from phasewise.flows.trace import document_search

MAX_SECONDS = 1.0
"""Of the processor: the clock is that of whatever else runs."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[str]]]:
    return write_world(tmp_path_factory.mktemp("scale"), documents=60_000)


def test_a_question_takes_less_than_a_second_and_both_ways_agree(world: tuple[Path, dict[str, list[str]]], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(document_search, "MAX_SEARCHED_DOCUMENTS", 0)
    monkeypatch.setattr(document_search, "MAX_TOKENS_INSIDE", 0)
    recipe, ids = world
    ask(recipe, "/kestrel", step=1, row=0)  # the first question imports what the others need
    for phase, step in (("kestrel", 1), ("kestrel", 654_321), ("phoenix", 1_000_000)):
        forward, _, seconds = ask(recipe, f"/{phase}", step=step, row=17)
        assert seconds < MAX_SECONDS
        (piece,) = forward["rows"]
        assert piece["tokens"] == 4096
    whole_step, _, seconds = ask(recipe, "/kestrel", step=600_000)
    assert seconds < MAX_SECONDS
    assert sum(piece["tokens"] for piece in whole_step["rows"]) == 1024 * 4096
    backward, _, seconds = ask(recipe, "", document=ids["dclm_baseline"][0])
    assert seconds < MAX_SECONDS
    (document,) = backward["documents"]
    assert document["component"] == "dclm_baseline"
    for row in backward["rows"][:3]:
        again, _, seconds = ask(recipe, f"/{row['phase']}", step=row["step"], row=row["row"])
        assert seconds < MAX_SECONDS
        assert {**row, "text": None} in [{**one, "text": None} for one in again["rows"]]
