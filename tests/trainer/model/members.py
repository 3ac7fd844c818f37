"""Which weights are in which group, written down a second time: what the table of weights must say."""

MEMBERS: dict[str, tuple[str, ...]] = {
    "embedding": ("embedding",),
    "attention": ("query", "key", "value", "output"),
    "mlp": ("gate", "up", "down"),
    "norms": ("attention_norm", "mlp_norm", "query_norm", "key_norm", "final_norm"),
    "lm_head": ("head",),
}
