import html
import json
import posixpath
import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pandas as pd
import pytest

from phasewise.flows.prefect.server import QueuedRun
from phasewise.flows.recipes import load_recipe
from phasewise.flows.site import export, pages
from phasewise.flows.site.documents import FIELDS, Asked, EvidenceTable
from phasewise.flows.site.export import MARKER, write_site
from phasewise.flows.site.shelf import Links, PhaseAddress, PhaseFiles
from phasewise.flows.site.site import Site, state_of
from phasewise.flows.status.phase_status import Finding, PhaseRecord
from phasewise.tasks.home import Home
from phasewise.tasks.phase_state import State, enter_stage, working
from phasewise.tasks.validation.decide import decide
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.identity import write_sealed
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.skipped_steps import CHECK, TABLE
from phasewise.validations.expectations.suites import DATA_SUITE, GATE_SUITE, HEALTH_SUITE, SUITES
from phasewise.validations.limits import ApprovableCheck, AsksPeople
from phasewise.validations.verdict import MEASURABLE, Verdict, read_verdict, write_verdict
from tests.flows.commands import Run
from tests.flows.site.homes import RUN_NAME, row, sample, site_of, write_home, write_phase, write_rows, zoo
from tests.validations.report.samples import register


@pytest.fixture(scope="session")
def finished_home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Not to be written to: `write_home` in a test's own folder is for that."""
    return write_home(tmp_path_factory.mktemp("home"))


@pytest.fixture
def site(finished_home: Home) -> Site:
    return site_of(finished_home)


@pytest.fixture
def own_home(tmp_path: Path) -> Home:
    return write_home(tmp_path / "home")


LINK = re.compile(r'(?:href|src|action)="([^"]*)"')


