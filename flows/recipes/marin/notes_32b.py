"""Marin 32B: where the code as it was run and the retrospective differ."""

from flows.recipes.marin.notes import ALL_MATH_SIZE, note, rounded_down

R32 = "Marin 32B retrospective"


SKIP_STEP = note(
    "skip_step",
    code="True, which the library takes for sigma 6.0 over 128 updates, of the loss or of the raw gradient norm; since which step is "
    "not recorded",
    retrospective="sigma 2.0 over 128 updates, of the update norm",
    source=f"exp1295; {R32}, Optimizer & Schedule",
)

PHASE_1_NOTES = (
    SKIP_STEP,
    note(
        "learning_rate",
        code="warm-up 1 % and decay 40 % of a nominal 1,000,000 steps: warm-up to step 10,000, and a decay from 600,000 never reached",
        retrospective="warm-up 1 %, decay 40 % of steps",
        source=f"exp1295; {R32}, Optimizer & Schedule",
    ),
    note(
        "max_update_rms",
        code="updates clipped at a root mean square of 1.0 in steps 67,522 to 72,233",
        retrospective="not mentioned",
        source=f"comments of exp1295; {R32}, Phase 1",
    ),
    note(
        "mixture",
        code="Proof-Pile 2 has 0.50 %",
        retrospective="the same recipe as Phoenix, whose mixture had no Proof-Pile 2",
        source=f"exp600; exp1295; {R32}, Data Mix",
    ),
    note(
        "stop_step",
        code="the run went on to step 80,654; what follows starts at 80,000",
        retrospective="80,000",
        source="index of public runs; exp1295",
    ),
)

NECROMANCY_NOTES = (
    note(
        "outcome",
        code='issue 1390 is closed with "didn\'t work"',
        retrospective="stabilised for a few thousand steps, then relapsed",
        source=f"issue 1390; {R32}, Necromancy Restart",
    ),
    note(
        "stop_step",
        code="not recorded; abandoned",
        retrospective="about 82,000",
        source=f"exp1390; {R32}, Training Phase Overview",
    ),
)

MUON_NOTES = (
    note("start", code="step 77,096", retrospective="about 80,000", source=f"exp1380; {R32}, Phase 2"),
    note(
        "learning_rate",
        code="2e-3 for Muon, 7e-4 for its group of AdamW, with no warm-up at the restart; the decay of 40 % was never reached",
        retrospective="the loss was lower because Adam was still warming up",
        source=f"exp1380; {R32}, Alternative Optimizers",
    ),
    note(
        "stability",
        code="no skip-step and no clip of the update norm in Muon's configuration",
        retrospective="not mentioned",
        source="exp1380",
    ),
)

NADAMW_NOTES = (
    note("start", code="step 77,096", retrospective="about 80,000", source=f"exp1388; {R32}, Phase 2"),
    note(
        "stability",
        code="the clip of gradients at 0.2 and that of update norms fell away with the new configuration: 1.0 and none",
        retrospective="results never reported",
        source="exp1388",
    ),
    note(
        "learning_rate",
        code="cosine, the library's default, over 1,000,000 steps: the schedule's fields were not set",
        retrospective="not mentioned",
        source="exp1388",
    ),
)

QK_NORM_NOTES = (
    SKIP_STEP,
    note(
        "learning_rate",
        code="the ramp of 1,000 steps starts at 7e-5, because the first cycle is declared to end at step 80,000",
        retrospective="re-warm-up of 1,000 steps",
        source=f"exp1395; {R32}, Phase 3",
    ),
    note(
        "stop_step",
        code="the run went on to about step 170,000; what follows starts at 160,000",
        retrospective="80k → 160k",
        source="index of public runs; exp1395",
    ),
    note(
        "slice",
        code="a copy of the run was trained on v5p-2048 (marin-32b-v5p-qwen-2)",
        retrospective="unreported",
        source="Marin experiment code",
    ),
)

FLOOR = note(
    "learning_rate",
    code="ends at 7e-5, a tenth of the peak: the library's default floor",
    retrospective="the floor is not stated; Starling, whose recipe it is said to be, ended at 1 % of its peak",
    source=f"exp1529; {R32}, Phase 4",
)

BISON_NOTES = (
    FLOOR,
    note(
        "mixture",
        code="FLAN and the mathematics twice (0.017 × 2, 0.00422 × 2), everything else once; StarCoder and Proof-Pile 2 stand in the 70 %",
        retrospective="FLAN 10 times, the same as Starling, where they stand in the 30 %",
        source=f"exp1529; {R32}, Attempt 1",
    ),
    note(
        "mixture",
        code="all_math is the cache all_math-9d507c, pinned by its path: its files hold GSM8K's test split, which the filter had been told "
        "to drop. The check of names saw the configured path only (2025-05-27) and the expanded files from 2026-01-19 on",
        retrospective="a cached bundle; checks were put in place",
        source=f"exp1529; issues 1357 and 2381; {R32}, Bison",
    ),
    ALL_MATH_SIZE,
    rounded_down(delivered="each Wikipedia 0.439 % of 0.465 %", source="exp1529 by block quantisation"),
    note(
        "stop_step",
        code="a first draft ended at 200,000 and kept num_train_steps at 1,000,000: its decay of 20 % would have begun at 800,000",
        retrospective="not mentioned",
        source="exp1529, first draft",
    ),
)

BISON_FLAT_NOTES = (
    note(
        "phase",
        code="from step 190,000 at a constant 1.09375e-4, to see whether the spike goes: it did not. The last step is not recorded",
        retrospective="unreported",
        source="Marin experiment code, bison-flat",
    ),
)

MANTIS_NOTES = (
    FLOOR,
    note(
        "batch",
        code="one batch of 1,024 at step 159,999 puts the sequence offset back on the grid of 2,048, and 7,168 places are used twice; here "
        "the block that the 7,680s cut is carried, and no place is used twice",
        retrospective="not mentioned",
        source="exp1529; the offset at 160,000 is 1,024 modulo 2,048",
    ),
    note(
        "order",
        code="the permutation changes to Feistel's from step 0 on, for components that were nearly seen through, at their positions; "
        "some rows come again, others never",
        retrospective="a Feistel shuffle; the switch is not discussed",
        source=f"exp1529; {R32}, Attempt 2",
    ),
    note(
        "mixture",
        code="from step 174,000 on with 1.10 % of Python from Stack v2 Edu",
        retrospective="not tabulated",
        source="exp1529",
    ),
    note(
        "mixture",
        code="shares rounded down: medu_science_qa has one sequence in a block of 2,048, 0.049 % in place of 0.094 %; here it has two",
        retrospective="0.09 %",
        source="exp1529 by block quantisation",
    ),
    note(
        "tokens",
        code="16.7 % of the steps",
        retrospective="16.7 %; a comment of the code says 20 %",
        source=f"exp1529; {R32}",
    ),
    note(
        "phase",
        code="a redo from step 160,000",
        retrospective="filed as a re-warm-up with 450 B hot and 500 B cooled tokens",
        source="issue 1681; exp1529",
    ),
)
