"""Causes of a step's loss for `phasewise why`: rows with their documents, components, layers, declared changes, and a replay of the step.

A score counts standard deviations over the `WINDOW` steps before. The median score of all rows of the step is common to them: it is left
to the layers and the changes, and rows and components have the rest. The score of a row is the distance of its loss and its text from the
rows of its component before (Mahalanobis, 1936), because a small model predicts ordinary text badly: its loss alone does not name garbage.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from phasewise.flows.recipes.phase import HandOff
from phasewise.flows.trace.trace_context import Traced
from phasewise.flows.trace.trace_query import excerpts, predicted, trained_at
from phasewise.tasks.training.run_identity import read_run
from phasewise.tasks.training.time_breakdown import read_attempts
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.run_folder import RunFolder, read_events
from phasewise.trainer.config import RunConfig
from phasewise.trainer.data.loader import Loader
from phasewise.trainer.metrics import ALL_GROUPS, Row, read_metrics
from phasewise.trainer.row_losses import read_row_losses

WINDOW, MIN_SAMPLES = 32, 4
CLEAR = 3.0  # score of a loss that is a rise or a fall
NEAR_STEPS, HALVED_STEPS = 16, 4  # a change counts for `NEAR_STEPS` steps, and its score halves every `HALVED_STEPS` steps
MIN_STD = 0.02  # smallest deviation of a loss in nats, and of the logarithm of a norm
CAUSING = (("param_norm", 0), ("param_norm", 1), *((f"{name}_norm", 1) for name in ("update", "grad", "first_moment", "second_moment")))
"""Norms that precede the loss of a step, and how many steps before it. The other norms of the step follow from its batch."""
MAX_SHOWN, MAX_PIECES = 8, 32
TEXT_ROWS, MIN_TEXT_ROWS = 512, 16  # rows before the step whose tokens are compared, and the fewest rows of a component for a comparison
TEXT_MEASURES = ("rarity", "variety")
RIDGE = 0.02  # added to the correlations of the measures of rows, so that few rows cannot make them singular


class Expected(NamedTuple):
    """Mean and standard deviation that earlier values foretell."""

    mean: float
    std: float

    def score(self, value: float) -> float:
        """Return the deviation of a value from the mean."""
        return (value - self.mean) / self.std


def expected_at(step: int, steps: Sequence[float] | np.ndarray, values: Sequence[float] | np.ndarray) -> Expected | None:
    """Continue the line through earlier values to `step`. None for fewer than `MIN_SAMPLES` values."""
    x, y = np.asarray(steps, float) - step, np.asarray(values, float)
    x, y = x[np.isfinite(y)], y[np.isfinite(y)]
    if len(y) < MIN_SAMPLES:
        return None
    line = np.polyfit(x, y, 1) if len(np.unique(x)) > MIN_SAMPLES else np.array([0.0, y.mean()])
    return Expected(float(line[1]), max(float(np.std(y - np.polyval(line, x))), MIN_STD))


def explain(traced: Traced, step: int, *, replays: bool = False) -> dict[str, Any]:
    """Return the causes in the shape of `phasewise why --json`. `replays`: also train the step again from a checkpoint.

    Raises DataError if the run has no metrics of the step, and ConfigError for a step of another phase.
    """
    phase, recipe = traced.phases[0], traced.resolved.recipe
    trained = trained_at(traced, phase, step, 0)  # refuses other steps
    run = read_run(traced.resolved.home.run(recipe.run_name, phase.phase.name))
    rows = [row for row in read_metrics(RunFolder(run.output).metrics) if row["step"] >= step - WINDOW] if run else []
    losses = {row["step"]: row["loss"] for row in rows if row["loss"] is not None}
    if run is None or not trained or step not in losses:
        found = f"steps {rows[0]['step']} to {rows[-1]['step']}" if rows else "no training"
        raise DataError(f"step {step} of {phase.phase.name}: expected its loss in metrics.jsonl, found {found}. Name a trained step.")
    before = {one: loss for one, loss in losses.items() if one < step}
    expected = expected_at(step, list(before), list(before.values()))
    score = expected.score(losses[step]) if expected else 0.0
    kind = "in line"
    if abs(score) >= CLEAR:
        after = [loss for one, loss in losses.items() if 0 < one - step <= 2 * HALVED_STEPS][-HALVED_STEPS:]
        is_gone = bool(after) and expected is not None and np.median(after) < (losses[step] + expected.mean) / 2
        kind = "fall" if score < 0 else "spike" if is_gone else "rise"
    elif expected and before and expected.mean - np.mean(list(before.values())[: WINDOW // 2]) > CLEAR * expected.std:
        kind = "slope"

    scored, common, components = _rows(traced, run, step)
    remarks = [] if scored else [f"{run.output} has no losses of the rows of step {step}: an earlier version trained it."]
    common = score if common is None else common
    direction = math.copysign(1.0, score) if abs(score) >= CLEAR else 0.0  # a rise is of rows with a high loss
    shown = sorted(scored, key=lambda row: (direction * row["score"] < 0, -row["deviation"]))[:MAX_SHOWN]
    for row in shown:
        of_row = trained_at(traced, phase, step, row["row"])
        each = zip(of_row, excerpts(traced, of_row), predicted(traced, of_row), strict=True)
        row["documents"] = sorted((one.as_json(text, count) for one, text, count in each), key=lambda one: -one["predicted"])
    replayed = None
    if replays:
        from phasewise.trainer.replay import replay  # it imports JAX

        pieces = [(row, one) for row in shown for one in row["documents"]][:MAX_PIECES]
        replayed = replay(run, step, [(row["row"], one["at"], one["tokens"]) for row, one in pieces])
        for (row, one), loss in zip(pieces, replayed.pop("pieces"), strict=True):
            one["loss"], one["score"] = loss, (loss - row["expected"]) / row["std"] - common
        for row in shown:
            row["documents"].sort(key=lambda one: -abs(one.get("score", 0.0)))
        shown.sort(key=lambda row: -abs(row["documents"][0].get("score", 0.0)))
    layers, changes = _layers(rows, step), _changes(traced, run, step, abs(common))
    named = [
        *(("row", f"row {row['row']} of {row['component']}", row["deviation"]) for row in shown),
        *(("component", one["component"], abs(one["score"])) for one in components),
        *(("layer", one["name"], min(abs(one["score"]), abs(common))) for one in layers),  # layers and changes move all rows
        *(("change", one["what"], one["score"]) for one in changes),
    ]
    causes = [dict(zip(("kind", "name", "score"), one, strict=True)) for one in sorted(named, key=lambda one: -one[2])]
    return {
        "recipe": recipe.name, "scale": recipe.scale, "phase": phase.phase.name, "step": step, "loss": losses[step],
        "expected": expected and expected.mean, "score": score, "kind": kind, "common": common, "causes": causes, "rows": shown,
        "components": components, "layers": layers, "changes": changes, "replay": replayed, "remarks": remarks,
    }  # fmt: skip


def _rows(traced: Traced, run: RunConfig, step: int) -> tuple[list[dict[str, Any]], float | None, list[dict[str, Any]]]:
    """Return the rows of the step with scores, the median score (None without losses), and the components with scores."""
    losses = read_row_losses(RunFolder(run.output).row_losses, max(step - WINDOW, run.start_step + 1), step)
    if step not in losses:
        return [], None, []
    order, current = traced.phases[0].order, losses.pop(step)
    steps = np.concatenate([np.zeros(0), *(np.full(len(of_step), one) for one, of_step in losses.items())])
    numbers = np.concatenate([np.zeros(0), *(order.components_of(one - 1) for one in losses)])
    values, mine = np.concatenate([np.zeros(0), *losses.values()]), order.components_of(step - 1)
    # the first steps: rows are compared with each other
    among = Expected(float(np.nanmedian(current)), max(float(np.nanstd(current)), MIN_STD))
    of_all = expected_at(step, steps, values) or among
    expected = {number: expected_at(step, steps[numbers == number], values[numbers == number]) or of_all for number in set(mine.tolist())}
    scores = np.array([expected[number].score(value) for number, value in zip(mine.tolist(), current.tolist(), strict=True)])
    common = float(np.nanmedian(scores)) if np.isfinite(scores).sum() >= MIN_SAMPLES else 0.0
    texts = _texts(run, step, mine, {one: order.components_of(one - 1) for one in losses}, losses)
    rows: list[dict[str, Any]] = []
    for place in np.flatnonzero(np.isfinite(scores)).tolist():
        known = {"row": place, "component": order.names[mine[place]], "loss": float(current[place])}
        rows.append({**known, **expected[mine[place]]._asdict(), "score": float(scores[place]) - common, **dict.fromkeys(TEXT_MEASURES)})
        rows[-1]["expected"] = rows[-1].pop("mean")
        rows[-1]["deviation"] = abs(rows[-1]["score"])
        if place in texts:
            deviations = np.array([rows[-1]["score"], *texts[place].deviations])
            rows[-1] |= dict(zip(TEXT_MEASURES, deviations[1:].tolist(), strict=True))
            rows[-1]["deviation"] = float(np.sqrt(deviations @ np.linalg.solve(texts[place].correlations, deviations)))
    components: list[dict[str, Any]] = []
    for number, name in ((number, order.names[number]) for number in expected):
        found = scores[(mine == number) & np.isfinite(scores)]  # the median: one bad row is not a bad component
        components.append({"component": name, "rows": len(found), "score": float(np.median(found)) - common if len(found) > 2 else 0.0})
    return rows, common, sorted(components, key=lambda one: -abs(one["score"]))


class RowText(NamedTuple):
    """Deviations of a row's `TEXT_MEASURES`, and the correlations of loss and measures among the rows before, 3 × 3."""

    deviations: np.ndarray
    correlations: np.ndarray


