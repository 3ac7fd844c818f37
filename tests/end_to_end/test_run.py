import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings
from prefect.states import Scheduled

from experiments.survival.in_turn import InTurn
from experiments.survival.runs import Finished, Start, complete, kill_when, trained_files, wait_until, with_limits
from phasewise.flows.cli.status import collect_garbage, describe
from phasewise.flows.prefect.server import EVERY_PHASE, OwnServer, queued_runs
from phasewise.flows.site.shelf import Shelf
from phasewise.flows.site.site import Site
from phasewise.flows.train_phase import train_phase
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.identity import digest_of_file
from phasewise.trainer.base.storage import read_json, write_atomically, write_json
from tests.end_to_end.changes import CHANGES, Again, changed, what_must_be_done_again

WAIT_SECONDS = 60
pytestmark = pytest.mark.timeout(600)  # a guard against hanging: each takes 20 to 50 s where nothing else runs


def digests(summary: Finished) -> list[str]:
    return [phase["params_digest"] for phase in summary["phases"]]


def test_a_recipe_runs_from_nothing_to_its_report(finished: Finished, home: Path) -> None:
    assert [(phase["name"], phase["steps"], phase["verdict"]) for phase in finished["phases"]] == [
        ("kestrel", 40, "passed"),
        ("ocelot", 12, "passed"),
    ]
    assert all(phase["bits_per_byte"] > 0 and len(phase["params_digest"]) == 64 for phase in finished["phases"])
    assert finished["phases"][0]["tokens"] == 40 * 2 * 128
    assert Path(finished["report"]).read_text().lower().startswith("<!doctype html>")
    assert set(finished["baselines"]) == {"byte 3-gram", "byte 5-gram"}
    assert (Path(finished["report"]).parent / "data-docs" / "index.html").exists()
    assert json.loads((home / "verdicts" / "tiny-proxy" / "kestrel" / "data.json").read_text())["passes"] is True


def test_the_server_has_flows_tasks_and_verdicts(finished: Finished, server: OwnServer) -> None:
    with temporary_settings({PREFECT_API_URL: server.url, PREFECT_API_AUTH_STRING: server.auth}), get_client(sync_client=True) as client:
        flows = {flow.name for flow in client.read_flows(limit=200)}
        tasks = {task.name for task in client.read_task_runs(limit=200)}
        artifacts = {artifact.key for artifact in client.read_artifacts(limit=200)}
    assert {"train-recipe", "train-phase", "prepare-data", "validate-data", "evaluate"} <= flows
    assert {"train kestrel", "judge data of ocelot", "build token caches", "evaluate kestrel"} <= tasks
    assert {"tiny-proxy-kestrel-data", "tiny-proxy-kestrel-model", "tiny-proxy-ocelot-summary", "tiny-proxy-report"} <= artifacts


