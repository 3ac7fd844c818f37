"""A process with eight devices: trains runs on their meshes and on one device, and writes down what differs. `test_sharding.py` starts it.

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python on_eight_devices.py CASES.json FOUND.json

CASES.json is a list of names and runs; those of one name differ only in their mesh. For each, FOUND.json has what `compare` gives.
"""

import re
import sys
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import numpy as np

from phasewise.trainer.base.storage import read_json, write_json
from phasewise.trainer.checkpoints.state import leaves_of, state_to_start_from
from phasewise.trainer.config import RunConfig
from phasewise.trainer.data.loader import Loader
from phasewise.trainer.interventions import scheduled_at
from phasewise.trainer.sharding import place_batch, run_mesh, state_shardings
from phasewise.trainer.step import StepMetrics, TrainState, build_train_step, init_state

COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")


class Trained(NamedTuple):
    """The tokens and documents of each update, what it measured, the state after the first and after the last, and the compiled program."""

    batches: list[tuple[np.ndarray, np.ndarray]]
    measured: list[StepMetrics]
    first: TrainState
    last: TrainState
    program: str


def compare(run: RunConfig, alone: Trained, together: Trained, mesh: jax.sharding.Mesh) -> dict[str, Any]:
    """The differences between the run on its mesh and on one device, and where everything lies on the mesh."""
    return {
        "same_batches": all(map(np.array_equal, alone.batches, together.batches)),
        "losses": [[float(one.loss), float(other.loss)] for one, other in zip(alone.measured, together.measured, strict=True)],
        "measured": differences(alone.measured, together.measured), "first": differences(alone.first, together.first),
        "last": differences(alone.last, together.last), "placed": placed(run, together.last, mesh),
        "bytes": [sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(together.last)), size(alone.last)],
        "collectives": {kind: exchanged(together.program, kind) for kind in COLLECTIVES},
    }  # fmt: skip


def exchanged(program: str, kind: str) -> list[str]:
    """The shapes that the compiled program exchanges by this kind of collective."""
    results = re.findall(rf"= (.*?) {kind}(?:-start)?\(", program)
    return sorted({shape for result in results for shape in re.findall(r"\w+\[[\d,]*\]", result)})


def train(run: RunConfig, mesh: jax.sharding.Mesh | None) -> Trained:
    loader = Loader(run)
    build = build_train_step(run.model, run.optimizer, run.execution, mesh)
    shardings = None if mesh is None else state_shardings(jax.eval_shape(lambda: init_state(run)), run.model, mesh)
    state = state_to_start_from(run, shardings)
    step, first, measured, batches = None, None, [], []
    for number, batch in enumerate(loader.batches(run.start_step, run.stop_step)):
        rows = place_batch(batch.tokens, mesh), place_batch(batch.segment_ids, mesh)
        given = state, *rows, scheduled_at(run, number), *(() if batch.targets is None else (place_batch(batch.targets, mesh),))
        step = step or cast(Any, build).lower(*given).compile()
        state, values = step(*given)
        measured.append(jax.device_get(values))
        batches.append(jax.device_get(rows))
        first = first or cast(TrainState, jax.tree.map(np.array, state))
    assert first is not None
    assert step is not None
    return Trained(batches, measured, first, state, step.as_text())


def differences(alone: Any, together: Any) -> dict[str, float]:
    """Leaf → the largest difference between two of its numbers; what is infinite must be so in both."""
    pairs = zip(leaves_of(alone).items(), leaves_of(together).values(), strict=True)
    return {name: difference(np.array(one, np.float64), np.array(other, np.float64)) for (name, one), other in pairs}


def difference(one: np.ndarray, other: np.ndarray) -> float:
    finite = np.isfinite(one)
    assert np.array_equal(one[~finite], other[~finite])
    return float(np.max(np.abs(one[finite] - other[finite]), initial=0.0))


def placed(run: RunConfig, state: TrainState, mesh: jax.sharding.Mesh) -> dict[str, dict[str, Any]]:
    """Leaf → its shape, the shape of the shard on one device, over how many devices it differs, and whether it lies as the table says."""
    wanted = leaves_of(state_shardings(state, run.model, mesh))
    return {
        name: {
            "shape": list(leaf.shape),
            "shard": list(leaf.addressable_shards[0].data.shape),
            "pieces": len({str(shard.index) for shard in leaf.addressable_shards}),
            "as_declared": leaf.sharding.is_equivalent_to(wanted[name], leaf.ndim),
        }
        for name, leaf in leaves_of(state).items()
    }


def size(state: TrainState) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(state))


def main(cases: Path, found: Path) -> None:
    assert len(jax.devices()) == 8
    alone: dict[str, Trained] = {}
    results: list[dict[str, Any]] = []
    for name, fields in read_json(cases):
        run = RunConfig.model_validate(fields)
        if name not in alone:
            alone[name] = train(run.but(execution=run.execution.but(remat="none")), None)
        mesh = run_mesh(run)
        assert mesh is not None
        results.append(compare(run, alone[name], train(run, mesh), mesh))
    write_json(found, results)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
