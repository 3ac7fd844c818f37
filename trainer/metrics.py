"""`metrics.jsonl`: one JSON object an update, in order, each step once, however often the run was stopped.

`TABLE` names everything that a row may hold, and `docs/reference/metrics.md` is printed from it: `python -m phasewise.trainer.metrics
> docs/reference/metrics.md`.
"""

import errno
import hashlib
import json
import os
import re
from collections.abc import Container, Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from phasewise.trainer.base.storage import write_atomically

Row = dict[str, Any]
"""One update; `TABLE` says what it holds."""

PARAM_GROUPS = ("embedding", "attention", "mlp", "norms", "lm_head")
"""The groups of weights that norms are of; `trainer.model.params.param_specs` says which group a weight is in."""
SPARSE_GROUPS = ("experts", "router")
"""More groups, of models with experts."""
ALL_GROUPS = (*PARAM_GROUPS, *SPARSE_GROUPS)
"""Every group that a weight can be in."""


class Metric(NamedTuple):
    """One name of a row.

    Attributes:
        name: words in capitals stand for a group of `ALL_GROUPS`, a weight of `param_specs`, a layer, an expert or a component.
        when: which rows hold it; empty is all.
        of_the_clock: it is measured in time, and differs between two runs of the same.
    """

    name: str
    unit: str
    what: str
    when: str = ""
    of_the_clock: bool = False

    @property
    def pattern(self) -> str:
        """A regular expression for the names that this one covers."""
        words = {"GROUP": "|".join(ALL_GROUPS), "WEIGHT": "[a-z_]+", "LAYER": r"\d+", "EXPERT": r"\d+", "COMPONENT": ".+"}
        parts = re.split("(GROUP|WEIGHT|LAYER|EXPERT|COMPONENT)", self.name)
        return "".join(f"({words[part]})" if part in words else re.escape(part) for part in parts)


NORMS = {
    "grad_norm": "gradients, before clipping",
    "update_norm": "change to the weights, learning rate included",
    "param_norm": "weights, after the update",
    "first_moment_norm": "optimizer's average of the gradients (Muon's momentum), after the update",
    "second_moment_norm": "optimizer's average of the squared gradients, after the update",
}
"""Each is written of all weights, of each group, and at some steps of each weight and layer."""
_WHEN_MOMENTS = {"second_moment_norm": "where the optimizer keeps such averages"}
_AT_LAYER_NORMS = "each `instrumentation.layer_norms_every` steps"
_WITH_EXPERTS = "of models with experts"
_AT_LAYER_EXPERTS = "each `instrumentation.layer_norms_every` steps and at the phase's end, of models with experts"
_WHILE_ON = "while it is on"
_IN_PHASE = "in a phase that has it at any step"
_WITH_PARTS = "where the batch is cut into parts"
_AT_EVALUATIONS = "at evaluations: each `evaluation.every_steps` and at the phase's end"


def _norm_metrics(name: str, what: str) -> Iterable[Metric]:
    when = _WHEN_MOMENTS.get(name, "")
    yield Metric(name, "", f"L2 norm of the {what}", when)
    yield Metric(f"{name}/GROUP", "", "the same of one group of weights", when)
    yield Metric(f"{name}/WEIGHT", "", "the same of a weight that no layers share", _AT_LAYER_NORMS)
    yield Metric(f"{name}/WEIGHT/LAYER", "", "the same of a weight in one layer", _AT_LAYER_NORMS)


