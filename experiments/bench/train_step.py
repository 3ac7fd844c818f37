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

MIN_TIMES, MIN_SHARE, MAX_START_SHARE = 1.2, 0.9, 1 / 3
MAX_OUTSIDE_SHARE, MAX_INSTRUMENTED = 0.03, 1.03
SIDES = {
    "Levanter": ("lev", "a_train_levanter.py default f32"),
    "transformers": ("torch", "a_train_torch.py eager f32"),
    "torch.compile": ("torch", "a_train_torch.py compile f32"),
}
KEPT = ("step_s_med", "first_step_s", "start_to_first_step_s", "rss_mb")


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
    sides |= {"large": lambda: ours("large")} | {name: lambda side=side: _measure(place, *side) for name, side in there.items()}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    ours("step")  # fills the compilation cache
    for _ in range(options.repeats):
        for name, side in sides.items():
            found[name].append(side())
    yield from _as_rows(found)


def _as_rows(found: dict[str, list[dict[str, float]]]) -> Iterator[Row]:
    from experiments.bench.train_step_process import LARGE, LARGE_SEQUENCES, MODEL, SEQUENCES

    medians = {name: {key: float(np.median([one[key] for one in turns])) for key in turns[0]} for name, turns in found.items()}
    for name, title, model, sequences in (("ours", "7 M", MODEL, SEQUENCES), ("large", "52 M", LARGE, LARGE_SEQUENCES)):
        flops = step_flops(model, sequences, causal=False).total
        shares = [flops / one["step_s_med"] / one["gemm_flops"] for one in found[name]]
        name = f"train step, {title} parameters, share of the matrix-product rate"
        yield Row(name, float(np.median(shares)), at_least=MIN_SHARE, note=f"{min(shares):.2f} to {max(shares):.2f}")
    for name in SIDES:
        if name not in medians:
            yield Row(f"train step, times as fast as {name}'s", None, at_least=MIN_TIMES, note=f"no {name} in $PEERS_VENVS")
            continue
        ratios = [theirs["step_s_med"] / one["step_s_med"] for theirs, one in zip(found[name], found["ours"], strict=True)]
        sides = (medians["ours"], medians[name])
        words = ("{step_s_med:.2f} s (first {first_step_s:.1f} s, {rss_mb:.0f} MiB)".format(**side) for side in sides)
        note = f"{min(ratios):.2f} to {max(ratios):.2f}; " + " and ".join(words)
        yield Row(f"train step, times as fast as {name}'s", float(np.median(ratios)), at_least=MIN_TIMES, note=note)
    start = medians["ours"]["start_to_first_step_s"]
    theirs = medians["Levanter"]["start_to_first_step_s"] if "Levanter" in medians else None
    name, share = "start to first step, warm compilation cache, share of Levanter's", start / theirs if theirs else None
    yield Row(name, share, at_most=MAX_START_SHARE, note=f"{start:.1f} s" + (f" and {theirs:.1f} s" if theirs else ""))


def _measure(place: Place | None, venv: str, command: str) -> dict[str, float]:
    assert place
    found = place.measure(venv, command)
    return {name: found[name] for name in KEPT}


def ours(what: str) -> dict[str, float]:
    command = [sys.executable, "-m", "experiments.bench.train_step_process", what]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])["metrics"]
