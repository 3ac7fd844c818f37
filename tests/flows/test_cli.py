import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from phasewise.flows.cli import doctor, main
from phasewise.flows.cli.data import judge_order
from phasewise.flows.cli.help import DETAILS, GROUPS
from phasewise.flows.cli.options import FiniteFloat, NamedPlace
from phasewise.flows.recipes import load_recipe, load_record
from phasewise.tasks.data.stand_ins import RECORD_NAME
from phasewise.tasks.training.select_launcher import LAUNCHER_VARIABLE, PROCESSES_VARIABLE
from phasewise.trainer.base import identity
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.identity import write_sealed
from phasewise.trainer.base.storage import read_json, write_json
from tests.flows.commands import PHASES, Run, assert_refused, read

COMMANDS = {
    "sample", "chat", "doctor", "try", "gc", "goodput", "data fetch", "data generate", "figures", "why", "results", "bench accelerator",
    "run", "show", "lineage", "data prepare", "data verify", "evaluate", "card", "export", "approve", "report", "verify", "up", "scan",
    "order", "preflight", "status", "mixture", "new", "schema", "trace", "tokenizer train", "tokenizer truncate", "tokenizer compare",
}  # fmt: skip
WITH_RECIPE = ("run", "show", "lineage", "data prepare", "data verify", "evaluate", "status", "goodput")
PLACES = {"DIR", "FILE", "FOLDER", "URL", "OUT", "PATH"}


def every_command(command: click.Command = main.main, words: str = "") -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for name, one in command.commands.items():
            yield from every_command(one, f"{words} {name}".strip())
    else:
        yield words, command


def test_every_command_has_help_and_a_version(phasewise: Run):
    assert {name for name, _ in every_command()} == COMMANDS
    for command in ("", "data", *COMMANDS):
        for option in ("--help", "-h"):
            result = phasewise(command, option)
            assert (result.exit_code, result.stderr) == (0, ""), command
            assert result.stdout.startswith("Usage: ")
            assert "--help" in result.stdout
    assert all(command.help for _, command in every_command())
    assert {name for commands in GROUPS.values() for name in commands} == set(main.main.commands)
    assert set(DETAILS) <= {name.split()[-1] for name in COMMANDS}
    text = " ".join(phasewise("--help").stdout.split())
    assert all(line in text for commands in GROUPS.values() for line in commands.values()), "a line is cut"
    assert phasewise("--version").stdout.split()[-1].count(".") == 2


def test_every_number_of_every_command_is_finite_and_every_place_is_named():
    kinds: list[Any] = [parameter.type for _, command in every_command() for parameter in command.params]
    floats: list[Any] = [kind for kind in kinds if isinstance(kind, click.types.FloatParamType)]
    assert len(floats) >= 4
    assert all(isinstance(kind, FiniteFloat) for kind in floats)
    for kind in floats:
        for text in ("nan", "NAN", "inf", "-inf", "1e999", "-1e999"):
            with pytest.raises(click.BadParameter, match="expected a finite number"):
                kind.convert(text, None, None)
    whole: list[Any] = [kind for kind in kinds if isinstance(kind, click.types.IntParamType)]
    for kind in whole:
        with pytest.raises(click.BadParameter):
            kind.convert("nan", None, None)
    kinds = [parameter.type for _, command in every_command() for parameter in command.params if parameter.metavar in PLACES]
    assert len(kinds) > 30
    assert all(isinstance(kind, NamedPlace | click.Path) for kind in kinds)
    for text in ("", " ", "\t", "a\0b"):
        with pytest.raises(click.BadParameter, match="expected a path or a URL"):
            NamedPlace().convert(text, None, None)


@pytest.mark.parametrize(
    "words",
    [
        *(f"{command}{words}" for command in WITH_RECIPE for words in ("", " marin-8b --scael x", " marin-8b --scale half", " marin-8b x")),
        *(f"show marin-8b {words}" for words in ("--at -1", "--at soon", "--at 1 --results", "--diff kestrel")),
        *("up --port 0", "up --port 70000", "trian marin-8b", "data clean"),
    ],
)
def test_wrong_usage_is_refused(phasewise: Run, words: str):
    result = phasewise(words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-1].startswith("Error: ")


