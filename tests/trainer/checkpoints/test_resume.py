import re
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

import pytest
from pydantic import BaseModel, ValidationError

from phasewise.trainer.base.errors import CheckpointError
from phasewise.trainer.base.storage import read_json, write_json
from phasewise.trainer.checkpoints.checkpointer import Checkpoints, check_resume, check_same_run
from phasewise.trainer.checkpoints.files import write_digests
from phasewise.trainer.config import LearningRateSegment, RunConfig, Steps
from phasewise.trainer.config.run import BIND_THE_RESULT, MAY_CHANGE
from phasewise.trainer.step import init_state
from tests.trainer.checkpoints.conftest import ADAM, OPTIMIZERS
from tests.trainer.conftest import MakeRun
from tests.trainer.test_added_fields import models_in

STEP = Path("runs/tiny/phase/checkpoints/3")
LIMIT = {"window": 8, "min_samples": 4, "sigmas": 2.0}
EXPERTS = {
    "num_experts": 4, "num_active": 2, "num_shared": 1, "d_expert": 16, "route_scale": 1.0, "num_dense_layers": 0,
    "balancing": {"kind": "smebu", "rate": 1e-3, "sharpness": 2.0, "momentum": 0.5}, "sequence_loss": 1e-4,
}  # fmt: skip
TOGETHER = {
    "optimizer.kind": [{"optimizer": OPTIMIZERS["muon"]}, {"optimizer": ADAM}],
    "model.experts.balancing.kind": [{"model.experts.balancing": None}],
}
"""Tags that only change with what goes with them."""


class Leaf(NamedTuple):
    path: str
    owner: type[BaseModel]
    field: str
    value: Any


def runs_with_everything(run: RunConfig) -> Iterator[RunConfig]:
    plain = run.model_dump(mode="json")
    weights = {"checkpoint": "/parent/24", "params_digest": "a" * 64}
    scaling = {"factor": 8.0, "low_frequency_factor": 1.0, "high_frequency_factor": 4.0, "original_max_positions": 64}
    full: dict[str, Any] = {
        "start_step": 2,
        "learning_rate": [{"kind": "linear", "start_step": 0, "end_step": 30, "start": 1e-3, "end": 2e-3}],
        "stability": {
            "max_grad_norm": [[0, 1.0], [9, 0.5]], "max_update_rms": [[0, 1.0]], "max_update_norm": [[0, LIMIT]],
            "skip_step": [[0, LIMIT]], "z_loss": [[0, 1e-4]], "ema_decay": [[0, 0.9]],
        },
        "model": {
            **plain["model"], "rope": {"theta": 1e4, "scaling": scaling}, "sliding_window": 8, "global_attention_every": 2,
            "initializer_cutoff": 3.0, "experts": EXPERTS,
        },
        "recovery": {"action": "roll_back", "max_loss": LIMIT, "checkpoints_back": 1, "steps_more": 1, "max_times": 2},
        "start": {**weights, "fresh": ["rolling"], "graft": [{**weights, "part": "ema"}]},
        "order": {**plain["order"], "buffer_documents": 8, "buffer_over": "mixture"},
        "cache_digests": {"books": "b" * 64},
        "evaluation": {"every_steps": 2, "sequences": 3, "caches": {"books": "/held-out"}},
        "execution": {"remat": {"on_device": ["query"], "on_host": ["gate"]}, "microbatch_sequences": 2, "loss_chunk_tokens": 64},
        "instrumentation": {"layer_norms_every": 2},
        "checkpoints": {"every_steps": 3, "every_minutes": 5.0, "keep_all": True, "at_steps": [4]},
        "until_step": 20,
    }  # fmt: skip
    yield run.but(**full)
    sign = {**full["model"], "experts": {**EXPERTS, "balancing": {"kind": "sign", "rate": 1e-3}}}
    full["order"] = plain["order"]
    for kind in ("adamc", "nadamw", "muon"):
        yield run.but(**{**full, "optimizer": OPTIMIZERS[kind], "model": sign})


def leaves(value: Any, path: str, owner: type[BaseModel], field: str) -> Iterator[Leaf]:
    if isinstance(value, Steps):
        yield from leaves(value.root, path, owner, field)
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from leaves(getattr(value, name), f"{path}.{name}" if path else name, type(value), name)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from leaves(item, f"{path}.{name}", owner, field)
    elif isinstance(value, tuple) and value:
        for number, item in enumerate(value):
            yield from leaves(item, f"{path}.{number}", owner, field)
    else:
        yield Leaf(path, owner, field, value)


def changed(run: RunConfig, leaf: Leaf) -> RunConfig | None:
    """The run with another valid value there; None where what is around it allows none."""
    options = [option for literal in literals(leaf.owner.model_fields[leaf.field].annotation) for option in get_args(literal)]
    if leaf.path in TOGETHER:
        tries = TOGETHER[leaf.path]
    elif options and leaf.value in options:
        tries = [{leaf.path: option} for option in options if option != leaf.value]
    else:
        tries = [{leaf.path: other} for other in others(leaf.value)]
    for one in tries:
        raw = deepcopy(run.model_dump(mode="json"))
        for path, value in one.items():
            *above, last = path.split(".")
            holder: Any = raw
            for part in above:
                holder = holder[int(part)] if isinstance(holder, list) else holder[part]
            holder[int(last) if isinstance(holder, list) else last] = value
        try:
            found = RunConfig.model_validate(raw)
        except ValidationError:
            continue
        if found != run:
            return found
    return None