TABLE: tuple[Metric, ...] = (
    Metric("step", "updates", "applied so far, this one included"),
    Metric("loss", "nats a token", "cross-entropy of this update's batch, before the update, without z-loss"),
    Metric("batch_het", "nats a token", "largest loss of a part of the batch above the mean of all parts (BatchHet)", _WITH_PARTS),
    Metric("log_z_squared", "nats²", "mean square of the logarithm of the partition function: what z-loss weighs"),
    *(metric for name, what in NORMS.items() for metric in _norm_metrics(name, what)),
    Metric("ema_distance", "share", "norm of (weights - moving average) over norm of the weights, after the update", "with an average"),
    Metric("learning_rate", "", "of this update"),
    Metric("weight_decay", "", "of this update, before the learning rate", "where the optimizer's decay is scheduled"),
    Metric("z_loss", "", "weight of z-loss; 0 is off"),
    Metric("ema_decay", "", "of the moving average in this update", _WHILE_ON),
    Metric("max_grad_norm", "", "what the norm of the gradients is clipped to", _WHILE_ON),
    Metric("grad_clip_factor", "", "what the gradients were multiplied by; 1 where they were not clipped"),
    Metric("max_update_rms", "", "what the root mean square of each weight's update is clipped to", _WHILE_ON),
    Metric("rms_clip_factor", "", "the least that the update of a weight was multiplied by; 1 where none was clipped", _IN_PHASE),
    Metric("direction_norm", "", "L2 norm of the update before the learning rate, unclipped: what `max_update_norm` goes by", _IN_PHASE),
    Metric("max_update_norm", "", "what the norm of the update, before the learning rate, is clipped to", "once its window has enough"),
    Metric("update_clip_factor", "", "what the update was multiplied by; 1 where it was not clipped", _IN_PHASE),
    Metric("max_loss", "nats a token", "an update with a loss above it is skipped", "once the window of skip-step has enough"),
    Metric("max_skip_grad_norm", "", "an update with a gradient norm above it is skipped", "once the window of skip-step has enough"),
    Metric("skipped", "0 or 1", "1 where the update was not applied", _IN_PHASE),
    Metric("max_violation", "share", "how far the busiest expert is above the mean, in the worst layer (MaxVio)", _WITH_EXPERTS),
    Metric("max_violation/LAYER", "share", "the same of one layer; at most num_experts / num_active - 1", _AT_LAYER_EXPERTS),
    Metric("dead_experts", "experts", "without any token of this batch, over all layers", _WITH_EXPERTS),
    Metric("dead_experts/LAYER", "experts", "the same of one layer", _AT_LAYER_EXPERTS),
    Metric("router_entropy", "share", "mean over tokens and layers of the entropy of their scores, over log(num_experts)", _WITH_EXPERTS),
    Metric("router_entropy/LAYER", "share", "the same of one layer", _AT_LAYER_EXPERTS),
    Metric("sequence_loss", "", "mean over tokens and layers of their row's balance loss, without its weight; 1 at balance", _WITH_EXPERTS),
    Metric("expert_load/LAYER/EXPERT", "share", "of a layer's assignments that an expert has", _AT_LAYER_EXPERTS),
    Metric("overflowed", "share", "of assignments that took a further block of their expert; none is dropped", _WITH_EXPERTS),
    Metric("tokens", "tokens", "in this update's batch, padding included"),
    Metric(
        "counted_tokens", "tokens", "of this update's batch that are predicted", "where rows are packed, or answers alone are predicted"
    ),
    Metric("sequences", "sequences", "in this update's batch"),
    Metric("mixture_since", "step", "from which the mixture of this update holds: the run's schedule of mixtures, not its start"),
    Metric("mixture/COMPONENT", "percent", "of the mixture that begins to hold", "of the first update of a mixture, and of the phase"),
    Metric("eval_loss", "nats a token", "of the weights after this update on held-out text; components count alike", _AT_EVALUATIONS),
    Metric("eval_loss/COMPONENT", "nats a token", "the same of one component", _AT_EVALUATIONS),
    Metric("ema_eval_loss", "nats a token", "of the moving average of the weights, on the same text", "there, with an average"),
    Metric("ema_eval_loss/COMPONENT", "nats a token", "the same of one component", "there, with an average"),
    Metric("ema_gap", "nats a token", "`eval_loss` - `ema_eval_loss`", "there, with an average"),
    Metric("evaluation_seconds", "seconds", "that the evaluation took", _AT_EVALUATIONS, of_the_clock=True),
    Metric("data_seconds", "seconds", "that the loop waited for the batch; the accelerator may be busy then", of_the_clock=True),
    Metric("step_seconds", "seconds", "since the update before it, without saving and evaluation; the first compiles", of_the_clock=True),
    Metric("tokens_per_second", "tokens/s", "`tokens` / `step_seconds`", of_the_clock=True),
    Metric("mfu", "share", "model FLOPs a second over the devices' peak (`trainer.flops`)", "where the peak is known", of_the_clock=True),
    Metric("seconds", "seconds", "since this process began to train", of_the_clock=True),
)
"""Every name that a row may hold."""


