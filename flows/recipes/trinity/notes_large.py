"""What the report does not state of Large, and how the six changes that it made at once appear in the recipe."""

from phasewise.flows.recipes.trinity.notes import COMMON_NOTES, unstated

BUNDLE = "§6, the six changes"

PHASE_1_NOTES = (
    *COMMON_NOTES,
    unstated(
        "model",
        "the run that is reported came after failed ones, by six changes at once: SMEBU, BF16 in place of MXFP8, a z-loss, a "
        "sequence-wise balance loss, six dense layers in place of three, and attention within documents. Nothing was measured of each "
        "alone. The recipe has all of them from its first step on; `first-runs` has what was before",
        place=BUNDLE,
    ),
    unstated(
        "stability",
        "the z-loss was switched on while the run trained, at which step is not stated. Its weight before is blank, and public notes "
        "take it for 0; 1e-6 is from them. The recipe has 1e-6 from its first step on, which the run had not",
        place=BUNDLE,
    ),
    unstated(
        "experts",
        "rate 5e-4, sharpness 2 and momentum 0.5 of SMEBU are blank in the text that is kept and from public notes. The weight of the "
        "sequence-wise loss, 1e-4, is from one of them",
        place="§2 and §6",
    ),
    unstated("learning_rate", "2,000 steps of warm-up and the peaks 8e-4 and 2e-4 are blank; they are from public notes", place="§3.4.2"),
    unstated("batch", "12,288 and then 16,384 sequences, after 4.9 T tokens, are blank; they are from public notes", place="§3.4.2"),
    unstated("rope", "theta is not stated: 10,000, as Nano's and Mini's", place="§2.2"),
    unstated(
        "slice",
        "the run was on 2,048 B300 GPUs, with weights cut over 128 of them and experts over 8. The recipe names two TPU slices of 1,024 "
        "chips each",
        place="§3.3",
    ),
)
PHASE_2_NOTES = (
    unstated(
        "learning_rate",
        "where the cosine begins is blank. The public checkpoint of 10 T tokens is called one of before the decay; the end of phase 1, "
        "11.05 T, is this project's choice. One cosine spans phases 2 and 3, to a tenth of the peak",
        place="§3.4.2",
    ),
)
PHASE_3_NOTES = (
    unstated(
        "order",
        "from here on the run drew from a buffer of documents with a read head each (RSDB), so that a long document does not fill batch "
        "after batch. Its size is blank; public notes have 4,096 documents a device, filled up to 8,192, in four workers of 1,024 each. "
        "Here it is one buffer of 4,096 for each component, filled up to 8,192: a row has documents of one component, and there of several",
        place="§3.2",
    ),
)
WITHOUT_BUFFER_NOTES = (
    unstated(
        "order",
        "this project's comparison, not the report's: rows are cut from the documents one after the other and permuted, as in the phases "
        "before. The report's baseline packs documents one after the other and permutes nothing",
        place="§3.2",
    ),
)
FIRST_RUNS_NOTES = (
    unstated(
        "model",
        "the configuration before the six changes, as far as the report says what changed. Sign updates of 0.001, as Nano's and Mini's, "
        "are this project's choice. Its MXFP8 kernels are not here: it is BF16",
        place=BUNDLE,
    ),
    unstated(
        "stop_step",
        "how long the first runs trained is not stated. Public notes have the largest excess of load at 7 to 10 after about 100 B "
        "tokens. About 1 T tokens, 10,000 steps, is this project's choice",
        place="§6",
    ),
    unstated(
        "start",
        "what a run like this could hand on: with SMEBU in place of the sign update the biases of the routers are carried, and its "
        "momentum is fresh; z-loss, sequence-wise loss and attention within documents change no weight. What it cannot: layers 4 to 6 "
        "as dense ones have an MLP where there are experts, and no weight of the run has its shape. So the main line starts from "
        "scratch, and nothing is handed on",
        place=BUNDLE,
    ),
)
