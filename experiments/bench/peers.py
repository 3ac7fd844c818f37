"""The peers' scripts in separate environments, alternating with this project's code.

The scripts state the work and print a JSON line. They are not part of this project. `HOW_TO` lists the requirements.
"""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from experiments.bench.builds import WORKERS, plan_build, rebuild_caches, two_workers
from experiments.bench.loader import loader_ratios
from experiments.bench.measure import Options, Row, in_turns, on_cores, seconds
from experiments.bench.permutation import LENGTH, SEED, VECTOR
from phasewise.tasks.data.plan import DataPlan
from phasewise.tasks.data.prepare import write_missing_documents
from phasewise.tasks.data.tokenizer import BEGIN_OF_TEXT, END_OF_TEXT
from phasewise.trainer.base.storage import write_atomically
from phasewise.trainer.data.permutation import Permutation

SEQ_LENS = (256, 4096)
HOW_TO = """\
Grain, Levanter, datatrove and dolma cannot be installed beside this project.
To compare with them, and with lm-eval's janitor, give them environments and inputs of their own:
  export PEERS_SCRIPTS=folder-of-the-peers'-scripts PEERS_VENVS=folder PEERS_DATA=folder
  export PEERS_BENCHDATA=folder-of-the-benchmarks PEERS_TREES=$(.venv/bin/python -c \\
    'import sysconfig; p = sysconfig.get_paths(); print(p["stdlib"], p["purelib"], sep=":")')
  for venv in jax lev dt dolma torch; do python3.11 -m venv $PEERS_VENVS/$venv; done
  $PEERS_VENVS/jax/bin/pip install grain jax datasets transformers
  $PEERS_VENVS/lev/bin/pip install marin-levanter gitpython chex
  $PEERS_VENVS/dt/bin/pip install 'datatrove[io,processing]==0.10.1' spacy 'xxhash<4'
  $PEERS_VENVS/dolma/bin/pip install dolma==1.2.1 'boto3<1.27'
  $PEERS_VENVS/torch/bin/pip install lm-eval==0.4.13 torch transformers accelerate
  (cd $PEERS_SCRIPTS && $PEERS_VENVS/jax/bin/python make_data.py && $PEERS_VENVS/jax/bin/python e_make_tok.py)
  .venv/bin/python -m experiments.bench peers scan"""


@dataclass(frozen=True)
class Place:
    scripts: Path
    venvs: Path
    data: Path

    @classmethod
    def found(cls) -> "Place | None":
        names = [os.environ.get(name) for name in ("PEERS_SCRIPTS", "PEERS_VENVS", "PEERS_DATA")]
        scripts, venvs, data = (Path(name) if name else None for name in names)
        return cls(scripts, venvs, data) if scripts and venvs and data else None

    def measure(self, venv: str, command: str) -> dict[str, float]:
        environment = {**os.environ, "PEERS_DATA": str(self.data), "JAX_PLATFORMS": "cpu", "PYTHONWARNINGS": "ignore"}
        call = [str(self.venvs / venv / "bin" / "python"), *command.split()]
        done = subprocess.run(call, cwd=self.scripts, env=environment, capture_output=True, text=True, check=False)
        found = [line for line in done.stdout.splitlines() if line.startswith('{"bench"')]
        if not found:
            raise RuntimeError(f"{command} in {venv} printed no figures:\n{done.stderr[-2000:]}")
        line = json.loads(found[-1])
        return line["metrics"] | {"rss_mb": line["rss_mb"]}


def rows(options: Options) -> Iterator[Row]:
    place = Place.found()
    if place is None:
        for name, at_least in _demands().items():
            yield Row(name, None, at_least=at_least, note="see below")
        return
    with on_cores(1):
        yield from _permutation(place, options)
        yield from _loader(place, options)
    with on_cores(WORKERS):
        yield from _tokenization(place, options)


