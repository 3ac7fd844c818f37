"""All validations of a proxy phase (data, training health, gate) in a new process without caches."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from experiments.bench.judgement_process import LIBRARY, RECIPE, Judged
from experiments.bench.measure import Options, Row

PHASES = ("kestrel", "starling")
"""The first, and the one with the most components."""
MAX_SECONDS, MIN_SHARE_OF_LIBRARY = 15, 0.5


def rows(options: Options) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        home = options.home or _prepared(Path(folder) / "home")
        judged: dict[str, list[Judged]] = {phase: [] for phase in PHASES}
        for turn in range(options.repeats + 1):
            for phase, found in judged.items():
                found.append(_judge(home, Path(folder) / f"{phase}-{turn}", phase))
        for phase, found in judged.items():
            yield from _rows_of(phase, found[1:])


def _rows_of(phase: str, judged: list[Judged]) -> Iterator[Row]:
    every = [one.everything for one in judged]
    median = judged[int(np.argsort(every)[len(every) // 2])]
    note = f"{median.components} caches, {median.tokens:,} tokens; {'; '.join(median.failures.values()) or 'passes'}"
    yield Row(f"all that {phase} validates, seconds", median.everything, at_most=MAX_SECONDS, note=note)
    library = median.great_expectations
    yield Row(
        f"share of it that is importing {LIBRARY}", library / median.everything, at_least=MIN_SHARE_OF_LIBRARY, note=f"{library:.1f} s"
    )
    for step, took in median.steps.items():
        yield Row(f"  of {phase}: {step}, seconds", took)


def _judge(home: Path, other: Path, phase: str) -> Judged:
    command = [sys.executable, "-m", "experiments.bench.judgement_process", home, other, phase]
    return Judged(**json.loads(_output(command).splitlines()[-1]))


def _prepared(home: Path) -> Path:
    _output([sys.executable, "-m", "phasewise.flows.cli.main", "data", "prepare", RECIPE, "--home", home])
    return home


def _output(command: list[str | Path]) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))} failed:\n{done.stderr[-2000:]}")
    return done.stdout
