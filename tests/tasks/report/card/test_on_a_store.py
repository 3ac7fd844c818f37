import json
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

import httpx
import pytest
from click.testing import CliRunner, Result

from phasewise.deployments.site import TOKEN_HEADER
from phasewise.deployments.site_process import OwnSite, own_site
from phasewise.flows.cli import main
from phasewise.flows.export_phase import export_phase
from phasewise.tasks.home import Home
from phasewise.tasks.locks import held
from phasewise.tasks.report.placing import ORIGIN_NAME
from phasewise.tasks.store.publisher import Kept, Publisher
from phasewise.trainer.base.decision import decision_path
from phasewise.trainer.base.identity import digest_of_file
from phasewise.trainer.base.run_folder import COMPILED_NAME, RunFolder
from phasewise.trainer.base.storage import as_path, read_json, write_atomically
from phasewise.validations.verdict import write_verdict
from tests.flows.test_phase_status import verdict
from tests.ports import free_port
from tests.stores.emulator import BUCKET, the_emulator

RUN_NAME, PHASE = "tiny-proxy", "ocelot"
HOUR = 3600.0


class World(NamedTuple):
    """A home on the store, a folder in which each machine has its own, and the home that it was copied from."""

    url: str
    recipe: Path
    machines: Path
    local: Path
    patch: pytest.MonkeyPatch

    def at(self, machine: str, *, reads_only: bool = False) -> Home:
        self.patch.setenv("PHASEWISE_SCRATCH", str(self.machines / machine))
        return Home.at(self.url, reads_only=reads_only)

    def run(self, machine: str, *words: object, of_phase: bool = True) -> Result:
        self.at(machine)
        target, scale = ([f"{self.recipe}/{PHASE}"], ["--scale", "proxy"]) if of_phase else ([], [])
        command, *rest = map(str, words)
        return CliRunner().invoke(main.main, [command, *target, *rest, *scale, "--home", self.url])

    def done(self, *words: object, of_phase: bool = True) -> str:
        result = self.run(*map(str, words), of_phase=of_phase)
        assert result.exit_code == 0, result.output
        return result.output

    def kept(self, machine: str) -> Kept:
        return Kept(self.at(machine).work, as_path(self.url), RUN_NAME)

    def seen(self, machine: str) -> Home:
        home = self.at(machine, reads_only=True)
        home.look(RUN_NAME)
        return home


