import html
import json
import re
from pathlib import Path

import pandas as pd
import pytest

from phasewise.flows.site import pages
from phasewise.flows.site.address import Links, PhaseAddress
from phasewise.flows.site.site import Site
from phasewise.flows.site.tables import Asked, asked_of
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.identity import write_sealed
from tests.flows.site.homes import RUN_NAME, row, site_of, write_phase, write_rows, zoo

TAG = re.compile(r"<(script|img|iframe|style|svg)\b[^>]*>")


def text_of(page: str) -> str:
    """What a person reads, in one line."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def phase(site: Site, name: str) -> str:
    found = zoo(site)
    files = site.shelf.phase(found, name)
    assert files is not None
    return pages.phase_page(site, Links(str(files.address)), found, files)


def verdict(site: Site, name: str, gate: str = "data", **asked: object) -> str:
    found, files = pages.find_phase(site, PhaseAddress("zoo", "own", name))
    return pages.verdict_page(site, Links(f"{files.address}/{gate}"), found, files, gate, Asked(**asked))  # pyright: ignore[reportArgumentType]  # as a test writes them


def test_every_recipe_of_the_home_is_on_the_first_page_with_its_states(site: Site) -> None:
    said = text_of(pages.home_page(site, Links("")))
    assert "zoo own" in said
    assert "3 phases: 1 done, 1 half trained, 1 refused" in said
    assert "is stale" in said


def test_a_recipe_leads_from_its_first_sentence_to_the_verdict_that_refuses(site: Site) -> None:
    page = pages.recipe_page(site, Links("zoo/own"), zoo(site))
    assert re.search(r'tiger is refused:.*?is stale.*?href="/zoo/own/tiger/data"', page, re.DOTALL)
    assert "does not know the recipe" in page


def test_a_verdict_says_in_its_first_sentence_why_it_fails(site: Site) -> None:
    said = text_of(verdict(site, "tiger"))
    assert "Refused: the cache of component math is stale: GSM8K/test.json is no source of it any more. And 2 more things, below." in said
    assert "Found 1 file differs Limit 0 files differ" in said
    assert "250 of 1,319 items of gsm8k are in component math" in said
    assert "✗ failed The sources are still what the cache was made of. 1 file differs 0 files differ caches" in said


def test_evidence_is_sorted_filtered_and_cut_by_the_server(site: Site) -> None:
    def items(page: str) -> list[str]:
        return re.findall(r"<td>(test-\d{4})</td>", page)

    assert items(verdict(site, "tiger")) == [f"test-{number:04}" for number in range(100)]
    assert items(verdict(site, "tiger", table="leaked_items", sort="score"))[:2] == ["test-0249", "test-0248"]
    assert items(verdict(site, "tiger", table="leaked_items", page=3)) == [f"test-{number:04}" for number in range(200, 250)]
    assert items(verdict(site, "tiger", table="leaked_items", page=900))[0] == "test-0200"
    assert items(verdict(site, "tiger", table="leaked_items", text="GSM8K test-0007")) == ["test-0007"]
    assert "No row of 250 matches" in verdict(site, "tiger", table="leaked_items", text="no such word")
    assert len(items(verdict(site, "tiger", table="leaked_items", sort="no such column"))) == 100


def test_a_query_that_does_not_read_is_the_first_page() -> None:
    assert asked_of({"page": "-3", "table": "a"}) == Asked(table="a")
    assert asked_of({"page": "9" * 40}) == Asked()
    assert asked_of({"page": "²"}) == Asked()


def test_rows_that_do_not_pass_come_first_and_a_table_that_is_gone_is_said_to_be(own_home: Home) -> None:
    path = own_home.verdict(RUN_NAME, "tiger", "data").with_suffix("") / "caches.parquet"
    pd.DataFrame({"name": ["a", "b", "c"], "passes": [True, False, True]}).to_parquet(path)
    assert re.findall(r"<td>([abc])</td>", verdict(site_of(own_home), "tiger")) == ["b", "a", "c"]
    path.unlink()
    assert "This table is not there, or does not read." in verdict(site_of(own_home), "tiger")


@pytest.mark.parametrize("name", ["lion", "tiger", "puma"])
def test_nothing_of_the_home_becomes_markup(site: Site, name: str) -> None:
    shown = [phase(site, name), verdict(site, name), pages.search_page(site, Links("search"), "script")]
    shown += [pages.compare_page(site, Links("compare"), "zoo/own/lion", f"zoo/own/{name}"), pages.home_page(site, Links(""))]
    for page in shown:
        assert all(
            found[0].startswith(('<script src="/-/static/site.js" defer>', "<svg viewBox", '<svg class="tree"'))
            for found in TAG.finditer(page)
        )
        assert "<b>x" not in page
        assert 'style="' not in page
        assert not re.search(r'\son\w+="', page)


def test_events_and_what_was_set_aside_are_shown_the_last_first(site: Site) -> None:
    said = text_of(phase(site, "puma"))
    kinds = ["! spike", "! rolled back", "restart", "superseded"]
    places = [said.index(kind, said.index("Events When")) for kind in kinds]
    assert places == sorted(places)
    assert "it is kept in puma.superseded-1a2b3c4d" in said


def test_a_phase_shows_its_numbers_its_parent_and_its_files(site: Site) -> None:
    said = text_of(phase(site, "tiger"))
    assert "step 60 of 80" in said
    assert "Starts from step 40 of lion" in said
    assert "last sign of life 1970-01-01 not at work" in said
    assert "runs/zoo-own/tiger of the home" in said


def test_loss_that_is_not_finite_is_said(own_home: Home) -> None:
    metrics = own_home.run(RUN_NAME, "puma") / "metrics.jsonl"
    write_rows(metrics, [*(row(step) for step in range(41, 60)), row(60, loss=None)])
    said = text_of(phase(site_of(own_home), "puma"))
    assert "loss not finite nats a token" in said
    assert "1 update had a loss or a norm that is no finite number" in said


def test_live_data_are_the_numbers_and_the_parts_of_the_page(own_home: Home) -> None:
    site = site_of(own_home)
    (own_home.run(RUN_NAME, "puma") / "heartbeat").touch()
    found, files = pages.find_phase(site, PhaseAddress("zoo", "own", "puma"))
    answer = pages.live(site, Links(f"live/{files.address}"), found, files)
    assert (answer["state"], answer["step"], answer["stop_step"], answer["is_alive"]) == ("training", 60, 80, True)
    assert json.loads(json.dumps(answer)) == answer
    page = pages.phase_page(site, Links(str(files.address)), found, files)
    assert answer["parts"]["state"].strip() in page
    assert "time left" in answer["parts"]["training"]


def test_two_phases_are_compared_where_they_were_measured_alike(own_home: Home) -> None:
    page = pages.compare_page(site_of(own_home), Links("compare"), "zoo/own/lion", "zoo/own/tiger")
    assert "stop step 40 80" in text_of(page)
    assert page.count('class="curve place-0"') == page.count('class="curve place-1"') > 3
    write_phase(own_home, "lynx")
    other = own_home.run(RUN_NAME, "lynx") / "evaluation.json"
    found = json.loads(other.read_text())
    write_sealed(other, found | {"benchmarks_digest": "others", "measured_on": {"law": "text", "web": "other text"}})
    said = text_of(pages.compare_page(site_of(own_home), Links("compare"), "zoo/own/lion", "zoo/own/lynx"))
    assert "– not put to the same items" in said
    assert "bits per byte, web 2.000 2.000 – not measured on the same text" in said
    assert "bits per byte, law 1.500 1.500 ±0.000" in said
    assert "– not means over the same text" in said


@pytest.mark.parametrize(("text", "found"), [("zoo", "recipe"), ("PUMA", "phase"), ("stale math", "reason"), ("item training", "check")])
def test_search_finds(site: Site, text: str, found: str) -> None:
    assert re.search(rf"<td>{found}</td>", pages.search_page(site, Links("search"), text))


@pytest.mark.parametrize("text", ["zoo", "zoo/own/none", "zoo/half/lion", "../own/lion", "zoo/own/lion/data"])
def test_a_phase_that_is_not_there_is_refused(site: Site, text: str) -> None:
    with pytest.raises(ConfigError, match=r"RECIPE/SCALE/PHASE|there is no phase"):
        pages.compare_page(site, Links("compare"), "zoo/own/lion", text)


def test_a_known_recipe_shows_its_plan_before_it_begins(tmp_path: Path) -> None:
    site = site_of(Home(tmp_path, reads_only=True), "marin-8b")
    found = site.shelf.find("marin-8b", "proxy")
    assert found is not None
    said = text_of(pages.recipe_page(site, Links(found.path), found))
    assert "37 phases: 37 not begun" in said
    starling = site.shelf.phase(found, "starling")
    assert starling is not None
    said = text_of(pages.phase_page(site, Links(str(starling.address)), found, starling))
    assert "steps 1,320 → 1,400" in said
    assert "nemotron_medium 20.98 %" in said
    assert "z loss off 0.0001 yes" in said
