from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from phasewise.trainer.config import RunConfig, Steps
from tests.trainer.conftest import MakeRun


@given(steps=st.sets(st.integers(0, 50), min_size=1), start=st.integers(0, 50), length=st.integers(1, 50))
def test_within_says_of_each_step_what_at_says(steps: set[int], start: int, length: int):
    whole = Steps[int](tuple((step, index) for index, step in enumerate(sorted(steps))))
    part = Steps[int](whole.within(start, start + length))
    assert part.root[0][0] == start
    assert all(part.at(step) == whole.at(step) for step in range(start, start + length))


def test_where_a_trainer_ends_is_within_the_phase_and_in_no_digest(make_run: MakeRun):
    run = make_run("moves")
    moving = run.but(until_step=run.start_step + 1)
    assert moving.digest == run.digest
    assert (moving.last_step, run.last_step) == (run.start_step + 1, run.stop_step)
    for step in (run.start_step, run.stop_step, run.stop_step + 1):
        with pytest.raises(ValidationError, match="until_step must be after start_step and before stop_step"):
            run.but(until_step=step)


def test_the_digest_knows_every_setting(make_run: MakeRun):
    run = make_run("digest")
    changes: list[dict[str, Any]] = [
        {"seed": 8}, {"batch": [[0, 4], [10, 9]]}, {"optimizer": {**run.optimizer.model_dump(), "beta2": 0.99}},
        {"caches": {**run.caches, "web": "elsewhere"}}, {"start": {"checkpoint": "x", "params_digest": "y", "fresh": []}},
    ]  # fmt: skip
    assert len({run.digest, *(run.but(**change).digest for change in changes)}) == len(changes) + 1


def test_the_digest_holds_no_place_and_every_content(make_run: MakeRun):
    run = make_run("places")

    def digest(root: str, *, key: str = "0123456789abcdef", parent: str = "weights", **changes: Any) -> str:
        graft = {"part": "rolling", "checkpoint": f"{root}/runs/b/3", "params_digest": "grafted"}
        start = {"checkpoint": f"{root}/runs/a/5", "params_digest": parent, "fresh": [], "graft": [graft]}
        caches = {**run.caches, "books": f"{root}/tokens/books/train-{key}", "web": "gs://bucket/web"}
        places = {"output": f"{root}/runs/x", "verdict": f"{root}/verdicts/x.json", "caches": caches, "start": start}
        return run.but(**(places | changes)).digest

    here = digest("/here")
    assert digest("gs://elsewhere") == here
    pinned = {**run.caches, "books": "/a/place", "web": "gs://bucket/web"}
    others = [
        digest("/here", key="0" * 16), digest("/here", parent="others"), digest("/here", caches=pinned),
        *(digest("/here", caches=pinned, cache_digests={"books": of}) for of in "ab"),
    ]  # fmt: skip
    assert len({here, *others}) == 1 + len(others)
    moved = {**run.caches, "books": "/another/place", "web": "gs://bucket/web"}
    assert digest("/here", caches=moved, cache_digests={"books": "a"}) == others[3]


def segment(start_step: int, end_step: int, **changes: Any) -> dict[str, Any]:
    return {"kind": "linear", "start_step": start_step, "end_step": end_step, "start": 1e-3, "end": 1e-4, **changes}


