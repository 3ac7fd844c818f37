"""What an exported folder says of its model is compared with the model, field by field, in every family."""

import json
from pathlib import Path
from typing import Any

import pytest

from phasewise.flows.recipes import load_recipe
from phasewise.tasks.report.export import differing_fields
from phasewise.trainer.config import ModelConfig
from phasewise.trainer.model.hugging_face_config import to_hugging_face

RECIPES = ("marin-8b", "marin-32b", "trinity-nano")


def write_config(folder: Path, model: ModelConfig, **changed: Any) -> None:
    (folder / "config.json").write_text(json.dumps({**to_hugging_face(model, "float32"), "bos_token_id": 1, **changed}))


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_folder_of_the_model_differs_in_nothing(recipe: str, tmp_path: Path) -> None:
    model = load_recipe(recipe, "proxy").phases[-1].model
    write_config(tmp_path, model)
    assert differing_fields(tmp_path, model, "float32") == []
    assert differing_fields(tmp_path, model, "bfloat16") == ["torch_dtype"]


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_changed_field_is_named(recipe: str, tmp_path: Path) -> None:
    model = load_recipe(recipe, "proxy").phases[-1].model
    for name in to_hugging_face(model, "float32"):
        write_config(tmp_path, model, **{name: "changed"})
        assert differing_fields(tmp_path, model, "float32") == [name]
