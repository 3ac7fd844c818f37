"""Does a step need the memory that preflight says? `python -m tests.benchmarks.step_memory`: predicted and measured, on this CPU.

A model of 29 million parameters, compiled by preflight for the slice `cpu-1` by several plans. Each is then executed in a process of its
own: measured is the most that the process holds while it makes the state and does two updates, above what it held when the step was
compiled and nothing else was there. Prints a row a plan; `docs/measurements/scales.md` has one run of it.
"""

import ctypes
import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tasks.preflight.launcher import run_compiler
from tasks.preflight.plan import Plan, spec_for
from tasks.preflight.slices import find_slice
from trainer.config import AdamW, Kept, ModelConfig, Rope
from trainer.preflight.spec import Spec, StepShape, run_of

MODEL = ModelConfig(
    vocab_size=8192, seq_len=256, num_layers=6, d_model=512, d_ff=1792, num_query_heads=8, num_kv_heads=2, head_dim=64,
    rope=Rope(theta=10_000.0, scaling=None), rms_norm_epsilon=1e-5, initializer_std=0.02, compute_dtype="float32",
    qk_norm=False, tied_head=False, sliding_window=None, float32_attention=False,
)  # fmt: skip
OPTIMIZER = AdamW(kind="adamw", beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1)
SEQUENCES, UPDATES = 16, 2
PLANS = (
    Plan(remat="none"),
    Plan(remat="full"),
    Plan(remat=Kept(on_device=("query", "key", "value"))),
    Plan(remat="none", parts=2),
    Plan(remat="full", parts=4),
)
MEGABYTE = 1e6


def step() -> StepShape:
    """What is compiled."""
    return StepShape(
        model=MODEL, optimizer=OPTIMIZER, batch_sequences=SEQUENCES, keeps_average=True, clips_update_rms=False, update_norm_window=None,
        skip_step_window=None,
    )  # fmt: skip


def measure(plan: Plan) -> tuple[int, int]:
    """Bytes: predicted, measured."""
    spec = spec_for(step(), find_slice("cpu-1"), plan)
    memory = run_compiler(spec).memory
    assert memory is not None
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "MALLOC_ARENA_MAX": "1"}
    command = [sys.executable, "-m", "tests.benchmarks.step_memory", "--execute"]
    found = subprocess.run(command, input=spec.model_dump_json(), env=environment, capture_output=True, text=True, check=True)
    return memory.peak, json.loads(found.stdout)["bytes"]


def execute(spec: Spec) -> int:
    """The most bytes that this process holds above what it held once the step was compiled."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from trainer.preflight.compiler import lower_step
    from trainer.schedule import scheduled_at
    from trainer.state import abstract_state

    run = run_of(spec.step, spec.execution)
    compiled: Any = lower_step(run, jax.devices("cpu")[:1]).compile()
    shape = (spec.step.batch_sequences, spec.step.model.seq_len)
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, spec.step.model.vocab_size, shape), jnp.int32)
    segments = jnp.ones(shape, jnp.int32)
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    abstract = abstract_state(run, with_ema=run.keeps_average)
    state = jax.tree.map(lambda leaf: jnp.full(leaf.shape, 0.01, leaf.dtype), abstract)
    for _ in range(UPDATES):
        state, measured = compiled(state, tokens, segments, scheduled_at(run, 0))
        jax.block_until_ready((state, measured))
    return status("VmHWM") - before


def status(name: str) -> int:
    """A line of this process's status, in bytes."""
    return int(Path("/proc/self/status").read_text().partition(f"{name}:")[2].split()[0]) * 1024


def main() -> None:
    """A row a plan."""
    print(f"{'plan':<45} predicted  measured  off")
    for plan in PLANS:
        predicted, measured = measure(plan)
        off = 100 * (predicted / measured - 1)
        print(f"{plan.words:<45} {predicted / MEGABYTE:>6,.0f} MB {measured / MEGABYTE:>6,.0f} MB {off:>+5.1f} %", flush=True)


if __name__ == "__main__":
    if "--execute" in sys.argv:
        print(json.dumps({"bytes": execute(Spec.model_validate_json(sys.stdin.read()))}))
    else:
        main()
