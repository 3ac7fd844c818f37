"""A run whose figures are made up."""

from typing import Any

from tests.tasks.training.conftest import MODEL
from trainer.config import RunConfig

ADAM = {"beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.05}
MUON = {
    "kind": "muon", "momentum": 0.95, "nesterov": True, "newton_schulz_steps": 5, "epsilon": 1e-8, "weight_decay": 0.1,
    "adam": {"kind": "adamw", **ADAM}, "adam_learning_rate_scale": 0.1,
}  # fmt: skip
OFF = {name: [[0, None]] for name in ("max_grad_norm", "z_loss", "ema_decay", "max_update_rms", "max_update_norm", "skip_step")}


def tiny_run(*, stop_step: int, evaluates: bool = True, **changes: Any) -> RunConfig:
    """A checkpoint each ten updates, an evaluation each twenty. `changes` are fields of the run; of `stability`, one of its fields."""
    optimizer = MUON if changes.pop("optimizer", None) else {"kind": "adamw", **ADAM}
    stability = {**OFF, **changes.pop("stability", {})}
    evaluation = {"every_steps": 20, "sequences": 2, "caches": {"code": "held-out"}} if evaluates else None
    return RunConfig.model_validate(
        {
            "recipe": "tiny", "scale": "proxy", "phase": "warm-up", "start_step": 0, "stop_step": stop_step, "seed": 0, "model": MODEL,
            "optimizer": optimizer, "stability": stability, "evaluation": evaluation, "batch": [[0, 2]], "mixture": [[0, {"code": 100}]],
            "learning_rate": [{"kind": "constant", "start_step": 0, "end_step": stop_step, "start": 1e-3, "end": 1e-3}],
            "order": {"seed": 0, "permutation": "linear", "block_sequences": 8},
            "checkpoints": {"every_steps": 10, "every_minutes": None, "keep_all": False},
            "start": None, "caches": {"code": "train"}, "verdict": "verdict.json", "output": "run", **changes,
        }
    )  # fmt: skip
