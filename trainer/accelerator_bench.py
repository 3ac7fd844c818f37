"""Measurements on the devices of this process: `python -m phasewise.trainer.accelerator_bench PART GIVEN.json FOUND.json`.

A part is a function from a JSON object to a JSON object, with the field `error` after a failure. The process ends with its parent.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from phasewise.trainer.base.storage import read_json, write_json
from phasewise.trainer.checkpoints.state import state_to_start_from
from phasewise.trainer.config import Execution, ModelConfig, RunConfig
from phasewise.trainer.config.execution import KERNELS, Operands, refusal
from phasewise.trainer.data.loader import Batch
from phasewise.trainer.flops import FLOPS_A_PARAMETER, step_flops
from phasewise.trainer.interventions import scheduled_at
from phasewise.trainer.kernels import attention
from phasewise.trainer.loss import objective_sums
from phasewise.trainer.optimizer import moments
from phasewise.trainer.preflight.compiler import first_line
from phasewise.trainer.preflight.spec import Spec, run_of
from phasewise.trainer.process.child_process import end_with_parent
from phasewise.trainer.process.environment import conditions_of
from phasewise.trainer.sharding import build_mesh, place_batch, state_shardings
from phasewise.trainer.step import TrainState, abstract_state, build_train_step

Json = dict[str, Any]
GROUPS, MAX_CALLS, SECONDS = 3, 20, 0.5
PRODUCTS = {"float32": jnp.float32, "bfloat16": jnp.bfloat16, "float8_e4m3fn": jnp.bfloat16}  # type of the operands → of the result
BEGIN, DOCUMENTS_A_ROW, LEARNING_RATE = 1, 4, 1e-4
MAX_DIFFERENCE = {"float32": 1e-4, "bfloat16": 5e-2}  # of loss and gradient, by the type of products
LOSS_CHUNKS = (2048, 8192, None)


def timed(rows: list[Json], about: Json, build: Callable[[], Callable[[], Any]], flops: float = 0.0, seconds: float = SECONDS) -> None:
    """Add a row with the median seconds of a call over groups, dispatched at once like updates in training, or with an error."""
    times: list[float] = []
    try:
        work, calls = build(), 1
        while len(times) < 2 + GROUPS and (len(times) < 3 or times[1] < seconds):
            started = time.perf_counter()
            for _ in range(calls - 1):
                work()  # a device computes in order
            jax.block_until_ready(work())
            times.append((time.perf_counter() - started) / calls)
            calls = 1 if len(times) < 2 else min(MAX_CALLS, max(1, round(seconds / GROUPS / times[1])))
        first, _, *groups = times
        rate = {"flops_a_second": flops / statistics.median(groups)} if flops else {}
        times_of = {"seconds": statistics.median(groups), "spread": max(groups) / min(groups) - 1, "first_seconds": first}
        rows.append({**about, **rate, **times_of})
    except Exception as error:  # the type depends on the backend
        rows.append({**about, "error": first_line(str(error))})


def devices(_given: Json) -> Json:
    """Describe the devices, and measure the rates per device of products and of memory, with all devices at work."""
    found, rows, copies = jax.devices(), list[Json](), list[Json]()
    first, count, driver = found[0], len(found), Path("/proc/driver/nvidia/version")
    host_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    by_device = NamedSharding(jax.sharding.Mesh(np.array(found), ("x",)), PartitionSpec("x"))
    side, items = (1024, 2**24) if first.platform == "cpu" else (8192, 2**28)
    for dtype, result in PRODUCTS.items():

        def product(dtype: str = dtype, result: Any = result) -> Callable[[], Any]:
            draw = jax.jit(lambda key: jax.random.normal(key, (count, side, side)).astype(dtype), out_shardings=by_device)
            a, b = (draw(key) for key in jax.random.split(jax.random.key(0)))
            multiply = jax.jit(lambda a, b: jnp.einsum("xij,xjk->xik", a, b, preferred_element_type=result))
            return lambda: multiply(a, b)

        timed(rows, {"product": dtype}, product, 2 * side**3)
    vector, add = jax.jit(lambda: jnp.ones((count, items)), out_shardings=by_device)(), jax.jit(lambda x: x + 1)
    timed(copies, {}, lambda: lambda: add(vector))
    here = conditions_of(os.environ, platform_name=first.platform, device=first.device_kind, processes=jax.process_count())
    platform = first.platform if first.platform in ("cpu", "tpu") else "gpu"
    about = {"platform": platform, "device_kind": first.device_kind, "device": here.device, "devices": count, "versions": here.versions}
    about |= {"variables": here.variables, "backend": " ".join(str(first.client.platform_version).split())}
    about |= {"driver": driver.read_text(errors="replace").splitlines()[0] if driver.exists() else None}
    memory_bytes = (first.memory_stats() or {}).get("bytes_limit") or host_bytes // count
    return {**about, "memory_bytes": memory_bytes, "memory_bytes_a_second": 2 * 4 * items / copies[0]["seconds"], "rows": rows}


def prepare(spec: Spec) -> tuple[RunConfig, Any, TrainState, tuple[Any, ...]]:
    """Return a run of one update, its step, a state, and the step's other arguments: a random batch with several documents per row."""
    run = run_of(spec.step, spec.execution)
    mesh = build_mesh(run.execution.mesh) if run.execution.mesh.devices > 1 else None
    shardings = None if mesh is None else state_shardings(abstract_state(run, with_ema=run.keeps_average), run.model, mesh)
    tokens = np.random.default_rng(0).integers(BEGIN + 1, run.model.vocab_size, (spec.step.batch_sequences, run.model.seq_len), np.int32)
    tokens[:, :: run.model.seq_len // DOCUMENTS_A_ROW] = BEGIN
    rows = place_batch(tokens, mesh), place_batch(Batch(tokens, begin_of_text=BEGIN).segment_ids, mesh)
    scheduled = scheduled_at(run, 0)._replace(learning_rate=LEARNING_RATE)
    return run, build_train_step(run.model, run.optimizer, run.execution, mesh), state_to_start_from(run, shardings), (*rows, scheduled)


def parity(given: Json) -> Json:
    """Compare one update in each case with the CPU's: loss, gradient (first moment) and update, by the relative L2 difference."""
    rows, references = list[Json](), dict[str, Json]()

    def apply(spec: Spec, precision: str | None, device: Any = None, start: Any = None) -> Json:
        run, step, state, arguments = prepare(spec)
        state = state if device is None else jax.device_put(state, device)
        if start is not None:
            state = state._replace(params=jax.tree.map(lambda new, old: jax.device_put(new, old.sharding), start, state.params))
        before = jax.device_get(state.params)
        with jax.default_matmul_precision(precision):
            state, measured = step(state, *arguments)
        loss, gradient, params = jax.device_get((measured.loss, moments(state.optimizer, run.model)[0], state.params))
        return {"start": before, "loss": loss, "gradient": gradient, "update": jax.tree.map(np.subtract, params, before)}

    def difference(one: Any, other: Any) -> float:
        pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
        squares = np.array([(np.sum(np.square(a - b, dtype=np.float64)), np.sum(np.square(b, dtype=np.float64))) for a, b in pairs])
        return float(np.sqrt(np.divide(*squares.sum(axis=0))))

    for case in given["cases"]:
        write_json(Path(given["found"]), {"rows": rows, "error": f"the time of the section ended in {case['case']}"} if rows else {})
        rows.append({"case": case["case"]})
        try:
            spec = Spec.model_validate(case["spec"])
            on_cpu = spec.but(execution=Execution(attention="xla", expert_kernel="padded"))
            key = on_cpu.model_dump_json()
            if key not in references:
                references[key] = apply(on_cpu, "highest", jax.devices("cpu")[0])
            found = apply(spec, case["precision"], start=references[key]["start"])
            rows[-1] |= {part: difference(found[part], references[key][part]) for part in ("loss", "gradient", "update")}
            rows[-1]["limit"] = MAX_DIFFERENCE[spec.step.model.compute_dtype if case["precision"] else "bfloat16"]
            if not max(rows[-1]["loss"], rows[-1]["gradient"]) <= rows[-1]["limit"]:
                rows[-1]["error"] = "loss or gradient differs from the CPU's by more than the limit"
        except Exception as error:  # the type depends on the backend
            rows[-1]["error"] = first_line(str(error))
    return {"rows": rows}


def step(given: Json) -> Json:
    """Time the updates of a plan. Memory per device: counted by the compiler, and the most that was in use (on a CPU, of the process)."""
    _, train_step, state, arguments = prepare(Spec.model_validate(given["spec"]))
    started, rows, losses = time.perf_counter(), list[Json](), list[Any]()
    compiled = train_step.lower(state, *arguments).compile()
    compile_seconds, memory = time.perf_counter() - started, compiled.memory_analysis()
    needs = memory.argument_size_in_bytes + memory.temp_size_in_bytes + max(memory.output_size_in_bytes - memory.alias_size_in_bytes, 0)
    is_cpu, status = jax.default_backend() == "cpu", Path("/proc/self/status")
    before = int(status.read_text().partition("VmRSS:")[2].split()[0]) if is_cpu else 0
    if is_cpu:
        Path("/proc/self/clear_refs").write_text("5")  # resets the process's peak of memory

    def update() -> Any:
        nonlocal state
        state, measured = compiled(state, *arguments)
        losses.append(measured.loss)
        return measured.loss

    timed(rows, {"compile_seconds": compile_seconds, "compiler_bytes": needs}, lambda: update, seconds=given["seconds"])
    if "error" in rows[0]:
        raise RuntimeError(rows[0]["error"])
    used = max((one.memory_stats() or {}).get("peak_bytes_in_use", 0) for one in jax.local_devices())
    if is_cpu:
        more = int(status.read_text().partition("VmHWM:")[2].split()[0]) - before
        used = memory.argument_size_in_bytes + 1024 * more // jax.device_count()
    return {**rows[0], "peak_bytes": used or needs, "loss_first": float(losses[0]), "loss_last": float(losses[-1])}


def kernels(given: Json) -> Json:
    """Time forward and backward pass of the kernels of attention and loss on the first device, at the shapes of a model."""
    model, sequences, rows = ModelConfig.model_validate(given["model"]), given["sequences"], list[Json]()
    dtype, length, platform = jnp.dtype(model.compute_dtype), model.seq_len, jax.default_backend()
    keys = iter(jax.random.split(jax.random.key(0), 16))

    def draw(*shape: int) -> jax.Array:
        return (jax.random.normal(next(keys), shape) * shape[-1] ** -0.5).astype(dtype)

    def add(kernel: str, flops: float, loss: Callable[..., Any], fixed: Any, *arguments: Any) -> None:
        gradient = jax.jit(jax.grad(loss, argnums=tuple(range(1, 1 + len(arguments)))))
        timed(rows, {"kernel": kernel}, lambda: lambda: gradient(fixed, *arguments), flops)

    heads = [draw(sequences, length, number, model.head_dim) for number in (model.num_query_heads, *(model.num_kv_heads,) * 2)]
    ids = jnp.repeat(jnp.arange(DOCUMENTS_A_ROW), length // DOCUMENTS_A_ROW)[None].repeat(sequences, 0)
    flops = step_flops(model, sequences).attention / model.num_layers
    for name in KERNELS:
        if not refusal(name, platform, Operands(dtype.name, model.head_dim, length)):
            attend = partial(attention.attend, kernel=name)
            add(f"attention, {name}", flops, lambda i, q, k, v, attend=attend: attend(q, k, v, i).sum(dtype="float32"), ids, *heads)
    hidden, head = draw(sequences, length, model.d_model), draw(model.d_model, model.vocab_size)
    tokens = jax.random.randint(next(keys), (sequences, length), 0, model.vocab_size)
    for chunk in [one for one in LOSS_CHUNKS if one is None or one < tokens.size]:
        name, flops = f"loss, {chunk or 'all'} tokens at once", FLOPS_A_PARAMETER * head.size * tokens.size
        add(name, flops, lambda t, x, w, chunk=chunk: objective_sums(x, w, t, 1e-4, chunk_tokens=chunk)[0], tokens, hidden, head)
    return {"rows": rows}


if __name__ == "__main__":
    end_with_parent(1)
    part, given_path, found_path = sys.argv[1:]
    try:
        answer = {"devices": devices, "parity": parity, "step": step, "kernels": kernels}[part](read_json(Path(given_path)))
        failed = [f"{next(iter(row.values()))}: {row['error']}" for row in answer.get("rows", ()) if "error" in row and part != "devices"]
        answer |= {"error": "; ".join(failed)} if failed else {}
    except Exception as error:  # the type depends on the backend
        answer = {"error": f"{type(error).__name__}: {first_line(str(error))}"}
    write_json(Path(found_path), answer)
    os._exit(0)  # do not wait for an abandoned device
