import os
import re
import time
from pathlib import Path

import pytest

from phasewise.flows.recipes import load_recipe
from phasewise.flows.site.address import Links
from phasewise.flows.site.pages import phase_page
from phasewise.flows.site.shelf import PhaseFiles
from phasewise.flows.site.site import check, in_words, state_of
from phasewise.flows.status.phase_status import Finding, PhaseRecord
from phasewise.tasks.home import Home
from phasewise.tasks.validation.decide import decide
from phasewise.trainer.base.storage import write_json
from phasewise.trainer.instability import CHECK, TABLE
from phasewise.validations.verdict import Verdict, read_verdict, write_verdict
from phasewise.validations.waivers import ApprovableCheck, AsksPeople
from tests.flows.site.homes import RUN_NAME, sample, site_of, zoo


def files_of(home: Home, name: str) -> PhaseFiles:
    site = site_of(home)
    files = site.shelf.phase(zoo(site), name)
    assert files is not None
    return files


def record(*why: str) -> PhaseRecord:
    findings = tuple(Finding(what="data", holds=False, again="judge", why=one) for one in why)
    return PhaseRecord(load_recipe("marin-8b", "proxy").phases[0], None, None, None, None, None, None, findings)


def test_files_say_how_far_a_phase_came(own_home: Home) -> None:
    words = {name: state_of(files_of(own_home, name), None).word for name in ("lion", "tiger", "puma")}
    assert words == {"lion": "done", "tiger": "refused", "puma": "half trained"}
    assert in_words(state_of(files_of(own_home, name), None) for name in ("lion", "puma", "lion")) == "2 done, 1 half trained"


def test_what_does_not_hold_any_more_is_out_of_date_and_a_refusal_keeps_its_reason(own_home: Home) -> None:
    state = state_of(files_of(own_home, "lion"), record("the sources are others now"))
    assert (state.kind, state.word, state.why) == ("warned", "out of date", "the sources are others now")
    state = state_of(files_of(own_home, "tiger"), record("the limits are others now"))
    assert (state.word, "is stale" in state.why) == ("refused, out of date", True)
    assert "the limits are others now" in state.since


def test_a_run_with_a_sign_of_life_trains_until_it_has_none(own_home: Home) -> None:
    now = time.time()
    heartbeat = own_home.run(RUN_NAME, "puma") / "heartbeat"
    heartbeat.touch()
    os.utime(heartbeat, (now - 100, now - 100))
    assert state_of(files_of(own_home, "puma"), None, now=now).word == "training"
    assert state_of(files_of(own_home, "puma"), None, now=now + 30).word == "half trained"


@pytest.mark.parametrize("name", ["verdict", "result"])
def test_a_file_that_does_not_read_is_shown_as_damaged(own_home: Home, name: str) -> None:
    path = own_home.verdict(RUN_NAME, "lion", "model") if name == "verdict" else own_home.run(RUN_NAME, "lion") / "result.json"
    path.write_text("{")
    state = state_of(files_of(own_home, "lion"), None)
    assert (state.kind, state.word) == ("failed", "damaged")
    assert str(path) in state.why


def test_a_verdict_that_was_given_again_is_read_again(own_home: Home) -> None:
    site = site_of(own_home)
    found = zoo(site)
    assert site.state(found, site.shelf.phases(found)[1]).word != "done"
    write_verdict(own_home.verdict(RUN_NAME, "tiger", "data"), sample(own_home, "tiger", "data"))
    files = site.shelf.phase(found, "tiger")
    assert files is not None
    assert site.state(found, files).word == "half trained"


def listed(home: Home) -> Path:
    """The verdict on tiger's data, as a recipe would have it that lets a person decide of what failed."""
    path = home.verdict(RUN_NAME, "tiger", "data")
    verdict = read_verdict(path)
    failed = [check for check in verdict.checks if check.outcome == "failed"]
    approvable = tuple(ApprovableCheck(table=check.table, check=check.name) for check in failed)
    write_verdict(path, verdict.model_copy(update={"asks_people": AsksPeople(approvable=approvable)}))
    return path


@pytest.mark.parametrize(("approves", "word"), [(True, "let pass by a person"), (False, "rejected by a person")])
def test_what_a_person_decided_is_said_with_name_and_reason(own_home: Home, approves: bool, word: str) -> None:
    path = listed(own_home)
    assert state_of(files_of(own_home, "tiger"), None).word == "waits for a person"
    decide(path, approves=approves, reason="I looked at it", who="Ada")
    state = state_of(files_of(own_home, "tiger"), None)
    assert (state.word, state.since) == (word, "Ada: I looked at it")
    assert "is stale" in state.why
    verdict = read_verdict(path)
    write_verdict(path, verdict.model_copy(update={"thresholds": {**verdict.thresholds, "max_epochs": 9.0}}))
    state = state_of(files_of(own_home, "tiger"), None)
    assert state.word == "waits for a person"
    assert "That was decided of another verdict: thresholds changed since" in state.since


