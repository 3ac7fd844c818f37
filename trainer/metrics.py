"""`metrics.jsonl`: one JSON object an update, in order, each step once, however often the run was stopped.

| name | unit | what |
|---|---|---|
| `step` | updates | applied so far, this one included |
| `loss` | nats a token | cross-entropy of this update's batch, before the update, without z-loss |
| `log_z_squared` | nats² | mean square of the logarithm of the partition function: what z-loss weighs |
| `grad_norm` | | L2 norm of the gradients, before clipping |
| `update_norm` | | L2 norm of the change to the weights, learning rate included |
| `param_norm` | | L2 norm of the weights, after the update |
| `grad_norm/GROUP`, `update_norm/GROUP`, `param_norm/GROUP` | | the same of one group of `PARAM_GROUPS` |
| `ema_distance` | share | norm of (weights - moving average) over norm of the weights, after the update; only where there is an average |
| `learning_rate` | | of this update |
| `z_loss` | | weight of z-loss; 0 is off |
| `tokens` | tokens | in this update's batch |
| `mixture_since` | step | from which the mixture of this update holds: the run's schedule of mixtures, not its start |
| `data_seconds` | seconds | that the loop waited for this update's batch; the accelerator may have been busy meanwhile |
| `seconds` | seconds | since this process began to train |
| `eval_loss` | nats a token | of the weights after this update on held-out text; only at steps where they are evaluated |
| `ema_eval_loss` | nats a token | of their moving average on the same text; only there |

What is not finite is null.
"""

import json
import os
from pathlib import Path
from typing import Any

from trainer.storage import write_atomically

METRICS_NAME = "metrics.jsonl"
Row = dict[str, Any]
"""One update; the table above says what it holds."""

PARAM_GROUPS: dict[str, tuple[str, ...]] = {
    "embedding": ("embedding",),
    "attention": ("query", "key", "value", "output"),
    "mlp": ("gate", "up", "down"),
    "norms": ("attention_norm", "mlp_norm", "final_norm"),
    "lm_head": ("head",),
}
"""Group → the names of its weights in `trainer.model.params.param_specs`; each weight is in exactly one."""


def read_metrics(path: Path) -> list[Row]:
    """All whole rows; a line that a kill cut short is left out."""
    if not path.exists():
        return []
    rows: list[Row] = []
    for line in path.read_bytes().splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


class MetricsFile:
    """Appends rows. Opening it forgets the rows after `restored_step`: they will be trained, and written, again."""

    def __init__(self, path: Path, *, restored_step: int):
        kept = [row for row in read_metrics(path) if row["step"] <= restored_step]
        write_atomically(path, b"".join(_line(row) for row in kept))
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115  # stays open for the run

    def append(self, row: Row) -> None:
        """One write call a row."""
        os.write(self._file.fileno(), _line(row))

    def close(self) -> None:
        """No more rows."""
        self._file.close()


def _line(row: Row) -> bytes:
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"