def _texts(
    run: RunConfig, step: int, mine: np.ndarray, before: Mapping[int, np.ndarray], losses: Mapping[int, np.ndarray]
) -> dict[int, RowText]:
    """Compare the tokens of the step's rows with rows of their components in the steps before. Rows of small components are left out.

    The rarity of a row is the mean of -log p of its tokens, p their share in the other rows. Its variety is the entropy of its own tokens.
    `mine` and `before` have the components of the rows of the step and of the steps before.
    """
    loader, steps, count = Loader(run), list[int](), 0
    for at in sorted(before, reverse=True):
        if count < TEXT_ROWS:
            steps.append(at)
            count += len(before[at])
    if not steps:
        return {}
    now, tokens = loader.batch(step - 1).tokens, np.concatenate([loader.batch(at - 1).tokens for at in steps])
    of_rows, values = (np.concatenate([one[at] for at in steps]) for one in (before, losses))
    found: dict[int, RowText] = {}
    for number in set(mine.tolist()):
        others = np.flatnonzero((of_rows == number) & np.isfinite(values))
        if len(others) < MIN_TEXT_ROWS:
            continue
        counts = np.bincount(tokens[others].ravel(), minlength=run.model.vocab_size)
        measured = [_text_measures(row, counts, is_counted=True) for row in tokens[others]]
        usual = np.column_stack([values[others], measured])
        mean, std = usual.mean(0)[1:], np.maximum(usual.std(0)[1:], MIN_STD)
        correlations = np.nan_to_num(np.corrcoef(usual.T)) + RIDGE * np.eye(3)
        for place in np.flatnonzero(mine == number).tolist():
            found[place] = RowText((_text_measures(now[place], counts, is_counted=False) - mean) / std, correlations)
    return found


