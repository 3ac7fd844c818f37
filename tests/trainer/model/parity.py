"""Our decoder beside `transformers`: the same weights through a folder, the same tokens, logits and gradients of both.

Needs the extra `parity`; importing this module does not.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from phasewise.trainer.config import Experts, Llama3RopeScaling, ModelConfig, Rope
from phasewise.trainer.model.decoder import logits
from phasewise.trainer.model.hugging_face import from_tensors, read_folder, write_folder
from phasewise.trainer.model.params import Params, init_params

ROWS, LENGTH, QUERY_HEADS = 2, 40, 8
ROPES = {
    "plain": Rope(theta=10_000.0, scaling=None),
    "llama3": Rope(
        theta=10_000.0,
        scaling=Llama3RopeScaling(factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_max_positions=32),
    ),
}
DIRECTIONS = ("export", "import")
EXPERTS = Experts(
    num_experts=8, num_active=2, num_shared=1, d_expert=48, route_scale=2.826, num_dense_layers=2, balancing=None, sequence_loss=0.0
)


@dataclass(frozen=True)
class Case:
    """One model; `group` is query heads a kv head."""

    family: str
    group: int
    head_dim: int
    rope: str
    tied: bool
    window: int | None = None
    experts: Experts | None = None

    def __str__(self) -> str:
        head = "tied" if self.tied else "untied"
        window = "" if self.window is None else f", window {self.window}"
        window += "" if self.experts is None else f", {self.experts.num_active} of {self.experts.num_experts} experts"
        return f"{self.family}, {self.group} query heads a kv head, head_dim {self.head_dim}, {self.rope}, {head}{window}"

    @property
    def config(self) -> ModelConfig:
        """Two layers, d_model 128: a head_dim of 16 makes heads as wide as the stream, the others wider. AFMoE has nine layers."""
        model = self._dense
        if self.family != "afmoe":
            return model
        assert self.experts is not None
        return model.but(
            num_layers=9, global_attention_every=4, attention_gate=True, post_norms=True, embedding_scale=128**0.5, experts=self.experts
        )

    @property
    def _dense(self) -> ModelConfig:
        return ModelConfig(
            vocab_size=97,
            seq_len=64,
            num_layers=2,
            d_model=128,
            d_ff=80,
            num_query_heads=QUERY_HEADS,
            num_kv_heads=QUERY_HEADS // self.group,
            head_dim=self.head_dim,
            rope=ROPES[self.rope],
            rms_norm_epsilon=1e-5,
            initializer_std=0.1,
            compute_dtype="float32",
            qk_norm=self.family != "llama",
            tied_head=self.tied,
            sliding_window=self.window,
            float32_attention=False,
        )


def cases() -> Iterator[Case]:
    """Every ratio with every head size in both families; RoPE and head take turns, so that each meets each."""
    for family, (number, (group, head_dim)) in product(("llama", "qwen3"), enumerate(product((1, 2, 4, 8), (16, 64, 128)))):
        yield Case(family, group, head_dim, ("plain", "llama3")[number % 2], tied=number % 4 >= 2)
    yield Case("qwen3", 2, 16, "plain", tied=False, window=7)
    yield Case("afmoe", 2, 16, "plain", tied=False, window=7, experts=EXPERTS)
    yield Case("afmoe", 8, 64, "plain", tied=False, window=7, experts=EXPERTS.but(num_active=3, num_shared=2, num_dense_layers=0))


@dataclass(frozen=True)
class Measured:
    """`logits` is the largest absolute difference; `gradients` the largest of max|a - b| / max|b| over all weights."""

    logits: float
    gradients: float
    spread: float
    """Standard deviation of the logits: what the difference is to be seen against."""


def random_tokens() -> np.ndarray:
    return np.random.default_rng(7).integers(0, 97, (ROWS, LENGTH))


def random_params(config: ModelConfig) -> Params:
    """Gains between 0.5 and 1.5 and biases of the router, so that none can be left out or take another's place."""
    rng = np.random.default_rng(11)

    def drawn(path: Any, leaf: Any) -> Any:
        low, high = (0.5, 1.5) if "norm" in str(path[-1]) else (-0.2, 0.2)
        return rng.uniform(low, high, leaf.shape).astype(np.float32) if {"norm", "bias"} & set(str(path[-1].key).split("_")) else leaf

    return jax.tree_util.tree_map_with_path(drawn, init_params(3, config))


