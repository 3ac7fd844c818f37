"""A process with eight devices: the language model of the golden on a mesh, and what differs. `test_loading.py` starts it.

XLA_FLAGS=--xla_force_host_platform_device_count=8 python on_eight_devices.py FOUND.json
"""

import sys
from pathlib import Path

import jax

from phasewise.tasks.evaluation import language_model, scoring
from phasewise.tasks.evaluation.model_loading import model_of_folder
from phasewise.trainer.base.storage import write_json
from phasewise.trainer.config import Mesh
from tests.tasks.evaluation.hflm import GOLDEN, ask, compare, golden

MESH = Mesh(replica=2, fsdp=2, tensor=2)
ASKED = {"loglikelihood": slice(0, 6), "loglikelihood_rolling": slice(2, 3), "generate_until": slice(8, 10)}


def main(found: Path) -> None:
    """The largest difference of a log-likelihood, how many other answers differ, and the share of the weights on one device."""
    assert len(jax.devices()) == 8
    scoring.BATCH_TOKENS = language_model.MAX_ROWS = 1  # one row on each part of a batch
    asked, expected = golden()
    model = model_of_folder(GOLDEN / "model", mesh=MESH)
    answers = ask(model, {kind: asked[kind][some] for kind, some in ASKED.items()})
    difference = compare(answers, {kind: expected[kind][some] for kind, some in ASKED.items()})
    weights = jax.tree.leaves(model.params)
    here = sum(weight.addressable_shards[0].data.size for weight in weights) / sum(weight.size for weight in weights)
    write_json(found, [difference.log_likelihood, difference.others, here])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
