"""What a run trained, exported from its home."""

from pathlib import Path

import pytest

from tests.pulse.runs import Finished, Start, complete
from trainer.model.hugging_face import read_folder
from trainer.state import params_digest

pytestmark = pytest.mark.timeout(180)  # a guard against hanging


def test_a_trained_phase_is_exported_bit_for_bit(
    finished: Finished, phasewise: Start, recipe_file: Path, home: Path, tmp_path: Path
) -> None:
    said = complete(phasewise("export", f"{recipe_file}/ocelot", tmp_path / "out", "--home", home, "--json"))
    params, _ = read_folder(tmp_path / "out")
    assert params_digest(params) == said["params_digest"] == finished["phases"][1]["params_digest"]
    assert (said["phase"], said["step"]) == ("ocelot", 52)
