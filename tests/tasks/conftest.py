"""Three small components of made-up prose, prepared once, and a Dask scheduler that all tests share."""

import json
import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import dask.config
import pytest
from dask.distributed import LocalCluster

from phasewise.tasks.data import listing
from phasewise.tasks.data.cluster import SCHEDULER_VARIABLE, WORKERS
from phasewise.tasks.data.plan import DataPlan, plan_data
from phasewise.tasks.data.prepare import build_missing_caches, make_missing_tokenizer, write_missing_documents
from phasewise.tasks.data.source import Source
from phasewise.tasks.evaluation.made_benchmarks import write_missing_benchmarks
from phasewise.tasks.home import Home
from phasewise.trainer.config import RunConfig
from tests.stores.emulator import the_emulator

VOCAB_SIZE = 420


def _words(text: str) -> list[str]:
    return text.split()


NOUNS = _words("""
    river mountain garden window lantern harbour carpenter mirror orchard bridge letter engine anchor basket candle dragon eagle
    feather glacier hammer island jacket kettle ladder magnet needle ocean parrot quarry ribbon saddle teapot umbrella violin wagon
    zebra acorn blanket cabin dolphin elephant falcon goblet helmet icicle jewel kitten lemon marble notebook oyster pebble quilt
    rocket statue turnip urchin velvet walnut bottle cannon doctor ember fountain giraffe hunter inkwell jungle king lobster monkey
    nephew onion pigeon rabbit sailor tailor uncle village wizard yard bishop cactus dancer emperor farmer guitar herring insect
    judge lawyer
""")
VERBS = _words("""
    follows remembers carries watches repairs paints measures forgets lifts answers borrows chases defends explains frightens
    gathers hides imagines judges kicks launches mends notices orders polishes questions rescues sketches teaches uncovers visits
    warns
""")
PLACES = _words("""
    valley kitchen station library forest market cellar tower meadow harbour attic bakery castle desert embassy factory gallery
    hospital igloo jail kingdom laundry museum nursery office palace ruins stable tunnel university vineyard workshop
""")


def write_prose(seed: int, sentences: int) -> str:
    """Sentences of one shape: what follows `of the` or `in the` can be known, and no two documents share a long passage."""
    rng = random.Random(seed)
    return " ".join(
        f"The {rng.choice(NOUNS)} number {rng.randint(2, 999)} {rng.choice(VERBS)} the {rng.choice(NOUNS)} of the {rng.choice(NOUNS)}"
        f" and the {rng.choice(NOUNS)} in the {rng.choice(PLACES)}."
        for _ in range(sentences)
    )


def tiny_run(phase: str, stop_step: int, caches: Mapping[str, Path], verdict: Path, output: Path, **changes: object) -> RunConfig:
    fields = {
        "recipe": "tiny", "scale": "proxy", "phase": phase, "start_step": 0, "stop_step": stop_step, "seed": 0,
        "model": {
            "vocab_size": VOCAB_SIZE, "seq_len": 32, "num_layers": 1, "d_model": 16, "d_ff": 32, "num_query_heads": 2, "num_kv_heads": 1,
            "head_dim": 8, "rope": {"theta": 10_000, "scaling": None}, "rms_norm_epsilon": 1e-5, "initializer_std": 0.02,
            "compute_dtype": "float32", "qk_norm": False, "tied_head": False, "sliding_window": None, "float32_attention": False,
        },
        "optimizer": {"kind": "adamw", "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.05},
        "learning_rate": [{"kind": "constant", "start_step": 0, "end_step": stop_step, "start": 1e-2, "end": 1e-2}],
        "stability": {
            "max_grad_norm": [[0, 1.0]], "z_loss": [[0, None]], "ema_decay": [[0, None]], "max_update_rms": [[0, None]],
            "max_update_norm": [[0, None]], "skip_step": [[0, None]],
        },
        "batch": [[0, 2]], "mixture": [[0, {"code": 50, "law": 25, "web": 25}]],
        "order": {"seed": 0, "permutation": "linear", "block_sequences": 8},
        "checkpoints": {"every_steps": stop_step, "every_minutes": None, "keep_all": False}, "start": None,
        "caches": {name: str(folder) for name, folder in caches.items()}, "verdict": str(verdict), "output": str(output),
    }  # fmt: skip
    return RunConfig.model_validate(fields | changes)


def write_lines(path: Path, texts: Sequence[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts), encoding="utf-8")
    return path


@dataclass(frozen=True)
class World:
    home: Home
    sources: Path

    @classmethod
    def write(cls, root: Path) -> "World":
        home = Home.open(str(root))
        for place, component in enumerate(("code", "law", "web")):
            texts = [write_prose(1000 * place + number, 4 + number % 6) for number in range(64)]
            write_lines(home.sources / component / "part-0.jsonl", texts[:40])
            write_lines(home.sources / component / "part-1.jsonl", texts[40:])
        return cls(home, home.sources)

    def source(self, component: str, **changes: object) -> Source:
        fields: Mapping[str, object] = {
            "url": (self.sources / component).as_uri(), "include": ("*.jsonl",), "exclude": (), "format": "jsonl", "text_key": "text",
        }  # fmt: skip
        return Source.model_validate({**fields, **changes})

    def plan(self, vocab_size: int = VOCAB_SIZE, **changes: object) -> DataPlan:
        """The plan as the files are now; `changes` are made to the source of `web`."""
        sources = {component: self.source(component) for component in ("code", "law")} | {"web": self.source("web", **changes)}
        return plan_data(sources, self.home, vocab_size=vocab_size)

    def prepare(self) -> DataPlan:
        """Documents, tokenizer, caches and benchmarks, whatever of them is missing. Parts are small, so that a cache has several shards."""
        plan = self.plan()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(listing, "MIN_PART_BYTES", 1)
            patch.setattr(listing, "PARTS_PER_COMPONENT", 2)
            write_missing_documents(plan)
        make_missing_tokenizer(plan, VOCAB_SIZE, None)
        build_missing_caches(plan)
        write_missing_benchmarks(plan)
        return plan


@pytest.fixture(scope="session")
def scheduler() -> Iterator[str]:
    """The address of a cluster with two processes, which know the emulated store."""
    the_emulator()
    with (
        dask.config.set(WORKERS),
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=logging.ERROR) as cluster,
    ):
        for handler in logging.getLogger().handlers:  # Dask silences them all, also those by which pytest takes what other tests log
            handler.setLevel(logging.NOTSET)
        yield str(cluster.scheduler_address)  # pyright: ignore[reportAttributeAccessIssue]  # typed as awaitable or not


@pytest.fixture
def on_scheduler(scheduler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SCHEDULER_VARIABLE, scheduler)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World.write(tmp_path / "home")


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory, scheduler: str) -> World:
    """A prepared home for all tests: to be read, not changed."""
    world = World.write(tmp_path_factory.mktemp("prepared"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SCHEDULER_VARIABLE, scheduler)
        world.prepare()
    return world