def test_the_page_shows_a_due_run_as_queued_and_its_child_as_waiting(
    server: OwnServer, recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", server.url)
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", server.auth)
    home = Home(tmp_path, reads_only=True)
    (tmp_path / "runs" / "tiny-proxy").mkdir(parents=True)
    given = {"recipe": str(recipe_file), "phase": "kestrel", "scale": "proxy", "home": str(tmp_path)}
    later = Scheduled(scheduled_time=datetime.now(UTC) + timedelta(hours=1))
    with temporary_settings({PREFECT_API_URL: server.url, PREFECT_API_AUTH_STRING: server.auth}), get_client(sync_client=True) as client:
        for parameters, state in ((given, Scheduled()), (given | {"phase": "ocelot"}, later), (given | {"home": "/other"}, Scheduled())):
            run = client.create_flow_run(train_phase, parameters=parameters, name=f"due {parameters['phase']}", state=state)
        fixed = {"recipe": str(recipe_file), "scale": "proxy", "phase": "ocelot"}
        form = client.create_deployment(run.flow_id, "tiny-ocelot", parameters=fixed, tags=["test of the page"])
        of_recipe, entrypoint = {"recipe": str(recipe_file), "scale": "proxy"}, "phasewise.flows.train_recipe.train_recipe"
        whole = client.create_deployment(run.flow_id, "tiny", parameters=of_recipe, entrypoint=entrypoint, tags=["test of the page"])
    assert [(run.phase, run.name) for run in queued_runs(home)] == [("kestrel", "due kestrel")]
    site = Site(Shelf(home, [str(recipe_file)]))
    found = site.shelf.find("tiny", "proxy")
    assert found
    phases = site.shelf.phases(found)
    site.states(found, phases)  # requests a check
    deadline = time.monotonic() + WAIT_SECONDS
    while found.run_name not in site.checked and time.monotonic() < deadline:
        time.sleep(0.05)
    assert {name: state.word for name, state in site.states(found, phases).items()} == {
        "kestrel": "queued",
        "ocelot": "waiting for a parent",
    }
    assert [run.id for run in site.queue] == [str(run.id) for run in queued_runs(home)]
    site.prefect = "http://here"
    assert site.forms_of(found, "ocelot") == (
        f"http://here/v2/deployments/deployment/{form}/run",
        f"http://here/v2/deployments/deployment/{form}",
    )
    assert site.forms_of(found, "kestrel") is None
    assert site.forms_of(found, EVERY_PHASE) == (
        f"http://here/v2/deployments/deployment/{whole}/run",
        f"http://here/v2/deployments/deployment/{whole}",
    )


def test_each_change_has_done_again_what_rests_on_it_and_nothing_else(
    finished: Finished, recipe_file: Path, home: Path, tmp_path: Path
) -> None:
    """On copies of the home: that they are elsewhere changes nothing."""
    found: dict[str, Again] = {}
    for number, change in enumerate(CHANGES):
        with changed(change, home, recipe_file, tmp_path / str(number)) as (copied, recipe):
            found[change.name] = what_must_be_done_again(copied, recipe)
    assert found == {change.name: change.again for change in CHANGES}


def test_a_home_that_was_moved_is_done_already(finished: Finished, in_turn: InTurn, recipe_file: Path, home: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(home, tmp_path / "moved"))
    before = trained_files(moved)
    process = in_turn("run", recipe_file, "--home", moved, "--json")
    out, err = process.communicate()
    assert (process.returncode, "everything is done already" in err) == (0, True)
    summary = json.loads(out)
    assert digests(summary) == digests(finished)
    assert summary["phases"][-1]["checkpoint"].startswith(str(moved))
    assert trained_files(moved) == before


def states(recipe_file: Path, home: str | Path) -> list[str]:
    return [phase["state"] for phase in describe(str(recipe_file), "proxy", str(home))["phases"]]


def test_a_home_reached_by_a_link_or_a_url_or_on_a_store_is_done_already(
    finished: Finished, recipe_file: Path, home: Path, gcs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training needs a folder of this machine; to say what holds does not."""
    (tmp_path / "link").symlink_to(home)
    monkeypatch.chdir(home.parent)
    for path in home.rglob("*"):
        name = path.relative_to(home)
        if path.is_file() and name.parts[0] not in ("prefect", "reports", "locks") and "compilation-cache" not in name.parts:
            write_atomically(gcs.joinpath(*name.parts), path.read_bytes())
    for place in (home, tmp_path / "link", home.as_uri(), (tmp_path / "link").as_uri(), f"./{home.name}", gcs):
        assert states(recipe_file, str(place)) == ["done", "done"], place


def test_the_status_writes_nothing(finished: Finished, recipe_file: Path, home: Path, gcs: Path, tmp_path: Path) -> None:
    before = {path: path.lstat().st_mtime_ns for path in home.rglob("*")}
    (home / "digests.json").rename(tmp_path / "digests.json")
    assert states(recipe_file, home) == ["done", "done"]
    assert not (home / "digests.json").exists()
    (tmp_path / "digests.json").rename(home / "digests.json")
    assert {path: path.lstat().st_mtime_ns for path in home.rglob("*")} == before
    for nowhere in (tmp_path / "no" / "home", gcs):
        assert states(recipe_file, nowhere) == ["not started", "not started"]
    assert not (tmp_path / "no").exists()
    assert not list(gcs.parent.glob(f"{gcs.name}/**"))


def test_only_what_no_result_needs_may_go(finished: Finished, in_turn: InTurn, recipe_file: Path, home: Path, tmp_path: Path) -> None:
    """Old data stay while a run reads them, go with its archive, and the current ones stay prepared."""
    copied = Path(shutil.copytree(home, tmp_path / "copied"))
    command = ("--home", copied, "--json")

    def removable(*words: object) -> list[str]:
        return [one["path"] for one in complete(in_turn("gc", recipe_file, *words, *command))["removable"]]

    assert removable() == []
    before = {path.relative_to(copied).as_posix() for path in (*copied.glob("tokens/flan/*"), *copied.glob("documents/flan/*"))}
    with open(next((copied / "sources" / "flan").glob("*.jsonl")), "a") as source:
        source.write('{"text": "One document more."}\n')
    prepared = complete(in_turn("data", "prepare", recipe_file, *command))
    assert {path.partition("/")[0] for path in removable()} == {"benchmarks", "evidence"}
    text = copied / "sources" / "flan"
    text.rename(copied / "gone")
    assert removable() == [], "what a recipe needs is unknown without its sources"
    (copied / "gone").rename(text)
    (copied / "exports" / ".making" / "half").mkdir(parents=True)
    for phase in ("kestrel", "ocelot"):
        run = copied / "runs" / "tiny-proxy" / phase
        run.rename(run.with_name(f"{phase}.superseded-01234567"))
        (copied / "verdicts" / "tiny-proxy" / phase).rename(copied / "verdicts" / "tiny-proxy" / f"{phase}.superseded-01234567")
    listed = removable()
    assert before | {"exports/.making/half", "runs/tiny-proxy/kestrel.superseded-01234567"} <= set(listed)
    assert listed == removable("--delete")
    assert not any((copied / path).exists() for path in listed)
    assert removable() == []
    assert complete(in_turn("data", "prepare", recipe_file, *command)) == prepared
    shutil.copyfile(copied / "recipes" / "tiny-proxy.json", copied / "recipes" / "tiny-full.json")
    assert removable() == [], "a named file is known at every scale with data"
    with pytest.raises(ConfigError, match=r"expected every recipe file with data in .*, found no .*tiny\.json"):
        collect_garbage((), str(copied), deletes=False, with_trials=False)


@pytest.mark.long
def test_nothing_is_trained_again_where_other_code_prepares_the_same_bytes(
    finished: Finished, by_other_code: InTurn, recipe_file: Path, home: Path, tmp_path: Path
) -> None:
    """The caches have other names then. They are judged and the models evaluated again."""
    copied = Path(shutil.copytree(home, tmp_path / "copied"))
    command = ("run", recipe_file, "--home", copied, "--json")
    before = trained_files(copied)
    caches = set(copied.glob("tokens/*/*"))
    assert digests(complete(by_other_code(*command))) == digests(finished)
    evaluations = {path for path in before if path.name == "evaluation.json"}
    changed = {path for path, when in trained_files(copied).items() if before.get(path) != when and path.is_file()}
    assert changed == evaluations
    assert len(set(copied.glob("tokens/*/*"))) == 2 * len(caches)
    process = by_other_code(*command)
    assert "everything is done already" in process.communicate()[1]


@pytest.mark.long
def test_a_gate_that_was_made_stricter_is_asked_and_reported_and_nothing_is_trained(
    finished: Finished, in_turn: InTurn, recipe_file: Path, home: Path, tmp_path: Path
) -> None:
    stricter = with_limits(recipe_file, tmp_path / "stricter.json", 1, "model", max_increase_bits_per_byte=-5.0)
    report, before = Path(finished["report"]), trained_files(home)
    process = in_turn("run", stricter, "--home", home, "--json")
    out, err = process.communicate()
    assert (process.returncode, out) == (1, "")
    assert "tiny/proxy/ocelot model failed: macro bits per byte went from the parent's" in err
    assert "limit: at most -5 bits per byte" in err
    assert "1 of 2 phases passed; refused: ocelot." in report.read_text()
    assert in_turn.train_phase(recipe_file, "ocelot", home).returncode == 0
    assert "Both phases trained on judged data and passed their gates." in report.read_text()
    assert trained_files(home) == before


def test_a_planted_item_stops_the_run_before_training(
    finished: Finished, in_turn: InTurn, recipe_file: Path, home: Path, tmp_path: Path
) -> None:
    shutil.copytree(home / "sources", tmp_path / "sources")
    items = next((home / "benchmarks").glob("*/word_order.jsonl")).read_text().splitlines()
    item = json.loads(items[3])
    planted = [{"text": f"{item['opening']} {item['choices'][item['gold']]}\n\nA copy for number {number}."} for number in range(3)]
    (tmp_path / "sources" / "flan" / "planted.jsonl").write_text("".join(json.dumps(row) + "\n" for row in planted))
    process = in_turn("run", recipe_file, "--home", tmp_path, "--json")
    out, err = process.communicate()
    assert (process.returncode, out) == (1, "")
    shown = err[err.rindex("phasewise: tiny/proxy/kestrel data failed: ") :].strip().splitlines()
    assert len(shown) == 3
    for named in (item["id"], "word_order", "flan", "planted.jsonl"):
        assert named in shown[0]
    assert shown[2].startswith("  to do: Remove it from the source and run again.")
    assert "Traceback" not in err
    assert "INFO:" not in err, "no line of a library's own log"
    assert not (tmp_path / "runs").exists()
    verdict = json.loads((tmp_path / "verdicts" / "tiny-proxy" / "kestrel" / "data.json").read_text())
    assert verdict["passes"] is False
    assert "refused" in (tmp_path / "reports" / "tiny-proxy" / "report.html").read_text()
    scans = [path for path in tmp_path.glob("evidence/leakage/*/scan.json") if read_json(path)["scan"]["hits"]]
    for path in scans:
        kept = read_json(path)
        write_json(path, {**kept, "scan": {**kept["scan"], "hits": []}})
    again = in_turn("run", recipe_file, "--home", tmp_path, "--json")
    assert again.returncode == 1
    assert f"{scans[0]} was changed after it was written" in again.errors
    assert "kestrel data failed" in again.errors
    assert not (tmp_path / "runs").exists()


def test_a_phase_asks_whether_its_parent_s_verdicts_hold(
    finished: Finished, in_turn: InTurn, recipe_file: Path, home: Path, tmp_path: Path
) -> None:
    """They were given within other limits: the parent must be judged again before anything of the phase is touched."""
    changed = with_limits(recipe_file, tmp_path / "changed.json", 0, "health", spike_window=99)
    before = trained_files(home)
    ended = in_turn.train_phase(changed, "ocelot", home)
    assert ended.returncode == 1
    refusal = "tiny-proxy/ocelot needs kestrel, which is not done: the verdict on its training is out of date: it was measured against"
    assert f"ParentNotDone: {refusal} other limits (spike_window)." in ended.errors
    assert f"`phasewise run {changed}/kestrel --scale proxy --home {home}`" in ended.errors
    assert trained_files(home) == before


def test_a_flow_that_a_worker_opens_refuses_code(in_turn: InTurn, tmp_path: Path) -> None:
    """Also in a process in which the command line was allowed to run some."""
    path, touched = tmp_path / "mine.py", tmp_path / "touched"
    path.write_text(f"open({str(touched)!r}, 'w').close()\n")
    assert in_turn("status", path).returncode == 1
    touched.unlink()
    ended = in_turn.train_phase(path, "ocelot", tmp_path / "home")
    assert ended.returncode == 1
    assert "code runs only if `phasewise` gets the file on the command line" in ended.errors
    assert not touched.exists()


@pytest.mark.long
def test_killed_three_times_it_ends_as_if_nothing_had_been(
    finished: Finished, phasewise: Start, by_other_code: InTurn, recipe_file: Path, home: Path, tmp_path: Path
) -> None:
    """The reader of the last run is another one, and makes the same bytes."""
    for kept in ("sources", "runs/tiny-proxy/compilation-cache"):
        shutil.copytree(home / kept, tmp_path / kept)
    kestrel, ocelot = (tmp_path / "runs" / "tiny-proxy" / name for name in ("kestrel", "ocelot"))
    moments: tuple[Callable[[], bool], ...] = (
        lambda: any((tmp_path / "tokens").glob("*/*/*.bin")),
        lambda: (kestrel / "metrics.jsonl").exists() and (kestrel / "metrics.jsonl").read_bytes().count(b"\n") >= 17,
        (ocelot / "result.json").exists,
    )
    for reached, done in zip(moments, (False, False, True), strict=True):
        kill_when(phasewise("run", recipe_file, "--home", tmp_path, "--json"), reached)
        assert (kestrel / "result.json").exists() == done
    assert (kestrel / "evaluation.json").exists()
    assert not (ocelot / "evaluation.json").exists()
    assert digests(complete(by_other_code("run", recipe_file, "--home", tmp_path, "--json"))) == digests(finished)


@pytest.mark.long
def test_an_evaluation_killed_at_work_costs_itself_alone(
    finished: Finished, environment: dict[str, str], recipe_file: Path, home: Path, tmp_path: Path
) -> None:
    """As by the kernel where memory runs out: the command goes on to say so; checkpoint, verdicts and the parent's evaluation stay."""
    copied = Path(shutil.copytree(home, tmp_path / "home"))
    kept = copied / "runs" / "tiny-proxy" / "ocelot" / "evaluation.json"
    before = json.loads(kept.read_text())
    kept.unlink()
    files = {path: digest_of_file(path) for part in ("runs", "verdicts") for path in (copied / part).rglob("*") if path.is_file()}
    command = [sys.executable, "-m", "phasewise.flows.cli.main", "evaluate", f"{recipe_file}/ocelot", "--home", str(copied), "--json"]
    (tmp_path / "work").mkdir()
    at_work = environment | {"TMPDIR": str(tmp_path / "work")}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=at_work)
    wait_until(process, lambda: any((tmp_path / "work").glob("phasewise-suite-*/definitions/*.yaml")))
    [evaluating] = [child for child in psutil.Process(process.pid).children() if "spawn_main" in " ".join(child.cmdline())]
    evaluating.kill()
    out, err = process.communicate()
    assert (process.returncode, out) == (1, "")
    assert "evaluation of ocelot: its process was ended by SIGKILL" in err
    assert "Traceback" not in err
    assert {path: digest_of_file(path) for path in files} == files
    assert not kept.exists()
    again = complete(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=at_work))
    for found in (again, json.loads(kept.read_text())):
        assert {name: found[name] for name in ("key", "results", "bits_per_byte")} == {
            name: before[name] for name in ("key", "results", "bits_per_byte")
        }
    assert len(again["gate"]) == 2
    assert {path: digest_of_file(path) for path in files} == files


@pytest.mark.long
def test_an_evaluation_ends_with_the_command_that_is_killed(
    finished: Finished, environment: dict[str, str], recipe_file: Path, home: Path, tmp_path: Path
) -> None:
    copied = Path(shutil.copytree(home, tmp_path / "home"))
    (copied / "runs" / "tiny-proxy" / "ocelot" / "evaluation.json").unlink()
    command = [sys.executable, "-m", "phasewise.flows.cli.main", "evaluate", f"{recipe_file}/ocelot", "--home", str(copied), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)

    def evaluating() -> list[psutil.Process]:
        return [child for child in psutil.Process(process.pid).children() if "spawn_main" in " ".join(child.cmdline())]

    wait_until(process, lambda: bool(evaluating()))
    [child] = evaluating()
    process.kill()
    process.communicate()
    child.wait(timeout=30)
