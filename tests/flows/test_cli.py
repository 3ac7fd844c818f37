"""The command line as people and scripts meet it: help, exit codes, one clear line for a refusal, JSON alone on standard output."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from phasewise.flows.cli import main
from phasewise.flows.recipes import load_recipe
from phasewise.tasks.data.stand_ins import RECORD_NAME
from phasewise.trainer.base.identity import write_sealed
from phasewise.trainer.base.storage import read_json, write_json
from tests.flows.commands import Run, assert_refused

COMMANDS = {
    "run",
    "show",
    "lineage",
    "data prepare",
    "data verify",
    "evaluate",
    "card",
    "export",
    "approve",
    "report",
    "verify",
    "up",
    "scan",
    "order",
    "preflight",
    "status",
    "new",
    "schema",
    "trace",
    "tokenizer train",
    "tokenizer truncate",
    "tokenizer compare",
}
WITH_RECIPE = ["run", "show", "lineage", "data prepare", "data verify", "evaluate", "status"]
WITH_PHASE = ["run", "show", "lineage", "data prepare", "data verify", "evaluate", "status"]
WITH_HOME = ["run", "data prepare", "data verify", "evaluate", "status"]


def every_command(group: click.Group, before: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        yield from every_command(command, f"{before}{name} ") if isinstance(command, click.Group) else [(before + name, command)]


def test_these_are_the_commands():
    assert {name for name, _ in every_command(main.main)} == COMMANDS
    assert all(command.help for _, command in every_command(main.main))


@pytest.mark.parametrize("command", ["", "data", *sorted(COMMANDS)])
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_every_command_has_help(phasewise: Run, command: str, option: str):
    result = phasewise(command, option)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("Usage: ")
    assert "--help" in result.stdout


def test_it_has_a_version(phasewise: Run):
    assert phasewise("--version").stdout.split()[-1].count(".") == 2


@pytest.mark.parametrize("command", WITH_RECIPE)
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_an_unknown_recipe_is_refused(phasewise: Run, tmp_path: Path, command: str, options: tuple[str, ...]):
    result = phasewise(command, "marin-7b", *options)
    assert_refused(result, 2, "no recipe is called 'marin-7b'; there are marin-8b")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", WITH_PHASE)
def test_an_unknown_phase_is_refused(phasewise: Run, tmp_path: Path, command: str):
    assert_refused(phasewise(command, "marin-8b/kestral"), 2, "marin-8b has no phase 'kestral'; it has kestrel, ocelot")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [command for command in WITH_HOME if command != "status"])
def test_an_unwritable_home_is_refused(phasewise: Run, tmp_path: Path, command: str):
    (tmp_path / "file").touch()
    result = phasewise(command, "marin-8b/kestrel", "--home", tmp_path / "file" / "home", "--json")
    wanted = "read" if command == "status" else "written"
    assert_refused(result, 2, f"the home {tmp_path}/file/home cannot be {wanted}", "--home or PHASEWISE_HOME")


@pytest.mark.parametrize("command", ["data prepare", "data verify"])
def test_a_bucket_that_is_not_there_is_refused(phasewise: Run, gcs: Path, command: str):
    assert_refused(phasewise(command, "marin-8b", "--home", "gs://no-such/home"), 2, "the home gs://no-such/home cannot be written")


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        *((command, ("marin-8b", "--scael", "full")) for command in WITH_RECIPE),
        *((command, ("marin-8b", "--scale", "half")) for command in WITH_RECIPE),
        *((command, ()) for command in WITH_RECIPE),
        *((command, ("marin-8b", "another")) for command in WITH_RECIPE),
        ("show", ("marin-8b", "--at", "-1")),
        ("show", ("marin-8b", "--at", "soon")),
        ("show", ("marin-8b", "--at", "1", "--results")),
        ("show", ("marin-8b", "--diff", "kestrel")),
        ("up", ("--port", "0")),
        ("up", ("--port", "70000")),
        ("trian", ("marin-8b",)),
        ("data", ("clean",)),
    ],
)
def test_wrong_usage_is_refused(phasewise: Run, command: str, arguments: tuple[str, ...]):
    result = phasewise(command, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-1].startswith("Error: ")


@pytest.mark.parametrize("command", WITH_RECIPE)
@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda phase: phase["mixture"][0][1].update(flan=3), "the mixture from step 0 must sum to 100 %, found 103.00 %"),
        (lambda phase: phase.update(stop_stpe=3), "kestrel.stop_stpe: there is no such field"),
    ],
    ids=["a mixture that does not sum", "a typo"],
)
def test_a_recipe_with_a_mistake_is_refused(phasewise: Run, tmp_path: Path, command: str, edit: Any, said: str):
    raw = load_recipe("marin-8b", "full").model_dump(mode="json")
    edit(raw["phases"][0])
    write_json(tmp_path / "mine.json", raw)
    assert_refused(phasewise(command, "mine.json"), 1, "mine.json is not a recipe", said)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.json"]


@pytest.mark.parametrize("command", ["run", "data prepare"])
def test_a_component_without_files_is_refused_before_work_starts(phasewise: Run, tmp_path: Path, command: str):
    """As after somebody moved them away: the record says that the stand-ins were once made."""
    home = tmp_path / "home"
    for name in load_recipe("marin-8b", "proxy").components:
        (home / "sources" / name).mkdir(parents=True)
    write_json(home / "sources" / RECORD_NAME, {})
    result = phasewise(command, "marin-8b", "--home", home)
    assert_refused(result, 1, f"no file under {home}", "matches *.jsonl: a component needs at least one")
    assert not (home / "prefect").exists()


@pytest.mark.parametrize("command", ["run", "data prepare"])
def test_a_component_that_nobody_knows_is_refused_before_work_starts(phasewise: Run, tmp_path: Path, command: str):
    raw = load_recipe("marin-8b", "proxy").model_dump(mode="json")
    write_json(tmp_path / "mine.json", {**raw, "name": "mine", "phases": [{**raw["phases"][0], "mixture": [[0, {"webtext": 100}]]}]})
    assert_refused(phasewise(command, "mine.json", "--home", tmp_path / "home"), 1, "mine draws from webtext, which")
    assert not (tmp_path / "home" / "prefect").exists()


@pytest.mark.parametrize("target", ["marin-8b", "marin-8b/starling"])
def test_full_scale_is_not_run_on_this_machine(phasewise: Run, tmp_path: Path, target: str):
    assert_refused(phasewise("run", target, "--scale", "full"), 1, "needs the slice 2x v5e-256", "use --scale proxy")
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_trained_is_not_evaluated(phasewise: Run, tmp_path: Path):
    assert_refused(phasewise("evaluate", "marin-8b"), 2, "evaluate needs a phase, found the recipe marin-8b; there are marin-8b/kestrel")
    assert_refused(phasewise("evaluate", "marin-8b/kestrel", "--home", tmp_path / "home"), 1)


def test_a_home_without_caches_does_not_verify(phasewise: Run, tmp_path: Path):
    home = tmp_path / "home"
    raw = load_recipe("marin-8b", "proxy").model_dump(mode="json")
    write_json(
        tmp_path / "mine.json", {**raw, "name": "mine", "phases": [{**raw["phases"][0], "mixture": [[0, {"flan": 60, "all_math": 40}]]}]}
    )
    for name in ("flan", "all_math"):
        (home / "sources" / name).mkdir(parents=True)
        (home / "sources" / name / "stand-in.jsonl").write_text('{"text": "x"}\n')
    result = phasewise("data verify", "mine.json", "--home", home, "--json")
    verification = json.loads(result.stdout)
    assert (result.exit_code, result.stderr, verification["passes"]) == (1, "", False)
    assert [component["name"] for component in verification["components"]] == ["all_math", "flan"]
    for component in verification["components"]:
        assert {"name", "key", "passes", "differences"} <= set(component)
        assert [set(difference) for difference in component["differences"]] == [{"what", "file", "expected", "found", "remedy"}] * 2
    said = phasewise("data verify", "mine.json", "--home", home)
    assert said.exit_code == 1
    assert "all_math: train cache not built" in said.stdout
    assert "2 of 2 components differ." in said.stdout


def test_verify_in_full_reads_what_looks_as_it_did(phasewise: Run, tmp_path: Path):
    """The memory of the home is made to say of an edited file what it said before, as if a disk had changed bytes in silence."""
    home, raw = tmp_path / "home", load_recipe("marin-8b", "proxy").model_dump(mode="json")
    write_json(
        tmp_path / "mine.json", {**raw, "name": "mine", "phases": [{**raw["phases"][0], "mixture": [[0, {"flan": 60, "all_math": 40}]]}]}
    )
    for name in ("flan", "all_math"):
        (home / "sources" / name).mkdir(parents=True)
        (home / "sources" / name / "stand-in.jsonl").write_text('{"text": "x"}\n')

    def keys(*options: str) -> dict[str, str]:
        result = phasewise("data verify", "mine.json", "--home", home, "--json", *options)
        return {component["name"]: component["key"] for component in json.loads(result.stdout)["components"]}

    before, edited = keys(), str(home / "sources" / "flan" / "stand-in.jsonl")
    known = read_json(home / "digests.json")["files"]
    Path(edited).write_text('{"text": "y"}\n')
    assert keys()["flan"] != before["flan"]
    now = read_json(home / "digests.json")["files"]
    silent = {**now, edited: [now[edited][0], *known[edited][1:]]}
    write_sealed(home / "digests.json", {"version": 2, "files": silent})
    assert keys() == before
    assert keys("--full")["flan"] != before["flan"]
    assert keys()["flan"] != before["flan"]


def test_a_fresh_home_is_asked_to_prepare(phasewise: Run, tmp_path: Path):
    """Nothing was ever collected there: there are no files that could be put back."""
    result = phasewise("data verify", "marin-8b", "--home", tmp_path / "home")
    assert result.exit_code == 1
    assert "prepare the data: `phasewise data prepare` collects it" in result.stdout
    assert "put the files back" not in result.stdout


def test_files_that_are_gone_do_not_verify(phasewise: Run, tmp_path: Path):
    raw = load_recipe("marin-8b", "proxy").model_dump(mode="json")
    write_json(
        tmp_path / "mine.json", {**raw, "name": "mine", "phases": [{**raw["phases"][0], "mixture": [[0, {"flan": 60, "all_math": 40}]]}]}
    )
    for name in ("flan", "all_math"):
        (tmp_path / "home" / "sources" / name).mkdir(parents=True)
    (tmp_path / "home" / "sources" / "flan" / "stand-in.jsonl").write_text('{"text": "x"}\n')
    result = phasewise("data verify", "mine.json", "--home", tmp_path / "home", "--json")
    (component,) = json.loads(result.stdout)["components"]
    assert (result.exit_code, component["name"], component["passes"]) == (1, "all_math", False)
    assert component["differences"][0]["what"] == "files gone"
    assert "put the files back" in phasewise("data verify", "mine.json", "--home", tmp_path / "home").stdout


def test_a_stop_by_hand_says_how_to_go_on(phasewise: Run, monkeypatch: pytest.MonkeyPatch):
    def interrupted(*_: object):
        raise KeyboardInterrupt

    monkeypatch.setattr("phasewise.flows.cli.lineage.describe", interrupted)
    assert_refused(phasewise("lineage", "marin-8b"), 130, "stopped; the same command goes on from here")


def test_up_becomes_the_local_deployment(phasewise: Run, monkeypatch: pytest.MonkeyPatch):
    called: list[list[str]] = []
    monkeypatch.setattr(main.os, "execv", lambda _path, arguments: called.append(arguments))
    assert phasewise("up", "--port", 4300, "--home", "here").exit_code == 0
    assert called == [
        [sys.executable, "-P", "-m", "phasewise.deployments.local", "--port", "4300", "--site-host", "127.0.0.1", "--home", "here"]
    ]


def test_as_a_program_of_its_own(tmp_path: Path):
    """The streams are the real ones here: nothing but JSON on one, and no traceback on the other."""
    shown = subprocess.run(
        [sys.executable, "-m", "phasewise.flows.cli.main", "show", "marin-8b", "--json"], capture_output=True, text=True, check=True
    )
    assert len(json.loads(shown.stdout)["phases"]) == 37
    assert shown.stderr == ""
    command = [Path(sys.executable).with_name("phasewise"), "run", "marin-7b", "--home", tmp_path, "--json"]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("phasewise: no recipe is called 'marin-7b'")
    assert len(refused.stderr.splitlines()) == 1
