"""Rows of `metrics.jsonl` from the measurements of an update, losses of its rows, and copies in TensorBoard, Weights & Biases and MLflow.

Every copy has one point per step, also in a resumed run.
"""

import json
import math
import os
import socket
import struct
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import numpy as np

from phasewise.trainer.base.errors import TakenOver, TrainingError
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.storage import write_json
from phasewise.trainer.config import AdamC, RunConfig
from phasewise.trainer.flops import peak_flops, step_flops
from phasewise.trainer.forecast import LossBand
from phasewise.trainer.interventions import scheduled_at
from phasewise.trainer.metrics import PARAM_GROUPS, MetricsFile, Row, read_metrics
from phasewise.trainer.model.params import expert_layers
from phasewise.trainer.model.router import RoutingMetrics
from phasewise.trainer.process.distributed import is_first
from phasewise.trainer.process.watchdog import Alone
from phasewise.trainer.row_losses import RowLossesFile
from phasewise.trainer.skipped_steps import Unstable
from phasewise.trainer.step import StepMetrics, groups, slot_names

MUST_BE_FINITE = ("loss", "grad_norm", "param_norm")
EVENTS_PREFIX = "events.out.tfevents"
RECORD_HEADER = struct.Struct("<QI")
RECORD_FOOTER_BYTES = 4
MAX_METRICS = 1000  # metrics of one request that MLflow accepts


