"""Optimizers, by `kind`. The learning rate is the run's; every decay is added before the learning rate is applied."""

from typing import Annotated, Literal

from pydantic import Field

from phasewise.trainer.base.frozen import Frozen


class Adam(Frozen):
    """What every kind of Adam states (Kingma and Ba, 2015)."""

    beta1: float = Field(ge=0, lt=1)
    beta2: float = Field(ge=0, lt=1)
    epsilon: float = Field(gt=0)
    weight_decay: float = Field(ge=0)


class AdamW(Adam):
    """Adam with decoupled decay (Loshchilov and Hutter, 2019): effective decay = learning rate × `weight_decay`."""

    kind: Literal["adamw"]


class AdamC(Adam):
    """AdamW whose decay is `weight_decay` × learning rate / `peak_learning_rate` (Defazio, 2025)."""

    kind: Literal["adamc"]
    peak_learning_rate: float = Field(gt=0)


class NAdamW(Adam):
    """AdamW with Nesterov's momentum (Dozat, 2016)."""

    kind: Literal["nadamw"]


class Muon(Frozen):
    """Muon for the matrices of the blocks, AdamW for embedding, head and gains (Jordan et al., 2024).

    Attributes:
        epsilon: added to the norm that a matrix is divided by before the Newton–Schulz steps.
        adam_learning_rate_scale: the rate of AdamW's group is the run's learning rate × this.
        max_adam_grad_norm: clips the gradients of AdamW's group by the norm of that group, after `stability.max_grad_norm`. None is off.
    """

    kind: Literal["muon"]
    momentum: float = Field(ge=0, lt=1)
    nesterov: bool
    newton_schulz_steps: int = Field(gt=0)
    epsilon: float = Field(gt=0)
    weight_decay: float = Field(ge=0)
    adam: AdamW
    adam_learning_rate_scale: float = Field(gt=0)
    max_adam_grad_norm: float | None = Field(default=None, gt=0, allow_inf_nan=False)


Optimizer = Annotated[AdamW | AdamC | NAdamW | Muon, Field(discriminator="kind")]
