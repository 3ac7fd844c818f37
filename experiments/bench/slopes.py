"""Growth of costs: `python -m experiments.bench slopes`. Each row is the exponent of a cost, fitted to log(seconds) over log(size).

An exponent of 0 is flat, 1 is linear. The notes have the medians of each size. Sizes of caches are virtual: the shards are sparse files.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.bench import launch
from experiments.bench.measure import Options, Row, in_turns, seconds
from experiments.bench.startup import SEQ_LEN, peer_run, seconds_to_first_update
from phasewise.trainer.base.identity import write_sealed
from phasewise.trainer.config import RunConfig
from phasewise.trainer.data.loader import Loader
from phasewise.trainer.data.manifest import FORMAT_VERSION, Manifest, Shard, write_manifest

COMPONENTS, TOKENS, STEPS, HOSTS, PHASES, RUNS = (
    (3, 30, 200),
    (10**7, 10**9, 10**11, 10**12),
    (1, 10**3, 10**6, 10**9),
    (1, 16, 256),
    (1, 20, 200),
    (1, 10, 100, 300),
)
SHARD_TOKENS, LARGE_BATCH, RECIPE = 10**10, 1_024, Path("flows/experiments/figures.json")
MAX_GROWTH = 1.1
"""Goal of a launch: the largest size takes at most this multiple of the smallest."""


def rows(options: Options) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        seconds_to_first_update(_run(home, "compiles", 3, 10**7))
        yield from _launches(home, "components", COMPONENTS, lambda size: (size, 10**7), options.repeats)
        yield from _launches(home, "tokens (virtual)", TOKENS, lambda size: (3, size), options.repeats)
        loader = Loader(_run(home, "steps", 3, 10**12, stop_step=2 * STEPS[-1], sequences=16))
        yield _slope("a batch at step n", STEPS, lambda step: seconds(lambda: loader.batch(step)), options.repeats)
        large = _run(home, "hosts", 3, 10**12, sequences=LARGE_BATCH)
        of_hosts = {count: Loader(large, host=0, hosts=count) for count in HOSTS}
        steps = iter(range(10**6))
        of_batch = f"a host's part of a batch of {LARGE_BATCH:,} rows, n hosts"
        yield _slope(of_batch, HOSTS, lambda count: seconds(lambda: of_hosts[count].batch(next(steps))), options.repeats)
        recipes = {count: _recipe(home, count) for count in PHASES}
        yield _slope("`phasewise show` of n phases", PHASES, lambda count: _command("show", str(recipes[count])), options.repeats)
        prepared = launch.prepared_recipe(home)
        wide = {count: _wide(prepared, count) for count in PHASES}
        yield _slope(
            "`phasewise status` of n phases with data", PHASES, lambda count: _command("status", str(wide[count])), options.repeats
        )

        def first_update(count: int) -> float:
            return sum(launch.first_update(wide[count], is_cold=False, phase="phase-0").values())

        yield _slope("`phasewise run` to the first update, n phases", PHASES, first_update, options.repeats)
        launch.phasewise("run", str(prepared), home=home / "home")
        filled = {count: _home_with_runs(prepared, count) for count in RUNS}
        yield _slope("`phasewise status`, n runs in the home", RUNS, lambda count: _command("status", str(filled[count])), options.repeats)


def _launches(home: Path, name: str, sizes: Sequence[int], of: Callable[[int], tuple[int, int]], repeats: int) -> Iterator[Row]:
    turn = iter(range(10**6))

    def launch(size: int) -> float:
        return seconds_to_first_update(_run(home, f"launch-{next(turn)}", *of(size)))

    found = in_turns({str(size): lambda size=size: launch(size) for size in sizes}, repeats)
    values = [found[str(size)] for size in sizes]
    yield exponent_row(f"start of the trainer to its first update, n {name}", sizes, values)
    yield Row(f"the same, {sizes[-1]:,} over {sizes[0]:,} {name}", values[-1] / values[0], at_most=MAX_GROWTH)


def _slope(name: str, sizes: Sequence[int], work: Callable[[int], float], repeats: int) -> Row:
    for size in sizes:
        work(size)
    found = in_turns({str(size): lambda size=size: work(size) for size in sizes}, repeats)
    return exponent_row(name, sizes, [found[str(size)] for size in sizes])


def exponent_row(name: str, sizes: Sequence[int], values: Sequence[float]) -> Row:
    """The exponent of a cost, fitted to log(seconds) over log(size)."""
    exponent = float(np.polyfit(np.log(sizes), np.log(values), 1)[0])
    note = ", ".join(f"{size:.0e}: {value:.3g} s" for size, value in zip(sizes, values, strict=True))
    return Row(f"exponent, {name}", exponent, note=note)


def _run(home: Path, name: str, components: int, tokens: int, *, stop_step: int = 1000, sequences: int = 16) -> RunConfig:
    """The peers' run over components with so many tokens together, in sparse shards of at most 10^10 tokens."""
    caches: dict[str, str] = {}
    judged: dict[str, str] = {}
    for number in range(components):
        folder, component = home / f"caches-{components}-{tokens}" / f"text-{number}", f"text-{number}"
        manifest = _manifest(component, tokens // components // SEQ_LEN * SEQ_LEN)
        if not folder.exists():
            folder.mkdir(parents=True)
            for shard in manifest.shards:
                with open(folder / f"{shard.name}.bin", "wb") as file:
                    file.truncate(2 * shard.tokens)
            write_manifest(folder, manifest)
        caches[component], judged[component] = str(folder), manifest.digest
    rate = [{"kind": "constant", "start_step": 0, "end_step": stop_step, "start": 3e-4, "end": 3e-4}]
    mixture = [[0, dict.fromkeys(caches, 100 / components)]]
    more = {"caches": caches, "mixture": mixture, "learning_rate": rate, "stop_step": stop_step, "batch": [[0, sequences]]}
    run = peer_run(home, name, **more)
    write_sealed(Path(run.output) / "verdict.json", {"passes": True, "judged": judged})
    return run


def _manifest(component: str, tokens: int) -> Manifest:
    sizes = [min(SHARD_TOKENS, tokens - first) for first in range(0, tokens, SHARD_TOKENS)]
    shards = tuple(
        Shard(name=f"shard-{number:05d}", tokens=size, documents=0, digest="none", index_digest="none") for number, size in enumerate(sizes)
    )
    values = {
        "format_version": FORMAT_VERSION, "component": component, "split": "train", "key": component, "source": {}, "sources": (),
        "reader": "none", "normalizer": "none", "encoder": "none", "tokenizer_digest": "none", "begin_of_text": 0, "end_of_text": 1,
        "dtype": "uint16", "shards": shards, "documents": 0, "tokens": tokens, "text_bytes": 0, "left_out": {},
    }  # fmt: skip
    return Manifest.model_validate(values)


def _recipe(home: Path, count: int) -> Path:
    """A recipe of n phases, each the child of the phase before."""
    raw: dict[str, Any] = json.loads(RECIPE.read_text(encoding="utf-8"))
    first, second = raw["phases"][:2]
    phases = [first]
    for number in range(1, count):
        start, stop = phases[-1]["stop_step"], phases[-1]["stop_step"] + 10
        rate = [{**second["learning_rate"][0], "start_step": start, "end_step": stop}]
        parent = {**second["start"], "parent": phases[-1]["name"], "step": start}
        phases.append({**second, "name": f"phase-{number}", "start": parent, "stop_step": stop, "learning_rate": rate})
    path = home / f"phases-{count}.json"
    path.write_text(json.dumps({**raw, "name": f"phases-{count}", "phases": phases}), encoding="utf-8")
    return path


def _command(*arguments: str) -> float:
    environment = {**os.environ, "PHASEWISE_HOME": str(Path(arguments[-1]).parent / "home")}
    command = [sys.executable, "-m", "phasewise.flows.cli.main", *arguments]
    return seconds(lambda: subprocess.run(command, env=environment, check=arguments[0] != "status", capture_output=True))


def _wide(recipe: Path, count: int) -> Path:
    """A recipe of n phases from scratch over prepared data."""
    written = recipe.with_suffix(".json")
    launch.phasewise("new", str(written), "--from", str(recipe), home=recipe.parent / "home")
    raw: dict[str, Any] = json.loads(written.read_text(encoding="utf-8"))
    first = raw["phases"][0]
    parts = {"sources": {name: raw["sources"][name] for name in first["mixture"][0][1]}, "name": f"wide-{count}"}
    path = recipe.with_name(f"wide-{count}.json")
    path.write_text(json.dumps({**raw, **parts, "phases": [{**first, "name": f"phase-{number}"} for number in range(count)]}))
    launch.phasewise("data", "prepare", str(path), home=recipe.parent / "home")
    return path


def _home_with_runs(recipe: Path, count: int) -> Path:
    """The recipe next to a copy of its home with n runs of other recipes."""
    folder = recipe.parent / f"runs-{count}"
    shutil.copytree(recipe.parent / "home", folder / "home", symlinks=True)
    for number in range(count):
        shutil.copytree(folder / "home" / "runs" / "my-own", folder / "home" / "runs" / f"other-{number}-own")
    return Path(shutil.copy(recipe, folder))
