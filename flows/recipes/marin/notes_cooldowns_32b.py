"""Marin 32B's cooldowns, Bison and Mantis: where the code as it was run and its reports differ, and what they do not state."""

from phasewise.flows.recipes.marin.notes import ALL_MATH_SIZE, BISON_FILE, MANTIS_FILE, R32, differs, rounded_down, unstated
from phasewise.flows.recipes.marin.notes_32b import NO_INLINE_EVALUATION, SKIP_STEP

FLOOR = differs(
    "learning_rate",
    "high",
    code="ends at 7e-5, a tenth of the peak: the library's default floor",
    retrospective="the floor is not stated; Starling, whose recipe it is said to be, ended at 1 % of its peak",
    source=f"exp1529; {R32}, Phase 4",
    place=f"{BISON_FILE}; {R32}, Training Parameters",
)

BISON_DIFFERENCES = (
    FLOOR,
    SKIP_STEP,
    differs(
        "mixture",
        "high",
        code="FLAN and the mathematics twice (0.017 × 2, 0.00422 × 2), everything else once; StarCoder and Proof-Pile 2 are in the 70 %",
        retrospective="FLAN 10 times and the mathematics twice, called the same as Starling. There the mathematics was "
        "10 times, and StarCoder "
        "and Proof-Pile 2 were in the 30 %. The retrospective's own percentages are those of the code",
        source=f"exp1529; {R32}, Attempt 1",
        place=f"{BISON_FILE}; {R32}, Cooldown mixture",
    ),
    differs(
        "mixture",
        "high",
        code="all_math is the cache all_math-9d507c, pinned by its path. Every stored version of the table of splits "
        "reads all of math/gsm8k, "
        "test split included: none drops it. The check of names saw the configured path only (2025-05-27) and the expanded files from "
        "2026-01-19 on; it stops, and drops nothing",
        retrospective="preprocessing was updated to drop the test file, and the bundle was cached before that; checks are now in place",
        source=f"exp1529; issues 1357 and 2381; {R32}, Bison",
        place=f"{BISON_FILE}; issues 1357 and 2381; {R32}, Contamination anomaly",
    ),
    differs(
        "mixture",
        "low",
        code="the file with GSM8K's test items is gsm8k/socratic/test/0.jsonl.zst in the data set's list of files",
        retrospective="`test.json`",
        source=f"list of files of allenai/dolmino-mix-1124 at a319f19; {R32}, Bison",
        place=f"allenai/dolmino-mix-1124, data/math/gsm8k; {R32}, Contamination anomaly",
    ),
)
BISON_NOTES = (
    ALL_MATH_SIZE,
    rounded_down(delivered="each Wikipedia 0.439 % of 0.465 %", source="exp1529 by block quantisation", place=BISON_FILE),
    unstated(
        "stop_step",
        "a first draft ended at 200,000 and kept num_train_steps at 1,000,000: its decay of 20 % would have begun at 800,000",
        source="exp1529, first draft",
        place=f"{BISON_FILE}, first draft",
    ),
    NO_INLINE_EVALUATION,
)

BISON_FLAT_NOTES = (
    unstated(
        "phase",
        "from step 190,000 at a constant 1.09375e-4, to see whether the spike goes: it did not. No report names it, and "
        "its last step is not "
        "recorded",
        source="Marin experiment code, bison-flat",
        place="Marin experiment code, bison-flat",
    ),
)

BISON_CLEAN_NOTES = (
    unstated(
        "phase",
        "this project's question, not the record's: what Bison's linear permutation does to sorted data, without the leak that stops "
        "Bison. Its parent, its schedule and the ratios of all its other components are Bison's",
        source=f"{R32}, Shuffling anomaly",
        place=f"{R32}, Shuffling: Linear vs. Feistel",
    ),
    unstated(
        "mixture",
        "the leaked bundle is replaced by MegaMath's web text, folder after folder, at 30 %: 1.2 epochs. Bison's own mathematics "
        "has 1.1 and 4.3 %, of which a proxy draws 6 and 22 rows: too few for a shift to be seen or predicted",
        source=f"issue 1681; {R32}, Attempt 2",
        place=MANTIS_FILE,
    ),
    unstated(
        "order",
        "it begins again at step 160,000, so that the two branches differ in the permutation alone. Whether a linear permutation shifts is "
        "luck: its stride is drawn",
        source=f"{R32}, Shuffling: Linear vs. Feistel",
        place=BISON_FILE,
    ),
)

MANTIS_DIFFERENCES = (
    FLOOR,
    SKIP_STEP,
    differs(
        "mixture",
        "medium",
        code="shares rounded down: medu_science_qa has one sequence in a block of 2,048, 0.049 % in place of 0.094 %; here it has two",
        retrospective="0.09 %",
        source="exp1529 by block quantisation",
        place=f"{MANTIS_FILE}; {R32}, Attempt 2",
    ),
    differs(
        "learning_rate",
        "low",
        code="linear over 32,000 of 192,000 steps, 16.7 %. A comment of the code itself says 20 %",
        retrospective="16.7 %",
        source=f"exp1529; {R32}, Training Parameters",
        place=f"{MANTIS_FILE}; {R32}, Training Parameters",
    ),
    differs(
        "phase",
        "medium",
        code="a redo from step 160,000",
        retrospective="filed as a re-warm-up with 450 B hot and 500 B cooled tokens (issue 1681)",
        source="issue 1681; exp1529",
        place=f"issue 1681; {MANTIS_FILE}",
    ),
    differs(
        "order",
        "medium",
        code="Levanter's Feistel network of five rounds of multiply and add hands one input bit on: of 1,048,576 "
        "indices, 1,024 in a row go to places of one parity. `phasewise order feistel_levanter 1048576` measures it, "
        "and it can be told from a random order",
        retrospective="said to have much better mixing properties; it removed the shift that the linear permutation had",
        source=f"Levanter src/levanter/data/_prp.py at 9fde078; {R32}, Shuffling: Linear vs. Feistel",
        place=f"Levanter src/levanter/data/_prp.py; {R32}, Shuffling: Linear vs. Feistel",
    ),
)
MANTIS_NOTES = (
    unstated(
        "batch",
        "one batch of 1,024 at step 159,999 puts the sequence offset back on the grid of 2,048, and 7,168 places are "
        "used twice. Here the block "
        "that the 7,680s cut is carried, and no place is used twice. The offset at 160,000 is 1,024 modulo 2,048",
        source="exp1529",
        place=MANTIS_FILE,
    ),
    unstated(
        "order",
        "the permutation changes to Feistel's from step 0 on, for components that were nearly seen through, at their "
        "positions: some rows come "
        "again, others never. The retrospective does not discuss the switch",
        source=f"exp1529; {R32}, Attempt 2",
        place=MANTIS_FILE,
    ),
    unstated(
        "mixture",
        "from step 174,000 on with 1.10 % of Python from Stack v2 Edu: no report has a table of this mixture",
        source="exp1529",
        place=MANTIS_FILE,
    ),
    NO_INLINE_EVALUATION,
)
