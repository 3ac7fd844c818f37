"""What the report does not state of Nano and Mini, and what this project takes in its place."""

from phasewise.flows.recipes.phase import Note

REPORT = "Trinity Large report"
CARD = "public notes: the model's card and configuration"
REVIEWS = "public notes on the report"


def unstated(field: str, text: str, *, place: str) -> Note:
    """A row of a phase's `notes`."""
    return Note(field=field, text=text, source=REPORT, place=f"{REPORT}, {place}")


CLOSED_DATA = unstated(
    "mixture",
    "the data were curated by DatologyAI and are not public. The kinds are the report's; their shares in each phase are not published "
    "and are this project's choice, with less web and more code, mathematics and science from phase to phase, as the report says. At "
    "full scale there is nothing to read: a recipe of one's own gives each component a source",
    place="§3.1",
)
ORDER = unstated(
    "order",
    "the run read a stream: documents tokenized on the fly and packed in the order of several loaders. Here it is a permutation of "
    "packed rows, the same for everyone who has the seed",
    place="§3.2",
)
OPTIMIZER = unstated(
    "optimizer",
    "the report names Muon, the rule √max(1, out/in) and the code that it was changed from, and no momentum, decay, number of "
    "Newton–Schulz steps or beta: 0.95 with Nesterov, 0.1, 5, and for AdamW 0.9, 0.95 and 0.1 are this project's choice",
    place="§3.4.2",
)
CUTOFF = unstated(
    "initializer",
    "where the normal distribution is cut off is not stated: three standard deviations is this project's choice. The deviation is 0.5 / "
    "√d_model, which agrees with the report's table to the digits that it prints",
    place="§3.4.1",
)
CLIPPING = unstated("stability", "no limit of the gradient's norm is stated: 1.0 is this project's choice", place="§3.4.2")
EVALUATION = unstated(
    "evaluation",
    "what was measured while it trained is not stated. The benchmarks are those that Marin was measured on, and the report's own are in "
    "--results of trinity-large",
    place="§5.1",
)
HARDWARE = unstated(
    "slice",
    "the run was on 512 H200 GPUs, with weights cut over 128 of them. The recipe names the TPU slice with as many chips",
    place="§3.3",
)
BATCH = unstated(
    "batch",
    "both batches are blank in the text that is kept. It says that the batch grew when the run moved to more GPUs, not when: 4,096 "
    "sequences, and twice as many after phase 1, are this project's choice",
    place="§3.4.2",
)
WARM_UP = unstated("learning_rate", "the length of the linear warm-up is blank: 2,000 steps, as for Large", place="§3.4.2")
Z_LOSS = unstated(
    "stability",
    "the kernel computes a z-loss, and its weight for this model is not stated: 1e-4, which the report planned for Large, is this "
    "project's choice",
    place="§3.3 and §6",
)
SEQUENCE_LOSS = unstated(
    "experts",
    "a sequence-wise balance loss is named among the changes for Large only, so it is off here: this project's reading",
    place="§6",
)
BALANCING = unstated(
    "experts", "the step of the sign update, 0.001, is in the model's public configuration, not in the text that is kept", place="§2"
)
ROPE = unstated("rope", "theta, 10,000 without a stretch, is in the model's public configuration, not in the report", place="§2.2")

COMMON_NOTES = (CLOSED_DATA, ORDER, OPTIMIZER, CUTOFF, CLIPPING, EVALUATION)
SMALL_NOTES = (*COMMON_NOTES, BATCH, WARM_UP, Z_LOSS, SEQUENCE_LOSS, BALANCING, ROPE, HARDWARE)

NANO_NOTES = (
    *SMALL_NOTES,
    unstated("learning_rate", "both peaks are blank: Mini's, 1e-3 for Muon and 2e-4 for AdamW, are this project's choice", place="§3.4.2"),
)
MINI_NOTES = (
    *SMALL_NOTES,
    unstated(
        "learning_rate", "both peaks are blank in the text that is kept; 1e-3 and 2e-4 are from the model's public card", place="§3.4.2"
    ),
)
NANO_PHASE_2_NOTES = (BATCH,)
MINI_PHASE_2_NOTES = (BATCH,)
NANO_PHASE_3_NOTES = (
    unstated(
        "learning_rate", "where the linear decay to zero begins is blank: with phase 3, as Mini's, is this project's choice", place="§3.4.2"
    ),
)
MINI_PHASE_3_NOTES = (
    unstated(
        "learning_rate",
        "where the linear decay to zero begins is blank; the public card has 8.8 T of 10 T, which is phase 3",
        place="§3.4.2",
    ),
)
FROM_BUFFERS_NOTES = (
    unstated(
        "order",
        "this project's question, not the report's: this model's third phase with rows from document buffers (RSDB), which the report has "
        "in Large's third phase only. The size is Large's by public notes, 4,096 documents: a device there, a component here",
        place="§3.2",
    ),
)