@pytest.fixture(scope="module")
def written(finished_home: Home, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "out"
    docs = finished_home.report(RUN_NAME) / "data-docs"
    docs.mkdir(parents=True)
    (docs / "index.html").write_text("<title>docs</title>")
    write_site(site_of(finished_home), folder)
    return folder


def pages_of(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in sorted(folder.rglob("*.html"))}


def test_every_link_of_every_page_leads_to_a_file_beside_it(written: Path) -> None:
    count = 0
    for path, text in pages_of(written).items():
        assert path.startswith("-/") or "default-src 'none'" in html.unescape(text), path
        assert path.startswith("-/") or "data-live" not in text, path
        for link in map(html.unescape, LINK.findall(text)):
            parts = urlsplit(link)
            if link == "data:,":
                continue
            assert not parts.scheme, (path, link)
            assert not parts.netloc, (path, link)
            assert not link.startswith("/"), (path, link)
            target = posixpath.normpath(posixpath.join(posixpath.dirname(path), unquote(parts.path))) if parts.path else path
            assert (written / target).is_file(), (path, link)
            if parts.fragment:
                assert f'id="{unquote(parts.fragment)}"' in (written / target).read_text(), (path, link)
            count += 1
    assert count > 100


def test_somebody_elses_folder_is_left_alone_and_a_home_with_nothing_in_it_is_refused(own_home: Home, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    (tmp_path / "file").write_text("x")
    for place in (tmp_path, tmp_path / "file", own_home.root):
        with pytest.raises(ConfigError, match="found other files"):
            write_site(site_of(own_home), place)
    assert (tmp_path / "letter.txt").read_text() == "dear"
    with pytest.raises(ConfigError, match="no run and no verdict"):
        write_site(site_of(Home(tmp_path / "none", reads_only=True)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_site_is_replaced_as_a_whole_or_not_at_all(own_home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "out"
    write_site(site_of(own_home), folder)
    before = pages_of(folder)
    (folder / "old.html").write_text("of before")
    with monkeypatch.context() as patched:
        patched.setattr(export.pages, "compare_page", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write_site(site_of(own_home), folder)
    assert pages_of(folder) == before | {"old.html": "of before"}
    write_site(site_of(own_home), folder)
    assert pages_of(folder) == before
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_the_command_says_where_it_is(phasewise: Run, own_home: Home, tmp_path: Path) -> None:
    done = phasewise("report --site out --home", own_home.root)
    assert done.exit_code == 0, done.output
    assert f"on zoo/own: {tmp_path / 'out'}/index.html" in done.stdout
    assert (tmp_path / "out" / MARKER).is_file()
    assert phasewise("report --site", own_home.root, "--home", own_home.root).exit_code == 2
    assert phasewise("report").exit_code == 2


def files_of(home: Home, name: str) -> PhaseFiles:
    return pages.find_phase(site_of(home), PhaseAddress("zoo", "own", name))[1]


def record(*why: str) -> PhaseRecord:
    findings = tuple(Finding(what="data", holds=False, again="judge", why=one) for one in why)
    return PhaseRecord(load_recipe("marin-8b", "proxy").phases[0], None, None, None, None, None, None, findings, is_outdated=True)


def test_what_does_not_hold_any_more_is_out_of_date_and_a_refusal_keeps_its_reason(own_home: Home) -> None:
    state = state_of(files_of(own_home, "lion"), record("the sources are others now"))
    assert (state.kind, state.word, state.why) == ("warned", "outdated", "the sources are others now")
    state = state_of(files_of(own_home, "tiger"), record("the limits are others now"))
    assert (state.word, state.why) == ("outdated", "the limits are others now")
    assert "is stale" in state.since


def test_a_training_lasts_as_long_as_its_process_whatever_the_times_of_files_say(own_home: Home) -> None:
    (own_home.run(RUN_NAME, "puma") / "heartbeat").touch()
    assert state_of(files_of(own_home, "puma"), None).word == "interrupted"
    with working(own_home, RUN_NAME, "puma", "a test"):
        assert state_of(files_of(own_home, "puma"), None).word == "preparing"
        enter_stage(own_home, RUN_NAME, "puma", State.TRAINING)
        state = state_of(files_of(own_home, "puma"), None)
        assert (state.kind, state.word, state.why) == ("active", "training", "step 60 of 80, about 5 s left")
    assert state_of(files_of(own_home, "puma"), None).word == "interrupted"


@pytest.mark.parametrize("name", ["verdict", "result"])
def test_a_file_that_does_not_read_is_shown_as_damaged(own_home: Home, name: str) -> None:
    path = own_home.verdict(RUN_NAME, "lion", "model") if name == "verdict" else own_home.run(RUN_NAME, "lion") / "result.json"
    path.write_text("{")
    state = state_of(files_of(own_home, "lion"), None)
    assert (state.kind, state.word) == ("failed", "outdated")
    assert str(path) in state.why


def test_a_verdict_that_was_given_again_is_read_again(own_home: Home) -> None:
    site = site_of(own_home)
    found = zoo(site)
    assert site.state(found, site.shelf.phases(found)[1]).word != "done"
    write_verdict(own_home.verdict(RUN_NAME, "tiger", "data"), sample(own_home, "tiger", "data"))
    files = site.shelf.phase(found, "tiger")
    assert files is not None
    assert site.state(found, files).word == "interrupted"


def listed(home: Home) -> Path:
    """The verdict on tiger's data, as a recipe would have it that lets a person decide of what failed."""
    path = home.verdict(RUN_NAME, "tiger", "data")
    verdict = read_verdict(path)
    failed = [check for check in verdict.checks if check.outcome == "failed"]
    approvable = tuple(ApprovableCheck(table=check.table, check=check.name) for check in failed)
    write_verdict(path, verdict.model_copy(update={"asks_people": AsksPeople(approvable=approvable)}))
    return path


@pytest.mark.parametrize(("approves", "word"), [(True, "interrupted"), (False, "refused")])
def test_what_a_person_decided_is_said_with_name_and_reason(own_home: Home, approves: bool, word: str) -> None:
    path = listed(own_home)
    assert state_of(files_of(own_home, "tiger"), None).word == "waiting for a person"
    decide(path, approves=approves, reason="I looked at it", who="Ada")
    state = state_of(files_of(own_home, "tiger"), None)
    assert (state.word, state.since) == (word, f"{'approved' if approves else 'rejected'} by Ada: I looked at it")
    assert approves or "is stale" in state.why
    verdict = read_verdict(path)
    write_verdict(path, verdict.model_copy(update={"thresholds": {**verdict.thresholds, "max_epochs": 9.0}}))
    state = state_of(files_of(own_home, "tiger"), None)
    assert state.word == "waiting for a person"
    assert "That was decided of another verdict: thresholds changed since" in state.since


def ask_about_training(home: Home) -> Path:
    reason = {
        "expectation": CHECK, "severity": "critical", "what": "the loss is 10.7 at step 12", "found": "the loss is 10.7",
        "limit": "mean + 3 deviations", "where": "step 12 of 40",
        "what_to_do": "Approve to go back to step 10. <b>Reject</b> to stop the phase.",
    }  # fmt: skip
    check = {"name": CHECK, "table": TABLE, "asks": "x", "severity": "critical", "passes": False, "outcome": "failed", "observed": "x"}
    asks = {"approvable": [{"table": TABLE, "check": CHECK}], "on_warnings": False}
    common = {"suite": TABLE, "suite_version": "1", "passes": False, "judged": {"checkpoint of step 10": "a"}, "thresholds": {"step": 12}}
    path = RunFolder(home.run(RUN_NAME, "puma")).question
    fields = {**common, "subject": "zoo/own/puma training", "asks_people": asks, "reasons": [reason], "checks": [check], "evidence": ""}
    write_verdict(path, Verdict.model_validate(fields))
    return path


def test_a_training_that_asks_waits_for_a_person_and_its_page_says_what_is_asked(own_home: Home) -> None:
    path = ask_about_training(own_home)
    state = state_of(files_of(own_home, "puma"), None)
    assert (state.kind, state.word, state.why) == ("warned", "waiting for a person", "its training: the loss is 10.7 at step 12")
    page = phase(site_of(own_home), "puma")
    assert "Its training waits for a person: the loss is 10.7 at step 12" in page
    assert "Approve to go back to step 10. &lt;b&gt;Reject&lt;/b&gt; to stop the phase." in page
    decide(path, approves=False, reason="look first", who="Grace")
    state = state_of(files_of(own_home, "puma"), None)
    assert (state.kind, state.word, state.since) == ("failed", "refused", "rejected by Grace: look first")
    assert "Its training was rejected by a person" in phase(site_of(own_home), "puma")
    decide(path, approves=True, reason="go on", who="Ada")
    assert state_of(files_of(own_home, "puma"), None).word == "interrupted"
    assert "Its training w" not in phase(site_of(own_home), "puma")


TAG = re.compile(r"<(script|img|iframe|style|svg)\b[^>]*>")


def text_of(page: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def phase(site: Site, name: str) -> str:
    found, files = pages.find_phase(site, PhaseAddress("zoo", "own", name))
    return pages.phase_page(site, Links(str(files.address)), found, files)


def verdict_of(site: Site, name: str, gate: str = "data", **asked: object) -> str:
    found, files = pages.find_phase(site, PhaseAddress("zoo", "own", name))
    return pages.verdict_page(site, Links(f"{files.address}/{gate}"), found, files, gate, Asked(**asked))  # pyright: ignore[reportArgumentType]  # as a test writes them


def test_a_phase_shows_its_numbers_and_its_verdict_says_first_why_it_fails(site: Site) -> None:
    said = text_of(verdict_of(site, "tiger"))
    assert "Refused: the cache of component math is stale: GSM8K/test.json is no source of it any more. And 2 more things, below." in said
    assert "Found 1 file differs Limit 0 files differ" in said
    assert "250 of 1,319 items of gsm8k are in component math" in said
    assert "✗ failed The sources are still what the cache was made of. 1 file differs 0 files differ caches" in said
    said = text_of(phase(site, "tiger"))
    assert "step 60 of 80" in said
    assert "Starts from step 40 of lion" in said
    assert "last sign of life 1970-01-01 not active" in said
    assert "runs/zoo-own/tiger of the home" in said


def test_evidence_is_sorted_filtered_and_cut_by_the_server(site: Site) -> None:
    def items(page: str) -> list[str]:
        return re.findall(r"<td>(test-\d{4})</td>", page)

    assert items(verdict_of(site, "tiger")) == [f"test-{number:04}" for number in range(100)]
    assert items(verdict_of(site, "tiger", table="leaked_items", sort="score"))[:2] == ["test-0249", "test-0248"]
    assert items(verdict_of(site, "tiger", table="leaked_items", page=3)) == [f"test-{number:04}" for number in range(200, 250)]
    assert items(verdict_of(site, "tiger", table="leaked_items", page=900))[0] == "test-0200"
    assert items(verdict_of(site, "tiger", table="leaked_items", text="GSM8K test-0007")) == ["test-0007"]
    assert "No row of 250 matches" in verdict_of(site, "tiger", table="leaked_items", text="no such word")
    assert len(items(verdict_of(site, "tiger", table="leaked_items", sort="no such column"))) == 100


def test_rows_that_do_not_pass_come_first_and_a_table_that_is_gone_is_said_to_be(own_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch)
    assert re.findall(r"<td>(mmlu|gsm8k)</td>", verdict_of(site_of(own_home), "tiger"))[:2] == ["gsm8k", "mmlu"], "the most hits first"
    path = own_home.verdict(RUN_NAME, "tiger", "data").with_suffix("") / "caches.parquet"
    pd.DataFrame({"name": ["a", "b", "c"], "passes": [True, False, True]}).to_parquet(path)
    assert re.findall(r"<td>([abc])</td>", verdict_of(site_of(own_home), "tiger")) == ["b", "a", "c"]
    path.unlink()
    assert "This table is missing or cannot be read." in verdict_of(site_of(own_home), "tiger")


@pytest.mark.parametrize("name", ["lion", "tiger", "puma"])
def test_nothing_of_the_home_becomes_markup(site: Site, name: str) -> None:
    shown = [phase(site, name), verdict_of(site, name), pages.search_page(site, Links("search"), "script")]
    shown += [pages.compare_page(site, Links("compare"), ["zoo/own/lion", f"zoo/own/{name}"]), pages.home_page(site, Links(""))]
    for page in shown:
        assert all(found[0].startswith(('<script src="/-/static/', "<svg viewBox", '<svg class="tree"')) for found in TAG.finditer(page))
        assert "<b>x" not in page
        assert 'style="' not in page
        assert not re.search(r'\son\w+="', page)


def test_live_data_are_the_numbers_and_the_parts_of_the_page(own_home: Home) -> None:
    site = site_of(own_home)
    with working(own_home, RUN_NAME, "puma", "a test"):
        enter_stage(own_home, RUN_NAME, "puma", State.TRAINING)
        found, files = pages.find_phase(site, PhaseAddress("zoo", "own", "puma"))
        answer = pages.live(site, Links(f"live/{files.address}"), found, files)
    assert (answer["state"], answer["step"], answer["stop_step"], answer["is_alive"]) == ("training", 60, 80, True)
    assert json.loads(json.dumps(answer)) == answer
    page = pages.phase_page(site, Links(str(files.address)), found, files)
    assert answer["parts"]["state"].strip() in page
    assert "time left" in answer["parts"]["training"]


def test_the_first_page_shows_work_queue_and_phases_that_need_a_person_first(own_home: Home) -> None:
    site = site_of(own_home)
    site.prefect = "http://prefect"
    site.queue = (QueuedRun("zoo", "own", "lynx", "nightly lynx", "2026-11-23T10:00:00Z", "run-1"),)
    with working(own_home, RUN_NAME, "puma", "a test"):
        enter_stage(own_home, RUN_NAME, "puma", State.TRAINING)
        page = pages.home_page(site, Links(""))
        answer = pages.live_home(site, Links("live"))
    said = text_of(page)
    assert "Now running ● training zoo/own/puma step 60 of 80" in said
    assert "Queue zoo/own/lynx due since 2026-11-23 10:00 UTC, nightly lynx Needs you ✗ refused zoo/own/tiger" in said
    assert 'href="http://prefect/v2/runs/flow-run/run-1"' in page
    assert said.index("Needs you") < said.index("3 phases")
    assert answer["is_alive"]
    assert "step 60 of 80" in answer["parts"]["now"]
    assert "No phase is at work, and the queue is empty" in text_of(pages.home_page(replace(site, queue=()), Links("")))


def test_a_limit_that_cannot_be_measured_is_no_warning(own_home: Home) -> None:
    path = own_home.verdict(RUN_NAME, "lion", "health")
    verdict = read_verdict(path)
    check = verdict.checks[0].but(asks=MEASURABLE, severity="warning", passes=False, outcome="failed")
    reason = {
        "expectation": check.name,
        "severity": "warning",
        "what": "no trend to judge",
        "found": "x",
        "limit": "x",
        "where": "x",
        "what_to_do": "x",
    }
    write_verdict(path, Verdict.model_validate(verdict.model_dump() | {"checks": [check, *verdict.checks[1:]], "reasons": [reason]}))
    state = state_of(files_of(own_home, "lion"), None)
    assert (state.kind, state.why) == ("passed", "")
    page = verdict_of(site_of(own_home), "lion", "health")
    assert '<p class="status passed">' in page
    assert '<section class="failure unmeasured">' in page
    assert "Not measurable here: 1 limit – not measurable no trend to judge" in text_of(page)


def test_the_history_of_a_phase_has_its_attempts_and_earlier_trainings(own_home: Home) -> None:
    folder = own_home.run(RUN_NAME, "puma")
    earlier = folder.with_name("puma.superseded-1a2b3c4d")
    write_sealed(earlier / "run.json", json.loads((folder / "run.json").read_text()) | {"batch": [[0, 4]]})
    write_sealed(earlier / "result.json", {"final_loss": 3.25})
    attempt = {"pause_seconds": 0, "seconds": {}, "from_step": 40, "to_step": 60, "wall_seconds": 30}
    write_rows(earlier / "spent.jsonl", [attempt | {"started_at": 1_000_000, "to_step": 80}])
    write_rows(folder / "spent.jsonl", [attempt | {"started_at": 2_000_000, "is_whole": False}, attempt | {"started_at": 3_000_000}])
    said = text_of(phase(site_of(own_home), "puma"))
    assert "1970-02-04 17:20 UTC current 40 → 60 30 s stopped – 1970-01-24 03:33 UTC current 40 → 60 30 s ! lost –" in said
    assert "1970-01-12 13:46 UTC 1a2b3c4d 40 → 80 30 s trained 3.250 batch" in said


def compared(home: Home, *names: str) -> str:
    return pages.compare_page(site_of(home), Links("compare"), [f"zoo/own/{name}" for name in names])


def test_phases_are_compared_by_curves_and_scores_before_their_settings(own_home: Home) -> None:
    page = compared(own_home, "lion", "tiger", "puma")
    said = text_of(page)
    assert said.index("Curves, from") < said.index("Scores") < said.index("Settings that differ")
    assert all(page.count(f'class="curve place-{place}"') > 3 for place in range(3))
    assert "steps and tokens 2 fields start step: 0 · 40 · 40; stop step: 40 · 80 · 80" in said
    assert "mixture 5 fields" in said
    write_phase(own_home, "lynx")
    other = own_home.run(RUN_NAME, "lynx") / "evaluation.json"
    found = json.loads(other.read_text())
    write_sealed(other, found | {"benchmarks_digest": "others", "measured_on": {"law": "text", "web": "other text"}})
    said = text_of(compared(own_home, "lion", "lynx"))
    assert "2.000 2.000 other text" in said
    assert "law 1.500 1.500 ±0.000" in said
    assert "macro bits per byte 1.750 1.750 other means over text" in said
    assert "They differ only in their names" in said
    with pytest.raises(ConfigError, match="at most 8 phases, found 9"):
        compared(own_home, *(f"phase-{number}" for number in range(9)))


def test_phases_that_differ_only_in_seeds_are_one_curve_with_a_band(own_home: Home) -> None:
    for seed, name in enumerate(("lynx", "ocelot"), 1):
        folder = write_phase(own_home, name)
        write_sealed(folder / "run.json", json.loads((folder / "run.json").read_text()) | {"seed": seed})
        write_rows(folder / "metrics.jsonl", [row(step, loss=10.0 + seed) for step in range(1, 41)])
    page = compared(own_home, "lynx", "ocelot", "tiger")
    [data] = [json.loads(html.unescape(found)) for found in re.findall(r'data-chart="([^"]+)"', page)][:1]
    assert [line["name"] for line in data] == ["lynx × 2 seeds", "tiger"]
    assert data[0]["parts"][0][:2] == [1, 11.5]
    assert data[0]["spread"][:6] == [1, 11, 12, 2, 11, 12]
    assert page.count('class="spread place-0"') >= 1


def test_an_evidence_table_folds_long_and_equal_columns_but_the_sorted_one() -> None:
    columns = tuple(f"c{at}" for at in range(9))
    rows = tuple(("same", "x" * 60, *(f"{row}{at}" for at in range(2, 9))) for row in range(3))
    assert EvidenceTable("t", columns, rows=rows).shown == [2, 3, 4, 5, 6, 7, 8]
    assert EvidenceTable("t", columns, rows=rows, sort="-c1").shown == [1, 2, 3, 4, 5, 6, 7]
    assert EvidenceTable("t", columns[:3], rows=tuple(row[:3] for row in rows)).shown == [0, 1, 2]


def test_advice_names_tables_of_the_suites() -> None:
    assert set(FIELDS) <= {table for suite in (DATA_SUITE, HEALTH_SUITE, GATE_SUITE) for table in SUITES[suite].tables}


def test_a_refused_phase_names_source_field_and_commands(own_home: Home) -> None:
    folder = own_home.run(RUN_NAME, "tiger")
    write_sealed(folder / "run.json", json.loads((folder / "run.json").read_text()) | {"caches": {"math": "nowhere/train-1"}})
    site = site_of(own_home)
    for said in (text_of(phase(site, "tiger")), text_of(verdict_of(site, "tiger"))):
        assert "Recipe field sources.math.exclude Commands phasewise data prepare zoo/tiger phasewise run zoo/tiger" in said
    assert "Test items in math" in text_of(verdict_of(site, "tiger"))
    found, files = pages.find_phase(site, PhaseAddress("zoo", "own", "tiger"))
    said = text_of(pages.documents_page(site, Links("text"), found, files, "math", 1))
    assert "The token cache of this component is not in the home" in said
    with pytest.raises(ConfigError, match="component 'law': expected one of math"):
        pages.documents_page(site, Links("text"), found, files, "law", 1)


def test_suggestions_are_names_and_settings_without_values(site: Site) -> None:
    found = pages.suggestions(site)
    assert {"zoo", "lion", "law", "model: d model", "seed"} <= set(found)
    assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    ("text", "found"),
    [("model d = 32", "setting"), ("zoo", "recipe"), ("PUMA", "phase"), ("stale math", "reason"), ("item training", "check")],
)
def test_search_finds(site: Site, text: str, found: str) -> None:
    assert re.search(rf"<td>{found}</td>", pages.search_page(site, Links("search"), text))


def test_a_known_recipe_shows_its_plan_before_it_begins(tmp_path: Path) -> None:
    site = site_of(Home(tmp_path, reads_only=True), "marin-8b")
    found = site.shelf.find("marin-8b", "proxy")
    assert found is not None
    said = text_of(pages.recipe_page(site, Links(found.path), found))
    assert "38 phases: 38 not started" in said
    starling = site.shelf.phase(found, "starling")
    assert starling is not None
    said = text_of(pages.phase_page(site, Links(str(starling.address)), found, starling))
    assert "steps 1,320 → 1,400" in said
    assert "nemotron_medium 20.98 %" in said
    assert "z loss off 0.0001 yes" in said
    site.shelf.home.run("marin-8b-proxy", "starling").mkdir(parents=True)
    scales = [one.scale for one in site.shelf.sets()]
    assert (scales[0], sorted(scales)) == ("proxy", sorted({*scales})), "each once, those of the home first"
