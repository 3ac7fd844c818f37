"""Marin 32B up to the QK-norm phase: where the code as it was run and its reports differ, and what they do not state."""

from phasewise.flows.recipes.marin.notes import EXP600, EXP1295, EXP1380, EXP1388, EXP1390, EXP1395, R32, differs, drawn_by_inputs, unstated

SKIP_STEP = differs(
    "skip_step",
    "high",
    code="True, which the library takes for sigma 6.0 over 128 updates, of the loss or of the raw gradient norm. In the "
    "recipe it is on from "
    "the phase's first step; since which step it was on in the run is not recorded. Levanter has it since 2025-05-27",
    retrospective="sigma 2.0 over 128 updates, of the update norm; one of those that were switched on during the run",
    source=f"exp1295; {R32}, Optimizer & Schedule",
    place=f"{EXP1295}; Levanter src/levanter/optim/skipstep.py, line 65; {R32}, Skipping Bad Steps",
)

NO_INLINE_EVALUATION = unstated(
    "evaluation",
    "the 32B's inline evaluation was off: its models were measured afterwards. Which benchmarks the recipe measures at "
    "a phase's end is this "
    "project's choice, the ones of the 8B",
    source="exp1295, exp1395, exp1529",
    place=EXP1295,
)

PHASE_1_DIFFERENCES = (
    SKIP_STEP,
    differs(
        "learning_rate",
        "high",
        code="warm-up 1 % and decay 40 % of a nominal 1,000,000 steps: warm-up to step 10,000, and a decay from 600,000 never reached",
        retrospective="warm-up 1 %, decay 40 % of steps",
        source=f"exp1295; {R32}, Optimizer & Schedule",
        place=f"{EXP1295}; {R32}, Optimizer & Schedule",
    ),
    differs(
        "mixture",
        "high",
        code="Proof-Pile 2 has 0.50 %",
        retrospective="the same recipe as Phoenix, whose mixture had no Proof-Pile 2",
        source=f"exp600; exp1295; {R32}, Data Mix",
        place=f"{EXP1295}; {EXP600}, lines 465 to 522; {R32}, Data Mix & Batch Schedule",
    ),
    differs(
        "stop_step",
        "low",
        code="the run went on to step 80,654; what follows starts at 80,000",
        retrospective="80,000",
        source="index of public runs; exp1295",
        place=EXP1295,
    ),
    drawn_by_inputs("1 / d_model"),
)
PHASE_1_NOTES = (
    unstated(
        "max_update_rms",
        "updates clipped at a root mean square of 1.0 in steps 67,522 to 72,233",
        source=f"comments of exp1295; {R32}, Phase 1",
        place=EXP1295,
    ),
    NO_INLINE_EVALUATION,
)

NECROMANCY_DIFFERENCES = (
    differs(
        "outcome",
        "medium",
        code='issue 1390 is closed with "didn\'t work"',
        retrospective="stabilised for a few thousand steps, then relapsed",
        source=f"issue 1390; {R32}, Necromancy Restart",
        place=f"issue 1390; {EXP1390}",
    ),
    differs(
        "stop_step",
        "low",
        code="not recorded; abandoned",
        retrospective="about 82,000",
        source=f"exp1390; {R32}, Training Phase Overview",
        place=f"{EXP1390}; {R32}, Training Phase Overview",
    ),
    differs(
        "tokens",
        "low",
        code="2,000 steps of 8,192 sequences of 4,096 tokens are 0.067 T",
        retrospective="about 0.02 T for steps 80,000 to 82,000",
        source=f"{R32}, Training Phase Overview, and arithmetic",
        place=f"{R32}, Training Phase Overview",
    ),
)

MUON_DIFFERENCES = (
    differs(
        "start",
        "medium",
        code="step 77,096",
        retrospective="about 80,000",
        source=f"exp1380; {R32}, Phase 2",
        place=f"{EXP1380}; {R32}, Alternative Optimizers",
    ),
    differs(
        "learning_rate",
        "medium",
        code="2e-3 for Muon, 7e-4 for its group of AdamW, with no warm-up at the restart; the decay of 40 % was never reached",
        retrospective="the loss was lower because Adam was still warming up",
        source=f"exp1380; {R32}, Alternative Optimizers",
        place=f"{EXP1380}; {R32}, Alternative Optimizers",
    ),
)
MUON_NOTES = (
    unstated(
        "stability",
        "Levanter's MuonConfig has no skip-step and no clip of the update norm. It clips the gradients of AdamW's group alone, by the norm "
        "of that group, at 1.0: the 0.2 beside it is not read where an optimizer's configuration is given",
        source="exp1380; Levanter at 87b05a9f",
        place=f"{EXP1380}; Levanter src/levanter/optim/muon.py, MuonConfig; experiments/defaults.py, default_train",
    ),
    unstated(
        "optimizer",
        "MuonConfig has one weight decay, 0.1 here, for both of its groups. Of AdamW's group only the head decays",
        source="exp1380; Levanter at 87b05a9f",
        place=f"{EXP1380}; Levanter src/levanter/optim/muon.py, MuonConfig",
    ),
)

NADAMW_DIFFERENCES = (
    differs(
        "start",
        "medium",
        code="step 77,096",
        retrospective="about 80,000",
        source=f"exp1388; {R32}, Phase 2",
        place=f"{EXP1388}; {R32}, Alternative Optimizers",
    ),
)
NADAMW_NOTES = (
    unstated(
        "stability",
        "the clip of gradients at 0.2, that of update norms and skip-step fell away with the new configuration: 1.0, none and none. "
        "Results were never reported",
        source="exp1388; Levanter at 87b05a9f",
        place=f"{EXP1388}; Levanter src/levanter/optim/config.py, AdamConfig",
    ),
    unstated(
        "learning_rate",
        "cosine, the library's default, over 1,000,000 steps: the schedule's fields were not set",
        source="exp1388",
        place=EXP1388,
    ),
)

QK_NORM_DIFFERENCES = (
    SKIP_STEP,
    differs(
        "learning_rate",
        "high",
        code="the ramp of 1,000 steps starts at 7e-5, because the first cycle is declared to end at step 80,000",
        retrospective="re-warm-up of 1,000 steps",
        source=f"exp1395; {R32}, Phase 3",
        place=f"{EXP1395}; {R32}, Phase 3",
    ),
    differs(
        "stop_step",
        "medium",
        code="the run went on to about step 170,000; what follows starts at 160,000",
        retrospective="80k → 160k",
        source="index of public runs; exp1395",
        place=EXP1395,
    ),
)
QK_NORM_NOTES = (
    unstated(
        "optimizer_state",
        "a comment of the code says of its checkpoint, step 80,000, what necromancy's says: the history of update norms in it is that of "
        "77,096. Here the window is carried from phase 1",
        source="exp1395",
        place=EXP1395,
    ),
    unstated(
        "slice",
        "a copy of the run was trained on v5p-2048 (marin-32b-v5p-qwen-2), which no report names",
        source="Marin experiment code",
        place="Marin experiment code",
    ),
    NO_INLINE_EVALUATION,
)
