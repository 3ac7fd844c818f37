"""What a run cost on this machine, taken apart so that another run can be put together of it.

A run's wall time is put together of: start and end of its process, from there to the first batch, the first update of each batch shape, all
other updates, evaluations, checkpoints, and the end. `costs_of` takes a measured run apart; `tasks.prediction.predict` is the other way.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median

from tasks.preflight.setup import step_shape
from tasks.training.spent import LifeSpent, read_lives
from trainer.base.frozen import Frozen
from trainer.base.run_folder import RunFolder
from trainer.base.storage import digest_of_json
from trainer.checkpoints.files import saved_steps
from trainer.config import RunConfig
from trainer.config.execution import DECIDES_BITS
from trainer.metrics import Row, read_metrics

MAX_BLOCKS, MIN_BLOCK = 10, 4
MIN_UPDATES = 3
"""With fewer updates after the first one nothing is known of how long one takes."""


class StepCost(Frozen):
    """Updates of one batch shape.

    Attributes:
        updates: how many the mean is of; the first is not among them.
        seconds: their mean.
        low_seconds, high_seconds: the least and the greatest mean of a tenth of them.
        first_seconds: of the first one, which compiles.
        compiled: whether the compiled step was not there yet.
    """

    updates: int
    seconds: float
    low_seconds: float
    high_seconds: float
    first_seconds: float
    compiled: bool


class Costs(Frozen):
    """One life of a trainer that went through.

    Attributes:
        source: what was measured, in words.
        measured_at: seconds since 1970.
        conditions: as `tasks.prediction.conditions`.
        recipe: recipe and scale, whose folder has the compiled steps.
        from_scratch: whether it began with new weights.
        steps: `step_key` → what its updates took.
        process_seconds: start and end of the process, imports.
        start_seconds: from the program's start to its first batch.
        finish_seconds: after the last checkpoint.
        save_seconds: that a checkpoint holds the updates up; None where there was none before the last.
        last_save_seconds: that the last one did, which is waited for.
        evaluation_seconds: of one held-out sequence of one component; None where nothing was evaluated.
        first_evaluation_seconds: that the first one took beyond that: it compiles.
        checkpoint_bytes, row_bytes: of one checkpoint, and of a row of the metrics.
        peak_memory_bytes: the most that the process held in this machine's memory.
        is_calibration: somebody asked what it costs now; what was measured before is out of date.
    """

    source: str
    measured_at: float
    conditions: str
    recipe: str
    from_scratch: bool
    steps: dict[str, StepCost]
    process_seconds: float
    start_seconds: float
    finish_seconds: float
    save_seconds: float | None
    last_save_seconds: float
    evaluation_seconds: float | None
    first_evaluation_seconds: float
    checkpoint_bytes: int | None
    row_bytes: float
    peak_memory_bytes: int | None
    is_calibration: bool = False


def step_key(run: RunConfig, batch_sequences: int) -> str:
    """The digest of all of a run that decides how long an update of so many sequences takes."""
    return digest_of_json(
        {
            "step": step_shape(run, batch_sequences).model_dump(mode="json", exclude={"packing", "loss_on"}),
            "execution": run.execution.model_dump(mode="json", include=set(DECIDES_BITS)),
            "instrumentation": run.instrumentation.model_dump(mode="json"),
        }
    )


def step_keys(run: RunConfig) -> dict[int, str]:
    """Sequences → key, of every batch size of the run."""
    return {size: step_key(run, size) for _, size in run.batch.within(run.start_step, run.stop_step)}


def middle_of(measured: Sequence[Costs], key: str) -> Costs:
    """What updates of a shape usually cost here: the middle of several measurements, item by item.

    One phase is off by a tenth where the machine does something else meanwhile. What depends on whether the step was
    compiled already is the newest's alone.

    Args:
        measured: of this key, the newest first; one at least.
    """
    newest = measured[0]
    alike = [costs for costs in measured if costs.from_scratch == newest.from_scratch]
    steps = [costs.steps[key] for costs in measured]
    step = newest.steps[key].but(
        seconds=median(one.seconds for one in steps),
        low_seconds=min(one.low_seconds for one in steps),
        high_seconds=max(one.high_seconds for one in steps),
    )
    others = f", the middle of {len(measured)} measurements of which this is the newest" if len(measured) > 1 else ""
    return newest.but(
        source=newest.source + others,
        steps={**newest.steps, key: step},
        process_seconds=median(costs.process_seconds for costs in measured),
        start_seconds=median(costs.start_seconds for costs in alike),
        finish_seconds=median(costs.finish_seconds for costs in measured),
        save_seconds=_median([costs.save_seconds for costs in measured]),
        last_save_seconds=median(costs.last_save_seconds for costs in measured),
        evaluation_seconds=_median([costs.evaluation_seconds for costs in measured]),
    )


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def read_costs(folder: Path, source: str) -> Costs | None:
    """What the run in a folder cost; None where that was not measured here in one life from its beginning, or too little of it."""
    place = RunFolder(folder)
    lives = read_lives(folder)
    if len(lives) != 1 or not lives[0].is_whole or not lives[0].conditions or not lives[0].seconds:
        return None
    run = RunConfig.model_validate_json(place.run_file.read_text())
    if lives[0].from_step != run.start_step:
        return None
    newest = max(saved_steps(place.checkpoints), default=None)
    size = None if newest is None else bytes_in(place.checkpoint(newest))
    rows = read_metrics(place.metrics)
    measured_at = place.spent.stat().st_mtime
    return costs_of(run, rows, lives[0], source=source, measured_at=measured_at, sizes=(size, place.metrics.stat().st_size))


def costs_of(
    run: RunConfig, rows: Sequence[Row], life: LifeSpent, *, source: str, measured_at: float, sizes: tuple[int | None, int]
) -> Costs | None:
    """One life, taken apart; None where it had too few updates.

    Args:
        rows: of all its updates.
        sizes: bytes of a checkpoint, where there is one, and of all rows.
    """
    steps = _step_costs(run, rows, compiled=bool(life.compiled))
    if not steps:
        return None
    evaluations = [row["evaluation_seconds"] for row in rows if "evaluation_seconds" in row]
    usual = median(evaluations[1:] or evaluations) if evaluations else 0.0
    held_up = rows[-1]["seconds"] - rows[0]["seconds"] - sum(row["step_seconds"] + row.get("evaluation_seconds", 0.0) for row in rows[1:])
    saves = len([step for step in saves_of(run) if step < rows[-1]["step"]])
    of_saves = min(max(held_up, 0.0), life.seconds.get("save", 0.0))
    return Costs(
        source=source,
        measured_at=measured_at,
        conditions=life.conditions,
        recipe=f"{run.recipe}-{run.scale}",
        from_scratch=run.start is None,
        steps=steps,
        process_seconds=max(0.0, life.wall_seconds - sum(life.seconds.values())),
        start_seconds=life.seconds.get("start", 0.0) + life.seconds.get("restore", 0.0),
        finish_seconds=life.seconds.get("finish", 0.0),
        save_seconds=of_saves / saves if saves else None,
        last_save_seconds=life.seconds.get("save", 0.0) - of_saves,
        evaluation_seconds=usual / held_out_sequences(run) if evaluations else None,
        first_evaluation_seconds=max(0.0, evaluations[0] - usual) if evaluations else 0.0,
        checkpoint_bytes=sizes[0],
        row_bytes=sizes[1] / len(rows),
        peak_memory_bytes=life.peak_memory_bytes,
    )


def held_out_sequences(run: RunConfig) -> int:
    """Of one evaluation: of all components, and a second time where a moving average of the weights is kept."""
    each = 0 if run.evaluation is None else run.evaluation.sequences * len(run.evaluation.caches)
    return each * (2 if run.keeps_average else 1)


def saves_of(run: RunConfig) -> list[int]:
    """The steps at which the run saves, those of the clock left out."""
    policy = run.checkpoints
    due = {step for step in policy.at_steps if run.start_step < step < run.stop_step}
    first = (run.start_step // policy.every_steps + 1) * policy.every_steps
    return sorted({*due, *range(first, run.stop_step, policy.every_steps), run.stop_step})


def bytes_in(folder: Path) -> int:
    """Of all files below."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _step_costs(run: RunConfig, rows: Sequence[Row], *, compiled: bool) -> dict[str, StepCost]:
    """Of each batch size. A switch to another one compiles while the row of the update before it is waited for."""
    found: dict[str, StepCost] = {}
    starts = [place for place, row in enumerate(rows) if place == 0 or row["sequences"] != rows[place - 1]["sequences"]]
    for start, stop in zip(starts, [*starts[1:], len(rows)], strict=True):
        key = step_key(run, rows[start]["sequences"])
        usual = [row["step_seconds"] for row in rows[start + 1 : stop if stop == len(rows) else stop - 1]]
        if key in found or len(usual) < MIN_UPDATES:
            continue
        first = rows[start]["step_seconds"]
        if start:
            before = [row["step_seconds"] for row in rows[max(0, start - 1 - MAX_BLOCKS) : start - 1]]
            first += max(0.0, rows[start - 1]["step_seconds"] - (median(before) if before else 0.0))
        blocks = _block_means(usual)
        found[key] = StepCost(
            updates=len(usual),
            seconds=fmean(usual),
            low_seconds=min(blocks),
            high_seconds=max(blocks),
            first_seconds=first,
            compiled=compiled,
        )
    return found


def _block_means(seconds: Sequence[float]) -> list[float]:
    size = max(MIN_BLOCK, len(seconds) // MAX_BLOCKS)
    blocks = [seconds[start : start + size] for start in range(0, len(seconds), size)]
    return [fmean(block) for block in blocks if len(block) == size] or [fmean(seconds)]
