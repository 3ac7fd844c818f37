import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from phasewise.flows.cli.main import main
from phasewise.flows.site.export import write_site
from phasewise.flows.site.pages import find_phase, phase_page, step_page
from phasewise.flows.site.shelf import Links, PhaseAddress, Shelf
from phasewise.flows.site.site import Site
from phasewise.trainer.base.identity import write_sealed
from phasewise.trainer.base.run_folder import RunFolder, append_event
from phasewise.trainer.config import RunConfig
from phasewise.trainer.data.loader import Loader
from phasewise.trainer.metrics import MetricsFile
from phasewise.trainer.row_losses import RowLossesFile
from tests.flows.trace.world import World, run_of

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
