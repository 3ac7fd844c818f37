"""Both families beside `transformers` in float32, through the folder, both ways.

Needs the extra `parity`; where it is absent, the goldens still check values.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phasewise.trainer.model.decoder import logits
from phasewise.trainer.model.hugging_face import to_tensors
from tests.trainer.model.parity import DIRECTIONS, Case, cases, exported, imported, measure, ours

pytest.importorskip("torch", reason="parity with transformers needs PyTorch: pip install -e '.[parity]'")
pytest.importorskip("transformers", reason="parity needs transformers: pip install -e '.[parity]'")


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("case", list(cases()), ids=str)
def test_logits_and_gradients_are_theirs(tmp_path: Path, case: Case, direction: str):
    measured = measure(case, direction, tmp_path / "folder")
    assert measured.spread > 0.5  # else the tolerance would say little
    assert measured.logits < 1e-4
    assert measured.gradients < 1e-3


@pytest.mark.parametrize("case", [Case("llama", 2, 16, "llama3", tied=False), Case("qwen3", 4, 64, "plain", tied=True)], ids=str)
def test_their_weights_arrive_bit_for_bit_and_ours_with_them(tmp_path: Path, case: Case):
    for params, model in (imported(case, tmp_path / "one"), exported(case, tmp_path / "other")):
        their_weights: dict[str, Any] = dict(model.named_parameters())
        for name, tensor in to_tensors(params, case.config):
            assert tensor.tobytes() == their_weights.pop(name).detach().numpy().tobytes(), name
        assert not their_weights


@pytest.mark.parametrize("case", [Case("llama", 2, 16, "llama3", tied=False), Case("qwen3", 4, 64, "plain", tied=True)], ids=str)
def test_a_packed_row_has_the_logits_that_they_give_each_document_alone(tmp_path: Path, case: Case):
    params, model = exported(case, tmp_path / "folder")
    torch: Any = import_module("torch")
    row = np.random.default_rng(1).integers(0, 97, (1, 40))
    bounds = [(0, 11), (11, 12), (12, 40)]
    segment_ids = np.concatenate([np.full(stop - start, number) for number, (start, stop) in enumerate(bounds)])[None]
    packed = np.asarray(jax.jit(logits, static_argnames="config")(params, row, config=case.config, segment_ids=segment_ids))
    for start, stop in bounds:
        with torch.no_grad():
            alone = model(input_ids=torch.from_numpy(row[:, start:stop])).logits.numpy()
        assert np.abs(packed[:, start:stop] - alone).max() < 1e-4


def test_a_gain_in_another_s_place_would_be_seen(tmp_path: Path):
    """What the tolerances can tell: queries and keys with each other's gains are far off."""
    case = Case("qwen3", 2, 16, "plain", tied=False)
    params, model = exported(case, tmp_path / "folder")
    blocks = params["blocks"]
    swapped = {**params, "blocks": {**blocks, "attention_norm": blocks["mlp_norm"], "mlp_norm": blocks["attention_norm"]}}
    tokens = np.arange(40)[None]
    found, _ = ours(swapped, jnp.asarray(tokens), case.config)
    assert np.abs(found - model(input_ids=import_module("torch").from_numpy(tokens)).logits.detach().numpy()).max() > 0.1
