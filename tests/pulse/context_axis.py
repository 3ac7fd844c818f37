"""How nearly rows that are cut along their positions give the losses and gradients of one device: `python -m tests.pulse.context_axis OUT`.

Small models of float32 on eight virtual devices of this CPU: the same weights and tokens, once on one device and once on each mesh, with
two parts of the batch and chunks of the loss. OUT gets `context_axis.json` and a table, `context_axis.md`.
"""

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tests.trainer.eight_devices import run_on_eight_devices
from trainer.config import Execution, Experts, Mesh, ModelConfig, Rope
from trainer.gradients import mean_gradients
from trainer.loss import LossSums
from trainer.model.params import Params, init_params
from trainer.sharding import build_mesh, on_mesh, place_batch, state_shardings
from trainer.step import build_objective

DEVICES = 8
ROWS, SEQ_LEN, Z_LOSS = 8, 64, 1e-3
Measures = dict[str, float | str]
EXPERTS = Experts(
    num_experts=8, num_active=2, num_shared=1, d_expert=16, route_scale=2.0, num_dense_layers=1, balancing=None, sequence_loss=1e-2
)
TRINITY: dict[str, Any] = {
    "num_layers": 4, "sliding_window": 12, "global_attention_every": 4, "attention_gate": True, "post_norms": True, "qk_norm": True,
    "experts": EXPERTS,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "dense, one document a row": {"attend_within_documents": False},
    "dense, documents apart": {},
    "windows, global layers, experts, documents apart": TRINITY,
}
PLAIN = (Mesh(context=2), Mesh(context=4), Mesh(context=8), Mesh(context=4, fsdp=2), Mesh(context=4, tensor=2))
MESHES: dict[str, tuple[Mesh, ...]] = {
    "dense, one document a row": (Mesh(context=4),),
    "dense, documents apart": PLAIN,
    "windows, global layers, experts, documents apart": (*PLAIN, Mesh(context=2, expert=2, fsdp=2), Mesh(context=2, expert=4)),
}


def model_of(name: str) -> ModelConfig:
    """Of `MODELS`."""
    sizes: dict[str, Any] = {
        "vocab_size": 128, "seq_len": SEQ_LEN, "num_layers": 2, "d_model": 32, "d_ff": 48, "num_query_heads": 4, "num_kv_heads": 2,
    }  # fmt: skip
    plain = {"head_dim": 8, "qk_norm": False, "tied_head": False, "sliding_window": None, "float32_attention": False}
    numbers = {"rms_norm_epsilon": 1e-5, "initializer_std": 0.1, "compute_dtype": "float32"}
    return ModelConfig.model_validate({**sizes, **plain, **numbers, "rope": Rope(theta=10_000.0, scaling=None), **MODELS[name]})


def batch_of(model: ModelConfig) -> tuple[np.ndarray, np.ndarray]:
    """Tokens, and documents of random length with padding behind the last, as packed rows have it."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, model.vocab_size, (ROWS, model.seq_len), dtype=np.int32)
    ids = 1 + np.cumsum(rng.random(tokens.shape) < 4 / model.seq_len, axis=1, dtype=np.int32)
    ids[:, -5:] = 0
    return tokens, ids


def gradients_on(model: ModelConfig, mesh: Mesh | None) -> tuple[LossSums, Params]:
    """Sums of the loss, and gradients, in two parts of the batch; the loss in chunks that do not divide a device's part of a row."""
    cut = Execution() if mesh is None else Execution(mesh=mesh)
    execution = cut.but(microbatch_sequences=ROWS // 2, loss_chunk_tokens=ROWS // 2 * 3 * cut.mesh.context)
    objective = build_objective(model, execution)
    devices = None if mesh is None else build_mesh(mesh, jax.devices()[: mesh.devices])

    def measure(params: Params, tokens: jax.Array, ids: jax.Array) -> tuple[LossSums, Params]:
        return mean_gradients(objective, params, (tokens, ids), z_loss=Z_LOSS, microbatch_sequences=ROWS // 2)

    params = init_params(0, model)
    if devices is not None:
        params = jax.device_put(params, state_shardings(params, model, devices))
    tokens, ids = batch_of(model)
    found = jax.jit(on_mesh(measure, devices))(params, place_batch(tokens, devices), place_batch(ids, devices))
    return jax.device_get(found)


@cache
def alone(name: str) -> tuple[LossSums, Params]:
    """On one device."""
    return gradients_on(model_of(name), None)


def compare(name: str, mesh: Mesh) -> Measures:
    """The differences to one device, as shares: of the loss; of gradients for each weight of its largest, and of these the largest."""
    (sums, grads), (cut_sums, cut_grads) = alone(name), gradients_on(model_of(name), mesh)
    shares = jax.tree.map(lambda one, other: float(np.max(np.abs(one - other)) / max(np.max(np.abs(one)), 1e-30)), grads, cut_grads)
    found: Measures = {
        "model": name,
        "mesh": " × ".join(f"{axis} {size}" for axis, size in mesh.model_dump().items() if size > 1),
        "loss": abs(float(cut_sums.cross_entropy / sums.cross_entropy) - 1),
        "gradients": max(share for share in jax.tree.leaves(shares)),
    }
    if sums.routing is not None and cut_sums.routing is not None:
        found["routed otherwise"] = int(np.abs(sums.routing.load.counts - cut_sums.routing.load.counts).sum())
    assert float(sums.tokens) == float(cut_sums.tokens), f"{sums.tokens} tokens are predicted on one device, {cut_sums.tokens} on {mesh}"
    return found


def table(measures: list[Measures]) -> str:
    """In Markdown."""
    head = "| model | mesh | loss | gradients | tokens routed otherwise |\n| --- | --- | ---: | ---: | ---: |\n"
    rows = (f"| {m['model']} | {m['mesh']} | {m['loss']:.1e} | {m['gradients']:.1e} | {m.get('routed otherwise', '–')} |" for m in measures)
    return head + "\n".join(rows) + "\n"


def main(folder: Path, names: tuple[str, ...] = tuple(MODELS), most: int | None = None) -> list[Measures]:
    """All models, or some, each on so many of its meshes."""
    folder.mkdir(parents=True, exist_ok=True)
    measures: list[Measures] = []
    for name in names:
        for mesh in MESHES[name][:most]:
            measures.append(compare(name, mesh))
    (folder / "context_axis.json").write_text(json.dumps(measures, indent=1))
    (folder / "context_axis.md").write_text(table(measures))
    return measures


if __name__ == "__main__":
    if len(jax.devices()) == DEVICES:
        is_tiny = "--tiny" in sys.argv
        main(Path(sys.argv[1]), tuple(MODELS)[:1] if is_tiny else tuple(MODELS), 1 if is_tiny else None)
    else:
        run_on_eight_devices(Path(__file__), *map(Path, sys.argv[1:]))
        print((Path(sys.argv[1]) / "context_axis.md").read_text())
