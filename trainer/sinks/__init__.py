"""Where the rows of `metrics.jsonl` go besides: each sink is a copy of that file, a point once, however often the run was stopped."""

import importlib.util
from collections.abc import Iterable
from typing import Protocol

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.config import Instrumentation, RunConfig
from phasewise.trainer.metrics import Row

MODULE_OF_EXTRA = {"tensorboard": "tensorboardX", "wandb": "wandb"}


class Sink(Protocol):
    """Takes rows in order. `last_step` is the last one that it has, from this life of the process or one before it; 0 is none."""

    @property
    def last_step(self) -> int:
        """The last step that it has."""
        ...

    def write(self, row: Row) -> None:
        """One row, of a step after `last_step`."""
        ...

    def close(self) -> None:
        """No more rows."""
        ...


def check_sinks(instrumentation: Instrumentation) -> None:
    """Refuse a sink whose library is not installed.

    Raises:
        ConfigError: see above.
    """
    wanted = {"tensorboard": instrumentation.tensorboard, "wandb": instrumentation.wandb != "off"}
    for extra, is_wanted in wanted.items():
        if is_wanted and importlib.util.find_spec(MODULE_OF_EXTRA[extra]) is None:
            raise ConfigError(
                f"instrumentation.{extra} needs the package {MODULE_OF_EXTRA[extra]}, which is not installed here: "
                f"pip install 'phasewise[{extra}]', or turn it off."
            )


def open_sinks(run: RunConfig) -> list[Sink]:
    """The sinks that the run asks for, in its folder."""
    sinks: list[Sink] = []
    if run.instrumentation.tensorboard:
        from phasewise.trainer.sinks.tensorboard import TensorBoardSink

        sinks.append(TensorBoardSink(RunFolder.at(run.output).tensorboard))
    if run.instrumentation.wandb != "off":
        from phasewise.trainer.sinks.weights_and_biases import open_wandb

        sinks.append(open_wandb(run))
    return sinks


def send(sinks: Iterable[Sink], rows: Iterable[Row]) -> None:
    """Give each sink the rows that it does not have.

    A step that was sent before a kill and is trained again is not sent again: it is the same, bit for bit. One that was written to
    `metrics.jsonl` and not sent is sent when the run goes on.
    """
    for row in rows:
        for sink in sinks:
            if row["step"] > sink.last_step:
                sink.write(row)


def values_to_send(row: Row) -> dict[str, float]:
    """What of a row is a number and is drawn over the steps."""
    return {name: float(value) for name, value in row.items() if name != "step" and value is not None}
