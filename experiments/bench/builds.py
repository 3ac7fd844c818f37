"""Builds of token caches by the project's own tasks, for the benchmarks."""

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest.mock import patch

from dask.distributed import Client

from experiments.bench.measure import seconds
from phasewise.tasks.data import cluster
from phasewise.tasks.data.cluster import SCHEDULER_VARIABLE, WORKERS_VARIABLE
from phasewise.tasks.data.documents import split_texts
from phasewise.tasks.data.plan import DataPlan, plan_data
from phasewise.tasks.data.prepare import SPLITS, build_missing_caches, make_missing_tokenizer, write_missing_documents
from phasewise.tasks.data.source import Deduplicate, Source
from phasewise.tasks.data.tokenizer import load_tokenizer
from phasewise.tasks.home import Home
from phasewise.trainer.data.manifest import read_manifest

VOCAB_SIZE, WORKERS = 8192, 2
BARE_BATCH = 128
COMPONENT = "text"


def plan_build(sources: Path, home: Path, deduplicate: Deduplicate = "exact") -> DataPlan:
    """The plan of one component, made of the JSON lines in a folder."""
    home.mkdir(parents=True, exist_ok=True)
    source = Source(url=str(sources), include=("*.jsonl*",), format="jsonl", deduplicate=deduplicate)
    return plan_data({COMPONENT: source}, Home(home), vocab_size=VOCAB_SIZE)


def write_documents_and_tokenizer(plan: DataPlan) -> None:
    write_missing_documents(plan)
    make_missing_tokenizer(plan, VOCAB_SIZE, None)


def rebuild_caches(plan: DataPlan) -> float:
    for component in plan.components.values():
        for split in SPLITS:
            shutil.rmtree(component.cache(split).folder, ignore_errors=True)
    return seconds(lambda: build_missing_caches(plan))


def prepare_again(plan: DataPlan) -> float:
    """Seconds from files to token caches, without the tokenizer's training."""
    for component in plan.components.values():
        shutil.rmtree(component.documents.folder, ignore_errors=True)
        shutil.rmtree(component.near_copies, ignore_errors=True)
    return seconds(lambda: write_missing_documents(plan)) + rebuild_caches(plan)


def texts_of(plan: DataPlan) -> list[str]:
    return [text for component in plan.components.values() for split in SPLITS for text in split_texts(component.documents.folder, split)]


def num_tokens(plan: DataPlan) -> int:
    manifests = [read_manifest(folder) for split in SPLITS for folder in plan.folders(split).values()]
    return sum(manifest.tokens - 2 * manifest.documents for manifest in manifests)


def encode_bare(plan: DataPlan, texts: Sequence[str]) -> float:
    """The bound of every build: the seconds of the bare tokenizer, spread by its library over this process's cores, ids thrown away."""
    tokenizer = load_tokenizer(plan.tokenizer)
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    start = time.perf_counter()
    for first in range(0, len(texts), BARE_BATCH):
        tokenizer.encode_batch_fast(texts[first : first + BARE_BATCH], add_special_tokens=False)
    return time.perf_counter() - start


@contextmanager
def two_workers() -> Iterator[Client]:
    before = {name: os.environ.pop(name, None) for name in (SCHEDULER_VARIABLE, WORKERS_VARIABLE)}
    os.environ[WORKERS_VARIABLE] = str(WORKERS)
    try:
        with cluster.cluster() as client, patch.object(cluster, "cluster", lambda: nullcontext(client)):  # one for all stages
            yield client
    finally:
        os.environ.pop(WORKERS_VARIABLE)
        os.environ.update({name: value for name, value in before.items() if value is not None})