@cache
def metric_of(name: str) -> Metric | None:
    """What the table says of a name; None is a name that is not in it."""
    return next((metric for metric in TABLE if re.fullmatch(metric.pattern, name)), None)


def of_the_clock(name: str) -> bool:
    """Whether two runs of the same may differ in it."""
    metric = metric_of(name)
    return metric is not None and metric.of_the_clock


def as_markdown() -> str:
    """`docs/reference/metrics.md`."""
    lines = [f"| `{metric.name}` | {metric.unit} | {metric.what} | {metric.when} |" for metric in TABLE]
    members = [f"| {group} | {', '.join(f'`{name}`' for name in names)} |" for group, names in _weights_of_groups().items()]
    return "\n".join([_HEAD, *lines, _GROUPS_HEAD, *members, ""])


def _weights_of_groups() -> dict[str, list[str]]:
    import jax  # for the page alone: whoever reads rows needs neither jax nor the model

    from phasewise.trainer.config import Experts, ModelConfig, Rope
    from phasewise.trainer.model.params import param_specs

    experts = Experts(
        num_experts=2, num_active=1, num_shared=1, d_expert=1, route_scale=1.0, num_dense_layers=1, balancing=None, sequence_loss=0.0
    )
    sizes = {
        "vocab_size": 1,
        "seq_len": 2,
        "num_layers": 2,
        "d_model": 1,
        "d_ff": 1,
        "num_query_heads": 1,
        "num_kv_heads": 1,
        "head_dim": 2,
    }
    parts = {"qk_norm": True, "attention_gate": True, "post_norms": True, "experts": experts, "tied_head": False, "sliding_window": None}
    rope = Rope(theta=1.0, scaling=None)
    types = {"compute_dtype": "float32", "float32_attention": False}
    model = ModelConfig.model_validate({**sizes, **parts, **types, "rope": rope, "rms_norm_epsilon": 1.0, "initializer_std": 1.0})
    members: dict[str, list[str]] = {group: [] for group in ALL_GROUPS}
    for path, spec in jax.tree_util.tree_leaves_with_path(param_specs(model)):
        if path[-1].key not in members[spec.group]:
            members[spec.group].append(path[-1].key)
    return members


_HEAD = """\
# Metrics

What `metrics.jsonl` of a run holds, an object an update; TensorBoard and Weights & Biases get the same names. Printed by
`python -m phasewise.trainer.metrics > docs/reference/metrics.md` from the table in `trainer/metrics.py`.

A value that is not finite is null. A value that is off, or not known, is left out. COMPONENT, GROUP, WEIGHT,
LAYER and EXPERT are names or numbers.

| name | unit | what | in which rows |
|---|---|---|---|"""
_GROUPS_HEAD = """
## Groups of weights

| group | weights |
|---|---|"""


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


def whole_through(rows: Iterable[Row], first_step: int, left_out: Container[int] = ()) -> int:
    """The last step up to which there is a row of each step after `first_step`, in order.

    Args:
        left_out: updates, counted from 0, that have no row.
    """
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
    """SHA-256 of rows as they are written."""
    return hashlib.sha256(b"".join(_line(row) for row in rows)).hexdigest()


class MetricsFile:
    """Appends rows. Opening it forgets the rows after `restored_step`: they will be trained, and written, again."""

    def __init__(self, path: Path, *, restored_step: int):
        self.kept = [row for row in read_metrics(path) if row["step"] <= restored_step]
        content = b"".join(_line(row) for row in self.kept)
        write_atomically(path, content)
        self._path = path
        self._lines = hashlib.sha256(content)
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115  # stays open for the run

    def append(self, row: Row) -> None:
        """One write call a row.

        Raises:
            OSError: it was not written, or only in part; then it is taken back.
        """
        line = _line(row)
        try:
            written = os.write(self._file.fileno(), line)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error
        if written < len(line):
            os.ftruncate(self._file.fileno(), os.fstat(self._file.fileno()).st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        self._lines.update(line)

    @property
    def digest(self) -> str:
        """SHA-256 of all rows so far."""
        return self._lines.hexdigest()

    def flush(self) -> None:
        """What was appended is on the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """No more rows."""
        self._file.close()


def _line(row: Row) -> bytes:
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"


if __name__ == "__main__":
    print(as_markdown(), end="")
