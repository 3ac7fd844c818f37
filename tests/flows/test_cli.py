"""The command line as people and scripts meet it: help, exit codes, one clear line for a refusal, JSON alone on standard output."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from flows import cli
from flows.recipes import load_recipe, load_record
from tasks.data.standins import RECORD_NAME
from trainer.base.storage import digest_of_json, read_json, write_json

COMMANDS = {
    "run",
    "show",
    "lineage",
    "data prepare",
    "data verify",
    "evaluate",
    "export",
    "up",
    "scan",
    "order",
    "preflight",
    "status",
    "new",
    "schema",
    "trace",
}
WITH_RECIPE = ["run", "show", "lineage", "data prepare", "data verify", "evaluate", "status"]
WITH_PHASE = ["run", "show", "lineage", "data prepare", "data verify", "evaluate", "status"]
WITH_HOME = ["run", "data prepare", "data verify", "evaluate", "status"]
PHASES = ["kestrel", "ocelot", "jellyfish", "phoenix", "starling", "deeper-starling"]
Run = Callable[..., Result]


@pytest.fixture
def phasewise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command in this process, in an empty folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PHASEWISE_HOME", raising=False)

    def run(command: str, *arguments: object) -> Result:
        return CliRunner().invoke(cli.main, [*command.split(), *map(str, arguments)])

    return run


def assert_refused(result: Result, code: int, *said: str) -> None:
    """One line on standard error, nothing on standard output, no traceback."""
    assert isinstance(result.exception, SystemExit), result.exception
    assert (result.exit_code, result.stdout) == (code, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("phasewise: ")
    assert all(part in line for part in said), line


def every_command(group: click.Group, before: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        yield from every_command(command, f"{before}{name} ") if isinstance(command, click.Group) else [(before + name, command)]


def test_these_are_the_commands():
    assert {name for name, _ in every_command(cli.main)} == COMMANDS
    assert all(command.help for _, command in every_command(cli.main))


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


@pytest.mark.parametrize("command", ["run", "evaluate"])
def test_a_home_on_an_object_store_is_refused_where_it_is_trained(phasewise: Run, command: str):
    result = phasewise(command, "marin-8b/kestrel", "--home", "gs://bucket/home")
    assert_refused(result, 2, "needs a home that is a local folder, found gs://bucket/home")


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
        (lambda phase: phase.update(stop_stpe=3), "phases.0.stop_stpe: Extra inputs are not permitted"),
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
    write_json(home / "digests.json", {"version": 1, "digest": digest_of_json(silent), "files": silent})
    assert keys() == before
    assert keys("--full")["flan"] != before["flan"]
    assert keys()["flan"] != before["flan"]


def test_a_fresh_home_is_told_to_prepare(phasewise: Run, tmp_path: Path):
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


def read(result: Result) -> dict[str, Any]:
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


@pytest.mark.parametrize("scale", ["full", "proxy"])
def test_show_has_the_shape_that_scripts_read(phasewise: Run, scale: Any):
    shown = read(phasewise("show", "marin-8b", "--scale", scale, "--json"))
    assert (shown["recipe"], shown["scale"]) == ("marin-8b", scale)
    assert [phase["name"] for phase in shown["phases"] if not phase["branch"]] == PHASES
    recipe = load_record("marin-8b", scale)
    for phase in shown["phases"]:
        expected = recipe.phase(phase["name"])
        assert (phase["start_step"], phase["stop_step"], phase["tokens"]) == (expected.start_step, expected.stop_step, expected.tokens)
        assert isinstance(phase["parameters"], int)
        assert all({"kind", "start_step", "end_step", "start", "end"} == set(segment) for segment in phase["learning_rate"])
        for values in (phase["batch"], phase["mixture"], phase["slice"]):
            assert values[0][0] == phase["start_step"]
            assert all(len(entry) == 2 for entry in values)
        assert all(sum(shares.values()) == pytest.approx(100) for _, shares in phase["mixture"])
        assert {"parent", "step", "fresh", "graft", "declares"} <= set(phase["start"])
        assert phase["start"]["parent"] == expected.parent
        assert all({"field", "severity", "code", "retrospective", "source", "place"} == set(found) for found in phase["discrepancies"])
        assert {"optimizer", "stability", "order"} <= set(phase)
        assert phase["optimizer"]["weight_decay"] == 0.05 or phase["branch"]
    assert shown["phases"][0]["parameters"] == (8_030_261_248 if scale == "full" else 1_475_200)


def test_show_at_proxy_scale_counts_a_thousandth(phasewise: Run):
    shown = read(phasewise("show", "marin-8b", "--scale", "proxy", "--json"))
    assert [phase["stop_step"] for phase in shown["phases"] if not phase["branch"]] == [660, 740, 820, 1320, 1400, 1420]


def test_show_of_one_phase(phasewise: Run):
    (phase,) = read(phasewise("show", "marin-8b/phoenix", "--scale", "full", "--json"))["phases"]
    assert phase["name"] == "phoenix"
    assert [step for step, _ in phase["mixture"]] == [820_000, 822_000]
    assert phase["batch"] == [[820_000, 3072]]
    assert phase["stability"]["z_loss"] == [[820_000, None]]


@pytest.mark.parametrize(
    ("step", "name", "rate", "batch", "tokens"),
    [
        (0, "kestrel", 0.0, 1024, 0),
        (659_999, "kestrel", 1 / (1 / 1e-4 - 9 / 1), 1024, 659_999 * 1024 * 4096),
        (660_000, "ocelot", 1.7e-3, 1024, 0),
        (660_001, "ocelot", 1.7e-3, 3072, 1024 * 4096),
        (821_000, "phoenix", 9.35e-4, 3072, 1000 * 3072 * 4096),
        (1_419_999, "deeper-starling", 1.7e-5, 4096, 19_999 * 4096 * 4096),
    ],
)
def test_show_at_a_step(phasewise: Run, step: int, name: str, rate: float, batch: int, tokens: int):
    shown = read(phasewise("show", "marin-8b", "--scale", "full", "--at", step, "--json"))
    (phase,) = shown["phases"]
    assert (shown["step"], phase["name"], phase["batch"], phase["phase_tokens_before"]) == (step, name, batch, tokens)
    assert phase["learning_rate"] == pytest.approx(rate)


@pytest.mark.parametrize(("target", "step"), [("marin-8b", 1_420_001), ("marin-8b/kestrel", 660_001), ("marin-8b/ocelot", 0)])
def test_show_at_a_step_that_is_not_trained_is_refused(phasewise: Run, target: str, step: int):
    assert_refused(phasewise("show", target, "--scale", "full", "--at", step), 2, f"no phase of {target} trains at step {step}; there are")


@pytest.mark.parametrize("scale", ["full", "proxy"])
def test_lineage_says_what_changes(phasewise: Run, scale: str):
    shown = read(phasewise("lineage", "marin-8b", "--scale", scale, "--json"))
    assert (shown["recipe"], shown["scale"]) == ("marin-8b", scale)
    main_line = [(phase["name"], phase["parent"]) for phase in shown["phases"] if not phase["branch"]]
    assert main_line == list(zip(PHASES, [None, *PHASES[:-1]], strict=True))
    for phase in shown["phases"]:
        assert all(change["declared"] and change["before"] != change["after"] for change in phase["changes"])
        assert {change["what"] for change in phase["changes"]} <= set(phase["declares"])
    ocelot = {change["what"]: (change["before"], change["after"]) for change in shown["phases"][1]["changes"]}
    assert ocelot["ema"] == (None, 0.995 if scale == "full" else 0.875)
    assert shown["phases"][1]["fresh"] == ["ema"]


@pytest.mark.parametrize("command", ["show", "lineage"])
@pytest.mark.parametrize("scale", ["full", "proxy"])
def test_people_read_the_same(phasewise: Run, command: str, scale: str):
    result = phasewise(command, "marin-8b", "--scale", scale)
    assert (result.exit_code, result.stderr) == (0, "")
    assert f"marin-8b at {scale} scale" in result.stdout
    assert all(name in result.stdout for name in PHASES)


def test_people_read_what_is_in_force_at_a_step(phasewise: Run):
    result = phasewise("show", "marin-8b", "--scale", "full", "--at", 821_000)
    assert result.exit_code == 0
    assert "phoenix" in result.stdout
    assert "dclm_baseline 25.65 %" in " ".join(result.stdout.split())


def test_a_stop_by_hand_says_how_to_go_on(phasewise: Run, monkeypatch: pytest.MonkeyPatch):
    def interrupted(*_: object):
        raise KeyboardInterrupt

    monkeypatch.setattr("flows.commands.lineage.describe", interrupted)
    assert_refused(phasewise("lineage", "marin-8b"), 130, "stopped; the same command goes on from here")


def test_up_becomes_the_local_deployment(phasewise: Run, monkeypatch: pytest.MonkeyPatch):
    called: list[list[str]] = []
    monkeypatch.setattr(cli.os, "execv", lambda _path, arguments: called.append(arguments))
    assert phasewise("up", "--port", 4300, "--home", "here").exit_code == 0
    assert called == [[sys.executable, "-m", "deployments.local", "--port", "4300", "--home", "here"]]


def test_as_a_program_of_its_own(tmp_path: Path):
    """The streams are the real ones here: nothing but JSON on one, and no traceback on the other."""
    shown = subprocess.run([sys.executable, "-m", "flows.cli", "show", "marin-8b", "--json"], capture_output=True, text=True, check=True)
    assert len(json.loads(shown.stdout)["phases"]) == 36
    assert shown.stderr == ""
    command = [Path(sys.executable).with_name("phasewise"), "run", "marin-7b", "--home", tmp_path, "--json"]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("phasewise: no recipe is called 'marin-7b'")
    assert len(refused.stderr.splitlines()) == 1
