"""What a phase will take, put together of what was measured on this machine; or, for another slice, what preflight reports of it."""

import os
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from tasks.prediction.costs import Costs, StepCost, held_out_sequences, middle_of, saves_of, step_keys
from trainer.base.errors import ConfigError
from trainer.base.frozen import Frozen
from trainer.base.run_folder import RunFolder
from trainer.base.storage import read_json, write_json
from trainer.base.wording import about, megabytes, number, small
from trainer.config import RunConfig

PRICE_VARIABLE = "PHASEWISE_USD_PER_HOUR"
"""What an hour of what a phase trains on costs, all of it together."""
COMPILED_SHARE = 0.2
"""Of the first update's extra time that is left where the compiled step is there: tracing and reading it (proxy phases: 0.13 to 0.25)."""
MAX_MEASUREMENTS = 5
"""Of one batch shape, whose middle is taken (docs/measurements/scales.md)."""
MIN_ERROR = 0.1
OTHER_ERROR = 0.25
"""Of all that is not an update: starts, compilation, checkpoints, evaluation."""
HOUR_SECONDS, GIGABYTE = 3600, 1e9
LEFT_OUT_RESTORE = "reading the weights that it starts from"
LEFT_OUT_EVALUATION = "evaluation"
LEFT_OUT_SAVES = "checkpoints before the last"
LEFT_OUT_PREFLIGHT = ("start", "compilation", "evaluation", "checkpoints")


class Prediction(Frozen):
    """What a phase was predicted to take, before it began.

    Attributes:
        run_digest: of the run that it is of.
        steps: updates that it is for: all of the phase.
        seconds: wall time of its training; None where nothing is predicted.
        low_seconds, high_seconds: where it should lie, if the machine is as busy as it was while this was measured; None where unknown.
        parts: work → seconds; they add up to `seconds`.
        memory_bytes: the most that the trainer's process holds, or what a chip holds; None where unknown.
        memory_of: whose it is.
        is_most_memory: it was measured where the step was compiled, which takes memory, and this time it is read.
        bytes_written, bytes_kept: checkpoints and metrics, and what of them stays; None where unknown.
        checkpoints: how many are written.
        usd: by `usd_per_hour`; None where no price was named.
        source: what it rests on, in words; where nothing is predicted, why.
        left_out: what is not in it.
    """

    run_digest: str
    steps: int
    source: str
    seconds: float | None = None
    low_seconds: float | None = None
    high_seconds: float | None = None
    parts: dict[str, float] = Field(default={})
    memory_bytes: int | None = None
    memory_of: Literal["process", "chip"] = "process"
    is_most_memory: bool = False
    bytes_written: int | None = None
    bytes_kept: int | None = None
    checkpoints: int | None = None
    usd_per_hour: float | None = None
    usd: float | None = None
    left_out: tuple[str, ...] = ()


def predict(run: RunConfig, known: Sequence[Costs], *, is_from_scratch: bool, usd_per_hour: float | None = None) -> Prediction:
    """By what is known of each batch size: the middle of the newest measurements, back to the last calibration.

    Args:
        known: what was measured under the conditions of now.
        is_from_scratch: whether the phase begins with new weights.
    """
    keys = step_keys(run)
    newest = sorted(known, key=lambda costs: costs.measured_at, reverse=True)
    found = {size: _usual(newest, key) for size, key in keys.items()}
    steps = run.stop_step - run.start_step
    if missing := [size for size, costs in found.items() if costs is None]:
        sizes = ", ".join(map(str, missing))
        why = f"no update like its own ({sizes} sequences) was measured on this machine with this version"
        return Prediction(run_digest=run.digest, steps=steps, source=why)
    by_size = {size: costs for size, costs in found.items() if costs is not None}
    main = by_size[max(keys, key=lambda size: _updates(run)[size])]
    compiled = {key for costs in newest if costs.recipe == f"{run.recipe}-{run.scale}" for key in costs.steps}
    at_work = {size: (costs.steps[keys[size]], keys[size] in compiled) for size, costs in by_size.items()}
    parts, left_out = _parts(run, at_work, main, is_from_scratch=is_from_scratch)
    low, high = _range(run, at_work, parts)
    seconds = sum(parts.values())
    size = main.checkpoint_bytes
    written, kept = _saves(run, parts["step"] / steps)
    rows = round(main.row_bytes * steps)
    return Prediction(
        run_digest=run.digest,
        steps=steps,
        seconds=seconds,
        low_seconds=low,
        high_seconds=high,
        parts=parts,
        memory_bytes=main.peak_memory_bytes,
        is_most_memory=_is_read(main, at_work),
        bytes_written=None if size is None else written * size + rows,
        bytes_kept=None if size is None else kept * size + rows,
        checkpoints=written,
        usd_per_hour=usd_per_hour,
        usd=None if usd_per_hour is None else seconds / HOUR_SECONDS * usd_per_hour,
        source="; ".join(dict.fromkeys(costs.source for costs in by_size.values())),
        left_out=left_out,
    )


