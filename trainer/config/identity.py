"""Which run a run is: which fields bind its checkpoints, which bind its result, and the comparison of two runs field by field.

This is the only list. A field that is not in `MAY_CHANGE`, a new one among them, binds a checkpoint: the trainer refuses to resume with
another value (`trainer.checkpoints.resume`). A field that binds a checkpoint, or is in `BIND_THE_RESULT`, is in the digest of a result, and
a launcher trains again if it changed.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import Any, NamedTuple

MAX_CHARACTERS = 60
NOTHING = "nothing"
EACH = "[]"

_EXECUTION = "it changes how an update is computed, or how long one may take, and not what an update computes"
_INSTRUMENTATION = "metrics and their sinks change no update"
_SAVING = "when the state is saved, and for how long a checkpoint is kept, changes no update"
MAY_CHANGE: Mapping[str, str] = {
    "learning_rate": "the updates after the checkpoint are still to come; at every update before it the learning rate is compared",
    "stop_step": "the last update is still to come: it must not lie before the checkpoint",
    "until_step": "on which slice the updates are computed changes none of them",
    "execution.mesh": _EXECUTION,
    "execution.remat": _EXECUTION,
    "execution.attention": _EXECUTION,
    "execution.expert_kernel": _EXECUTION,
    "execution.microbatch_sequences": _EXECUTION,
    "execution.loss_chunk_tokens": _EXECUTION,
    "execution.stall_seconds": _EXECUTION,
    "execution.step_stall_seconds": _EXECUTION,
    "execution.save_stall_seconds": _EXECUTION,
    "execution.restore_stall_seconds": _EXECUTION,
    "instrumentation.layer_norms_every": _INSTRUMENTATION,
    "instrumentation.tensorboard": _INSTRUMENTATION,
    "instrumentation.wandb": _INSTRUMENTATION,
    "evaluation": "the loss on held-out text is measured, and changes no update",
    "checkpoints.every_steps": _SAVING,
    "checkpoints.every_minutes": _SAVING,
    "checkpoints.keep_all": _SAVING,
    "checkpoints.at_steps": _SAVING,
    "verdict": "a path; the trainer reads the verdict again at each start",
    "output": "a path; a run may be moved",
    "caches": "paths; the content of each cache is compared with the data order contract of the checkpoint",
    "cache_digests": "a name for the content of a cache, which the data order contract compares",
    "start.checkpoint": "a path; start.params_digest binds the weights that are there",
    "start.graft[].checkpoint": "a path; start.graft[].params_digest binds the weights that are there",
}
"""Field of a run → the reason why a run may resume with another value. All that is below a field that is named here may change, too."""

BIND_THE_RESULT = ("learning_rate", "stop_step", "checkpoints")
"""Fields that may change while a run goes on, and that a finished result is bound to."""


class Difference(NamedTuple):
    """One field of a run, such as `stability.max_grad_norm[0][1]`, with both values in words."""

    field: str
    before: str
    now: str

    def __str__(self) -> str:
        return f"{self.field}: {self.before} → {self.now}"


def bound_by_checkpoint(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A run as JSON, without the fields that may change when it resumes."""
    return _without(settings, MAY_CHANGE)


def bound_by_result(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A run as JSON, without the fields that a result does not depend on."""
    return _without(settings, [path for path in MAY_CHANGE if field_of(path) not in BIND_THE_RESULT])


def field_of(path: str) -> str:
    """The field of the run that a path leads into."""
    return path.partition(".")[0]


def differences_between(before: Any, now: Any, field: str = "") -> Iterator[Difference]:
    """The fields in which two values as JSON differ. A field that one of them lacks has the value `NOTHING` there."""
    if before == now:
        return
    if isinstance(before, dict) and isinstance(now, dict):
        for name in {**before, **now}:
            yield from differences_between(before.get(name, NOTHING), now.get(name, NOTHING), f"{field}.{name}" if field else name)
    elif isinstance(before, list) and isinstance(now, list):
        for number, (was, item) in enumerate(zip_longest(before, now, fillvalue=NOTHING)):
            yield from differences_between(was, item, f"{field}[{number}]")
    else:
        yield Difference(field, _shown(before), _shown(now))


def _without(settings: Mapping[str, Any], paths: Iterable[str]) -> dict[str, Any]:
    kept = dict(settings)
    for path in paths:
        _drop(kept, path.split("."))
    return kept


def _drop(settings: dict[str, Any], path: list[str]) -> None:
    """Take one field out, and what is above it where nothing else is left there; what is above it is copied first."""
    name, *below = path
    is_list, name = name.endswith(EACH), name.removesuffix(EACH)
    if not below:
        settings.pop(name, None)
    elif is_list and isinstance(settings.get(name), list):
        settings[name] = [_without(item, [".".join(below)]) for item in settings[name]]
    elif isinstance(settings.get(name), dict):
        settings[name] = _without(settings[name], [".".join(below)])
        if not settings[name]:
            del settings[name]


def _shown(value: Any) -> str:
    text = "off" if value is None else str(value)
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]} …"
