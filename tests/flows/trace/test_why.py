import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from phasewise.flows.cli import trace as command
from phasewise.flows.cli.main import main
from phasewise.flows.site.export import write_site
from phasewise.flows.site.pages import find_phase, phase_page, step_page
from phasewise.flows.site.shelf import Links, PhaseAddress, Shelf
from phasewise.flows.site.site import Site
from phasewise.flows.status.summary import what_trained_there
from phasewise.tasks.data.plan import DataPlan
from phasewise.tasks.home import Home
from phasewise.trainer.base.identity import write_sealed
from phasewise.trainer.base.run_folder import RunFolder, append_event
from phasewise.trainer.base.storage import write_json
from phasewise.trainer.config import RunConfig
from phasewise.trainer.data.loader import Loader
from phasewise.trainer.metrics import MetricsFile
from phasewise.trainer.row_losses import RowLossesFile
from phasewise.trainer.skipped_steps import SkippedSteps, Window, write_skipped_steps
from phasewise.validations.expectations.judging import Reason
from tests.flows.trace.world import World, prepare, run_of, traced_recipe, write_sources

STEP, ROWS = 50, 6
Losses = Callable[[int, np.ndarray], np.ndarray]


def write_training(
    world: World, change: Losses, norms: Callable[[int], dict[str, float]] = lambda _: {}, phase: str = "ocelot"
) -> RunConfig:
    """The files of a training of a phase with these losses of rows. No update ran."""
    run = run_of(world.recipe, world.home, phase)
    folder = RunFolder(run.output)
    folder.path.mkdir(parents=True)
    write_sealed(folder.run_file, run.model_dump(mode="json"))
    contents = {name: cache["content"] for name, cache in Loader(run).contract()["components"].items()}
    write_sealed(folder.caches, {"run_digest": run.digest, "contents": contents})
    metrics, losses = MetricsFile(folder.metrics, restored_step=0), RowLossesFile(folder.row_losses, restored_step=0)
    draw = np.random.default_rng(0)
    for step in range(run.start_step + 1, run.stop_step + 1):
        of_rows = change(step, 3.0 + 0.1 * draw.standard_normal(run.batch.at(step - 1)))
        metrics.append({"step": step, "loss": float(of_rows.mean()), "learning_rate": 1e-3, **norms(step)})
        losses.append(step, of_rows)
    losses.write()
    metrics.close()
    return run


def ask(world: World, *arguments: str, code: int = 0) -> dict[str, Any]:
    command_line = ["why", f"{world.recipe}/ocelot", "--home", str(world.home.root), *arguments]
    result = CliRunner().invoke(main, [*command_line, "--json"])
    assert result.exit_code == code, result.output
    shown = CliRunner().invoke(main, command_line)
    assert shown.exit_code == code
    return {**json.loads(result.stdout), "shown": shown.stdout} if not code else {"error": result.stderr}


@pytest.mark.parametrize("size", [2.5, -2.5])
def test_the_row_out_of_line_is_first_with_its_documents(copied: World, size: float):
    write_training(copied, lambda step, losses: losses + size * (np.arange(ROWS) == 4) * (step == STEP))
    found = ask(copied, "--step", str(STEP))
    row = found["rows"][0]
    assert found["kind"] == ("spike" if size > 0 else "fall")
    assert (row["row"], found["causes"][0]["kind"]) == (4, "row")
    assert abs(found["causes"][0]["score"]) > 3 * found["causes"][1]["score"]
    traced = [one for one in copied.ask("/ocelot", step=STEP)["rows"] if one["row"] == 4]
    assert sorted(row["documents"], key=lambda one: one["at"]) == traced
    assert f"row 4 of {row['component']}: loss {row['loss']:.4g}" in found["shown"]
    assert traced[0]["text"][:40].split()[0] in found["shown"]


def test_a_shift_of_all_rows_is_left_to_layers_and_changes_and_near_changes_count_more(copied: World):
    def norms(step: int) -> dict[str, float]:
        return {f"param_norm/query/{layer}": (4.0 if (layer, step) == (1, STEP) else 1.0) + 0.001 * step for layer in (0, 1)}

    run = write_training(copied, lambda step, losses: losses + 2.0 * (step >= STEP), norms)
    for at, text in ((44, "of the host"), (49, "from the checkpoint")):
        append_event(run.output, "restart", at, text)
    found = ask(copied, "--step", str(STEP))
    assert (found["kind"], found["layers"][0]["name"], found["layers"][0]["layer"]) == ("rise", "query/1", 1)
    assert found["layers"][0]["factor"] == pytest.approx(4, rel=0.05)
    first, second = found["causes"][:2]
    assert (first["kind"], second["name"]) == ("layer", "restart: from the checkpoint")
    changes = {one["what"]: one for one in found["changes"]}
    assert changes["restart: of the host"]["score"] < second["score"] / 2
    assert changes["hand-off from kestrel, changes " + changes_of(copied)]["step"] == 41
    assert any(what.startswith("mixture: ") and one["step"] == 48 for what, one in changes.items())
    assert max(abs(row["score"]) for row in found["rows"]) < found["common"] / 2


