"""Where the values of Large come from."""

from phasewise.flows.recipes.provenance import RecordSources, Sources
from phasewise.flows.recipes.trinity.notes import REPORT, REVIEWS
from phasewise.flows.recipes.trinity.sources import BLANK, COMMON, notes, ours, prose

ONE = "low: one of them has it"
SEVERAL = "high: several agree"

LARGE: Sources = {
    **COMMON,
    "model.compute_dtype": prose("§6: BF16 in place of MXFP8"),
    "model.rope": ours("not stated: theta 10,000, as Nano's and Mini's"),
    "model.experts.balancing": notes(f"{REVIEWS}: sharpness 2, momentum 0.5", SEVERAL),
    "model.experts.balancing.rate": notes(f"{REVIEWS}: 5e-4", ONE),
    "model.experts.balancing.kind": prose("§2.3: SMEBU"),
    "model.experts.sequence_loss": notes(f"{REVIEWS}: 1e-4", ONE),
    "optimizer.adam_learning_rate_scale": notes(f"{REVIEWS}: 8e-4 and 2e-4", ONE),
    "learning_rate": notes(f"{REVIEWS}: peaks 8e-4 and 2e-4, a tenth of them at the end; {BLANK}", ONE),
    "learning_rate.start_step": notes(f"{REVIEWS}: 2,000 steps of warm-up", ONE),
    "learning_rate.end_step": notes(f"{REVIEWS}: 2,000 steps of warm-up, then to the phase's end", ONE),
    "batch": notes(f"{REVIEWS}: 12,288 sequences, 16,384 after 4.9 T tokens", ONE),
    "stability.z_loss": notes(f"{REVIEWS}: 1e-6, switched on at a step that is not stated", ONE),
    "slice": ours(f"2,048 B300 in the report ({REPORT}, §3.3); TPU slices of as many chips"),
}
DECAY: Sources = {
    "learning_rate.start_step": ours("the cosine begins after phase 1, at 11.05 T tokens; the report's figure is blank"),
    "learning_rate.end_step": prose("§3.4.2: the decay goes on to the end of pre-training"),
}

SOURCES_LARGE = RecordSources(
    LARGE,
    {
        "phase-2": DECAY,
        "phase-3": {**DECAY, "order.buffer_documents": notes(f"{REVIEWS}: 4,096 documents, a device", ONE)},
        "phase-3-without-buffer": {
            **DECAY,
            "name": ours("a branch that the report does not have"),
            "branch": ours("a branch that the report does not have"),
        },
        "first-runs": {
            "name": prose("§6: first few runs"),
            "stop_step": ours("not stated: about 1 T tokens"),
            "model.compute_dtype": ours("the runs had MXFP8 kernels, which are not here"),
            "model.attend_within_documents": prose("§6: adopted with the six changes, so off before"),
            "model.experts.num_dense_layers": prose("§6: three before the six changes"),
            "model.experts.balancing.kind": ours("SMEBU came with the six changes; sign updates as Nano's and Mini's"),
            "model.experts.balancing.rate": ours("as Nano's and Mini's"),
            "model.experts.sequence_loss": ours("it came with the six changes, so off before"),
            "stability.z_loss": notes(f"{REVIEWS}: the bug left no z-loss", "low: an inference"),
        },
    },
)