def _usual(newest_first: Sequence[Costs], key: str) -> Costs | None:
    """Of the updates with this key; None where none was measured."""
    measured: list[Costs] = []
    for costs in newest_first:
        if key in costs.steps:
            measured.append(costs)
            if costs.is_calibration or len(measured) == MAX_MEASUREMENTS:
                break
    return middle_of(measured, key) if measured else None


def predict_slice(run: RunConfig, reports: Sequence[Mapping[str, Any]], usd_per_hour: float | None = None) -> Prediction:
    """By preflight's reports of all setups of the phase: its updates alone."""
    steps = run.stop_step - run.start_step
    where = " and ".join(dict.fromkeys(report["slice"] for report in reports))
    if (others := steps - sum(report["steps"] for report in reports)) > 0:
        why = f"{others:,} updates are made on this machine, and preflight has a time of those on {where} alone"
        return Prediction(run_digest=run.digest, steps=steps, source=why)
    if any(report["step_seconds"] is None for report in reports):
        return Prediction(run_digest=run.digest, steps=steps, source=f"preflight has no time of a step for {where}")
    seconds = sum(report["steps"] * report["step_seconds"] for report in reports)
    how = "estimate" if any(report["estimated"] for report in reports) else "roofline"
    return Prediction(
        run_digest=run.digest,
        steps=steps,
        seconds=seconds,
        parts={"step": seconds},
        memory_bytes=round(max(report["gib_per_chip"]["peak"] for report in reports) * 2**30),
        memory_of="chip",
        usd_per_hour=usd_per_hour,
        usd=None if usd_per_hour is None else seconds / HOUR_SECONDS * usd_per_hour,
        source=f"preflight's {how} for {where}",
        left_out=LEFT_OUT_PREFLIGHT,
    )


def price_per_hour(environment: Mapping[str, str] = os.environ) -> float | None:
    """What `PHASEWISE_USD_PER_HOUR` says; None where it is not set.

    Raises:
        ConfigError: it is no price.
    """
    text = environment.get(PRICE_VARIABLE, "")
    if not text:
        return None
    try:
        price = float(text)
    except ValueError:
        price = -1.0
    if not (price >= 0 and isfinite(price)):
        raise ConfigError(f"{PRICE_VARIABLE} must be dollars an hour, such as 2.50, found '{text}'. Correct it, or leave it unset.")
    return price


def words_of(prediction: Prediction) -> str:
    """In one line: `about 31 s (27 to 36 s), 0.9 GB of memory, 33 checkpoints (535.4 MB written, 32.4 MB stay); by kestrel, …`."""
    if prediction.seconds is None:
        return f"not predicted: {prediction.source}"
    said = [about(prediction.seconds)]
    if prediction.low_seconds is not None and prediction.high_seconds is not None:
        said[0] += f" ({_plainly(prediction.low_seconds)} to {_plainly(prediction.high_seconds)})"
    if prediction.memory_bytes:
        where = "memory" if prediction.memory_of == "process" else "memory a chip"
        said.append(f"{'up to ' * prediction.is_most_memory}{prediction.memory_bytes / GIGABYTE:.1f} GB of {where}")
    if prediction.bytes_written is not None and prediction.bytes_kept is not None:
        written, kept = megabytes(prediction.bytes_written), megabytes(prediction.bytes_kept)
        said.append(f"{prediction.checkpoints} checkpoint{'' if prediction.checkpoints == 1 else 's'} ({written} written, {kept} stay)")
    if prediction.usd is not None and prediction.usd_per_hour is not None:
        said.append(f"${small(prediction.usd, 2)} at ${number(prediction.usd_per_hour)} an hour")
    without = f", without {', '.join(prediction.left_out)}" if prediction.left_out else ""
    return f"{', '.join(said)}; by {prediction.source}{without}"


