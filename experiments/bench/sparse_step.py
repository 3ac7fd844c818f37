"""The train step of a sparse model of 10 M weights on one core: against `transformers`' AFMoE in PyTorch, run eagerly.

Needs the extra `parity`. Both sides have equal weights (exported by Phasewise), equal batches, AdamW and a norm clip.
Phasewise also updates the routers' biases and computes a row of metrics.

python -m experiments.bench.sparse_step ours|theirs FOLDER    a process of one side, which prints a line of JSON
"""

import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from experiments.bench.measure import Options, Row, on_cores, seconds
from experiments.bench.train_step_process import EXECUTION, MODEL, OPTIMIZER, SCHEDULED, SEQUENCES, TIMED, WARM_UP, rotation
from phasewise.trainer.config import Experts, SignBalancing
from phasewise.trainer.process.accelerator import keep_freed_memory

MIN_TIMES_TRANSFORMERS = 1.3
SPARSE = MODEL.but(
    num_layers=5,
    qk_norm=True,
    sliding_window=128,
    attend_within_documents=False,
    global_attention_every=4,
    attention_gate=True,
    post_norms=True,
    embedding_scale=16.0,
    experts=Experts(
        num_experts=8, num_active=2, num_shared=1, d_expert=160, route_scale=2.826, num_dense_layers=1,
        balancing=SignBalancing(kind="sign", rate=1e-3), sequence_loss=0.0,
    ),
)  # fmt: skip
"""One dense layer, then three local ones and a global one; 10.5 M weights."""


def rows(options: Options) -> Iterator[Row]:
    name = "sparse train step, 10 M weights, times as fast as transformers' AFMoE (eager)"
    if importlib.util.find_spec("torch") is None:
        yield Row(name, None, at_least=MIN_TIMES_TRANSFORMERS, note="needs the extra parity")
        return
    from phasewise.trainer.model.hugging_face import write_folder
    from phasewise.trainer.model.params import init_params

    with tempfile.TemporaryDirectory() as folder, on_cores(1):
        write_folder(Path(folder), init_params(0, SPARSE), SPARSE)
        found: dict[str, list[float]] = {"ours": [], "theirs": []}
        for _ in range(options.repeats):
            for side, times in found.items():
                times.append(_measure(side, folder))
    ours, theirs = (statistics.median(times) for times in found.values())
    ratios = sorted(theirs / ours for ours, theirs in zip(found["ours"], found["theirs"], strict=True))
    note = f"{ours:.2f} and {theirs:.2f} s, {ratios[0]:.2f} to {ratios[-1]:.2f}"
    yield Row(name, theirs / ours, at_least=MIN_TIMES_TRANSFORMERS, note=note)


def _measure(side: str, folder: str) -> float:
    command = [sys.executable, "-m", "experiments.bench.sparse_step", side, folder]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def build_ours(folder: str) -> Callable[[], float]:
    """An update, with the loss fetched."""
    from phasewise.trainer.model.hugging_face import read_folder
    from phasewise.trainer.optimizer import build_optimizer
    from phasewise.trainer.step import TrainState, build_train_step

    params, _ = read_folder(Path(folder))
    state = TrainState(params, build_optimizer(OPTIMIZER, SPARSE).init(params), None)
    step = build_train_step(SPARSE, OPTIMIZER, EXECUTION)
    turns = rotation()

    def one() -> float:
        nonlocal state
        batch = next(turns)
        state, measured = step(state, batch.tokens, batch.segment_ids, SCHEDULED)
        return float(measured.loss)

    return one


def build_theirs(folder: str) -> Callable[[], float]:
    torch = import_module("torch")
    transformers = import_module("transformers")
    torch.set_num_threads(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    model.train()
    settings: dict[str, Any] = {"lr": SCHEDULED.learning_rate, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
    optimizer = torch.optim.AdamW(model.parameters(), **settings)
    turns = rotation()

    def one() -> float:
        tokens = torch.from_numpy(np.asarray(next(turns).tokens, np.int64))
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    return one


if __name__ == "__main__":
    if sys.argv[1] == "ours":
        keep_freed_memory()  # as the trainer does
    one = {"ours": build_ours, "theirs": build_theirs}[sys.argv[1]](sys.argv[2])
    losses = [one() for _ in range(WARM_UP)]
    times = [seconds(one) for _ in range(TIMED)]
    print(json.dumps(losses), f"{SEQUENCES * SPARSE.seq_len} tokens a step", file=sys.stderr)
    print(statistics.median(times))
