"""Ten seconds of a phase's own training on made-up tokens: the trainer itself runs, and says what it costs.

It takes the phase's model, optimizer, batch, checkpoints and held-out evaluation, in a scratch folder beside the phases, and is stopped as
people stop a training. Its compiled step is kept where the phase will look for it. The weights are thrown away.
"""

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tasks.home import Home
from tasks.prediction.conditions import conditions_here
from tasks.prediction.costs import MIN_UPDATES, Costs, bytes_in, costs_of
from tasks.training.choice import HERE, launcher_for
from tasks.training.clock import Clock
from tasks.training.follow import start_and_follow
from tasks.training.protocol import Launcher, Life, last_words
from tasks.training.spent import read_lives
from trainer.base.errors import TrainingError
from trainer.base.run_folder import RunFolder
from trainer.base.storage import digest_of_bytes, write_json
from trainer.checkpoints.files import saved_steps
from trainer.config import LearningRateSegment, RunConfig, Stability, Steps, always
from trainer.data.manifest import FORMAT_VERSION, Manifest, Shard, Split, write_manifest
from trainer.metrics import Row, read_metrics

SECONDS = 10.0
"""Of training, its start and compilation among them. A step that takes long is waited for until there are a few."""
WANTED_UPDATES = 8
MAX_SECONDS = 600.0
SAVED_STEP, EVALUATED_EVERY = 6, 4
"""So that both are measured, however rarely the phase does them."""
COMPONENT = "made-up"
SCRATCH = ".calibration-"
"""A name with a dot is no phase's, and goes to no store."""
MANY_STEPS = 1_000_000
SMALL_RATE = 1e-6
ROWS = 512


class _Enough(Exception):
    """It was measured."""


def calibrate(run: RunConfig, batch_sequences: int, home: Home, launcher: Launcher | None = None) -> Costs:
    """What an update of so many sequences costs here, and what is around the updates.

    Args:
        run: the phase, with its execution. Its caches need not be there.

    Raises:
        TrainingError: the trainer failed, or was too slow for a few updates within ten minutes.
    """
    started = time.time()
    with _scratch(home, run) as folder:
        made = scratch_run(run, batch_sequences, folder)
        place = RunFolder.at(made.output)
        write_json(place.run_file, made.model_dump(mode="json"))
        _train(made, launcher or launcher_for(run, HERE))
        rows, lives = read_metrics(place.metrics), read_lives(place.path)
        newest = max(saved_steps(place.checkpoints), default=None)
        size = None if newest is None else bytes_in(place.checkpoint(newest))
        source = f"a calibration of {time.time() - started:.0f} s on {time.strftime('%Y-%m-%d at %H:%M', time.localtime(started))}"
        costs = costs_of(made, rows, lives[0], source=source, measured_at=time.time(), sizes=(size, place.metrics.stat().st_size))
    assert costs is not None, "it is stopped after a few updates"
    return costs.but(is_calibration=True)


def scratch_run(run: RunConfig, batch_sequences: int, folder: Path) -> RunConfig:
    """The run with one batch size, on made-up tokens, without an end. What decides what an update costs is the run's own.

    Its rows are full and all of them is predicted: padding, and what is not predicted, cost what tokens do.
    """
    vocabulary = run.model.vocab_size
    rows = max(ROWS, 4 * batch_sequences)
    train = write_tokens(folder / "tokens" / "train", "train", vocabulary, rows * run.model.seq_len)
    evaluation = run.evaluation
    if evaluation is not None:
        held_out = write_tokens(folder / "tokens" / "held-out", "held_out", vocabulary, evaluation.sequences * run.model.seq_len)
        caches = dict.fromkeys(evaluation.caches, str(held_out.folder))
        evaluation = evaluation.but(every_steps=min(evaluation.every_steps, EVALUATED_EVERY), caches=caches)
    verdict = folder / "verdict.json"
    write_json(verdict, {"passes": True, "judged": {COMPONENT: train.digest}})
    segment = LearningRateSegment(kind="constant", start_step=0, end_step=MANY_STEPS, start=SMALL_RATE, end=SMALL_RATE)
    return run.but(
        start_step=0,
        stop_step=MANY_STEPS,
        learning_rate=(segment,),
        stability=_always_on(run),
        batch=always(batch_sequences),
        mixture=always({COMPONENT: 100.0}),
        order=run.order.but(first_step=0),
        checkpoints=run.checkpoints.but(at_steps=(SAVED_STEP,), keep_all=False),
        start=None,
        recovery=None,
        packing="chunk",
        loss_on="all",
        caches={COMPONENT: str(train.folder)},
        cache_digests={COMPONENT: train.digest},
        verdict=str(verdict),
        output=str(folder),
        evaluation=evaluation,
    )