def test_a_misspelt_variable_is_said_with_the_one_that_is_meant(phasewise: Run, monkeypatch: pytest.MonkeyPatch):
    assert main.words_of_unread(dict.fromkeys((LAUNCHER_VARIABLE, PROCESSES_VARIABLE, "PHASEWISE_HOME", "PHASEWISE_GKE_IMAGE"), "")) == []
    given = {LAUNCHER_VARIABLE: "local", "PHASEWISE_PROCESES": "2", "PHASEWISE_TEST_SEED": "1", "HOME": "/", "PHASEWISE_ZZZ_QQQ": ""}
    assert main.words_of_unread(given) == [
        "PHASEWISE_PROCESES: unknown setting of Phasewise, ignored, did you mean PHASEWISE_PROCESSES?",
        "PHASEWISE_ZZZ_QQQ: unknown setting of Phasewise, ignored.",
    ]
    monkeypatch.setenv("PHASEWISE_LAUNCHR", "tpu_vm")
    done = phasewise("order feistel 64")
    assert "PHASEWISE_LAUNCHR: unknown setting of Phasewise" in done.stderr
    assert "PHASEWISE_LAUNCHR" not in done.stdout
    monkeypatch.setattr(identity, "ROOMS", None)  # without a setting, the code is not read
    assert main.words_of_unread({"HOME": "/"}) == []


def test_an_empty_variable_is_no_home(phasewise: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for value in ("", " "):
        monkeypatch.setenv("PHASEWISE_HOME", value)
        for command in ("status", "show", "run", "data prepare"):
            assert_refused(phasewise(command, "marin-8b"), 2, "PHASEWISE_HOME: expected a folder or a gs:// URL, found")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["run", "data prepare", "data verify", "evaluate"])
def test_a_home_that_cannot_be_written_is_refused(phasewise: Run, tmp_path: Path, gcs: Path, command: str):
    (tmp_path / "file").touch()
    result = phasewise(command, "marin-8b/kestrel", "--home", tmp_path / "file" / "home", "--json")
    assert_refused(result, 2, f"the home {tmp_path}/file/home cannot be written", "--home or PHASEWISE_HOME")
    if command.startswith("data"):
        result = phasewise(command, "marin-8b", "--home", "gs://no-such/home")
        assert_refused(result, 2, "the home gs://no-such/home cannot be written")


def mine(folder: Path, **shares: float) -> str:
    raw = load_recipe("marin-8b", "proxy").model_dump(mode="json")
    write_json(folder / "mine.json", {**raw, "name": "mine", "phases": [{**raw["phases"][0], "mixture": [[0, shares]]}]})
    return "mine.json"


@pytest.mark.parametrize("command", ["run", "data prepare"])
def test_components_without_files_are_refused_before_work_starts(phasewise: Run, tmp_path: Path, command: str):
    home = tmp_path / "home"
    for name in load_recipe("marin-8b", "proxy").components:
        (home / "sources" / name).mkdir(parents=True)
    write_json(home / "sources" / RECORD_NAME, {})  # the stand-ins were once made, and somebody moved them away
    result = phasewise(command, "marin-8b", "--home", home)
    assert_refused(result, 1, f"no file under {home}", "matches *.jsonl: a component needs at least one")
    assert_refused(phasewise(command, mine(tmp_path, webtext=100), "--home", home), 1, "mine draws from webtext, which")
    assert not (home / "prefect").exists()


def test_what_is_not_trained_here_is_neither_run_nor_evaluated(phasewise: Run, tmp_path: Path):
    for target in ("marin-8b", "marin-8b/starling"):
        assert_refused(phasewise("run", target, "--scale", "full"), 1, "needs the slice 2x v5e-256", "use --scale proxy")
    assert list(tmp_path.iterdir()) == []
    assert_refused(
        phasewise("evaluate", "marin-8b"), 2, "evaluate needs a phase, found the recipe marin-8b. Its phases are marin-8b/kestrel"
    )
    assert_refused(phasewise("evaluate", "marin-8b/kestrel", "--home", tmp_path / "home"), 1)


