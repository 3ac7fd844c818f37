"""The shape of a model."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from phasewise.trainer.base.frozen import Frozen


class SignBalancing(Frozen):
    """Move an expert's bias by ± `rate`, up if it had fewer tokens than the mean (Wang et al., 2024), then re-centre."""

    kind: Literal["sign"]
    rate: float = Field(gt=0)


class Smebu(Frozen):
    """Soft-clamped momentum expert bias updates (Trinity Large, §4): `rate` · tanh(`sharpness` · relative lack), re-centred, averaged."""

    kind: Literal["smebu"]
    rate: float = Field(gt=0)  # λ
    sharpness: float = Field(gt=0)  # κ
    momentum: float = Field(ge=0, lt=1)  # β of the average


Balancing = Annotated[SignBalancing | Smebu, Field(discriminator="kind")]


class Experts(Frozen):
    """Experts in place of the MLP: sigmoid scores, a bias only in the selection, gates that sum to `route_scale`."""

    num_experts: int = Field(gt=1)
    num_active: int = Field(gt=0)
    num_shared: int = Field(ge=0)  # experts of every token, as one MLP of `num_shared` · `d_expert`
    d_expert: int = Field(gt=0)
    route_scale: float = Field(gt=0)
    num_dense_layers: int = Field(ge=0)  # first layers, with an MLP of d_ff
    balancing: Balancing | None  # update of the bias, None for a constant bias
    sequence_loss: float = Field(ge=0)  # weight of the sequence-wise balance loss (DeepSeek-V3, eq. 17–20), 0 for off

    @model_validator(mode="after")
    def _are_enough(self) -> "Experts":
        if self.num_active > self.num_experts:
            raise ValueError(f"num_active must be at most num_experts, found {self.num_active} of {self.num_experts}")
        return self


class Llama3RopeScaling(Frozen):
    """The frequency-dependent stretch of Llama 3.1. `original_max_positions` is in tokens."""

    factor: float = Field(gt=0)
    low_frequency_factor: float = Field(gt=0)
    high_frequency_factor: float = Field(gt=0)
    original_max_positions: int = Field(gt=0)


class Rope(Frozen):
    """Rotary position embedding."""

    theta: float = Field(gt=0)
    scaling: Llama3RopeScaling | None


class ModelConfig(Frozen):
    """A decoder of the Llama 3 family, with QK norms (Qwen3) and all parts of the AFMoE family as options."""

    vocab_size: int = Field(gt=0)
    seq_len: int = Field(gt=1)
    num_layers: int = Field(gt=0)
    d_model: int = Field(gt=0)
    d_ff: int = Field(gt=0)
    num_query_heads: int = Field(gt=0)
    num_kv_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0, multiple_of=2)
    rope: Rope
    rms_norm_epsilon: float = Field(gt=0)
    initializer_std: float = Field(gt=0)
    compute_dtype: Literal["float32", "bfloat16"]
    qk_norm: bool  # RMS norms with gains on the queries and keys of every head, before RoPE (Qwen3)
    tied_head: bool  # the head is the transposed embedding
    sliding_window: int | None = Field(gt=0)  # positions that a position sees, including itself. None is all earlier positions.
    float32_attention: bool  # float32 queries, keys, values and products (Marin's upcast attention). Softmax is always float32.
    # A position sees only its own document, otherwise all earlier positions of its row. Positions always count through the row.
    attend_within_documents: bool = True
    global_attention_every: int | None = Field(default=None, gt=1)  # period of layers with full attention and without RoPE
    attention_gate: bool = False  # factor of the heads' output, the sigmoid of a product of attention's input
    post_norms: bool = False  # norms after attention and MLP, before the addition, with initial gains 1 / √num_layers
    embedding_scale: float = Field(default=1.0, gt=0)  # factor of a token's embedding
    initializer_cutoff: float | None = Field(default=None, gt=0)  # maximum of initial weights in standard deviations
    experts: Experts | None = None  # None is an MLP in every layer

    @model_validator(mode="after")
    def _fits_together(self) -> "ModelConfig":
        if self.num_query_heads % self.num_kv_heads:
            raise ValueError(f"num_query_heads must be a multiple of num_kv_heads, found {self.num_query_heads} and {self.num_kv_heads}")
        if self.global_attention_every is not None and self.sliding_window is None:
            raise ValueError("global_attention_every needs a sliding_window for the layers between, found None")
        if self.experts is not None and self.experts.num_dense_layers >= self.num_layers:
            found = f"{self.experts.num_dense_layers} of {self.num_layers}"
            raise ValueError(f"experts.num_dense_layers must leave layers for the experts, found {found}")
        return self
