from pathlib import Path

import pytest

from phasewise.flows.cli import trace as command
from phasewise.flows.status.summary import what_trained_there
from phasewise.tasks.home import Home
from phasewise.validations.expectations.judging import Reason
from tests.flows.trace.world import World


def test_a_step_of_another_phase_says_which_has_it(world: World):
    for phase, first, last, step, more in (
        ("ocelot", 41, 52, 40, " Step 40 is in kestrel."),
        ("kestrel", 1, 40, 0, ""),
        ("third", 53, 60, 61, ""),
    ):
        said = f"phasewise: {phase} trains steps {first} to {last} at proxy scale, found step {step}.{more}\n"
        assert world.invoke(f"/{phase}", "--step", str(step))[::2] == (2, said)


def test_without_caches_it_says_how_to_make_them(world: World, tmp_path: Path, copied: World):
    nowhere = World(world.recipe, Home(tmp_path / "nowhere"))
    for question in (["--step", "41"], ["--document", "0123456789"]):
        code, out, err = nowhere.invoke("/ocelot", *question)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert f"`phasewise data prepare {world.recipe}/ocelot --scale proxy --home {tmp_path}/nowhere` builds them." in err
    assert not (tmp_path / "nowhere").exists()
    (manifest,) = (copied.home.root / "tokens/flan").glob("held_out-*/manifest.json")
    manifest.unlink()
    assert "has no cache of flan" in copied.invoke("/ocelot", "--step", "41")[2]


def test_to_ask_makes_nothing(copied: World):
    before = {path: path.lstat().st_mtime_ns for path in copied.home.root.rglob("*")}
    copied.ask("/third", step=55)
    copied.ask(document=next(iter(copied.documents("flan"))))
    assert {path: path.lstat().st_mtime_ns for path in copied.home.root.rglob("*")} == before


def test_lines_for_people_have_nothing_that_a_terminal_would_obey(world: World, capsys: pytest.CaptureFixture[str]):
    code, out, err = world.invoke("/ocelot", "--step", "41", "--rows", "2")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "tiny at proxy scale: ocelot (not trained here)"
    assert lines[1].startswith("ocelot step 41 row 0: ")
    assert lines[-1] == "… and 4 rows more: --rows 0 shows all, --json has all"
    assert world.invoke("/ocelot", "--step", "41", "--rows", "0")[1].count("ocelot step 41 row") == 6
    answer = world.ask("/ocelot", step=41)
    answer["rows"][0]["text"] = "\x1b[2Jgone\u202e [red]markup[/red]"
    command.print_answer(answer)
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "�[2Jgone� [red]markup[/red]" in shown


@pytest.mark.parametrize(
    ("expectation", "where", "said"),
    [
        ("expect_spikes_within_limit", "step 850", " What trained there: phasewise trace marin-8b/phoenix --step 850"),
        ("expect_only_finite_numbers", "step 3", " What trained there: phasewise trace marin-8b/phoenix --step 3"),
        ("expect_spikes_within_limit", "step -1", ""),
        ("expect_spikes_within_limit", "table health", ""),
        ("expect_ema_gap_within_limit", "step 850", ""),
    ],
)
def test_a_spike_in_a_report_names_the_command_that_shows_its_batch(expectation: str, where: str, said: str):
    reason = Reason(expectation=expectation, severity="warning", what="", found="", limit="", where=where, what_to_do="")
    assert what_trained_there(reason, "phasewise trace marin-8b/phoenix") == said
