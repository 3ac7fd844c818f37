"""`metrics.jsonl`: one JSON object per update, each step once in order, also in resumed runs.

`TABLE` declares every name of a row, and `docs/reference/metrics.md` lists them.
"""

import errno
import hashlib
import json
import os
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from phasewise.trainer.base.storage import write_atomically

Row = dict[str, Any]
PARAM_GROUPS = ("embedding", "attention", "mlp", "norms", "lm_head")
"""Groups of weights for norms. `trainer.model.params.param_specs` assigns each weight to a group."""
SPARSE_GROUPS = ("experts", "router")  # further groups of models with experts
ALL_GROUPS = (*PARAM_GROUPS, *SPARSE_GROUPS)


class Metric(NamedTuple):
    """A name in a row."""

    name: str  # with capitals for a group of `ALL_GROUPS`, a weight of `param_specs`, a layer, an expert or a component
    unit: str
    what: str
    when: str = ""  # condition for the name, empty for all rows
    of_the_clock: bool = False  # measured in time, so two equal runs differ


NORMS = {
    "grad_norm": ("gradients, before clipping", ""),
    "update_norm": ("change of the weights, including the learning rate", ""),
    "param_norm": ("weights, after the update", ""),
    "first_moment_norm": ("optimizer's average of the gradients (Muon's momentum), after the update", ""),
    "second_moment_norm": ("optimizer's average of the squared gradients, after the update", "optimizers with this average"),
}
"""Name → description and condition."""
_AT_LAYER_NORMS = "every `instrumentation.layer_norms_every` steps"
_WITH_EXPERTS = "models with experts"
_AT_LAYER_EXPERTS = "every `instrumentation.layer_norms_every` steps and at the phase's end, models with experts"
_WHILE_ON = "while on"
_IN_PHASE = "phases with this clip or with skip-step at any step"
_AT_EVALUATIONS = "every `evaluation.every_steps` steps and at the phase's end"
_WITH_AVERAGE = "at evaluations with a moving average"
_WITH_OWN_TEXT = "at evaluations with `evaluation.held_out`"
_FULL_WINDOW = "with enough values in the window"


