"""How differences between the code as it was run and the reports of the runs are written down, and where each is to be found.

Line numbers are those of the versions that the retrospectives link: exp600 at 852c53f, exp1295 at 5e88b52, exp1380, exp1390 and exp1395 at
fe373c2. Where no line is known, the place is a file, an issue or a section.
"""

from typing import Literal

from phasewise.flows.recipes.phase import Discrepancy, Note

R8, R32, PAPER = "Marin 8B retrospective", "Marin 32B retrospective", "Marin paper"
EXP600 = "experiments/tootsie/exp600_tootsie.py"
EXP1295 = "experiments/tootsie/exp1295_32b.py"
EXP1380 = "experiments/tootsie/exp1380_muon32b.py"
EXP1388 = "exp1388"
EXP1390 = "experiments/tootsie/exp1390_32b_necro.py"
EXP1395 = "experiments/tootsie/exp1395_qwen3_32b.py"
BISON_FILE = "experiments/tootsie/exp1529_32b_bison_cooldown.py"
MANTIS_FILE = "experiments/tootsie/exp1529_32b_mantis_cooldown.py"
Severity = Literal["high", "medium", "low"]


def differs(field: str, severity: Severity, *, code: str, retrospective: str, source: str, place: str) -> Discrepancy:
    """A row of a phase's `discrepancies`."""
    return Discrepancy(field=field, severity=severity, code=code, retrospective=retrospective, source=source, place=place)


def unstated(field: str, text: str, *, source: str, place: str) -> Note:
    """A row of a phase's `notes`: what no report of the run says."""
    return Note(field=field, text=text, source=source, place=place)


ALL_MATH_CACHE = differs(
    "mixture",
    "high",
    code="all_math reads the cache all_math-9d507c, the one that held GSM8K test items in Bison; here its test split is left out",
    retrospective="names contamination for the 32B's Bison only",
    source="exp600; exp1529; Marin 32B retrospective",
    place=f"{EXP600}; {R32}, Contamination anomaly",
)


def drawn_by_inputs(embedding: str) -> Discrepancy:
    """How the library draws fresh weights, where the recipe has one deviation for all of them."""
    return differs(
        "initializer",
        "high",
        code="each matrix is drawn from a normal distribution of deviation 1 / √inputs, cut off at three of them, and the embedding from "
        f"one of deviation {embedding}. Levanter's LlamaConfig.initializer_range, 0.02, is read by no weight. The recipe draws all weights "
        "with 0.02, uncut: the trainer has one deviation for all",
        retrospective="a Llama of standard shape; how its weights are drawn is not mentioned",
        source="Haliax's Linear.init and Embedding.init, which Levanter's Llama calls without a scale",
        place="Haliax src/haliax/nn/linear.py and embedding.py; Levanter src/levanter/models/llama.py",
    )


def rounded_down(*, delivered: str, source: str, place: str) -> Note:
    """Shares that the record's blocks lost by rounding down; here they are rounded by largest remainder."""
    return unstated(
        "mixture", f"shares rounded down in blocks of 2,048: {delivered}; here by largest remainder", source=source, place=place
    )


GAINS_DECAYED = unstated(
    "optimizer",
    "from 2025-03-19 (da967ecc) to 2025-03-28 (f74406a6) Levanter's mask of weight decay did not know the norms that its Llama had, and "
    "their gains decayed. The phase trained in these days; on which version is not recorded. Here no gain decays",
    source="Levanter 917 and 928",
    place="Levanter src/levanter/optim/config.py, build_weight_decay_mask",
)

ALL_MATH_SIZE = unstated(
    "mixture",
    "the glob of all_math takes tinyGSM-MIND in, so its size, 4.22 B tokens, and its epochs are underestimated. A comment of the code "
    "says that GSM-MIND is excluded",
    source="exp600; exp1529",
    place=EXP600,
)
