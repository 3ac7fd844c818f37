"""What is not recovered of the extension of the context, and what this project takes in its place."""

from phasewise.flows.recipes.trinity.notes import unstated

PLACE = "§3.5"
LONG_DATA = unstated(
    "mixture",
    "about 117 B tokens in 35.6 M documents: text of pre-training, longer documents more often, and long text of other kinds. The kinds "
    "are the report's: scanned documents (olmOCR, FinePDFs-edu), whole repositories, textbooks and arXiv (ProLong), instructions (FLAN, "
    "mathematics, code), AutoMathText. Their shares are not stated: 40, 20, 15, 10, 10 and 5 % are this project's choice. At full scale "
    "there is nothing to read: a recipe of one's own gives each component a source",
    place=PLACE,
)
LONG_SAMPLING = unstated(
    "mixture",
    "documents of pre-training are taken more often the longer they are: 1 % of the shortest, 90 % from 128 K tokens on. The curve between "
    "is not stated: in proportion to the length is this project's choice",
    place=PLACE,
)
LONG_BATCH = unstated(
    "batch", "not stated for the extension: as many tokens a step as before it, in rows that are longer and fewer", place="§3.4.2"
)
LONG_ORDER = unstated(
    "order", "rows of another length are other rows, so the order begins again with the phase. The run read a stream", place=PLACE
)
LONG_SLICE = unstated(
    "slice",
    "Large had a context parallelism of four; which machines the extension ran on is not stated. The recipe names those of the phases "
    "before",
    place="§3.3",
)
LONG_GATE = unstated(
    "evaluation",
    "the run was steered by MK-NIAH at the target length; its scores are blank. It is measured at the length of the rows before and of the "
    "longer ones; how much must be found is not stated, and no gate of the recipe asks",
    place=PLACE,
)
COMMON_LONG_NOTES = (LONG_DATA, LONG_SAMPLING, LONG_BATCH, LONG_ORDER, LONG_SLICE, LONG_GATE)
WARM_AGAIN = unstated(
    "learning_rate",
    "linear, up to a part of the peak and down to nothing. The part and the steps are blank: a tenth of the peak, reached after a tenth of "
    "the steps, is this project's choice",
    place="§3.4.2",
)

NANO_LONG_NOTES = (*COMMON_LONG_NOTES, WARM_AGAIN)
MINI_LONG_NOTES = (*COMMON_LONG_NOTES, WARM_AGAIN)
LARGE_LONG_NOTES = (
    *COMMON_LONG_NOTES,
    unstated(
        "learning_rate",
        "both ends of the cosine are blank: from a tenth to a twentieth of the peak, 8e-5 to 4e-5, is from public notes",
        place="§3.4.2",
    ),
)
