"""The update direction, before the learning rate: optax's parts, every value stated."""

import optax

from trainer.config import AdamW, ModelConfig, Optimizer
from trainer.model.params import decay_mask


def build_optimizer(config: Optimizer, model: ModelConfig) -> optax.GradientTransformation:
    """AdamW (Loshchilov and Hutter, 2019) without its learning rate: the step multiplies by it, and a schedule compiles nothing anew."""
    assert isinstance(config, AdamW)
    return optax.chain(
        optax.scale_by_adam(b1=config.beta1, b2=config.beta2, eps=config.epsilon, eps_root=0.0, mu_dtype=None, nesterov=False),
        optax.add_decayed_weights(config.weight_decay, mask=decay_mask(model)),
    )
