"""Which kernel runs where, and what is said where one that was named cannot."""

from typing import Any

import jax.numpy as jnp
import pytest

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.config import ModelConfig
from phasewise.trainer.kernels.attention import attend, check_kernel


def changed(model: ModelConfig, **changes: Any) -> ModelConfig:
    return model.but(**changes)


@pytest.mark.parametrize(
    ("platform", "changes", "expected"),
    [
        ("tpu", {}, "splash"),
        ("tpu", {"compute_dtype": "bfloat16"}, "splash"),
        ("cpu", {"compute_dtype": "bfloat16"}, "xla"),
        ("gpu", {"compute_dtype": "bfloat16"}, "cudnn"),
        ("gpu", {"compute_dtype": "float32"}, "xla"),
        ("gpu", {"compute_dtype": "bfloat16", "float32_attention": True}, "xla"),
        ("gpu", {"compute_dtype": "bfloat16", "head_dim": 20}, "xla"),
        ("gpu", {"compute_dtype": "bfloat16", "seq_len": 33}, "xla"),
    ],
)
def test_auto_takes_what_can_run(platform: str, changes: dict[str, Any], expected: str, model: ModelConfig):
    assert check_kernel("auto", platform, changed(model, **changes)) == expected


@pytest.mark.parametrize(
    ("kernel", "platform", "changes", "reason"),
    [
        ("cudnn", "cpu", {"compute_dtype": "bfloat16"}, "needs an NVIDIA GPU, found cpu"),
        ("cudnn", "gpu", {"compute_dtype": "float32"}, "bfloat16 or float16 .* found float32"),
        ("cudnn", "gpu", {"compute_dtype": "bfloat16", "float32_attention": True}, "found float32"),
        ("cudnn", "gpu", {"compute_dtype": "bfloat16", "head_dim": 20}, "multiple of 8 and at most 256, found 20"),
        ("cudnn", "gpu", {"compute_dtype": "bfloat16", "head_dim": 264}, "found 264"),
        ("cudnn", "gpu", {"compute_dtype": "bfloat16", "seq_len": 33}, "even number of tokens .* found 33"),
        ("splash", "cpu", {}, "needs a TPU, found cpu"),
        ("splash", "gpu", {}, "needs a TPU, found gpu"),
        ("flash", "cpu", {}, "one of auto, splash, cudnn, xla, found flash"),
    ],
)
def test_a_kernel_that_cannot_run_is_refused(kernel: str, platform: str, changes: dict[str, Any], reason: str, model: ModelConfig):
    with pytest.raises(ConfigError, match=f"execution.attention.*{reason}"):
        check_kernel(kernel, platform, changed(model, **changes))


@pytest.mark.parametrize(("kernel", "platform"), [("xla", "cpu"), ("xla", "tpu"), ("splash", "tpu")])
def test_a_kernel_that_can_run_is_taken(kernel: str, platform: str, model: ModelConfig):
    assert check_kernel(kernel, platform, model) == kernel


def test_attend_refuses_too():
    one = jnp.ones((1, 2, 1, 8), jnp.bfloat16)
    with pytest.raises(ConfigError, match="needs an NVIDIA GPU, found cpu"):
        attend(one, one, one, None, kernel="cudnn")
