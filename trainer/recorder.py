"""From what an update measured to a row of `metrics.jsonl` and to the sinks."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from types import TracebackType
from typing import Any

import jax
import numpy as np

from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.config import AdamC, RunConfig
from phasewise.trainer.flops import mfu, peak_flops, step_flops
from phasewise.trainer.instability import SpikeWatch, Unstable
from phasewise.trainer.metrics import PARAM_GROUPS, MetricsFile, Row, read_metrics
from phasewise.trainer.model.layers import expert_layers
from phasewise.trainer.norms import groups, slot_names
from phasewise.trainer.process.distributed import is_first
from phasewise.trainer.process.lease import Alone, no_check
from phasewise.trainer.routing import RoutingMetrics
from phasewise.trainer.schedule import scheduled_at
from phasewise.trainer.sinks import Sink, open_sinks, send
from phasewise.trainer.step import StepMetrics

MUST_BE_FINITE = ("loss", "grad_norm", "param_norm")


class Recorder:
    """Writes one row an update. Use it as a context; opening it forgets the rows after `restored_step`, which will be trained again.

    `check` is called before anything is written; the rows are forgotten within `alone`.
    """

    def __init__(
        self,
        run: RunConfig,
        *,
        restored_step: int,
        check: Callable[[], None] = no_check,
        alone: Alone = nullcontext,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run, self._check, self._clock = run, check, clock
        self._started = self._since = clock()
        self._until: float | None = None
        device = jax.devices()[0]
        self._peak = peak_flops(device.device_kind, run.model.compute_dtype)
        self._devices = run.execution.mesh.devices
        self._groups = groups(run.model)
        self._slots = slot_names(run.model)
        self._expert_layers = expert_layers(run.model)
        self._file: MetricsFile | None = None
        self._sinks: list[Sink] = []
        if is_first():  # of several processes; all have the same values, and all stop where they are no numbers
            with alone():
                self._file = MetricsFile(RunFolder.at(run.output).metrics, restored_step=restored_step)
            self._sinks = open_sinks(run)
            send(self._sinks, self._file.kept)
        rows = read_metrics(RunFolder.at(run.output).metrics)
        self._spikes = SpikeWatch(run, [row for row in rows if row["step"] <= restored_step])

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()
        for sink in self._sinks:
            sink.close()

    def stop_clock(self) -> None:
        """The update that is to be written next has ended; what follows (evaluation, saving) is not its time."""
        self._until = self._clock()

    def start_clock(self) -> None:
        """The next update begins only now."""
        self._since = self._clock()
        self._until = None

    def write(self, step: int, measured: StepMetrics, more: Row) -> None:
        """The row of the update that made `step` updates of them.

        Raises:
            Unstable: the loss, the gradients' norm or the weights' norm is no number, or the loss lies above the recipe's limit.
                Of an update that was skipped only the weights' norm counts.
            TakenOver: the folder is another trainer's.
        """
        is_due = self._layers_are_due(step)
        values = values_of(measured, self._slots if is_due else (), groups=self._groups)
        if measured.routing is not None:
            values |= routing_values(measured.routing, self._expert_layers, of_layers=is_due or step == self._run.stop_step)
        if self._file is not None:
            finite = {name: value if math.isfinite(value) else None for name, value in {**values, **more}.items()}
            row = {"step": step, **finite, **scheduled_row(self._run, step - 1)}
            self._append(self._file, {**row, **self._times(row)})
        for name in MUST_BE_FINITE if not values.get("skipped") else ("param_norm",):
            if not math.isfinite(values[name]):
                raise Unstable(self._run, step, f"{name} is {values[name]}")
        if not values.get("skipped"):
            self._spikes.look(step, values["loss"])

    def flush(self) -> str | None:
        """Have the rows on the disk: a checkpoint that is saved next has them also where the power fails. Gives their digest."""
        if self._file is None:
            return None
        self._file.flush()
        return self._file.digest

    def _append(self, file: MetricsFile, row: Row) -> None:
        self._check()
        file.append(row)
        send(self._sinks, [row])

    def _layers_are_due(self, step: int) -> bool:
        every = self._run.instrumentation.layer_norms_every
        return every is not None and step % every == 0

    def _times(self, row: Row) -> Row:
        now = self._clock()
        until = now if self._until is None else self._until
        seconds, self._since = until - self._since, until
        times: Row = {"step_seconds": seconds, "seconds": now - self._started}
        if seconds > 0:
            times["tokens_per_second"] = row["tokens"] / seconds
        share = mfu(step_flops(self._run.model, row["sequences"]).total, seconds, peak=self._peak, devices=self._devices)
        return times if share is None else {**times, "mfu": share}


def scheduled_row(run: RunConfig, step: int) -> Row:
    """The scheduled values of update number `step` (counted from 0). What is off is left out, except z-loss, which is 0 then."""
    stability = run.stability
    scheduled = scheduled_at(run, step)
    sequences = run.batch.at(step)
    row: Row = {"learning_rate": scheduled.learning_rate, "z_loss": scheduled.z_loss}
    optional = {
        "max_grad_norm": stability.max_grad_norm.at(step),
        "max_update_rms": stability.max_update_rms.at(step),
        "ema_decay": stability.ema_decay.at(step),
        # AdamC's decay goes with the learning rate; that of the others stays, and is in the run's file.
        "weight_decay": run.optimizer.weight_decay * scheduled.decay_scale if isinstance(run.optimizer, AdamC) else None,
    }
    row |= {name: value for name, value in optional.items() if value is not None}
    since = mixture_since(run, step)
    row |= {"sequences": sequences, "tokens": sequences * run.model.seq_len, "mixture_since": since}
    if step in (since, run.start_step):
        row |= {f"mixture/{component}": share for component, share in run.mixture.at(step).items()}
    return row


def mixture_since(run: RunConfig, step: int) -> int:
    """The step from which the mixture of update number `step` holds."""
    starts = [start for start, _ in run.mixture.root]
    return max([start for start in starts if start <= step], default=starts[0])


def values_of(measured: StepMetrics, slots: Sequence[str] = (), *, groups: Sequence[str] = PARAM_GROUPS) -> dict[str, float]:
    """The measurements under their names in `metrics.jsonl`, fetched in one go.

    `X_norms` holds a norm of each of `groups` of weights, `X_slots` one for each name of `slots`; without names the latter stay there.
    What is None is left out, and so is a limit that is infinite: it is none.
    """
    numbers = {name: value for name, value in measured._asdict().items() if value is not None and name != "routing"}
    wanted = {name: value for name, value in numbers.items() if slots or not name.endswith("_slots")}
    fetched: list[Any] = jax.device_get(list(wanted.values()))
    values: dict[str, float] = {}
    for name, value in zip(wanted, fetched, strict=True):
        if name.endswith("_norms"):
            values |= _named(name.removesuffix("s"), groups, value)
        elif name.endswith("_slots"):
            values |= _named(f"{name.removesuffix('_slots')}_norm", slots, value)
        elif not (name.startswith("max_") and np.isposinf(value)):
            values[name] = float(value)
    return values


def routing_values(measured: RoutingMetrics, layers: Sequence[int], *, of_layers: bool) -> dict[str, float]:
    """What the routers of these layers did, under the names in `metrics.jsonl`; `of_layers` adds that of each layer and expert."""
    found: RoutingMetrics = jax.device_get(measured)
    values = {
        "max_violation": float(np.max(found.max_violations)),
        "dead_experts": float(np.sum(found.dead_experts)),
        "router_entropy": float(np.mean(found.router_entropies)),
        "sequence_loss": float(np.mean(found.sequence_losses)),
        "overflowed": float(found.overflowed),
    }
    if of_layers:
        of_each = {"max_violation": found.max_violations, "dead_experts": found.dead_experts, "router_entropy": found.router_entropies}
        for name, numbers in of_each.items():
            values |= _named(name, layers, np.asarray(numbers))
        for layer, loads in zip(layers, found.expert_loads, strict=True):
            values |= _named(f"expert_load/{layer}", range(len(loads)), np.asarray(loads))
    return values


def _named(kind: str, names: Iterable[object], norms: np.ndarray) -> dict[str, float]:
    return {f"{kind}/{name}": float(norm) for name, norm in zip(names, norms, strict=True)}
