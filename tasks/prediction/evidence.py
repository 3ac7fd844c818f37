"""What is known of this machine: phases that were trained here, and calibrations."""

from contextlib import suppress
from pathlib import Path

from tasks.home import Home
from tasks.prediction.conditions import conditions_here
from tasks.prediction.costs import Costs, read_costs
from trainer.base.run_folder import SPENT_NAME
from trainer.base.storage import digest_of_json, read_json, write_json

MAX_RUNS = 60
"""So many of the newest runs are looked at: a prediction must cost no more than it is worth."""


def known_costs(home: Home) -> list[Costs]:
    """Of all phases that were trained, and of all calibrations, under the conditions of now. What does not read is passed over.

    Raises:
        TrainingError: jax does not start.
    """
    conditions = conditions_here()
    found = [*_of_phases(home), *_of_calibrations(home)]
    return [costs for costs in found if costs.conditions == conditions]


def keep_calibration(home: Home, costs: Costs) -> None:
    """Have it known from now on; it takes the place of one of the same."""
    key = digest_of_json([costs.conditions, costs.recipe, sorted(costs.steps)])
    write_json(home.calibrations / f"{key[:16]}.json", costs.model_dump(mode="json"))


def _of_phases(home: Home) -> list[Costs]:
    lines = [path for path in home.runs.glob(f"*/*/{SPENT_NAME}") if not path.parent.name.startswith(".")]
    newest = sorted(lines, key=_changed, reverse=True)[:MAX_RUNS]
    found: list[Costs] = []
    for path in newest:
        with suppress(OSError, ValueError, KeyError, TypeError, IndexError):
            folder = path.parent
            if costs := read_costs(folder, f"{folder.name} of {folder.parent.name}, trained here"):
                found.append(costs)
    return found


def _of_calibrations(home: Home) -> list[Costs]:
    found: list[Costs] = []
    for path in home.calibrations.glob("*.json"):
        with suppress(OSError, ValueError):
            found.append(Costs.model_validate(read_json(path)))
    return found


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