def test_a_decision_of_what_nobody_may_let_pass_counts_for_nothing(own_home: Home) -> None:
    path = listed(own_home)
    decide(path, approves=True, reason="I looked at it", who="Ada")
    write_verdict(path, read_verdict(path).model_copy(update={"asks_people": AsksPeople()}))
    assert state_of(files_of(own_home, "tiger"), None).word == "refused"
    path.with_suffix(".decision.json").write_text('{"latest": {"approves": true}}')
    files = files_of(own_home, "tiger")
    assert state_of(files, None).word == "refused"
    assert files.damaged[0].startswith("data.decision.json does not read as a decision")


def test_a_recipe_that_is_known_is_checked_and_says_what_is_missing(tmp_path: Path) -> None:
    home = Home(tmp_path, reads_only=True)
    write_json(home.run("marin-8b-proxy", "kestrel") / "run.json", {})
    site = site_of(home, "marin-8b")
    found = site.shelf.find("marin-8b", "proxy")
    assert found is not None
    checked = check(site.shelf, found)
    assert checked.problem or all(one.state == "not reached" for one in checked.records.values())
    site.checker.now([found])
    assert all(site.state(found, files).kind != "passed" for files in site.shelf.phases(found))


def ask_about_training(home: Home) -> Path:
    """What the training of `puma` asks a person, as its trainer writes it."""
    reason = {
        "expectation": CHECK,
        "severity": "critical",
        "what": "the loss is 10.7 at step 12",
        "found": "the loss is 10.7",
        "limit": "mean + 3 deviations",
        "where": "step 12 of 40",
        "what_to_do": "Approve to go back to step 10. <b>Reject</b> to stop the phase.",
    }
    check = {"name": CHECK, "table": TABLE, "asks": "x", "severity": "critical", "passes": False, "outcome": "failed", "observed": "x"}
    asks = {"approvable": [{"table": TABLE, "check": CHECK}], "on_warnings": False}
    common = {"suite": TABLE, "suite_version": "1", "passes": False, "judged": {"checkpoint of step 10": "a"}, "thresholds": {"step": 12}}
    path = home.question(RUN_NAME, "puma")
    fields = {**common, "subject": "zoo/own/puma training", "asks_people": asks, "reasons": [reason], "checks": [check], "evidence": ""}
    write_verdict(path, Verdict.model_validate(fields))
    return path


def test_a_training_that_asks_waits_for_a_person_and_its_page_says_what_is_asked(own_home: Home) -> None:
    path = ask_about_training(own_home)
    state = state_of(files_of(own_home, "puma"), None)
    assert (state.kind, state.word, state.why) == ("warned", "waits for a person", "its training: the loss is 10.7 at step 12")
    page = page_of(own_home, "puma")
    assert "Its training waits for a person: the loss is 10.7 at step 12" in page
    assert "Approve to go back to step 10. &lt;b&gt;Reject&lt;/b&gt; to stop the phase." in page
    decide(path, approves=False, reason="look first", who="Grace")
    state = state_of(files_of(own_home, "puma"), None)
    assert (state.kind, state.word, state.since) == ("failed", "rejected by a person", "Grace: look first")
    assert "Its training was rejected by a person" in page_of(own_home, "puma")
    decide(path, approves=True, reason="go on", who="Ada")
    assert state_of(files_of(own_home, "puma"), None).word == "half trained"
    assert "Its training w" not in page_of(own_home, "puma")


def test_the_windows_that_were_passed_over_are_on_the_page_with_who_decided(own_home: Home) -> None:
    assert "Data passed over" not in page_of(own_home, "puma")
    by = "approved by <i>Ada</i> on 2026-11-23: noise"
    said = {"windows": [[4, 6], [10, 11]], "reasons": ["a spike", "a gap"], "decided_by": [by]}
    write_json(own_home.run(RUN_NAME, "puma") / "passed_over.json", said)
    page = " ".join(re.sub(r"<[^>]+>", " ", page_of(own_home, "puma")).split())
    assert "steps 5 to 6 4 a spike approved by &lt;i&gt;Ada&lt;/i&gt; on 2026-11-23: noise step 11 2 a gap the recipe" in page
    (own_home.run(RUN_NAME, "puma") / "passed_over.json").write_text("{")
    assert state_of(files_of(own_home, "puma"), None).word == "damaged"


def page_of(home: Home, name: str) -> str:
    site = site_of(home)
    return phase_page(site, Links(""), zoo(site), files_of(home, name))