ORDER = {"seed": 11, "permutation": "feistel", "block_sequences": 16}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "mixture sum": ({"mixture": [[0, {"books": 100}], [5, {"books": 60, "code": 30}]]}, r"step 5 must sum to 100 %, found 90\.00 % over 2"),
    "empty mixture": ({"mixture": [[0, {}]]}, r"must sum to 100 %, found 0\.00 % over 0 components"),
    "negative share": ({"mixture": [[0, {"books": 120, "code": -20}]]}, r"less than or equal to 100"),
    "share no number": ({"mixture": [[0, {"books": float("nan"), "code": 100}]]}, r"mixture.*\n.*less than or equal to 100"),
    "missing cache": ({"caches": {"books": "b"}}, r"caches must name a folder for every component, found none for code, web"),
    "steps not increasing": ({"batch": [[0, 4], [9, 8], [9, 6]]}, r"steps must increase, but 9 follows 9"),
    "no steps": ({"batch": []}, r"needs at least one entry, such as \[\[0, 1024\]\]"),
    "batch of none": ({"batch": [[0, 4], [9, 0]]}, r"batch.*\n.*greater than 0"),
    "ends before it starts": ({"learning_rate": [segment(5, 5)]}, r"must end after it starts, found 5 → 5"),
    "constant of two values": ({"learning_rate": [segment(0, 24, kind="constant")]}, r"has one value, found 0\.001 → 0\.0001"),
    "inverse of zero": ({"learning_rate": [segment(0, 24, kind="inverse", end=0.0)]}, r"needs positive values, found 0\.001 → 0\.0"),
    "negative rate": ({"learning_rate": [segment(0, 24, start=-1.0)]}, r"greater than or equal to 0"),
    "negative norm": ({"stability": {"max_grad_norm": [[0, -1.0]]}}, r"max_grad_norm.*\n.*greater than"),
    "z-loss no number": ({"stability": {"z_loss": [[0, float("nan")]]}}, r"z_loss.*\n.*finite number"),
    "kv heads": ({"model": {"num_kv_heads": 3}}, r"num_query_heads must be a multiple of num_kv_heads, found 4 and 3"),
    "odd head": ({"model": {"head_dim": 7}}, r"head_dim\n.*multiple of 2"),
    "half precision": ({"model": {"compute_dtype": "float16"}}, r"'float32' or 'bfloat16'"),
    "infinite epsilon": ({"model": {"rms_norm_epsilon": float("inf")}}, r"finite number"),
    "gap": ({"learning_rate": [segment(0, 10), segment(12, 24)]}, r"must join: one ends at 10, the next starts at 12"),
    "overlap": ({"learning_rate": [segment(0, 10), segment(8, 24)]}, r"must join: one ends at 10, the next starts at 8"),
    "late start": ({"learning_rate": [segment(1, 24)]}, r"must cover steps 0 → 24, found 1 → 24"),
    "early end": ({"learning_rate": [segment(0, 23)]}, r"must cover steps 0 → 24, found 0 → 23"),
    "no rate": ({"learning_rate": []}, r"must cover steps 0 → 24, found nothing"),
    "backwards": ({"stop_step": 5, "start_step": 5}, r"stop_step must be after start_step, found 5 → 5"),
    "order from later": ({"order": {**ORDER, "first_step": 3}}, r"order\.first_step must be at most start_step, found 3 after 0"),
    "typo": ({"sed": 7}, r"sed\n.*Extra inputs are not permitted"),
    "typo inside": ({"order": {"seed": 1, "permutation": "feistel", "blocks": 16}}, r"order\.blocks\n.*Extra inputs"),
    "unknown kind": (
        {"order": {"seed": 1, "permutation": "shuffle", "block_sequences": 16}},
        r"'linear', 'linear_levanter', 'feistel' or 'feistel_levanter'",
    ),
}


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_an_impossible_run_is_refused_with_what_was_found(make_run: MakeRun, change: dict[str, Any], message: str):
    values = make_run("impossible").model_dump()
    changes = {name: {**values[name], **new} if name in ("model", "stability") else new for name, new in change.items()}
    with pytest.raises(ValidationError, match=message):
        RunConfig.model_validate({**values, **changes})


def test_a_component_of_another_phase_needs_no_cache(make_run: MakeRun):
    values = make_run("other").model_dump()
    del values["caches"]["web"]  # drawn from step 14 on
    values["stop_step"] = 14
    assert "web" not in RunConfig.model_validate(values).caches
