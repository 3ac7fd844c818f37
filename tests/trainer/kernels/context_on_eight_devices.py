"""A process with eight devices: attention over rows that are cut along positions, against one device. `test_context.py` starts it.

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python context_on_eight_devices.py CASES.json FOUND.json

For each case of CASES.json, FOUND.json has the largest difference of the result and of each gradient, as a share of the largest number.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from phasewise.trainer.base.storage import read_json, write_json
from phasewise.trainer.config import Mesh
from phasewise.trainer.kernels import attention, splash, xla
from phasewise.trainer.kernels.attention import attend
from phasewise.trainer.sharding import build_mesh, named_sharding, on_mesh

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 16
FUSED = splash.MAX_FUSED_BLOCKS
Arrays = dict[str, jax.Array]


def operands(length: int, *, documents: bool) -> tuple[tuple[jax.Array, ...], jax.Array | None]:
    """Queries, keys, values and what gradients begin with; documents end within the parts of the mesh and across them."""
    rng = np.random.default_rng(length)
    arrays = (rng.normal(size=(2, length, heads, HEAD_DIM)) for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS))
    ids = np.cumsum(rng.random((2, length)) < 5 / length, axis=1) if documents else None
    return tuple(jnp.asarray(array, jnp.float32) for array in arrays), None if ids is None else jnp.asarray(ids, jnp.int32)


def measure(run: Any, arrays: tuple[jax.Array, ...], ids: jax.Array | None) -> Arrays:
    query, key, value, above = arrays
    result, back = jax.vjp(lambda query, key, value: run(query, key, value, ids), query, key, value)
    return dict(zip(("result", "query", "key", "value"), (result, *back(above)), strict=True))


def compare(case: dict[str, Any]) -> dict[str, float]:
    arrays, ids = operands(case["length"], documents=case["documents"])
    window = case["window"]
    plain = jax.jit(partial(measure, partial(xla.attend, sliding_window=window)))(arrays, ids)
    splash.MAX_FUSED_BLOCKS = case["max_fused_blocks"] or FUSED
    mesh = build_mesh(Mesh.model_validate(case["mesh"]))
    if case["kernel"] == "splash":
        splash.build_kernel.cache_clear()
        run = partial(attention.attend_in_parts, kernel="splash", sliding_window=window, interpret=True)
    else:
        run = partial(attend, sliding_window=window)
    cut = jax.jit(on_mesh(partial(measure, run), mesh))(*jax.device_put((arrays, ids), named_sharding(mesh)))
    return {name: float(jnp.max(jnp.abs(plain[name] - cut[name])) / jnp.max(jnp.abs(plain[name]))) for name in plain}


if __name__ == "__main__":
    write_json(Path(sys.argv[2]), [compare(case) for case in read_json(Path(sys.argv[1]))])
