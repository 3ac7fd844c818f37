"""The experts of a sparse model, and how the load on them is balanced."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from phasewise.trainer.base.frozen import Frozen


class SignBalancing(Frozen):
    """Each update moves an expert's bias by ± `rate`, up where it had fewer tokens than the mean (Wang et al., 2024); then re-centred."""

    kind: Literal["sign"]
    rate: float = Field(gt=0)


class Smebu(Frozen):
    """Soft-clamped momentum expert bias updates (Trinity Large, §4): `rate` · tanh(`sharpness` · relative lack), re-centred, averaged.

    Attributes:
        rate: λ, the largest step before re-centring.
        sharpness: κ.
        momentum: β of the average of the steps.
    """

    kind: Literal["smebu"]
    rate: float = Field(gt=0)
    sharpness: float = Field(gt=0)
    momentum: float = Field(ge=0, lt=1)


Balancing = Annotated[SignBalancing | Smebu, Field(discriminator="kind")]


class Experts(Frozen):
    """A mixture of experts in place of the MLP: sigmoid scores, a bias in the choice alone, gates that sum to `route_scale`.

    Attributes:
        num_active: how many of `num_experts` each token has.
        num_shared: experts that every token has, as one MLP of `num_shared` · `d_expert`.
        d_expert: the hidden size of each expert.
        route_scale: what the gates of a token sum to.
        num_dense_layers: so many layers at the beginning have an MLP of d_ff instead.
        balancing: how the bias moves after each update; None leaves it where it is.
        sequence_loss: weight of the sequence-wise balance loss (DeepSeek-V3, eq. 17–20); 0 is off.
    """

    num_experts: int = Field(gt=1)
    num_active: int = Field(gt=0)
    num_shared: int = Field(ge=0)
    d_expert: int = Field(gt=0)
    route_scale: float = Field(gt=0)
    num_dense_layers: int = Field(ge=0)
    balancing: Balancing | None
    sequence_loss: float = Field(ge=0)

    @model_validator(mode="after")
    def _are_enough(self) -> "Experts":
        if self.num_active > self.num_experts:
            raise ValueError(f"num_active must be at most num_experts, found {self.num_active} of {self.num_experts}")
        return self
