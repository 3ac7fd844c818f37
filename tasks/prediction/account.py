"""What was predicted of a training, beside what it took."""

from pathlib import Path
from typing import Any

from tasks.prediction.predict import GIGABYTE, Prediction, read_prediction, words_of
from tasks.training.spent import AWAY, Spent, read_spent
from trainer.base.frozen import Frozen
from trainer.base.run_folder import RunFolder
from trainer.base.storage import read_json
from trainer.base.wording import about


class Account(Frozen):
    """A prediction, and what came of it.

    Attributes:
        took: None where the training has not ended.
        ratio: seconds that it took over seconds that were predicted; None where either is not known.
    """

    prediction: Prediction
    took: Spent | None
    ratio: float | None


def read_account(folder: Path) -> Account | None:
    """Of the run in a folder; None where nothing was predicted, or the prediction is of another run than the result."""
    prediction = read_prediction(folder)
    if prediction is None:
        return None
    spent = read_spent(folder) if _is_result_of(prediction, folder) else None
    ratio = _trained_seconds(spent) / prediction.seconds if spent and prediction.seconds else None
    return Account(prediction=prediction, took=spent, ratio=ratio)


def words_of_account(account: Account) -> str:
    """`predicted about 31 s, took about 29 s (6 % less)`; before the end, the prediction alone."""
    prediction, took = account.prediction, account.took
    if took is None:
        said = words_of(prediction)
        return said if prediction.seconds is None else f"predicted {said}"
    if account.ratio is None or prediction.seconds is None:
        return f"took {about(_trained_seconds(took))}; {words_of(prediction)}"
    off = round(100 * (account.ratio - 1))
    how = "as predicted" if off == 0 else f"{abs(off)} % {'more' if off > 0 else 'less'}"
    said = f"predicted {about(prediction.seconds)}, took {about(_trained_seconds(took))} ({how}"
    said += f", in {took.lives} lives)" if took.lives > 1 else ")"
    if prediction.memory_of == "process" and prediction.memory_bytes and took.peak_memory_bytes:
        measured = f"{took.peak_memory_bytes / GIGABYTE:.2f} GB"
        said += f"; memory {'up to ' * prediction.is_most_memory}{prediction.memory_bytes / GIGABYTE:.2f} GB, measured {measured}"
    without = f", without {', '.join(prediction.left_out)}" if prediction.left_out else ""
    return f"{said}; by {prediction.source}{without}"


def _trained_seconds(spent: Spent) -> float:
    """Without the time in which a machine was lost and nobody went on."""
    return spent.wall_seconds - spent.seconds.get(AWAY, 0.0)


def _is_result_of(prediction: Prediction, folder: Path) -> bool:
    try:
        result: Any = read_json(RunFolder(folder).result)
    except (OSError, ValueError):
        return False
    return isinstance(result, dict) and result.get("run_digest") == prediction.run_digest