class Recorder(AbstractContextManager["Recorder"]):
    """Context that writes one row per update. It first drops the rows after `restored_step`, because these updates run again.

    `check` runs before every write, and `alone` guards the removal of rows.
    """

    def __init__(
        self,
        run: RunConfig,
        *,
        restored_step: int,
        band: LossBand | None = None,
        check: Callable[[], None] = lambda: None,
        alone: Alone = nullcontext,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run, self._check, self._clock = run, check, clock
        self._started = self._since = clock()
        self._until: float | None = None
        self._peak = peak_flops(jax.devices()[0].device_kind, run.model.compute_dtype)
        self._groups, self._slots, self._expert_layers = groups(run.model), slot_names(run.model), expert_layers(run.model)
        self._file: MetricsFile | None = None
        self._row_losses: RowLossesFile | None = None
        self._sinks: list[Sink] = []
        path = RunFolder(run.output).metrics
        if is_first():  # all processes have the same values, and all of them stop at NaN
            with alone():
                self._file = MetricsFile(path, restored_step=restored_step)
                self._row_losses = RowLossesFile(RunFolder(run.output).row_losses, restored_step=restored_step)
            self._sinks = open_sinks(run)
            send(self._sinks, self._file.kept)
        self._max_loss, self._band = run.recovery.max_loss if run.recovery else None, band
        losses = (row["loss"] for row in read_metrics(path) if row["step"] <= restored_step and not row.get("skipped"))
        self._losses: deque[float] = deque(losses, maxlen=max(self._max_loss.window if self._max_loss else 1, band.patience if band else 1))

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
        if self._row_losses is not None:
            with suppress(TakenOver, OSError):
                self._check()
                self._row_losses.write()
        for sink in self._sinks:
            sink.close()

    @contextmanager
    def stopped_clock(self) -> Iterator[None]:
        """Leave evaluation and saving out of the time of the updates before and after."""
        self._until = self._clock()
        yield
        self._since, self._until = self._clock(), None

    def write(self, step: int, measured: StepMetrics, more: Row) -> None:
        """Write the row of the update that made step `step`.

        Raises:
            Unstable: the loss, the gradients' norm or the weights' norm is NaN, the loss is above the recipe's limit, or the mean loss
                left the `band` of the forecast. For a skipped update only the weights' norm counts.
            TakenOver: another trainer owns the folder.
        """
        run, every = self._run, self._run.instrumentation.layer_norms_every
        is_due = every is not None and step % every == 0
        values = values_of(measured, self._slots if is_due else (), groups=self._groups)
        if measured.routing is not None:
            values |= routing_values(measured.routing, self._expert_layers, of_layers=is_due or step == run.stop_step)
        if self._file is not None:
            finite = {name: value if math.isfinite(value) else None for name, value in {**values, **more}.items()}
            row: Row = {"step": step, **finite, **scheduled_row(run, step - 1)}
            now = self._clock()
            until = now if self._until is None else self._until
            seconds, self._since = until - self._since, until
            row |= {"step_seconds": seconds, "seconds": now - self._started}
            if seconds > 0:
                row["tokens_per_second"] = row["tokens"] / seconds
                if self._peak is not None:
                    flops = step_flops(run.model, row["sequences"]).total
                    row["mfu"] = flops / seconds / (self._peak * run.execution.mesh.devices)
            self._check()
            self._file.append(row)
            if self._row_losses is not None and measured.row_losses is not None:
                self._row_losses.append(step, np.asarray(measured.row_losses))
            send(self._sinks, [row])
        for name in MUST_BE_FINITE if not values.get("skipped") else ("param_norm",):
            if not math.isfinite(values[name]):
                raise Unstable(run, step, f"{name} is {values[name]}")
        if values.get("skipped"):
            return
        if self._max_loss is not None and len(self._losses) >= self._max_loss.min_samples:
            before = np.array(self._losses)[-self._max_loss.window :]
            most = float(before.mean() + self._max_loss.sigmas * before.std())
            if values["loss"] > most:
                finding = f"the loss is {values['loss']:.4g}, above {most:.4g}, the limit over the {len(before)} updates before it"
                raise Unstable(run, step, finding, is_spike=True)
        self._losses.append(values["loss"])
        if self._band and (left := self._band.finding(list(self._losses), step - run.start_step)):
            raise Unstable(run, step, left, forecast=self._band.digest)

    def flush(self) -> str | None:
        """Sync the rows to disk before the next checkpoint, and return their digest (None in other processes than the first)."""
        if self._row_losses is not None:
            self._row_losses.write(sync=True)
        return None if self._file is None else self._file.flush()


def scheduled_row(run: RunConfig, step: int) -> Row:
    """Return the scheduled values of update number `step` (from 0). Values that are off are omitted, except z-loss, which is 0."""
    stability, sequences = run.stability, run.batch.at(step)
    scheduled = scheduled_at(run, step)
    row: Row = {"learning_rate": scheduled.learning_rate, "z_loss": scheduled.z_loss}
    optional = {
        "max_grad_norm": stability.max_grad_norm.at(step),
        "max_update_rms": stability.max_update_rms.at(step),
        "ema_decay": stability.ema_decay.at(step),
        # the decay of AdamC follows the learning rate, the decay of other optimizers is constant
        "weight_decay": run.optimizer.weight_decay * scheduled.decay_scale if isinstance(run.optimizer, AdamC) else None,
    }
    row |= {name: value for name, value in optional.items() if value is not None}
    starts = [start for start, _ in run.mixture.root]
    since = max([start for start in starts if start <= step], default=starts[0])
    row |= {"sequences": sequences, "tokens": sequences * run.model.seq_len, "mixture_since": since}
    if step in (since, run.start_step):
        row |= {f"mixture/{component}": share for component, share in run.mixture.at(step).items()}
    return row


def values_of(measured: StepMetrics, slots: Sequence[str] = (), *, groups: Sequence[str] = PARAM_GROUPS) -> dict[str, float]:
    """Fetch the measurements in one transfer, named as in `metrics.jsonl`, without None and infinite limits.

    `X_norms` has one norm per name of `groups`, `X_slots` one norm per name of `slots`. Without `slots`, `X_slots` are not fetched.
    """
    numbers = {name: value for name, value in measured._asdict().items() if value is not None and name not in ("routing", "row_losses")}
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
    """Fetch the routers' measurements, named as in `metrics.jsonl`. `of_layers` adds the values of each layer and expert."""
    found: RoutingMetrics = jax.device_get(measured)
    values = {
        "max_violation": float(np.max(found.max_violations)),
        "dead_experts": float(np.sum(found.dead_experts)),
        "router_entropy": float(np.mean(found.router_entropies)),
        "sequence_loss": float(np.mean(found.sequence_losses)),
        "overflowed": float(found.overflowed),
    }
    if of_layers:
        values |= _named("max_violation", layers, np.asarray(found.max_violations))
        values |= _named("dead_experts", layers, np.asarray(found.dead_experts))
        values |= _named("router_entropy", layers, np.asarray(found.router_entropies))
        for layer, loads in zip(layers, found.expert_loads, strict=True):
            values |= _named(f"expert_load/{layer}", range(len(loads)), np.asarray(loads))
    return values


def _named(kind: str, names: Iterable[object], norms: np.ndarray) -> dict[str, float]:
    return {f"{kind}/{name}": float(norm) for name, norm in zip(names, norms, strict=True)}


class TensorBoardSink:
    """TensorBoard events, in one file per attempt. `last_step` is the last step in the files of all attempts."""

    def __init__(self, folder: Path) -> None:
        from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]  # protobuf makes it at import
        from tensorboardX.record_writer import RecordWriter

        self._event = Event
        folder.mkdir(parents=True, exist_ok=True)
        found = sorted(folder.glob(f"{EVENTS_PREFIX}.*"))
        self.last_step: int = max((event.step for path in found for event in read_tensorboard(path)), default=0)
        # TensorBoard reads files in the order of their names
        path = folder / f"{EVENTS_PREFIX}.{int(time.time()):010d}.{len(found):05d}.{socket.gethostname()}.{os.getpid()}"
        self._writer = RecordWriter(str(path))
        self._writer.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
        self._writer.flush()

    def write(self, row: Row) -> None:
        """Write and flush one event with a scalar for every number of the row."""
        from tensorboardX.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]  # protobuf makes it at import

        values = [Summary.Value(tag=name, simple_value=value) for name, value in row.items() if name != "step"]
        event = self._event(wall_time=time.time(), step=row["step"], summary=Summary(value=values))
        self._writer.write(event.SerializeToString())
        self._writer.flush()
        self.last_step = row["step"]

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


