"""The shape of a model."""

from typing import Literal

from pydantic import Field, model_validator

from trainer.base.frozen import Frozen


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
    """A decoder of the Llama 3 family, or with `qk_norm` of the Qwen3 family. The same words as the field.

    Attributes:
        qk_norm: RMS norms, each with its gain, on the queries and keys of every head, before RoPE (Qwen3).
        tied_head: the head is the embedding, transposed.
        sliding_window: a position sees so many positions, itself included; None is all that come before it.
        attend_within_documents: a position sees what comes before it in its own document. Where it is False it sees all that comes before
            it in its row, the documents that were packed in front of its own included. Positions count through the row either way, and the
            first token of a document is predicted from the document before it either way.
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

    @model_validator(mode="after")
    def _heads_group(self) -> "ModelConfig":
        if self.num_query_heads % self.num_kv_heads:
            raise ValueError(f"num_query_heads must be a multiple of num_kv_heads, found {self.num_query_heads} and {self.num_kv_heads}")
        return self
