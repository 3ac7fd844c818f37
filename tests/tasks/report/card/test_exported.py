"""An exported folder that a card names: its files, and that its weights are those of the checkpoint."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file

from phasewise.flows.cli.main import main
from phasewise.tasks.report.card import CardOptions, write_card
from phasewise.trainer.base.errors import VerdictError
from tests.tasks.report.card.conftest import SUBJECT, Carded


@pytest.fixture(scope="module", params=["last", "average:2"])
def folder(request: pytest.FixtureRequest, trained: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe, home = trained
    out = tmp_path_factory.mktemp("exported") / "out"
    asked = ["export", f"{recipe}/ocelot", str(out), "--home", str(home), "--weights", request.param, "--dtype", "bfloat16"]
    result = CliRunner().invoke(main, asked)
    assert result.exit_code == 0, result.output
    return out


def test_the_page_about_the_model_has_what_the_home_knows(folder: Path):
    page = (folder / "README.md").read_text()
    assert "nothing was known of" not in page
    for heading in ("## Lineage", "## Mixture", "## Evaluation", "## Verdicts", "## Data"):
        assert heading in page
    assert "| ocelot | 40 to 52 | kestrel at step 40 |" in page


def test_a_card_names_the_folder_and_holds(folder: Path, written: Carded, tmp_path: Path):
    write_card(written.home, SUBJECT, tmp_path / "card", CardOptions(export=folder))
    carded = Carded(written.home, tmp_path / "card")
    assert carded.verify(export=folder).passes
    assert [one.field for one in carded.verify().unchecked] == ["export"]
    statement = json.loads((carded.card / "statement.json").read_text())
    assert "export/model.safetensors" in {subject["name"] for subject in statement["subject"]}
    page = Path(shutil.copytree(folder, tmp_path / "copy")) / "README.md"
    page.write_text(page.read_text() + "\nThe best model.\n")
    assert "export.files.README.md.sha256" in {one.field for one in carded.verify(export=page.parent).disagreements}


def test_other_weights_get_no_card(folder: Path, written: Carded, tmp_path: Path):
    """One value of one tensor: the files are what they are, and are not the checkpoint's."""
    path = Path(shutil.copytree(folder, tmp_path / "copy")) / "model.safetensors"
    tensors = load_file(path)
    name = sorted(tensors)[0]
    tensors[name].reshape(-1)[0] += np.ones((), tensors[name].dtype)
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(VerdictError, match=r"export\.weights: its tensors are not"):
        write_card(written.home, SUBJECT, tmp_path / "none", CardOptions(export=path.parent))
