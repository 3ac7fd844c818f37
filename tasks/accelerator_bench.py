"""Measure the accelerator of this machine in sections of separate processes. A crash, a hang or exhausted memory ends only one section."""

import dataclasses
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from phasewise.tasks.preflight.plan import GIB, settings_for, spec_for
from phasewise.tasks.preflight.search import estimate_plan
from phasewise.tasks.preflight.slices import find_slice, read_table
from phasewise.tasks.progress import say
from phasewise.trainer.base.errors import TrainingError
from phasewise.trainer.base.identity import write_sealed
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.storage import read_json, write_json
from phasewise.trainer.config import RunConfig
from phasewise.trainer.data.manifest import Manifest, write_manifest
from phasewise.trainer.flops import peak_flops, step_flops
from phasewise.trainer.preflight.roofline import UTILISATION
from phasewise.trainer.preflight.spec import Spec, StepShape, run_of
from phasewise.trainer.process.child_process import ending_with_reason, python_command

Json = dict[str, Any]
SETTINGS: Json = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
SECTIONS: dict[str, float] = SETTINGS["sections"]
ROWS_A_DEVICE, CPU_ROWS, KERNEL_ROWS, LOADER_BATCHES, STOP_STEP = (16, 8, 4, 2, 1), (2,), 2, 64, 8
STEP_SECONDS, POLL_SECONDS = 4.0, 0.02
NEAR = 0.1  # goal: a prediction differs from the measured value by at most this share


