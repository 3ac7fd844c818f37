"""Adam's direction and its kin: optax's parts, every value stated."""

import optax

from phasewise.trainer.config import AdamC, AdamW, NAdamW


def scale_by_adam(config: AdamW | AdamC | NAdamW) -> optax.GradientTransformation:
    """Bias-corrected m / (√v + epsilon) (Kingma and Ba, 2015, Algorithm 1), and for NAdamW with Nesterov's momentum.

    Nesterov's is optax's: m' = beta1 · m / (1 - beta1^(t+1)) + (1 - beta1) · g / (1 - beta1^t), v as Adam's (Dozat, 2016, Algorithm 2
    without its further factor beta2 on v). Levanter's `nesterov` flag, which the record's NAdamW run used, is the same part.
    """
    return optax.scale_by_adam(
        b1=config.beta1, b2=config.beta2, eps=config.epsilon, eps_root=0.0, mu_dtype=None, nesterov=config.kind == "nadamw"
    )