class Tokens:
    """A cache of made-up tokens."""

    def __init__(self, folder: Path, digest: str) -> None:
        self.folder, self.digest = folder, digest


def write_tokens(folder: Path, split: Split, vocab_size: int, tokens: int) -> Tokens:
    """As many as that, drawn evenly; a document begins wherever the first token is drawn."""
    folder.mkdir(parents=True)
    dtype = "uint16" if vocab_size <= 2**16 else "uint32"
    drawn = np.random.default_rng(0).integers(0, vocab_size, tokens).astype(np.dtype(dtype).newbyteorder("<"))
    content = drawn.tobytes()
    (folder / "shard-0.bin").write_bytes(content)
    documents = int((drawn == 0).sum())
    shard = Shard(name="shard-0", tokens=tokens, documents=documents, digest=digest_of_bytes(content), index_digest="")
    manifest = Manifest(
        format_version=FORMAT_VERSION, component=COMPONENT, split=split, key="made-up", source={}, sources=(), reader="", normalizer="",
        encoder="", tokenizer_digest="", begin_of_text=0, end_of_text=min(1, vocab_size - 1), dtype=dtype, shards=(shard,),
        documents=documents, tokens=tokens, text_bytes=0, left_out={},
    )  # fmt: skip
    write_manifest(folder, manifest)
    return Tokens(folder, manifest.digest)


def _always_on(run: RunConfig) -> Stability:
    """What the phase has at any step is on at every step: it is in the compiled step anyway."""

    def ever(values: Steps[Any]) -> Any:
        return next((value for _, value in values.within(run.start_step, run.stop_step) if value is not None), None)

    return Stability.model_validate({name: always(ever(getattr(run.stability, name))) for name in Stability.model_fields})


def _train(run: RunConfig, launcher: Launcher) -> None:
    place = RunFolder.at(run.output)
    started = time.monotonic()
    updates = 0

    def on_rows(rows: list[Row]) -> None:
        nonlocal updates
        updates += len(rows)

    def check() -> None:
        spent = time.monotonic() - started
        if (spent >= SECONDS and updates > WANTED_UPDATES) or spent >= MAX_SECONDS:
            raise _Enough

    try:
        with Clock(place.path).life(0, conditions=conditions_here):
            code = start_and_follow(launcher, Life(run, place.run_file), on_rows, check)
    except _Enough:
        if updates > MIN_UPDATES:
            return
        raise TrainingError(
            f"calibrating {run.phase} took {MAX_SECONDS:.0f} s for {updates} updates, and {MIN_UPDATES + 1} are needed: nothing is "
            "predicted. Train it to see how long it takes."
        ) from None
    raise TrainingError(f"calibrating {run.phase} failed: {last_words(place.log(), 0) or f'the trainer ended with code {code}'}")


@contextmanager
def _scratch(home: Home, run: RunConfig) -> Iterator[Path]:
    """A folder beside the phases of the recipe: they find what is compiled there, which its path decides, too."""
    beside = RunFolder(home.run(f"{run.recipe}-{run.scale}", run.phase)).path.parent
    beside.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=beside))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
