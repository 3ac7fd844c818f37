"""The smallest case of the measurement, and its table."""

import json
from pathlib import Path

import pytest

from tests.pulse import context_axis
from tests.pulse.context_axis import MESHES, MODELS, batch_of, model_of, table
from tests.trainer.eight_devices import run_on_eight_devices


@pytest.mark.timeout(600)  # two small programs are compiled; a busy machine may need minutes
def test_one_mesh_gives_the_loss_and_gradients_of_one_device(tmp_path: Path):
    run_on_eight_devices(Path(context_axis.__file__), tmp_path, Path("--tiny"))
    [found] = json.loads((tmp_path / "context_axis.json").read_text())
    assert (found["model"], found["mesh"]) == ("dense, one document a row", "context 4")
    assert found["loss"] < 1e-6
    assert 0 < found["gradients"] < 1e-5
    assert (tmp_path / "context_axis.md").read_text() == table([found])


def test_documents_end_on_both_sides_of_every_cut_and_padding_is_last():
    for name in MODELS:
        tokens, ids = batch_of(model_of(name))
        assert tokens.shape == ids.shape
        assert ids.max() > 2
        assert (ids[:, -5:] == 0).all()
        assert max(mesh.context for mesh in MESHES[name]) >= 4