TABLE: tuple[Metric, ...] = (
    Metric("step", "updates", "updates so far, including this update"),
    Metric("loss", "nats per token", "cross-entropy of the batch, before the update, without z-loss"),
    Metric(
        "batch_het",
        "nats per token",
        "largest loss of a part of the batch minus mean over parts (BatchHet)",
        "with micro-batches or a mesh",
    ),
    Metric("log_z_squared", "nats²", "mean square of the log partition function, the quantity that z-loss weights"),
    *(
        metric
        for name, (what, when) in NORMS.items()
        for metric in (
            Metric(name, "", f"L2 norm of the {what}", when),
            Metric(f"{name}/GROUP", "", "per group of weights", when),
            Metric(f"{name}/WEIGHT", "", "per weight outside the layers", _AT_LAYER_NORMS),
            Metric(f"{name}/WEIGHT/LAYER", "", "per weight and layer", _AT_LAYER_NORMS),
        )
    ),
    Metric("ema_distance", "share", "norm of (weights - moving average) over norm of the weights, after the update", "with an average"),
    Metric("learning_rate", "", "learning rate"),
    Metric("weight_decay", "", "weight decay before the learning rate", "with a scheduled weight decay"),
    Metric("z_loss", "", "weight of z-loss, 0 for off"),
    Metric("ema_decay", "", "decay of the moving average", _WHILE_ON),
    Metric("max_grad_norm", "", "limit of the gradients' norm", _WHILE_ON),
    Metric("grad_clip_factor", "", "factor of the gradients, 1 without clipping"),
    Metric("max_update_rms", "", "limit of the root mean square of each weight's update", _WHILE_ON),
    Metric("rms_clip_factor", "", "smallest factor of a weight's update, 1 without clipping", _IN_PHASE),
    Metric("direction_norm", "", "L2 norm of the unclipped update before the learning rate, compared with `max_update_norm`", _IN_PHASE),
    Metric("max_update_norm", "", "limit of the update's norm before the learning rate", _FULL_WINDOW),
    Metric("update_clip_factor", "", "factor of the update, 1 without clipping", _IN_PHASE),
    Metric("max_loss", "nats per token", "limit of the loss in skip-step", _FULL_WINDOW),
    Metric("max_skip_grad_norm", "", "limit of the gradients' norm in skip-step", _FULL_WINDOW),
    Metric("skipped", "0 or 1", "1 for an update that was not applied", _IN_PHASE),
    Metric("max_violation", "share", "load of the busiest expert above the mean, in the worst layer (MaxVio)", _WITH_EXPERTS),
    Metric("max_violation/LAYER", "share", "per layer, at most num_experts / num_active - 1", _AT_LAYER_EXPERTS),
    Metric("dead_experts", "experts", "experts without tokens in this batch, summed over layers", _WITH_EXPERTS),
    Metric("dead_experts/LAYER", "experts", "per layer", _AT_LAYER_EXPERTS),
    Metric("router_entropy", "share", "mean entropy of router scores over tokens and layers, over log(num_experts)", _WITH_EXPERTS),
    Metric("router_entropy/LAYER", "share", "per layer", _AT_LAYER_EXPERTS),
    Metric("sequence_loss", "", "mean balance loss of rows over tokens and layers, without its weight, 1 at balance", _WITH_EXPERTS),
    Metric("expert_load/LAYER/EXPERT", "share", "share of a layer's assignments per expert", _AT_LAYER_EXPERTS),
    Metric("overflowed", "share", "share of assignments in a further block of their expert (none is dropped)", _WITH_EXPERTS),
    Metric("tokens", "tokens", "tokens of the batch, including padding"),
    Metric("counted_tokens", "tokens", "predicted tokens of the batch", "with packed rows or loss on answers"),
    Metric("sequences", "sequences", "sequences of the batch"),
    Metric("mixture_since", "step", "start of the current mixture in the run's schedule"),
    Metric("mixture/COMPONENT", "percent", "share in the mixture", "first update of a mixture and of the phase"),
    Metric("eval_loss", "nats per token", "loss on held-out text after the update, mean over components", _AT_EVALUATIONS),
    Metric("eval_loss/COMPONENT", "nats per token", "per component", _AT_EVALUATIONS),
    Metric("own_text_bits_per_byte", "bits per byte", "fit to `evaluation.held_out`, mean over its subsets (macro)", _WITH_OWN_TEXT),
    Metric("own_text_bits_per_byte_micro", "bits per byte", "fit to `evaluation.held_out`, weighted by bytes", _WITH_OWN_TEXT),
    Metric("own_text_bits_per_byte/COMPONENT", "bits per byte", "per subset of `evaluation.held_out`", _WITH_OWN_TEXT),
    Metric("ema_eval_loss", "nats per token", "loss of the moving average of the weights on held-out text", _WITH_AVERAGE),
    Metric("ema_eval_loss/COMPONENT", "nats per token", "per component", _WITH_AVERAGE),
    Metric("ema_gap", "nats per token", "`eval_loss` - `ema_eval_loss`", _WITH_AVERAGE),
    Metric("evaluation_seconds", "seconds", "time of the evaluation", _AT_EVALUATIONS, of_the_clock=True),
    Metric("data_seconds", "seconds", "wait of the loop for the batch, while the accelerator may be busy", of_the_clock=True),
    Metric(
        "step_seconds", "seconds", "time since the last update without saving and evaluation, with compilation at first", of_the_clock=True
    ),
    Metric("tokens_per_second", "tokens/s", "`tokens` / `step_seconds`", of_the_clock=True),
    Metric("mfu", "share", "model FLOPs per second over the devices' peak (`trainer.flops`)", "with a known peak", of_the_clock=True),
    Metric("seconds", "seconds", "time since the start of training in this process", of_the_clock=True),
)


OF_THE_CLOCK = frozenset(metric.name for metric in TABLE if metric.of_the_clock)


def read_metrics(path: Path) -> list[Row]:
    """Return the complete rows, up to a truncated line."""
    if not path.exists():
        return []
    rows: list[Row] = []
    for line in path.read_bytes().splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


def whole_through(rows: Iterable[Row], first_step: int, left_out: Container[int] = ()) -> int:
    """Return the last step of the rows without gaps after `first_step`. `left_out`: updates without rows, counted from 0."""
    reached = first_step
    for row in rows:
        step = reached + 1
        while step - 1 in left_out:
            step += 1
        if row.get("step") != step:
            break
        reached = step
    return reached


def rows_digest(rows: Iterable[Row]) -> str:
    """Return the SHA-256 of written rows."""
    return hashlib.sha256(b"".join(_line(row) for row in rows)).hexdigest()


class MetricsFile:
    """Append rows. The constructor drops the rows after `restored_step`, because these updates run again."""

    def __init__(self, path: Path, *, restored_step: int):
        self.kept = [row for row in read_metrics(path) if row["step"] <= restored_step]
        content = b"".join(_line(row) for row in self.kept)
        write_atomically(path, content)
        self._path = path
        self._lines = hashlib.sha256(content)
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115  # stays open for the run

    def append(self, row: Row) -> None:
        """Write a row in one call. Raises OSError if the row was not written. A partial row is removed."""
        line = _line(row)
        try:
            written = os.write(self._file.fileno(), line)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error
        if written < len(line):
            os.ftruncate(self._file.fileno(), os.fstat(self._file.fileno()).st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        self._lines.update(line)

    def flush(self) -> str:
        """Sync to the disk, and return the SHA-256 of all rows."""
        os.fsync(self._file.fileno())
        return self._lines.hexdigest()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _line(row: Row) -> bytes:
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"
