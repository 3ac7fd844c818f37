"""Homes to look at, written by hand: small, and with everything in them that a page must show."""

import json
import math
import os
from pathlib import Path
from typing import Any

from phasewise.flows.site.shelf import Set, Shelf
from phasewise.flows.site.site import Site
from phasewise.tasks.home import Home
from phasewise.trainer.base.identity import write_sealed
from phasewise.validations.limits import GateLimits
from phasewise.validations.verdict import Verdict, judge_gate, write_verdict
from tests.validations.made_answers import guessed_result
from tests.validations.report.samples import HOSTILE, evidence, judged

RECIPE, SCALE = "zoo", "own"
RUN_NAME = f"{RECIPE}-{SCALE}"
LONG = "long-" * 2000
TURNED = "safe\u202egpj.exe"
LIMITS = GateLimits.model_validate({"max_increase_bits_per_byte": 5.0, "must_beat_baseline": False, "floor_error_rate": None})


def row(step: int, **values: Any) -> dict[str, Any]:
    loss = 8 * math.exp(-step / 300) + 2
    return {
        "step": step, "loss": loss, "learning_rate": 1e-3, "grad_norm": 1.0, "update_norm": 0.1, "param_norm": 30.0, "tokens": 256,
        "tokens_per_second": 1000.0, "step_seconds": 0.25, **values,
    }  # fmt: skip


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))


def evaluation(right: int = 80, **values: Any) -> dict[str, Any]:
    found = {
        "checkpoint": "runs/zoo/40", "results": [guessed_result(right=right, first=140)], "bits_per_byte": {"law": 1.5, "web": 2.0},
        "macro_bits_per_byte": 1.75, "measured_on": {"law": "text", "web": "text"}, "benchmarks": ["continuation"],
        "benchmarks_digest": "items", "finite": True, "key": "e" * 64,
    }  # fmt: skip
    return found | values


def write_phase(home: Home, name: str, *, start: int = 0, stop: int = 40, parent: str | None = None, done: bool = True) -> Path:
    folder = home.run(RUN_NAME, name)
    started = {"checkpoint": str(home.run(RUN_NAME, parent) / "checkpoints" / str(start))} if parent else None
    run = {
        "recipe": RECIPE, "scale": SCALE, "phase": name, "start_step": start, "stop_step": stop, "seed": 0, "start": started,
        "model": {"seq_len": 128, "d_model": 32}, "batch": [[0, 2]], "mixture": [[0, {"law": 60.0, "web": 40.0}]],
        "learning_rate": [{"kind": "constant", "start_step": 0, "end_step": stop, "start": 1e-3, "end": 1e-3}],
        "caches": {"law": "a", "web": "b"},
    }  # fmt: skip
    write_sealed(folder / "run.json", run)
    last = stop if done else (start + stop) // 2
    write_rows(folder / "metrics.jsonl", [row(step) for step in range(start + 1, last + 1)])
    os.utime(folder / "metrics.jsonl", (1, 1))
    if done:
        write_sealed(folder / "result.json", {"phase": name, "final_loss": 4.2, "params_digest": "d" * 64, "run_digest": "c" * 64})
        write_sealed(folder / "evaluation.json", evaluation())
        for gate in ("data", "health"):
            write_verdict(home.verdict(RUN_NAME, name, gate), sample(home, name, gate))
        subject, place = f"{RECIPE}/{SCALE}/{name} model", home.verdict(RUN_NAME, name, "model")
        write_verdict(place, judge_gate(subject, evaluation(), parent_evaluation=None, limits=LIMITS, folder=place.with_suffix("")))
    return folder


def sample(home: Home, name: str, gate: str, **found: Any) -> Verdict:
    return judged(f"{RECIPE}/{SCALE}/{name} {gate}", evidence(**found), home.verdict(RUN_NAME, name, gate).with_suffix(""))


def write_home(root: Path) -> Home:
    """Lion is done, tiger starts from it and is refused for a leak with hostile text, puma is half trained and had events."""
    home = Home(root, reads_only=True)
    write_phase(home, "lion")
    write_phase(home, "tiger", start=40, stop=80, parent="lion", done=False)
    refused = sample(home, "tiger", "data", leaked=250, stale=1, like_tests=2, excerpt=HOSTILE)
    write_verdict(home.verdict(RUN_NAME, "tiger", "data"), refused)
    puma = write_phase(home, "puma", start=40, stop=80, parent="lion", done=False)
    run = json.loads((puma / "run.json").read_text())
    run["caches"] = {HOSTILE: "x", LONG: "y", TURNED: "z"}
    run["mixture"] = [[0, {HOSTILE: 50.0, LONG: 30.0, TURNED: 20.0}]]
    write_sealed(puma / "run.json", run)
    events = [
        {"time": "2026-11-23T10:00:00+00:00", "kind": "restart", "step": 12, "text": "went on from step 10"},
        {"time": "2026-11-23T10:05:00+00:00", "kind": "rolled_back", "step": 14, "text": HOSTILE},
        {"time": "2026-11-23T10:06:00+00:00", "kind": "spike", "step": 15, "text": LONG},
    ]
    write_rows(puma / "events.jsonl", events)
    (puma.parent / "puma.superseded-1a2b3c4d").mkdir()
    return home


def site_of(home: Home, *targets: str) -> Site:
    return Site(Shelf(home, targets))


def zoo(site: Site) -> Set:
    found = site.shelf.find(RECIPE, SCALE)
    assert found is not None
    return found
