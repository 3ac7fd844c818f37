"""`phasewise data prepare marin-8b --scale 370m`, from local servers: `python -m experiments.studies.full_scale FOLDER [--plan]`.

Every data set of the recipe has its real name, revision, layout, packing and fields, and a few documents a file in place of millions.
So everything runs but the amount: listings, the budget, each reader, the tokenizer by its name, documents, caches, benchmarks. The
study prints the files read. It fails if a component has no cache, or if a server receives a request for an unknown file. `--plan` only
lists.
"""

import gzip
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import zstandard

from phasewise.flows.recipes import load_recipe
from phasewise.flows.recipes.catalogue import CATALOGUE
from phasewise.tasks.data.source import Source
from phasewise.trainer.base.identity import digest_of_bytes
from tests.stores.mirror import VARIABLE, serving
from tests.tasks.evaluation.conftest import write_prose

RECIPE, SCALE = "marin-8b", "370m"
DOCUMENTS, WORDS = 48, 100
STARS = ("0", "1")
"""What stands for the stars of a glob: two files of each."""
COMMAND = "import tests.stores.mirror; from phasewise.flows.cli.main import main; main()"
Repositories = dict[str, dict[str, dict[str, bytes]]]


def main(root: Path, *, plans: bool) -> dict[str, Any]:
    root.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    found = prepare(root, *(["--plan"] if plans else []))
    components = found["components"]
    print(f"{len(components)} components in {time.monotonic() - started:.0f} s")
    for one in components:
        print(f"  {one['name']}: {one['tokens'] if plans else one['train']['tokens']:,} tokens")
    assert {one["name"] for one in components} == set(load_recipe(RECIPE, SCALE).components)
    return found


def prepare(root: Path, *words: str) -> dict[str, Any]:
    sources = {name: CATALOGUE[name].source for name in load_recipe(RECIPE, SCALE).components}
    known = {name: source for name, source in sources.items() if source is not None}
    with serving(repositories_of(known.values()), lambda path: on_the_web(path, known.values())) as (address, _):
        environment = {
            **{name: value for name, value in os.environ.items() if name not in ("HF_HUB_OFFLINE", "HF_TOKEN")},
            VARIABLE: address,
            "HF_ENDPOINT": address,
            "HF_HOME": str(root / "hub"),
            "DASK_DISTRIBUTED__WORKER__PRELOAD": "tests.stores.mirror",
            "PHASEWISE_DASK_WORKERS": "2",
        }
        command = [
            sys.executable,
            "-c",
            COMMAND,
            "data",
            "prepare",
            RECIPE,
            "--scale",
            SCALE,
            "--home",
            str(root / "home"),
            "--json",
            *words,
        ]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(f"the command ended with {ended.returncode}:\n{ended.stderr[-4000:]}")
    return json.loads(ended.stdout)


def repositories_of(sources: Iterable[Source]) -> Repositories:
    found: Repositories = {}
    for source in sources:
        if source.url.startswith("hf://"):
            files = found.setdefault(source.url.removeprefix("hf://"), {}).setdefault(source.revision or "main", {})
            files |= {name: content_of(source, name) for glob in source.include for name in names_of(glob)}
    name = load_recipe(RECIPE, SCALE).tokenizer.name
    assert name is not None
    found[name] = {"main": {"tokenizer.json": tokenizer().encode()}}
    return found


def on_the_web(path: str, sources: Iterable[Source]) -> bytes | None:
    for source in sources:
        if source.listing == f"https://{path}":
            names = [name for other in sources if other.listing == source.listing for glob in other.include for name in names_of(glob)]
            return gzip.compress("\n".join(sorted(set(names))).encode())
    for source in sources:
        name = f"https://{path}".removeprefix(f"{source.url}/")
        if source.url.startswith("https://") and any(name in names_of(glob) for glob in source.include):
            return content_of(source, name)
    return None


def names_of(glob: str) -> list[str]:
    return list(dict.fromkeys(glob.replace("*", star) for star in STARS))


def content_of(source: Source, name: str) -> bytes:
    seed = int(digest_of_bytes(f"{source.url}/{name}".encode())[:8], 16)
    documents = [document(source, seed + number) for number in range(DOCUMENTS)]
    if source.format == "parquet":
        return parquet(documents)
    lines = b"".join(json.dumps(one).encode() + b"\n" for one in documents)
    if name.endswith((".zst", ".zstd")):
        return zstandard.ZstdCompressor().compress(lines)
    return gzip.compress(lines, mtime=0) if name.endswith(".gz") else lines


def document(source: Source, seed: int) -> dict[str, Any]:
    found: dict[str, Any] = {"id": f"{seed}"}
    for one in source.filters:
        if one.kind == "field":
            _put(found, one.key, one.keep[0])
    _put(found, source.text_key, write_prose(seed, WORDS))
    return found


def parquet(documents: list[dict[str, Any]]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(documents), file)
    return file.getvalue()


def tokenizer() -> str:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = ["<|begin_of_text|>", "<|end_of_text|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator([write_prose(seed, 200) for seed in range(50)], trainer)
    return made.to_str()


def _put(document: dict[str, Any], key: str, value: Any) -> None:
    *above, last = key.split(".")
    inside: Any = document
    for name in above:
        inside = inside.setdefault(name, {})
    inside[last] = value


if __name__ == "__main__":
    main(Path(sys.argv[1]), plans="--plan" in sys.argv[2:])