def _demands() -> dict[str, float]:
    demands = {f"loader, {seq_len}-token rows, times as fast as Grain's mix without threads": 5.0 for seq_len in SEQ_LENS}
    return {**demands, "documents → token cache, times as fast as datatrove's tokens pipeline": 1.0}


def _permutation(place: Place, options: Options) -> Iterator[Row]:
    """Nanoseconds an index."""
    indices = np.random.default_rng(0).integers(0, LENGTH, VECTOR)
    ours = Permutation("feistel", length=LENGTH, key=SEED)
    ours(indices)
    levanter = [place.measure("lev", f"b_perm_speed.py lev_feistel {LENGTH}") for _ in range(options.repeats)]
    vectorised = in_turns({"ours": lambda: seconds(lambda: ours(indices))}, 5 * options.repeats)["ours"]
    theirs = float(np.median([found["vec_ns_med"] for found in levanter]))
    yield Row("feistel, vectorised, times Levanter itself", vectorised / VECTOR * 1e9 / theirs, at_most=1.5)


def _loader(place: Place, options: Options) -> Iterator[Row]:
    ours = {name: share for name, share in loader_ratios() if "share of the NumPy bound" in name}
    for seq_len in SEQ_LENS:
        sides = {
            "grain": lambda seq_len=seq_len: place.measure("jax", f"c_loader_grain.py {seq_len} 0")["seq_s"],
            "bound": lambda seq_len=seq_len: place.measure("jax", f"c_loader_np.py {seq_len}")["seq_s"],
        }
        medians = in_turns(sides, options.repeats)
        grain = medians["grain"] / medians["bound"]
        share = next(share for name, share in ours.items() if f" {seq_len}-token" in name and "uint32" in name)
        name = f"loader, {seq_len}-token rows, times as fast as Grain's mix without threads"
        yield Row(name, share / grain, at_least=_demands()[name], note=f"{share:.3f} and {grain:.3f} of the bound")


def _tokenization(place: Place, options: Options) -> Iterator[Row]:
    """The same two files and the same merges for all. The peers' times hold the start of their workers and the reading of the files."""
    with tempfile.TemporaryDirectory() as folder:
        plan = _plan(place, Path(folder) / "home")
        with two_workers():
            write_missing_documents(plan)
            rebuild_caches(plan)
            sides = {
                "caches": lambda: rebuild_caches(plan),
                "datatrove": lambda: place.measure("dt", "e_tok_datatrove.py")["wall_s"],
                "datasets": lambda: place.measure("jax", "e_tok_datasets.py")["wall_s"],
                "levanter": lambda: place.measure("lev", "e_tok_levanter.py serial")["wall_s"],
            }
            medians = in_turns(sides, options.repeats)
        everything = in_turns({"all": lambda: _everything(place, Path(folder) / "again")}, options.repeats)["all"]
    datatrove, built = medians["datatrove"], medians["caches"]
    yield Row("documents → token cache, times as fast as datatrove's tokens pipeline", datatrove / built, at_least=1)
    yield Row("files → token cache with start and end of the cluster, the same", datatrove / everything)
    yield Row("documents → token cache, times as fast as datasets.map with transformers", medians["datasets"] / built, at_least=1)
    yield Row("documents → token cache, times as fast as Levanter's cache (one process)", medians["levanter"] / built, at_least=1)


def _plan(place: Place, home: Path) -> DataPlan:
    plan = plan_build(place.data / "halves", home)
    tokenizer = Tokenizer.from_file(str(place.data / "tok" / "tokenizer.json"))
    tokenizer.add_special_tokens([BEGIN_OF_TEXT, END_OF_TEXT])
    write_atomically(plan.tokenizer, tokenizer.to_str().encode())
    return plan


def _everything(place: Place, home: Path) -> float:
    shutil.rmtree(home, ignore_errors=True)

    def prepare() -> None:
        with two_workers():
            plan = _plan(place, home)
            write_missing_documents(plan)
            rebuild_caches(plan)

    return seconds(prepare)
