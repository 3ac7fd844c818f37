"""The train step on a CPU: compared with Levanter and PyTorch on one core, time outside the compiled function, and cost of metrics.

Model and work are the peers' (`train_step_process`): Llama, d_model 256, 4 layers, 4 / 2 heads of 64, d_ff 704, vocabulary 8,192,
16 × 256 tokens, float32. Without the peers, the step is compared only with the rate of a matrix product.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import numpy as np

from experiments.bench.measure import Options, Row, on_cores
from experiments.bench.peers import Place
from phasewise.trainer.flops import step_flops

MIN_TIMES_LEVANTER, MIN_TIMES_TORCH, MAX_START_SHARE = 1.2, 0.9, 1 / 3
MAX_OUTSIDE_SHARE, MAX_INSTRUMENTED = 0.03, 1.03
LEVANTER, TORCH = "a_train_levanter.py default f32", "a_train_torch.py eager f32"
SIDES = {"Levanter": ("lev", LEVANTER), "PyTorch": ("torch", TORCH)}


def rows(options: Options) -> Iterator[Row]:
    """Every figure of the step."""
    with on_cores(1):
        yield from _against_peers(options)
        yield Row("train loop, share of its time outside the step", ours("loop")["outside_share"], at_most=MAX_OUTSIDE_SHARE)
        found = ours("instrumentation")
        note = f"{found['on_s']:.2f} and {found['off_s']:.2f} s"
        yield Row("train step with every metric, times one without", found["on_over_off"], at_most=MAX_INSTRUMENTED, note=note)


def _against_peers(options: Options) -> Iterator[Row]:
    place = Place.found()
    there = {name: side for name, side in SIDES.items() if place and (place.venvs / side[0] / "bin" / "python").exists()}
    sides: dict[str, Callable[[], dict[str, float]]] = {"ours": lambda: ours("step")}
    sides |= {name: lambda side=side: _measure(place, *side) for name, side in there.items()}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    ours("step")  # fills the compilation cache
    for _ in range(options.repeats):
        for name, side in sides.items():
            found[name].append(side())
    medians = {name: {key: float(np.median([one[key] for one in turns])) for key in turns[0]} for name, turns in found.items()}
    yield from _as_rows(medians)


def _as_rows(medians: dict[str, dict[str, float]]) -> Iterator[Row]:
    from experiments.bench.train_step_process import MODEL, SEQUENCES

    step = medians["ours"]["step_s_med"]
    flops = step_flops(MODEL, SEQUENCES, causal=False).total
    yield Row("train step, share of the matrix-product rate", flops / step / medians["ours"]["gemm_flops"], note=f"{step:.2f} s")
    for name, at_least in (("Levanter", MIN_TIMES_LEVANTER), ("PyTorch", MIN_TIMES_TORCH)):
        theirs = medians[name]["step_s_med"] if name in medians else None
        note = f"{theirs:.2f} s" if theirs else f"no {name} in $PEERS_VENVS"
        yield Row(f"train step, times as fast as {name}'s", theirs / step if theirs else None, at_least=at_least, note=note)
    start = medians["ours"]["start_to_first_step_s"]
    theirs = medians["Levanter"]["start_to_first_step_s"] if "Levanter" in medians else None
    name, share = "start to first step, warm compilation cache, share of Levanter's", start / theirs if theirs else None
    yield Row(name, share, at_most=MAX_START_SHARE, note=f"{start:.1f} s" + (f" and {theirs:.1f} s" if theirs else ""))


def _measure(place: Place | None, venv: str, command: str) -> dict[str, float]:
    assert place
    found = place.measure(venv, command)
    return {name: found[name] for name in ("step_s_med", "start_to_first_step_s")}


def ours(what: str) -> dict[str, float]:
    command = [sys.executable, "-m", "experiments.bench.train_step_process", what]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])["metrics"]