class Bench:
    """One measurement in `folder`. `models`: steps of dense models, smallest first, and at the end a step of a model with experts."""

    def __init__(self, folder: Path, models: Mapping[str, StepShape], minutes: float):
        self.folder, self.first, (*self.models, sparse) = folder, next(iter(models)), models
        self.steps, self.sparse = models, models[sparse]
        self.deadline = self.limit = time.monotonic() + 60 * minutes
        self.measured: list[Json] = []  # rows of the section mfu

    def measure(self, names: Iterable[str]) -> Json:
        """Measure the devices, then the sections in their order. A failed section has the field `error`."""
        sections: dict[str, Json] = {}
        for name in ("devices", *(one for one in SECTIONS if one in names)):
            started = time.monotonic()
            left = sum(share for one, share in SECTIONS.items() if one in names and one not in sections)
            self.limit = started + (self.deadline - started) * (SECTIONS[name] / left if name in SECTIONS else 1)
            say(f"{name}: at most {self.limit - started:.0f} s")
            try:
                found = getattr(self, name)()
            except Exception as error:  # a fault of a section must not end the others
                found = {"error": " ".join(str(error).split()) or type(error).__name__}
            sections[name] = {"passes": "error" not in found, "seconds": round(time.monotonic() - started, 1), **found}
            if "error" in sections["devices"]:
                break
        return {"passes": all(one["passes"] for one in sections.values()), "sections": sections}

    def process(self, name: str, command: list[str], is_over: Callable[[], bool] = lambda: False) -> int:
        """Run a process until it ends, or kill it when `is_over`. Raises TrainingError after the section's time. Return the exit code."""
        variables = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(self.folder / "programs")}
        if (platforms := variables.get("JAX_PLATFORMS", "cpu")) and "cpu" not in platforms:
            variables["JAX_PLATFORMS"] = f"{platforms},cpu"  # parity needs the CPU as well
        with (
            open(self.folder / f"{name}.log", "wb") as log,
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=variables) as process,
        ):
            try:
                while process.poll() is None and not is_over():
                    if time.monotonic() > self.limit:
                        raise TrainingError(f"{name}: the time of its section is over. Raise --minutes, or select sections with --only.")
                    time.sleep(POLL_SECONDS)
            finally:
                process.kill()
        return process.returncode

    def part(self, name: str, given: Json) -> Json:
        """Run a part of `trainer.accelerator_bench`, to the last written row. Raises TrainingError with the reason of a failure."""
        paths = [self.folder / f"{name}.{kind}.json" for kind in ("given", "found")]
        write_json(paths[0], {**given, "found": str(paths[1])})
        write_json(paths[1], {})
        try:
            code = self.process(name, python_command("phasewise.trainer.accelerator_bench", name, *map(str, paths)))
        except TrainingError:
            if not (found := read_json(paths[1])):
                raise
            return found
        found = read_json(paths[1]) or {"error": f"{name} {ending_with_reason(code, self.folder / f'{name}.log')}"}
        if "error" in found and "rows" not in found:
            raise TrainingError(found["error"])
        return found

    def devices(self) -> Json:
        """Describe the devices, and make a slice of them: the memory that JAX reports, and measured rates if no data sheet is known."""
        found, like = self.part("devices", {}), find_slice("cpu-1")
        kind, self.platform, number = found["device_kind"], found["platform"], found["devices"]
        rates = {row["product"]: row.get("flops_a_second") for row in found["rows"]}
        self.rate, peak = rates["float32" if self.platform == "cpu" else "bfloat16"], peak_flops(kind, "bfloat16")
        chips = [one for one in read_table().chips.values() if one.platform == self.platform]
        alike = [one for one in chips if peak_flops(one.device_kind, "bfloat16") == peak]
        chip = max(alike or [find_slice("h100-1").chip], key=lambda one: kind.startswith(one.device_kind))
        count, gbps = -(-number // chip.devices), chip.hbm_gbps if alike and peak else found["memory_bytes_a_second"] / 1e9
        chip = chip.but(peak_flops=peak or self.rate, hbm_gbps=gbps, memory_gib=found["memory_bytes"] * chip.devices / GIB, usable=1.0)
        sizes = {"torus": (count,), "chips": count, "chips_of_each": count, "devices": number, "devices_of_each": number}
        self.where = dataclasses.replace(like, name=kind, chip=chip, mesh=like.mesh.but(fsdp=number), **sizes)
        about = {"peak_from": "data sheet" if peak else "products measured here", "scaled_down_for_cpu": self.platform == "cpu"}
        return {**found, "peak_flops": peak or self.rate, **about}

    def plan(self, name: str, **changes: Any) -> tuple[Spec, Json]:
        """Return the changed plan of a model for the largest batch that is estimated to fit, and the plan's predictions."""
        step, is_cpu = self.steps[name], self.platform == "cpu"
        model = step.model.but(**SETTINGS["cpu"] if is_cpu else {})
        for rows in CPU_ROWS if is_cpu else ROWS_A_DEVICE:
            step = step.but(model=model, batch_sequences=rows * self.where.devices)
            found = estimate_plan(step, self.where)
            if found.plan and found.roofline and found.result and found.result.memory:
                predicted = {"plan": found.plan.words, "batch": step.batch_sequences, "predicted_bytes": found.result.memory.peak}
                times = {"predicted_seconds": found.roofline.step_seconds, "compute_seconds": found.roofline.compute * UTILISATION}
                spec = spec_for(step, self.where, found.plan)
                return spec.but(execution=spec.execution.but(**changes)), predicted | times
        raise TrainingError(f"{name}: no plan is estimated to fit {self.where.chip.device_gib:.1f} GiB a device.")

    def parity(self) -> Json:
        """Compare one update with the CPU's: types, dense and sparse, kernels of attention, and float32 products as they are trained."""
        from phasewise.trainer.config.execution import KERNELS, Operands, refusal

        cases: list[Json] = []
        dense = self.steps[self.first]
        for kind, step in (("dense", dense), ("sparse", self.sparse.but(optimizer=dense.optimizer))):
            batch, sparse = self.where.devices * -(-8 // self.where.devices), step.model.experts
            changes = {"experts": sparse.but(**SETTINGS["experts"]), "sliding_window": SETTINGS["parity"]["seq_len"] // 2} if sparse else {}
            model = step.model.but(**SETTINGS["parity"], **changes)
            for dtype in ("float32", "bfloat16"):
                step = step.but(model=model.but(compute_dtype=dtype), batch_sequences=batch)
                spec = spec_for(step, self.where, settings_for(step, self.where)[0].plan("none", self.where))
                operands = Operands(dtype, model.head_dim, model.seq_len)
                for kernel in [one for one in KERNELS if kind == "dense" and not refusal(one, self.platform, operands)] or ["auto"]:
                    given = spec.but(execution=spec.execution.but(attention=kernel)).model_dump(mode="json")
                    cases.append({"case": f"{kind} {dtype}, attention {kernel}", "spec": given, "precision": "highest"})
        return self.part("parity", {"cases": [*cases, {**cases[0], "case": "dense float32, products as trained", "precision": None}]})

    def kernels(self) -> Json:
        """Time the kernels of the backend at the shapes of the middle model."""
        spec, _ = self.plan(self.models[len(self.models) // 2])
        return self.part("kernels", {"model": spec.step.model.model_dump(mode="json"), "sequences": KERNEL_ROWS})

    def mfu(self) -> Json:
        """Time the step of each model with its plan, and compare time and memory with predictions. Change a plan that fails."""
        end, devices, wrong = self.limit, self.where.devices, list[str]()
        for number, name in enumerate(self.models):
            self.limit = time.monotonic() + (end - time.monotonic()) / (len(self.models) - number)
            failed: list[str] = []
            for changes in SETTINGS["plans"]:
                try:
                    spec, predicted = self.plan(name, **changes)
                    found = self.part("step", {"spec": spec.model_dump(mode="json"), "seconds": STEP_SECONDS})
                    break
                except TrainingError as error:
                    failed.append(str(error))
            else:
                wrong.append(f"{name}: {failed[-1]}")
                continue
            seconds, flops = found["seconds"], step_flops(spec.step.model, predicted["batch"]).total / devices
            compute, memory = predicted["compute_seconds"], predicted["predicted_bytes"] / found["peak_bytes"] - 1
            expected = compute / self.measured[-1]["utilisation"] if self.measured else predicted["predicted_seconds"]
            about = {"model": name, "mfu": flops / seconds / self.where.chip.speeds.flops, "share_of_products": flops / seconds / self.rate}
            about |= {"utilisation": compute / seconds, "rows_a_second": predicted["batch"] / seconds, "expected_seconds": expected}
            near = {"time_is_near": abs(expected / seconds - 1) <= NEAR, "memory_is_near": abs(memory) <= NEAR}
            self.measured.append({**about, **predicted, **found, **near, "attention": spec.execution.attention, "failed": failed})
        return {"rows": self.measured, **({"error": "; ".join(wrong)} if wrong else {})}

    def run_of_plan(self, name: str, stop_step: int) -> RunConfig:
        """Write a cache of random tokens and its verdict, and return a run of the smallest model on them."""
        import numpy as np

        cache, output, manifest = self.folder / "cache", self.folder / "runs" / name, Manifest.model_validate(SETTINGS["manifest"])
        cache.mkdir(exist_ok=True)
        tokens = np.random.default_rng(0).integers(2, SETTINGS["vocabulary"], manifest.tokens)
        tokens.astype(manifest.dtype).tofile(cache / f"{manifest.shards[0].name}.bin")
        write_manifest(cache, manifest)
        write_sealed(output / "verdict.json", {"passes": True, "judged": {"random": manifest.digest}})
        spec, _ = self.plan(self.first)
        run = run_of(spec.step, spec.execution)
        places = {"caches": {"random": str(cache)}, "verdict": str(output / "verdict.json"), "output": str(output)}
        rate, model = run.learning_rate[0].but(end_step=stop_step, start=1e-4, end=1e-4), run.model.but(vocab_size=SETTINGS["vocabulary"])
        return run.but(phase=name, stop_step=stop_step, learning_rate=(rate,), model=model, **places, **SETTINGS["run"])

    def resume(self) -> Json:
        """Train twice with the trainer of `phasewise run`. SIGKILL ends the second run after its first checkpoint, and it resumes."""
        from phasewise.trainer.checkpoints.files import is_committed  # it imports jax

        rows: list[Json] = []
        for name in ("straight", "killed"):
            run = self.run_of_plan(name, STOP_STEP)
            folder = RunFolder(run.output)
            write_json(folder.run_file, run.model_dump(mode="json"))
            command, saved = python_command("phasewise.trainer", str(folder.run_file), "--with-parent"), folder.checkpoint(STOP_STEP // 2)
            if name == "killed":
                code = self.process(name, command, lambda saved=saved: is_committed(saved))
                if code >= 0 or is_committed(folder.checkpoint(STOP_STEP)):
                    raise TrainingError(f"the run was not killed in time: it {ending_with_reason(code, self.folder / f'{name}.log')}")
            if code := self.process(name, command):
                raise TrainingError(f"the {name} run {ending_with_reason(code, self.folder / f'{name}.log')}")
            size = sum(file.stat().st_size for file in folder.checkpoint(STOP_STEP).rglob("*") if file.is_file())
            spent = {f"{work.replace(' ', '_')}_seconds": seconds for work, seconds in read_json(folder.heartbeat)["spent"].items()}
            rows.append({"run": name, "params_digest": read_json(folder.result)["params_digest"][:16], "checkpoint_bytes": size, **spent})
        error = {"error": "other weights after the resume. On a GPU, set XLA_FLAGS=--xla_gpu_deterministic_ops=true and measure again."}
        return {"rows": rows, **({} if rows[0]["params_digest"] == rows[1]["params_digest"] else error)}

    def loader(self) -> Json:
        """Compare the rows per second of the loader, with segment ids, with the rows per second of each measured step."""
        from phasewise.trainer.data.loader import Loader

        run = self.run_of_plan("loader", LOADER_BATCHES + 1)
        batches = Loader(run).batches(0, run.stop_step)
        next(batches)  # opens the cache
        started = time.monotonic()
        rate = sum(len(batch.segment_ids) for batch in batches) / (time.monotonic() - started)
        rows = [{"model": one["model"], "times_the_step": rate / one["rows_a_second"]} for one in self.measured]
        error = {"error": "the loader is slower than a step."} if any(row["times_the_step"] < 1 for row in rows) else {}
        return {"rows_a_second": rate, "rows": rows, **error}