def test_data_that_are_missing_do_not_verify(phasewise: Run, tmp_path: Path):
    home, recipe = tmp_path / "home", mine(tmp_path, flan=60, all_math=40)
    fresh = phasewise("data verify", recipe, "--home", home)
    assert fresh.exit_code == 1
    assert "prepare the data: `phasewise data prepare` collects it" in fresh.stdout
    assert "put the files back" not in fresh.stdout
    for name in ("flan", "all_math"):
        (home / "sources" / name).mkdir(parents=True, exist_ok=True)
    (home / "sources" / "flan" / "stand-in.jsonl").write_text('{"text": "x"}\n')
    gone = phasewise("data verify", recipe, "--home", home, "--json")
    (component,) = json.loads(gone.stdout)["components"]
    assert (gone.exit_code, component["name"], component["passes"]) == (1, "all_math", False)
    assert component["differences"][0]["what"] == "files gone"
    assert "put the files back" in phasewise("data verify", recipe, "--home", home).stdout
    (home / "sources" / "all_math" / "stand-in.jsonl").write_text('{"text": "x"}\n')
    unbuilt = phasewise("data verify", recipe, "--home", home, "--json")
    verification = json.loads(unbuilt.stdout)
    assert (unbuilt.exit_code, unbuilt.stderr, verification["passes"]) == (1, "", False)
    assert [component["name"] for component in verification["components"]] == ["all_math", "flan"]
    for component in verification["components"]:
        assert {"name", "key", "passes", "differences"} <= set(component)
        assert [set(difference) for difference in component["differences"]] == [{"what", "file", "expected", "found", "remedy"}] * 2
    assert "all_math: train cache not built" in phasewise("data verify", recipe, "--home", home).stdout


def test_verify_in_full_reads_what_looks_as_it_did(phasewise: Run, tmp_path: Path):
    home, recipe = tmp_path / "home", mine(tmp_path, flan=60, all_math=40)
    for name in ("flan", "all_math"):
        (home / "sources" / name).mkdir(parents=True)
        (home / "sources" / name / "stand-in.jsonl").write_text('{"text": "x"}\n')

    def keys(*options: str) -> dict[str, str]:
        result = phasewise("data verify", recipe, "--home", home, "--json", *options)
        return {component["name"]: component["key"] for component in json.loads(result.stdout)["components"]}

    before, edited = keys(), str(home / "sources" / "flan" / "stand-in.jsonl")
    known = read_json(home / "digests.json")["files"]
    Path(edited).write_text('{"text": "y"}\n')
    assert keys()["flan"] != before["flan"]
    now = read_json(home / "digests.json")["files"]
    silent = {**now, edited: [now[edited][0], *known[edited][1:]]}  # as if a disk had changed bytes in silence
    write_sealed(home / "digests.json", {"version": 2, "files": silent})
    assert keys() == before
    assert keys("--full")["flan"] != before["flan"]
    assert keys()["flan"] != before["flan"]


def test_a_stop_by_hand_says_how_to_go_on(phasewise: Run, monkeypatch: pytest.MonkeyPatch):
    def interrupted(*_: object):
        raise KeyboardInterrupt

    monkeypatch.setattr("phasewise.flows.cli.show.describe_lineage", interrupted)
    assert_refused(phasewise("lineage", "marin-8b"), 130, "stopped. The same command resumes")


def test_up_becomes_the_local_deployment(phasewise: Run, monkeypatch: pytest.MonkeyPatch):
    called: list[list[str]] = []
    monkeypatch.setattr(main.os, "execv", lambda _path, arguments: called.append(arguments))
    assert phasewise("up", "--port", 4300, "--home", "here").exit_code == 0
    assert called == [
        [sys.executable, "-P", "-m", "phasewise.deployments.local", "--port", "4300", "--site-host", "127.0.0.1", "--home", "here"]
    ]


def test_as_a_program_of_its_own_json_is_alone_and_no_traceback_is_shown(tmp_path: Path):
    shown = subprocess.run(
        [sys.executable, "-m", "phasewise.flows.cli.main", "show", "marin-8b", "--json"], capture_output=True, text=True, check=True
    )
    assert len(json.loads(shown.stdout)["phases"]) == 38
    assert shown.stderr == ""
    command = [Path(sys.executable).with_name("phasewise"), "run", "marin-7b", "--home", tmp_path, "--json"]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("phasewise: no recipe is called 'marin-7b'")
    assert len(refused.stderr.splitlines()) == 1


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
        assert phase["optimizer"]["weight_decay"] == (0.05 if phase["name"] == "kestrel" else 0.1) or phase["branch"]
    assert shown["phases"][0]["parameters"] == (8_030_261_248 if scale == "full" else 1_475_200)
    if scale == "proxy":
        assert [phase["stop_step"] for phase in shown["phases"] if not phase["branch"]] == [660, 740, 820, 1320, 1400, 1420]