@pytest.fixture(scope="module")
def url(trained: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A home that was uploaded as it lay, and then committed once."""
    emulator = the_emulator()
    folder = f"card-{next(emulator.numbers)}"
    root = as_path(f"gs://{BUCKET}/{folder}")
    for path in trained[1].rglob("*"):
        if path.is_file() and COMPILED_NAME not in path.parts:
            write_atomically(root.joinpath(*path.relative_to(trained[1]).parts), path.read_bytes())
    with Publisher(Kept(tmp_path_factory.mktemp("first"), root, RUN_NAME), every_seconds=HOUR):
        pass
    yield str(root)
    emulator.forget(f"{folder}/")


@pytest.fixture
def world(url: str, trained: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("PHASEWISE_LEASE_SECONDS", "2")
    return World(url, trained[0], tmp_path, trained[1], monkeypatch)


def committed(world: World) -> tuple[int, dict[str, Any]]:
    head = world.kept("nobody").head.read()[0]
    return head.number, dict(head.files)


@pytest.fixture(scope="module")
def here(trained: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("here") / "exported"
    target = [f"{trained[0]}/{PHASE}", str(folder), "--scale", "proxy", "--home", str(trained[1])]
    assert CliRunner().invoke(main.main, ["export", *target]).exit_code == 0
    return folder


def test_what_only_reads_brings_what_it_needs_and_takes_nothing_over(world: World, here: Path, tmp_path: Path):
    before = committed(world)
    exported, card, site = (tmp_path / name for name in ("exported", "card", "site"))
    world.done("one", "export", exported)
    assert digest_of_file(exported / "model.safetensors") == digest_of_file(here / "model.safetensors")
    world.done("two", "card", card, "--export", exported)
    assert "all was checked, and holds" in world.done("three", "verify", card, "--export", exported, of_phase=False)
    done = world.run("four", "status", "--json")
    states = {one["name"]: one["results"] for one in json.loads(done.stdout)["phases"]}
    assert next(one["holds"] for one in states[PHASE] if one["what"] == "training"), states[PHASE]
    world.done("five", "report", "--site", site, "--recipe", world.recipe, of_phase=False)
    digest = read_json(RunFolder(Home.at(str(world.local)).run(RUN_NAME, PHASE)).result)["params_digest"]
    assert any(digest[:12] in page.read_text() for page in site.rglob("*.html"))
    assert committed(world) == before
    assert not list((tmp_path / "four").rglob("checkpoints"))  # who needs no weights gets none
    assert {path.name for path in (tmp_path / "one").rglob("checkpoints")} == {"checkpoints"}


def test_the_flow_exports_to_the_store_once_and_takes_nothing_over(world: World, here: Path, caplog: pytest.LogCaptureFixture):
    before = committed(world)
    world.at("two")
    for said in ("exported to", "exported already, to"):
        caplog.clear()
        export_phase.fn(str(world.recipe), PHASE, "proxy", world.url)
        assert said in caplog.text
    (folder,) = as_path(f"{world.url}/exports/{RUN_NAME}").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in here.iterdir())
    assert digest_of_file(folder / "model.safetensors") == digest_of_file(here / "model.safetensors")
    (folder / ORIGIN_NAME).unlink()  # as where somebody was killed before the last file
    export_phase.fn(str(world.recipe), PHASE, "proxy", world.url)
    assert read_json(folder / ORIGIN_NAME)["phase"] == PHASE
    assert committed(world) == before
    assert not list(world.at("two").exporting.iterdir())


@pytest.fixture
def waiting(world: World) -> Iterator[Path]:
    """A verdict on the model that waits for a person, committed; its name below a home."""
    kept = world.kept("first")
    path = world.at("first").verdict(RUN_NAME, PHASE, "model")
    with Publisher(kept, every_seconds=HOUR):
        before = path.read_bytes()
        write_verdict(path, verdict("model", fails=True))
    yield path.relative_to(kept.work)
    with Publisher(kept, every_seconds=HOUR):
        write_atomically(path, before)
        decision_path(path).unlink(missing_ok=True)


def test_a_decision_is_committed_beside_all_that_is_there(world: World, waiting: Path):
    number, before = committed(world)
    world.done("one", "approve", "--reason", "it is chance", "--who", "Ada")
    after = committed(world)
    name = decision_path(waiting).as_posix()
    assert after == (number + 1, before | {name: after[1][name]})
    decided = read_json(world.seen("two").work / name)
    assert (decided["latest"]["who"], decided["latest"]["approves"], decided["before"]) == ("Ada", True, [])
    world.done("two", "approve", "--reason", "no", "--who", "Bo", "--reject", "--gate", "model")
    decided = read_json(world.seen("one").work / name)
    assert [one["who"] for one in (*decided["before"], decided["latest"])] == ["Ada", "Bo"]
    assert not list((world.machines / "one").rglob("checkpoints"))
    again = world.kept("third")
    again.look(weights_below="")  # each checkpoint is still there, whole
    assert len(list(again.work.rglob("digests.json"))) == sum(name.endswith("digests.json") for name in before)


@pytest.mark.parametrize("words", [("approve", "--reason", "fine"), ("evaluate",)], ids=["approve", "evaluate"])
def test_what_writes_is_refused_while_another_works_there(world: World, waiting: Path, words: tuple[str, ...]):
    before = committed(world)
    with held(as_path(world.url) / "lock"):
        done = world.run("one", *words)
    assert done.exit_code == 2, done.output
    assert "another run is at work in gs://" in done.output
    assert committed(world) == before


@pytest.mark.long
def test_the_page_shows_what_is_committed_meanwhile(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PHASEWISE_PUBLISH_SECONDS", "0.1")
    home = world.at("page")
    with own_site(home, "127.0.0.1", free_port(), prefect_port=1, prefect_url="", recipes=[str(world.recipe)]) as site:
        address = f"/-/report/{RUN_NAME}/report.html"
        until(lambda: answer(site, f"/tiny/proxy/{PHASE}").status_code == 200)
        assert answer(site, address).status_code == 404
        page = Home.at(world.url).work  # of the machine of the page: the other one has its own
        with Publisher(world.kept("first"), every_seconds=HOUR):
            report = world.at("first").report(RUN_NAME) / "report.html"
            write_atomically(report, b"made elsewhere")
        until(lambda: answer(site, address).text == "made elsewhere")
        assert not page.exists()  # who only looks has no working folder


def answer(site: OwnSite, address: str) -> httpx.Response:
    try:
        return httpx.get(f"{site.url}{address}", headers={TOKEN_HEADER: site.token})
    except httpx.TransportError:
        return httpx.Response(503)


def until(holds: Callable[[], bool]) -> None:
    while not holds():
        Event().wait(0.1)
