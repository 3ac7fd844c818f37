"""Where the values of Nano and Mini come from."""

from phasewise.flows.recipes.provenance import Provenance, RecordSources, Sources
from phasewise.flows.recipes.trinity.notes import CARD, REPORT

CODE = "transformers 5.23, models/afmoe"
BLANK = "blank in the text of the report that is kept"


def code(place: str) -> Provenance:
    """Public code of the family."""
    return Provenance(kind="code", place=place)


def prose(section: str) -> Provenance:
    """The report."""
    return Provenance(kind="prose", place=f"{REPORT}, {section}")


def notes(place: str, confidence: str) -> Provenance:
    """Public notes, and how far they are trusted: high where several independent ones agree or it is the model's own card."""
    return Provenance(kind="notes", place=f"{place}; confidence {confidence}")


def ours(place: str) -> Provenance:
    """This project."""
    return Provenance(kind="ours", place=place)


COMMON: Sources = {
    "name": prose("§3.1, the phases' numbers"),
    "branch": ours("which phases are the main line"),
    "abandoned": ours("which runs were stopped before their schedule's end"),
    "schedule_goes_on": ours("whether the phase that follows goes on with the last segment"),
    "packing": prose("§3.2: documents are packed into sequences"),
    "loss_on": ours("every token of the text is predicted; nothing else is stated"),
    "recovery": ours("nobody has written down a rule for it: what diverges stops"),
    "start": ours("each phase goes on from the one before it"),
    "start.seed": ours("no seed is stated"),
    "start.declares": ours("what a hand-off changes must be declared"),
    "stop_step": prose("§3.1, the phases' tokens, divided by the batch"),
    "model": prose("§3.4.1, the table"),
    "model.rope": notes(f"{CARD}: theta 10,000, no stretch", "high"),
    "model.initializer_std": prose("§2.5: 0.5 / √d_model, which the table prints rounded"),
    "model.initializer_cutoff": ours("three standard deviations; the report says truncated, and not where"),
    "model.compute_dtype": ours("not stated for this model: BF16, as Large's"),
    "model.qk_norm": prose("§2.2"),
    "model.attend_within_documents": prose("§3.2"),
    "model.global_attention_every": prose("§2.2: three local layers to a global one"),
    "model.attention_gate": prose("§2.2"),
    "model.post_norms": prose("§2.4"),
    "model.embedding_scale": code(
        f"{CODE}: √d_model where mup_enabled, false by default and true in the models' configuration; the report's figure (§2.5) is blank"
    ),
    "model.experts.balancing": notes(f"{CARD}: load_balance_coeff 0.001", "high"),
    "model.experts.balancing.kind": prose("§2.3"),
    "model.experts.sequence_loss": ours("off: the report names it for Large only"),
    "optimizer": ours("not stated; the codes that the run's was changed from differ"),
    "optimizer.kind": prose("§3.4.2: Muon for the matrices of the layers, AdamW for embedding and head"),
    "optimizer.adam_learning_rate_scale": notes(f"{CARD}: 1e-3 and 2e-4", "high"),
    "learning_rate": notes(f"{CARD}: 1e-3 for Muon, constant; {BLANK}", "high"),
    "learning_rate.kind": prose("§3.4.2"),
    "learning_rate.start_step": ours("2,000 steps of warm-up, as Large's; the phases' ends"),
    "learning_rate.end_step": ours("2,000 steps of warm-up, as Large's; the phases' ends"),
    "batch": ours(f"{BLANK}: 4,096 sequences, twice as many after phase 1"),
    "mixture": ours("shares are not published; kinds and phases: Trinity Large report, §3.1"),
    "order": ours("the run read a stream; here packed rows are permuted"),
    "stability": ours("off where nothing is stated"),
    "stability.max_grad_norm": ours("not stated: 1.0"),
    "stability.z_loss": ours("not stated for this model: 1e-4, which the report planned for Large"),
    "slice": ours("512 H200 in the report (§3.3); a TPU slice of as many chips"),
    "checkpoints": ours("not stated"),
    "evaluation": ours("measured at a phase's end, on this project's held-out split"),
    "gates": ours("limits of this project's judgements; the run's own are not stated"),
    "instrumentation": ours("where metrics go beside metrics.jsonl"),
}
NANO: Sources = {
    **COMMON,
    "learning_rate": ours(f"{BLANK}: Mini's peak"),
    "learning_rate.kind": prose("§3.4.2"),
    "optimizer.adam_learning_rate_scale": ours("Mini's rates, 1e-3 and 2e-4"),
}

SFT: Sources = {
    "name": ours("the report's section 4 in a word"),
    "model.seq_len": prose("§4: 64 K"),
    "packing": prose("§4: greedy, samples that are longer cut, rows padded"),
    "loss_on": ours("not stated: the answers"),
    "learning_rate": ours(f"{BLANK}: a tenth of the peak"),
    "learning_rate.kind": prose("§4: linear warm-up, linear to 0"),
    "learning_rate.start_step": ours("not stated: a warm-up over 3 % of the steps"),
    "learning_rate.end_step": ours("not stated: a warm-up over 3 % of the steps"),
    "stop_step": ours("not stated: 10,000 steps"),
    "batch": ours("not stated: 64 sequences"),
    "mixture": ours("the data are not public: one component"),
}
FROM_BUFFERS: Sources = {
    "name": ours("a branch that the report does not have"),
    "order.buffer_documents": ours("Large's, by public notes"),
}

SOURCES_NANO = RecordSources(
    NANO,
    {
        "phase-3": {"learning_rate.start_step": ours("with phase 3, as Mini's")},
        "phase-3-from-buffers": {**FROM_BUFFERS, "learning_rate.start_step": ours("with phase 3, as Mini's")},
        "sft": SFT,
    },
)
MINI_DECAY: Sources = {"learning_rate.start_step": notes(f"{CARD}: the decay begins at 8.8 T of 10 T tokens, with phase 3", "high")}
SOURCES_MINI = RecordSources(COMMON, {"phase-3": MINI_DECAY, "phase-3-from-buffers": {**FROM_BUFFERS, **MINI_DECAY}})