@pytest.mark.parametrize(("target", "step"), [("marin-8b", 1_420_001), ("marin-8b/kestrel", 660_001), ("marin-8b/ocelot", 0)])
def test_show_at_a_step_that_is_not_trained_is_refused(phasewise: Run, target: str, step: int):
    assert_refused(phasewise("show", target, "--scale", "full", "--at", step), 2, f"no phase of {target} trains at step {step}. Phases are")


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


def test_a_judgement_of_an_order_has_the_documented_shape():
    judgement = judge_order("feistel", 786_432, 3)
    assert json.loads(json.dumps(judgement, allow_nan=False)) == judgement
    assert [judgement[name] for name in ("kind", "length", "seed", "passes")] == ["feistel", 786_432, 3, True]
    assert all(judge_order("feistel", length, 2**64 - 1)["passes"] for length in (1, 2, 2**40))
    assert len(judgement["measures"]) == 15
    assert all({"name", "value", "limit", "passes"} <= set(one) for one in judgement["measures"])


@pytest.mark.parametrize("kind", ["linear", "feistel_levanter"])
def test_the_record_s_orders_fail(kind: str):
    judgement = judge_order(kind, 2**33 + 5, 0)
    assert not judgement["passes"]
    for one in judgement["measures"]:
        within = one["value"] <= one["limit"] if one["bound"] == "max" else one["value"] >= one["limit"]
        assert one["passes"] == within, one


@pytest.mark.parametrize(
    ("kind", "length", "seed", "said"),
    [
        ("random", 10, 0, "linear, linear_levanter, feistel, feistel_levanter"), ("feistel", 0, 0, "from 1 to 1099511627776, found 0"),
        ("feistel", 2**40 + 1, 0, "found 1099511627777"), ("feistel", 10, -1, "from 0 to 2.64 - 1, found -1"),
    ],
)  # fmt: skip
def test_an_order_that_cannot_be_judged_names_what_is_possible(kind: str, length: int, seed: int, said: str):
    with pytest.raises(ConfigError, match=said):
        judge_order(kind, length, seed)


def test_a_machine_on_which_the_tests_run_is_healthy(phasewise: Run, tmp_path: Path):
    found = phasewise("doctor --home", tmp_path, "--json")
    described = json.loads(found.stdout)
    assert (found.exit_code, described["problems"]) == (0, [])
    assert described["packages"]["prefect"].startswith("3.8")
    assert {one["platform"] for one in described["devices"]} == {"cpu"}
    assert described["home"]["url"] == str(tmp_path)
    shown = phasewise("doctor --home", tmp_path)
    assert "nothing is wrong" in shown.stdout
    assert str(tmp_path) in shown.stdout


def test_each_problem_of_a_machine_is_named_with_its_remedy(phasewise: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    real, others = doctor.installed, {"fastapi": "0.200.0", "dask": None, "wandb": None}
    monkeypatch.setattr(doctor, "installed", lambda package: others[package] if package in others else real(package))
    monkeypatch.setattr(doctor, "MIN_FREE_GIB", 10**9)
    monkeypatch.setenv("JAX_ENABLE_X64", "1")
    found = phasewise("doctor --home", tmp_path, "--json")
    described = json.loads(found.stdout)
    assert found.exit_code == 1
    said = "\n".join(described["problems"])
    assert "fastapi must be <0.149,>=0.139, found 0.200.0 (the server of Prefect 3.8 does not start with it): pip install" in said
    assert "dask is not installed: pip install 'dask'" in said
    assert "GiB of free space: make room" in said
    assert "JAX_ENABLE_X64" in said
    assert described["extras"]["wandb"] == ["wandb"]
    assert len(described["problems"]) == 4
    refused = phasewise("doctor --home", "ftp://somewhere")
    assert refused.exit_code == 1
    assert "must be a local folder or a gs:// URL" in refused.stdout
