"""Models and steps for the tests of preflight."""

from phasewise.trainer.config import AdamW, Experts, Llama3RopeScaling, ModelConfig, Rope
from phasewise.trainer.preflight.spec import StepShape

ROPE = Rope(
    theta=500_000, scaling=Llama3RopeScaling(factor=8, low_frequency_factor=1, high_frequency_factor=4, original_max_positions=8192)
)
ADAMW = AdamW(kind="adamw", beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.05)


def llama(**sizes: int | bool | Experts) -> ModelConfig:
    fields = {
        "vocab_size": 128_256, "seq_len": 4096, "num_layers": 32, "d_model": 4096, "d_ff": 14_336, "num_query_heads": 32, "num_kv_heads": 8,
        "head_dim": 128, "rope": ROPE, "rms_norm_epsilon": 1e-5, "initializer_std": 0.02, "compute_dtype": "bfloat16", "qk_norm": False,
        "tied_head": False, "sliding_window": None, "float32_attention": False,
    }  # fmt: skip
    return ModelConfig.model_validate({**fields, **sizes})


LLAMA_8B = llama()
LLAMA_32B = llama(d_model=5120, d_ff=27_648, num_query_heads=40, num_layers=64)
SMALL = llama(vocab_size=1024, seq_len=256, num_layers=6, d_model=256, d_ff=512, num_query_heads=2, num_kv_heads=1)
EXPERTS = Experts(
    num_experts=8, num_active=2, num_shared=1, d_expert=256, route_scale=2.0, num_dense_layers=2, balancing=None, sequence_loss=0.0
)
SPARSE = SMALL.but(post_norms=True, experts=EXPERTS)  # two dense layers and four with experts


def step_of(model: ModelConfig, batch_sequences: int, *, window: int | None = None, keeps_average: bool = True) -> StepShape:
    return StepShape(
        model=model, optimizer=ADAMW, batch_sequences=batch_sequences, keeps_average=keeps_average, clips_update_rms=False,
        update_norm_window=window, skip_step_window=window,
    )  # fmt: skip