def literals(kind: Any) -> Iterator[Any]:
    if get_origin(kind) is Literal:
        yield kind
    for part in get_args(kind):
        yield from literals(part)


def others(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value + 1, value * 2, value - 1] if isinstance(value, int) else [value * 0.5, value * 2, value + 0.01]
    if isinstance(value, str):
        return [f"{value}x"]
    return [1, 2.0, ["x"], "x"] if value is None else [[1], ["ema"], {"books": "x"}]


def may_change(path: str) -> bool:
    plain = ".".join("[]" if part.isdigit() else part for part in path.split(".")).replace(".[]", "[]")
    return any(plain == free or plain.startswith((f"{free}.", f"{free}[")) for free in MAY_CHANGE)


def test_every_field_of_a_run_binds_its_checkpoints_or_is_named_among_those_that_may_change(make_run: MakeRun):
    classified: set[tuple[type[BaseModel], str]] = set()
    for run in runs_with_everything(make_run("everything")):
        saved = run.model_dump(mode="json")
        check_same_run(STEP, saved, run)
        for leaf in leaves(run, "", RunConfig, ""):
            section = leaf.path.partition(".")[0]
            is_rate = leaf.owner is LearningRateSegment  # the next test's
            now = None if is_rate else changed(run, leaf)
            if now is not None or is_rate:
                classified.add((leaf.owner, leaf.field))
            if now is None:
                continue
            if may_change(leaf.path):
                check_same_run(STEP, saved, now)
            else:
                with pytest.raises(CheckpointError, match=rf"^{STEP} was trained with other settings: {section}\S* is "):
                    check_same_run(STEP, saved, now)
            if not leaf.path.startswith("cache"):  # by their content
                assert (now.digest != run.digest) == (not may_change(leaf.path) or section in BIND_THE_RESULT), leaf
    every = {(one, name) for one in models_in(RunConfig) for name in one.model_fields if name != "root"}
    parents = {(one, name) for one, name in every if any(models_in(one.model_fields[name].annotation))}
    assert every - parents - classified == set(), "these fields of a run have no other valid value in this test: give them one"
    sections = {name for name, field in RunConfig.model_fields.items() if any(models_in(field.annotation))}
    assert sections & set(MAY_CHANGE) == {"evaluation", "learning_rate"}, "name the fields of a section: a new field binds by default"


def test_the_learning_rate_may_change_from_the_checkpoint_on_and_not_before(make_run: MakeRun):
    run = make_run("rate", stop_step=8, learning_rate=[{"kind": "linear", "start_step": 0, "end_step": 8, "start": 0.0, "end": 8e-3}])
    for at in (1, 2, 3):
        cut = [
            {"kind": "linear", "start_step": 0, "end_step": at, "start": 0.0, "end": at * 1e-3},
            {"kind": "constant", "start_step": at, "end_step": 8, "start": 5e-3, "end": 5e-3},
        ]
        message = rf"learning_rate of update {at + 1} is 0.00{at} in the checkpoint and 0.005 in"
        with nullcontext() if at == 3 else pytest.raises(CheckpointError, match=message):
            check_same_run(STEP, run.model_dump(mode="json"), run.but(learning_rate=cut))


def test_a_checkpoint_of_before_is_compared_as_far_as_it_goes(make_run: MakeRun, capsys: pytest.CaptureFixture[str]):
    """Fields that it lacks have the value that all runs had; one that nobody knows any more is named, and the rest is compared."""
    run = make_run("of before")
    old = run.model_dump(mode="json")
    del old["packing"], old["recovery"], old["model"]["post_norms"]
    check_same_run(STEP, old, run)
    with pytest.raises(CheckpointError, match=r"packing is chunk in the checkpoint and pad in run\.json"):
        check_same_run(STEP, old, run.but(packing="pad"))
    with pytest.raises(CheckpointError, match=r"model\.rope\.theta is 10000\.0 in the checkpoint and 5000\.0 in run\.json"):
        check_same_run(STEP, {**old, "gone": 1}, run.but(model=run.model.but(rope={"theta": 5000.0, "scaling": None})))
    step = Path(run.output) / "checkpoints" / "3"
    with Checkpoints(step.parent, run) as checkpoints:
        checkpoints.save(3, init_state(run), {})
    for saved, named in (({**old, "gone": 1}, "gone, "), ({}, "recipe, scale, phase"), (["no run"], "recipe, scale, phase")):
        write_json(step / "about" / "metadata", read_json(step / "about" / "metadata") | {"run": saved})
        (step / "digests.json").unlink()
        write_digests(step)
        check_resume(run)
        (line,) = capsys.readouterr().err.splitlines()
        assert re.search(f"3 was written by another version of the code: .*{named}.*cannot be compared", line)
