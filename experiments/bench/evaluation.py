"""The language model of evaluation against lm-eval's `HFLM` for the same folder, on the same requests and cores, in turns.

The model is the train step's, with rows of 2,048. Notes list CPU seconds next to the ratio of wall times.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from experiments.bench.evaluation_inputs import EVALUATED, LETTERS, write_inputs
from experiments.bench.measure import Options, Row
from experiments.bench.peers import Place

ITEMS, GENERATED, NEW_TOKENS = (int(os.environ.get(f"BENCH_{name}", default)) for name, default in (
    ("ITEMS", 2376), ("GENERATED", 200), ("NEW_TOKENS", 256),
))  # fmt: skip
HFLM_BATCH = {"arc_easy": 32, "gsm8k": 16}
"""Sizes that suit a CPU; others were not compared."""
MIN_TIMES_HFLM, MAX_SHARE_OF_TOKENS, MAX_COMPILATIONS = 2.0, 0.5, 12
PROCESS = Path(__file__).with_name("evaluation_process.py")


def rows(options: Options) -> Iterator[Row]:
    """Every figure."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_inputs(folder, items=ITEMS, generated=GENERATED, new_tokens=NEW_TOKENS)
        place = Place.found()
        for subject, what in (("arc_easy", f"ARC-Easy, {ITEMS:,} items"), ("gsm8k", f"GSM8K, {GENERATED} items × {NEW_TOKENS} new tokens")):
            yield _against_hflm(place, folder, subject, f"{what}, times as fast as HFLM", options.repeats)
        yield _tokens(folder)
        yield _compilations(folder)


def _against_hflm(place: Place | None, folder: Path, subject: str, name: str, repeats: int) -> Row:
    venv = place.venvs / "torch" / "bin" / "python" if place else None
    if venv is None or not venv.exists():
        return Row(name, None, at_least=MIN_TIMES_HFLM, note="no PyTorch in $PEERS_VENVS/torch")
    sides = {"ours": [sys.executable, str(PROCESS), "ours"], "hflm": [str(venv), str(PROCESS), "hflm"]}
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    for _ in range(repeats):
        for side, command in sides.items():
            found[side].append(measure([*command, str(folder), subject, str(HFLM_BATCH[subject])]))
    wall, cpu = ({side: float(np.median([one["metrics"][key] for one in turns])) for side, turns in found.items()}
                 for key in ("seconds", "cpu_seconds"))  # fmt: skip
    turns = zip(*([one["metrics"]["seconds"] for one in found[side]] for side in ("ours", "hflm")), strict=True)
    ratios = [theirs / one for one, theirs in turns]
    agreement = _agreement(found["ours"][0]["answers"], found["hflm"][0]["answers"])
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}; seconds {wall['ours']:.0f} and {wall['hflm']:.0f}"
    note = f"{spread}; CPU seconds {cpu['ours']:.0f} and {cpu['hflm']:.0f}; {agreement}"
    return Row(name, wall["hflm"] / wall["ours"], at_least=MIN_TIMES_HFLM, note=note)


def _agreement(ours: list[Any], theirs: list[Any]) -> str:
    if isinstance(ours[0], str):
        return f"{sum(map(str.__eq__, ours, theirs))} of {len(ours)} texts equal"
    return f"log-likelihoods within {max(abs(one[0] - other[0]) for one, other in zip(ours, theirs, strict=True)):.0e}"


def _tokens(folder: Path) -> Row:
    from phasewise.tasks.evaluation.model_loading import model_of_folder
    from phasewise.tasks.evaluation.scoring import lay_out

    model = model_of_folder(folder / "model")
    requests = json.loads((folder / "requests" / "mmlu.json").read_text())
    encode = model._encode_pair  # pyright: ignore[reportPrivateUsage]  # of lm-eval
    windows = model.windows_of([(request, *encode(*request)) for request in requests])
    computed = sum(row.filled for rows in lay_out(windows, EVALUATED.seq_len) for row in rows.rows)
    asked = sum(len(window.inputs) for window in windows)
    note = f"{computed:,} of {asked:,}, {len(windows) // len(LETTERS)} items"
    return Row("MMLU 5-shot, tokens computed, share of all", computed / asked, at_most=MAX_SHARE_OF_TOKENS, note=note)


def _compilations(folder: Path) -> Row:
    found = measure([sys.executable, str(PROCESS), "compilations", str(folder), "arc_easy", "0"])["metrics"]["compilations"]
    return Row("compilations of a suite of short and long requests", found, at_most=MAX_COMPILATIONS)


def measure(command: list[str]) -> dict[str, Any]:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONWARNINGS": "ignore", "PYTHONPATH": str(PROCESS.parents[2])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])