def read_tensorboard(path: Path) -> Iterator[Any]:
    """Yield the events of a file up to a truncated record. (A record is length, checksum, bytes, checksum.)"""
    from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]  # protobuf makes it at import

    with open(path, "rb") as file:
        while len(header := file.read(RECORD_HEADER.size)) == RECORD_HEADER.size:
            length, _ = RECORD_HEADER.unpack(header)
            content = file.read(length)
            if len(content) < length or len(file.read(RECORD_FOOTER_BYTES)) < RECORD_FOOTER_BYTES:
                return
            yield Event.FromString(content)


class WandbSink:
    """History of one Weights & Biases run over all attempts, with files in `wandb/` of the run's folder.

    `wandb/sent.json` has the run's id and the last uploaded step. A kill loses at most one row. Raises TrainingError if Weights & Biases
    rejects the run, for example without a login.
    """

    def __init__(self, run: RunConfig) -> None:
        import wandb

        folder = RunFolder(run.output).weights_and_biases
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "sent.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"id": uuid.uuid4().hex[:12], "step": 0}
        self._id, self.last_step = str(found["id"]), int(found["step"])
        self._sent = open(path, "r+b" if path.exists() else "w+b", buffering=0)  # noqa: SIM115  # stays open for the run
        self._note(self.last_step)
        is_offline = run.instrumentation.wandb == "offline"
        try:
            self._run: Any = wandb.init(
                project=run.recipe,
                name=f"{run.recipe}/{run.scale}/{run.phase}",
                id=self._id,
                # an offline run does not know its steps: `wandb sync --append` joins the files
                resume=None if is_offline else "allow",
                dir=run.output,
                mode="offline" if is_offline else "online",
                config=run.model_dump(mode="json"),
                settings=wandb.Settings(console="off", silent=True, x_disable_stats=True, disable_code=True, disable_git=True),
            )
        except wandb.Error as error:
            raise TrainingError(
                f"Weights & Biases could not be opened for phase {run.phase}: {error}. Log in with `wandb login`, or set "
                'instrumentation.wandb to "offline".'
            ) from error

    def write(self, row: Row) -> None:
        """Upload one row."""
        self._note(row["step"])
        self._run.log({name: value for name, value in row.items() if name != "step"}, step=row["step"])

    def close(self) -> None:
        """Finish the run after all rows are uploaded, or written if offline."""
        self._run.finish()
        self._sent.close()

    def _note(self, step: int) -> None:
        self.last_step = step
        os.pwrite(self._sent.fileno(), f'{{"id": "{self._id}", "step": {step:>15}}}\n'.encode(), 0)