@partial(jax.jit, static_argnames="config")
def ours(params: Params, tokens: jax.Array, config: ModelConfig) -> tuple[jax.Array, Params]:
    """Logits, and the gradients of the mean cross-entropy of the next token."""

    def loss(params: Params) -> tuple[jax.Array, jax.Array]:
        found = logits(params, tokens, config)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(found[:, :-1]), tokens[:, 1:, None], axis=-1)
        return -jnp.mean(chosen), found

    gradients, found = jax.grad(loss, has_aux=True)(params)
    return found, gradients


def theirs(model: Any, tokens: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The same of a `transformers` model, gradients by their names."""
    torch: Any = import_module("torch")
    inputs = torch.from_numpy(tokens)
    found = model(input_ids=inputs, use_cache=False).logits
    torch.nn.functional.cross_entropy(found[:, :-1].flatten(0, 1), inputs[:, 1:].flatten()).backward()
    gradients = {
        name: np.zeros(tuple(weight.shape)) if weight.grad is None else weight.grad.numpy() for name, weight in model.named_parameters()
    }
    return found.detach().numpy(), as_stored(gradients)


def as_stored(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """By the names in a folder, where each expert has tensors of its own; in memory they are stacked, gate and up in one."""
    stored: dict[str, np.ndarray] = {}
    for name, weight in weights.items():
        stem, _, last = name.rpartition(".")
        if last == "gate_up_proj":
            for expert, (gate, up) in enumerate(np.split(both, 2) for both in weight):
                stored |= {f"{stem}.{expert}.gate_proj.weight": gate, f"{stem}.{expert}.up_proj.weight": up}
        elif last == "down_proj":
            stored |= {f"{stem}.{expert}.down_proj.weight": down for expert, down in enumerate(weight)}
        else:
            stored[name] = weight
    return stored


def load_theirs(folder: Path) -> Any:
    """The folder as `transformers` reads it, by its plainest attention."""
    torch = import_module("torch")
    transformers = import_module("transformers")
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


def exported(case: Case, folder: Path) -> tuple[Params, Any]:
    """Our weights, written by us and read by them."""
    params = random_params(case.config)
    write_folder(folder, params, case.config)
    return params, load_theirs(folder)


def imported(case: Case, folder: Path) -> tuple[Params, Any]:
    """Their weights, drawn and written by them and read by us. The shape is taken from a folder of ours."""
    torch = import_module("torch")
    _, model = exported(case, folder / "shape")
    torch.manual_seed(23)
    for name, weight in model.named_parameters():
        torch.nn.init.uniform_(weight, 0.5, 1.5) if "norm" in name else torch.nn.init.normal_(weight.data, std=0.1)
    model.save_pretrained(folder / "theirs")
    params, config = read_folder(folder / "theirs")
    assert config == case.config
    return params, model


def measure(case: Case, direction: str, folder: Path) -> Measured:
    """Both models on the same tokens."""
    params, model = (exported if direction == "export" else imported)(case, folder)
    tokens = random_tokens()
    found, found_gradients = ours(params, jnp.asarray(tokens), case.config)
    expected, expected_gradients = theirs(model, tokens)
    by_our_names = from_tensors(expected_gradients.__getitem__, case.config)
    ratios = jax.tree.map(lambda a, b: float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)), found_gradients, by_our_names)
    return Measured(float(np.abs(found - expected).max()), max(jax.tree.leaves(ratios)), float(expected.std()))
