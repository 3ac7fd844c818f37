"""The shape of a model."""

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


class Llama3RopeScaling(Frozen):
    """The frequency-dependent stretch of Llama 3.1; `original_max_positions` is in tokens."""

    factor: float = Field(gt=0)
    low_frequency_factor: float = Field(gt=0)
    high_frequency_factor: float = Field(gt=0)
    original_max_positions: int = Field(gt=0)


class Rope(Frozen):
    """Rotary position embedding."""

    theta: float = Field(gt=0)
    scaling: Llama3RopeScaling | None


class ModelConfig(Frozen):
    """A decoder of the Llama 3 family, with `qk_norm` of the Qwen3 family, with every part of the AFMoE family, in the words of the field.

    Attributes:
        qk_norm: RMS norms, each with its gain, on the queries and keys of every head, before RoPE (Qwen3).
        tied_head: the head is the embedding, transposed.
        sliding_window: a position sees so many positions, itself included; None is all that come before it.
        attend_within_documents: a position sees what comes before it in its own document. Where it is False it sees all that comes before
            it in its row, the documents that were packed in front of its own included. Positions count through the row either way, and the
            first token of a document is predicted from the document before it either way.
        global_attention_every: each so-manieth layer sees all that comes before and has no RoPE; the others have `sliding_window` and RoPE.
            None is RoPE and `sliding_window` in every layer.
        attention_gate: what the heads give is multiplied, element by element, by a sigmoid of a product of the attention's input.
        post_norms: a norm behind attention and one behind the MLP, before each is added; their gains begin at 1 / √num_layers.
        embedding_scale: what a token's embedding is multiplied by.
        initializer_cutoff: weights are drawn from a normal distribution cut off at so many standard deviations; None is not cut off.
        experts: experts in place of the MLP; None is an MLP in every layer.
        float32_attention: queries, keys, values and their products are float32 (what the record calls upcast attention); softmax always is.
    """

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
    qk_norm: bool
    tied_head: bool
    sliding_window: int | None = Field(gt=0)
    float32_attention: bool
    attend_within_documents: bool = True
    global_attention_every: int | None = Field(default=None, gt=1)
    attention_gate: bool = False
    post_norms: bool = False
    embedding_scale: float = Field(default=1.0, gt=0)
    initializer_cutoff: float | None = Field(default=None, gt=0)
    experts: Experts | None = None

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
