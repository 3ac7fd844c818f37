"""Whether what a phase was trained on is what its recipe and the caches in the home give now."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from phasewise.tasks.training.run_identity import noted_caches, read_run
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.storage import as_path, read_json
from phasewise.trainer.checkpoints.files import is_committed, saved_steps
from phasewise.trainer.config import RunConfig
from phasewise.trainer.data.contract import changed_since, compared_by
from phasewise.trainer.data.loader import CONTRACT_OF_ROWS, Loader, packing_of
from phasewise.trainer.passed_over import NOTHING, PassedOver, read_passed_over

Trained = Literal["as traced", "otherwise", "not here"]


class TrainedOrder(NamedTuple):
    """Whether a run in the home had this order of the data, and what of it was other; nothing where no run was begun.

    Attributes:
        passed_over: the updates that the run passed over with their data: of them nothing was trained.
    """

    trained: Trained
    differs: tuple[str, ...] = ()
    passed_over: PassedOver = NOTHING


def compare_with_trained(run: RunConfig) -> TrainedOrder:
    """Compare the order of a run as it would be now with what its folder says of the run that was begun there.

    The contract in the last checkpoint is asked; before the first one, `run.json` and what was written down of the caches.
    """
    folder = as_path(run.output)
    if not RunFolder(folder).run_file.exists():
        return TrainedOrder("not here")
    passed_over = read_passed_over(folder)
    now = Loader(run).contract()
    was = _contract_of_checkpoint(RunFolder(folder).checkpoints) or _contract_of_run(folder, now)
    if was is None:
        return TrainedOrder("otherwise", ("the run that is written there does not read",))
    differs = [words for name in changed_since(was, now, run) for words in _words(name, was, now)]
    return TrainedOrder("otherwise" if differs else "as traced", tuple(differs), passed_over)


def _words(name: str, was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    if name != "components" or name not in was:
        return [name.replace("_", " ")]
    before, after = was[name], now[name]
    return [f"the cache of {one}" for one in sorted({*before, *after}) if _is_other(before.get(one), after.get(one))]


def _is_other(was: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> bool:
    if was is None or now is None:
        return was is not now
    by = compared_by(was, now)
    return (was[by], was["rows"]) != (now[by], now["rows"])


def _contract_of_checkpoint(folder: Path) -> dict[str, Any] | None:
    """As Orbax keeps it: a JSON file. Orbax itself takes seconds to import."""
    for step in reversed(saved_steps(folder)):
        path = folder / str(step) / "about" / "metadata"
        if is_committed(folder / str(step)) and path.exists():
            return read_json(path)["contract"]
    return None


def _contract_of_run(folder: Path, now: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a run's settings say; the version of the permutation and the rows of unchanged caches are taken to be those of now."""
    written = read_run(folder)
    if written is None:
        return None
    noted = noted_caches(folder, written)
    components = {
        name: {"manifest": written.cache_name(name), "rows": now["components"].get(name, {}).get("rows")}
        | ({"content": noted[name]} if name in noted else {})
        for name in written.caches
    }
    order = written.order
    without_packing = {name: value for name, value in now.items() if name not in CONTRACT_OF_ROWS}
    return {
        **without_packing,
        "seed": order.seed,
        "permutation": {**now["permutation"], "kind": order.permutation},
        **packing_of(written),
        "block_sequences": order.block_sequences,
        "rounding": order.rounding,
        "first_step": order.first_step,
        "seq_len": written.model.seq_len,
        "batch": written.batch.model_dump(mode="json"),
        "mixture": written.mixture.model_dump(mode="json"),
        "components": components,
    }