def changes_of(world: World) -> str:
    phases = json.loads(Path(world.recipe).read_text())["phases"]
    return ", ".join(phases[1]["start"]["declares"])


def test_a_component_out_of_line_is_named(copied: World):
    rows = {row["row"]: row["component"] for row in copied.ask("/ocelot", step=46)["rows"]}
    name = "medu_science_qa"
    is_of_it = np.array([rows[row] == name for row in range(ROWS)])
    assert sum(is_of_it) > 2
    write_training(copied, lambda step, losses: losses + 2.0 * is_of_it * (step == 46))
    found = ask(copied, "--step", "46")
    assert (found["components"][0]["component"], found["components"][0]["rows"]) == (name, sum(is_of_it))
    assert found["components"][0]["score"] > 3


def test_steps_without_a_training_are_refused(copied: World):
    assert "expected its loss in metrics.jsonl, found no training" in ask(copied, "--step", str(STEP), code=1)["error"]
    write_training(copied, lambda _, losses: losses)
    assert "ocelot trains steps 41 to 52" in ask(copied, "--step", "53", code=2)["error"]
    result = CliRunner().invoke(main, ["why", str(copied.recipe), "--home", str(copied.home.root), "--step", "50"])
    assert (result.exit_code, "a step is one of a phase" in result.stderr) == (2, True)


def test_a_spike_of_the_page_leads_to_the_text_of_its_rows_also_in_exported_files(copied: World, tmp_path: Path):
    write_training(copied, lambda step, losses: losses + 4.0 * (step == 38) * (np.arange(2) == 1), phase="kestrel")
    site = Site(Shelf(copied.home, [str(copied.recipe)]))
    found, files = find_phase(site, PhaseAddress("tiny", "proxy", "kestrel"))
    page = phase_page(site, Links(str(files.address)), found, files)
    assert 'data-steps="/tiny/proxy/kestrel/step/"' in page
    assert re.findall('href="/tiny/proxy/kestrel/step/([0-9]+)"', page) == ["38"]
    text = next(row["text"] for row in copied.ask("/kestrel", step=38, row=1)["rows"] if row["text"])
    assert text.split()[0] in step_page(site, Links("tiny/proxy/kestrel/step/38"), found, files, 38)
    assert "steps 1 to 40" in step_page(site, Links("tiny/proxy/kestrel/step/41"), found, files, 41)
    write_site(site, tmp_path / "site")
    exported = (tmp_path / "site/tiny/proxy/kestrel/step/38/index.html").read_text()
    assert text.split()[0] in exported
    assert str(copied.home.root) not in exported
    assert 'href="step/38/index.html"' in (tmp_path / "site/tiny/proxy/kestrel/index.html").read_text()


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