def _text_measures(row: np.ndarray, counts: np.ndarray, *, is_counted: bool) -> np.ndarray:
    """Return rarity and variety of a row of tokens in nats per token. `counts` are of all rows, with this row if `is_counted`."""
    tokens, times = np.unique(row, return_counts=True)
    others = counts[tokens] - times * is_counted
    rarity = np.log(counts.sum() - len(row) * is_counted + len(counts)) - np.log(others + 1)  # one more of each token
    share = times / len(row)
    return np.array([share @ rarity, share @ -np.log(share)])


def _layers(rows: Sequence[Row], step: int) -> list[dict[str, Any]]:
    """Return weights by the largest deviation of a causing norm, of each layer if the run has these norms, otherwise of groups."""
    by_step, found = {row["step"]: row for row in rows}, dict[str, dict[str, Any]]()
    for kind, lag in CAUSING:
        names = [name.partition("/")[2] for name in by_step.get(step - lag, {}) if name.startswith(f"{kind}/")]
        for weight in [name for name in names if name not in ALL_GROUPS] or names:
            norms: dict[int, float] = {}
            for at, row in by_step.items():
                rate = row["learning_rate"] if kind == "update_norm" else 1.0
                if at <= step - lag and rate and row.get(f"{kind}/{weight}"):
                    norms[at] = math.log(row[f"{kind}/{weight}"] / rate)
            now = norms.pop(step - lag, math.nan)
            usual = expected_at(step - lag, list(norms), list(norms.values()))
            if usual and abs(score := usual.score(now)) > abs(found.get(weight, {"score": 0.0})["score"]):
                layer, factor = weight.partition("/")[2], math.exp(now - usual.mean)
                known = {"name": weight, "layer": int(layer) if layer else None, "norm": kind, "step": step - lag}
                found[weight] = {**known, "factor": factor, "score": score}
    return sorted(found.values(), key=lambda one: -abs(one["score"]))[:MAX_SHOWN]


