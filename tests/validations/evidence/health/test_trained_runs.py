import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before anything imports jax

import numpy as np
import pytest

from phasewise.trainer.metrics import SPARSE_GROUPS
from phasewise.validations.evidence.health.phenomena import Measure
from tests.compilation import compile_from_now_on
from tests.validations.evidence.health.simulated import evidence, flagged
from tests.validations.evidence.health.trained import Run, cosine, counting, noise, train


@pytest.fixture(scope="module", autouse=True)
def quick_compilation() -> None:
    """What is compiled here runs for a second: XLA's optimisations, which take several, are left out."""
    compile_from_now_on(quickly=True)


OF_EXPERTS = (Measure.MAX_VIOLATION, *SPARSE_GROUPS)
HEALTHY = Run(cosine, counting)


def partly_noise(step: int, rng: np.random.Generator) -> np.ndarray:
    """From update 220 on a third of the tokens mean nothing: other data, in order."""
    tokens = counting(step, rng)
    meaningless = noise(step, rng)
    return np.where(rng.random(tokens.shape) < 0.3, meaningless, tokens) if step >= 220 else tokens


PROVOKED = {
    Measure.LOSS_SPIKES: Run(cosine, lambda step, rng: noise(step, rng) if step in (200, 201) else counting(step, rng)),
    Measure.LM_HEAD_GROWTH: Run(lambda step: 3e-3 if step < 100 else 0.1, counting, z_loss=lambda _: 0.0),
    Measure.LOSS_SHIFT: Run(cosine, partly_noise),
    Measure.EMA_LAG: Run(cosine, counting, updates=60, ema_decay=0.1),
}


def test_a_healthy_run_is_wholly_judged_and_silent():
    table = evidence(train(HEALTHY))
    has_none = (*OF_EXPERTS, Measure.BATCH_HET)  # no experts, and batches that are not cut into parts
    table = table[[not any(name in measure for name in has_none) for measure in table["measure"]]]
    assert table["is_measured"].all()
    limited = table[table["measure"] != Measure.LOSS_STEP_SPREAD]  # nothing limits it
    assert (limited["value"] <= limited["limit"]).all()


@pytest.mark.parametrize("measure", PROVOKED)
def test_what_is_done_to_a_run_is_found(measure: Measure):
    assert measure in flagged(evidence(train(PROVOKED[measure])))