class TestTrained:
    @pytest.fixture
    def trained(self, copied: World) -> RunConfig:
        run = run_of(copied.recipe, copied.home, "ocelot")
        write_sealed(Path(run.output) / "run.json", run.model_dump(mode="json"))
        contents = {name: cache["content"] for name, cache in Loader(run).contract()["components"].items()}
        write_sealed(Path(run.output) / "caches.json", {"run_digest": run.digest, "contents": contents})
        return run

    def write_checkpoint(self, run: RunConfig, **changes: Any) -> None:
        folder = Path(run.output) / "checkpoints" / "45"
        write_json(folder / "about" / "metadata", {"contract": {**Loader(run).contract(), **changes}})
        write_sealed(folder / "digests.json", {})

    def test_the_same_order_is_said_to_be_that_of_the_run(self, copied: World, trained: RunConfig):
        assert copied.ask("/ocelot", step=41)["phases"][0]["trained"] == "as traced"
        self.write_checkpoint(trained)
        code, out, err = copied.invoke("/ocelot", "--step", "41")
        assert (code, err) == (0, "")
        assert "ocelot (trained on this)" in out

    def test_what_was_passed_over_is_not_said_to_have_trained(self, copied: World, trained: RunConfig):
        before = {step: copied.ask("/ocelot", step=step)["rows"] for step in (41, 42, 43)}
        document = before[42][0]["document"]
        trained_at = {(row["phase"], row["step"]) for row in copied.ask("", document=document)["rows"]}
        assert ("ocelot", 42) in trained_at
        write_skipped_steps(Path(trained.output), SkippedSteps((Window(41, 42),)), ["a spike"])
        after = {step: copied.ask("/ocelot", step=step) for step in (41, 42, 43)}
        assert after[42]["rows"] == []
        assert [after[step]["rows"] for step in (41, 43)] == [before[41], before[43]]
        assert after[42]["phases"][0]["passed_over"] == [[42, 42]]
        assert after[42]["remarks"] == ["ocelot rolled back, and passed over step 42 with their data: these steps are not listed."]
        assert {(row["phase"], row["step"]) for row in copied.ask("", document=document)["rows"]} == trained_at - {("ocelot", 42)}

    @pytest.mark.parametrize(
        ("changes", "differs"),
        [
            ({"seed": 5}, ["seed"]),
            ({"batch": [[0, 2], [40, 4]]}, ["batch"]),
            ({"permutation": {"kind": "linear", "version": 99}}, ["permutation"]),
            ({"block_sequences": 40, "first_step": 40}, ["block sequences", "first step"]),
        ],
    )
    def test_another_order_is_named_and_ends_with_1(self, copied: World, trained: RunConfig, changes: dict[str, Any], differs: list[str]):
        self.write_checkpoint(trained, **changes)
        code, out, err = copied.invoke("/ocelot", "--step", "41")
        assert code == 1
        assert "trained on OTHER data" in out
        assert err.startswith(f"phasewise: ocelot was trained on other data: {', '.join(differs)}.")

    def test_before_the_first_checkpoint_its_settings_are_compared(self, copied: World, trained: RunConfig):
        changed = {**trained.model_dump(mode="json"), "order": {**trained.order.model_dump(), "seed": 77}}
        write_sealed(Path(trained.output) / "run.json", changed)
        assert copied.ask("/ocelot", step=41)["phases"][0]["differs"][-1:] == ["seed"], "its caches are of another run, too"
        write_sealed(Path(trained.output) / "run.json", {"no": "run"})
        assert copied.ask("/ocelot", step=41)["phases"][0]["differs"] == ["the run file in its folder is invalid"]

    def test_a_cache_with_other_tokens_is_named(self, copied: World, trained: RunConfig, tmp_path: Path):
        self.write_checkpoint(trained)
        (tmp_path / "other").mkdir()
        write_sources(tmp_path / "other/text")
        path = tmp_path / "other/text/flan/one/text.jsonl"
        path.write_text(path.read_text(encoding="utf-8") + json.dumps({"text": "One document more. " * 20}) + "\n", encoding="utf-8")
        recipe = traced_recipe(tmp_path / "other/text")
        (tmp_path / "other.json").write_text(recipe.model_dump_json())
        shutil.rmtree(copied.home.root / "tokens")
        plan: DataPlan = prepare(recipe, copied.home)
        assert plan.components["flan"].train.is_built
        changed = World(tmp_path / "other.json", copied.home)
        assert changed.ask("/ocelot", step=41)["phases"][0]["differs"][-2:] == ["the cache of flan", "the cache of medu_science_qa"]

    def test_a_run_of_the_other_scale_is_pointed_at(self, copied: World):
        write_sealed(copied.home.run("tiny-full", "ocelot") / "run.json", {})
        answer = copied.ask("/ocelot", step=41)
        assert answer["remarks"] == ["This home has ocelot trained at full scale, and this is proxy scale: --scale full traces that run."]

    def test_what_trained_is_answered_when_the_sources_are_gone(self, copied: World, trained: RunConfig, tmp_path: Path):
        moved = copied.recipe.read_text().replace((copied.recipe.parent / "text").as_uri(), (tmp_path / "gone").as_uri())
        (tmp_path / "moved.json").write_text(moved)
        gone = World(tmp_path / "moved.json", copied.home)
        answer = gone.ask("/ocelot", step=41)
        assert answer["rows"] == copied.ask("/ocelot", step=41)["rows"]
        assert "are the only ones in this home, and may be out of date: the sources cannot be read" in answer["remarks"][0]
        (flan,) = (copied.home.root / "tokens/flan").glob("train-*")
        shutil.copytree(flan, flan.with_name("train-0123456789abcdef"))
        assert "has no cache of flan" in gone.invoke("/ocelot", "--step", "41")[2]