def _changes(traced: Traced, run: RunConfig, step: int, common: float) -> list[dict[str, Any]]:
    """Return the changes of the last steps, scored by their distance and by the deviation that all rows of the step share."""
    phase, order = traced.phases[0].phase, traced.phases[0].order
    noted: list[tuple[int, str]] = []  # the first step that has the change
    if isinstance(phase.start, HandOff):
        noted.append((run.start_step + 1, f"hand-off from {phase.start.parent}, changes {', '.join(phase.start.declares) or 'nothing'}"))
    noted += [(one.start_step + 1, f"learning rate: {one.kind} from {one.start:g} to {one.end:g}") for one in run.learning_rate]
    for name, values in {"batch": run.batch, "mixture": run.mixture, "slice": phase.slice, **dict(run.stability)}.items():
        noted += [(at + 1, f"{name.replace('_', ' ')}: {value}") for at, value in values.within(run.start_step, run.stop_step)[1:]]
    for event in read_events(run.output):
        if isinstance(event.get("step"), int):
            noted.append((event["step"] + 1, f"{str(event.get('kind')).replace('_', ' ')}: {event.get('text')}"))
    restarts = [one.from_step for one in read_attempts(RunFolder(run.output).path) if one.from_step > run.start_step]
    noted += [(at + 1, f"restart from the checkpoint of step {at:,}") for at in restarts]
    begins: dict[tuple[int, int], int] = {}
    for at in range(max(run.start_step + 1, step - NEAR_STEPS), step + 1):
        draws = order.of_update(at - 1)
        begins = {**dict.fromkeys(zip(draws.component.tolist(), draws.epoch.tolist(), strict=True), at), **begins}
    passes = {(number, epoch): at for (number, epoch), at in begins.items() if (number, epoch - 1) in begins}
    noted += [(at, f"{order.names[number]}: pass {epoch + 1} over the component begins") for (number, epoch), at in passes.items()]
    near = [one for one in noted if run.start_step < one[0] <= step < one[0] + NEAR_STEPS]
    changes = [{"step": at, "what": what, "score": common * 0.5 ** ((step - at) / HALVED_STEPS)} for at, what in near]
    return sorted(changes, key=lambda one: -float(one["score"]))