def note_prediction(folder: Path, prediction: Prediction) -> None:
    """Keep it in the run's folder. What was predicted of this run before it first began stays."""
    kept = read_prediction(folder)
    if kept is None or kept.run_digest != prediction.run_digest:
        write_json(RunFolder(folder).prediction, prediction.model_dump(mode="json"))


def read_prediction(folder: Path) -> Prediction | None:
    """What was predicted of the run in a folder; None where nothing was, or it does not read."""
    try:
        return Prediction.model_validate(read_json(RunFolder(folder).prediction))
    except (OSError, ValueError, ValidationError):
        return None


def _parts(
    run: RunConfig, at_work: Mapping[int, tuple[StepCost, bool]], main: Costs, *, is_from_scratch: bool
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Work → seconds, and what is not in them."""
    updates = _updates(run)
    parts = {"process": main.process_seconds, "finish": main.finish_seconds}
    parts["compile"] = sum(_extra_of_first(step, is_compiled=is_compiled) for step, is_compiled in at_work.values())
    parts["step"] = sum(updates[size] * step.seconds for size, (step, _) in at_work.items())
    left_out: list[str] = []
    if is_from_scratch == main.from_scratch:
        parts["start"] = main.start_seconds
    else:
        left_out.append("making its first weights" if is_from_scratch else LEFT_OUT_RESTORE)
    saves = _saves(run, parts["step"] / sum(updates.values()))[0]
    parts["save"] = main.last_save_seconds + (saves - 1) * (main.save_seconds or 0.0)
    if saves > 1 and main.save_seconds is None:
        left_out.append(LEFT_OUT_SAVES)
    if run.evaluation is not None and main.evaluation_seconds is None:
        left_out.append(LEFT_OUT_EVALUATION)
    elif run.evaluation is not None and main.evaluation_seconds is not None:
        usual = main.evaluation_seconds * held_out_sequences(run)
        first = main.first_evaluation_seconds * (COMPILED_SHARE if _is_read(main, at_work) else 1.0)
        parts["evaluation"] = _evaluations(run) * usual + first
    return parts, tuple(left_out)


def _is_read(main: Costs, at_work: Mapping[int, tuple[StepCost, bool]]) -> bool:
    """Whether what `main` compiled is read this time."""
    return any(step.compiled for step in main.steps.values()) and all(is_compiled for _, is_compiled in at_work.values())


def _extra_of_first(step: StepCost, *, is_compiled: bool) -> float:
    """What the first update takes beyond the others."""
    extra = max(0.0, step.first_seconds - step.seconds)
    if step.compiled and is_compiled:
        return extra * COMPILED_SHARE
    return extra if step.compiled or is_compiled else extra / COMPILED_SHARE


def _updates(run: RunConfig) -> dict[int, int]:
    """Sequences → how many updates have so many."""
    found: dict[int, int] = {}
    entries = run.batch.within(run.start_step, run.stop_step)
    for (start, size), stop in zip(entries, [*(step for step, _ in entries[1:]), run.stop_step], strict=True):
        found[size] = found.get(size, 0) + stop - start
    return found


def _evaluations(run: RunConfig) -> int:
    assert run.evaluation is not None
    every = run.evaluation.every_steps
    return len({*range((run.start_step // every + 1) * every, run.stop_step, every), run.stop_step})


def _saves(run: RunConfig, step_seconds: float) -> tuple[int, int]:
    """How many checkpoints are written, and how many of them stay. Those of the clock come between the others."""
    steps, policy = saves_of(run), run.checkpoints
    between = 0
    if policy.every_minutes is not None:
        gaps = zip([run.start_step, *steps], steps, strict=False)
        between = sum(int(max(0, stop - start - 1) * step_seconds // (60 * policy.every_minutes)) for start, stop in gaps)
    kept = {*filter(policy.keeps, steps), *steps[-2:]}
    return len(steps) + between, len(kept)


def _range(run: RunConfig, at_work: Mapping[int, tuple[StepCost, bool]], parts: Mapping[str, float]) -> tuple[float, float]:
    updates = _updates(run)
    low = sum(updates[size] * min(step.low_seconds, (1 - MIN_ERROR) * step.seconds) for size, (step, _) in at_work.items())
    high = sum(updates[size] * max(step.high_seconds, (1 + MIN_ERROR) * step.seconds) for size, (step, _) in at_work.items())
    others = sum(parts.values()) - parts["step"]
    return low + (1 - OTHER_ERROR) * others, high + (1 + OTHER_ERROR) * others


def _plainly(seconds: float) -> str:
    return about(seconds).removeprefix("about ")