class MlflowSink:
    """Metrics of one MLflow run over all attempts. `mlflow.json` in the run's folder has its id and the last step sent.

    Rows that the server does not accept wait for the next row, or for the next attempt. Raises TrainingError if the server does not
    accept the run.
    """

    def __init__(self, run: RunConfig) -> None:
        for name, value in (("MAX_RETRIES", "1"), ("TIMEOUT", "10")):  # an update must not wait for minutes
            os.environ.setdefault(f"MLFLOW_HTTP_REQUEST_{name}", value)
        mlflow: Any = import_module("mlflow")
        self._metric, self._error = mlflow.entities.Metric, mlflow.exceptions.MlflowException
        self._client = mlflow.MlflowClient(tracking_uri=run.instrumentation.mlflow)
        self._path = RunFolder(run.output).mlflow
        found: dict[str, Any] = json.loads(self._path.read_text()) if self._path.exists() else {"step": 0}
        self.last_step, self._sent, self._waiting = int(found["step"]), int(found["step"]), list[Row]()
        name = f"{run.recipe}/{run.scale}/{run.phase}"
        try:
            if "id" not in found:
                experiment = self._client.get_experiment_by_name(run.recipe)
                number = experiment.experiment_id if experiment else self._client.create_experiment(run.recipe)
                found["id"] = self._client.create_run(number, run_name=name, tags={"run_digest": run.digest}).info.run_id
            self._client.update_run(found["id"], status="RUNNING")
        except self._error as error:
            raise TrainingError(
                f"MLflow at {run.instrumentation.mlflow} could not be opened for phase {run.phase}: {error}. Start its server, or set "
                "instrumentation.mlflow to null."
            ) from error
        self._id = str(found["id"])
        self._note()

    def write(self, row: Row) -> None:
        """Send the waiting rows and this row."""
        self._waiting.append(row)
        self.last_step = row["step"]
        with suppress(self._error):
            while self._waiting:
                first, now = self._waiting[0], int(1000 * time.time())
                metrics = [self._metric(name, value, now, first["step"]) for name, value in first.items() if name != "step"]
                for start in range(0, len(metrics), MAX_METRICS):
                    self._client.log_batch(self._id, metrics=metrics[start : start + MAX_METRICS])
                self._waiting.pop(0)
                self._sent = first["step"]
                self._note()

    def close(self) -> None:
        """End the run."""
        with suppress(self._error):
            self._client.set_terminated(self._id)

    def _note(self) -> None:
        write_json(self._path, {"id": self._id, "step": self._sent})


Sink = TensorBoardSink | WandbSink | MlflowSink


def open_sinks(run: RunConfig) -> list[Sink]:
    """Open the sinks of a run."""
    sinks: list[Sink] = []
    if run.instrumentation.tensorboard:
        sinks.append(TensorBoardSink(RunFolder(run.output).tensorboard))
    if run.instrumentation.wandb != "off":
        sinks.append(WandbSink(run))
    if run.instrumentation.mlflow is not None:
        sinks.append(MlflowSink(run))
    return sinks


def send(sinks: Iterable[Sink], rows: Iterable[Row]) -> None:
    """Upload the rows after the last step of each sink.

    A step that runs again after a kill is not uploaded again, because its row is equal bit for bit. A row that is in `metrics.jsonl` and
    was not uploaded is uploaded when the run resumes.
    """
    for row in rows:
        numbers = {name: value if name == "step" else float(value) for name, value in row.items() if value is not None}
        for sink in sinks:
            if row["step"] > sink.last_step:
                sink.write(numbers)
