"""Marin 8B's main line: where the code as it was run and its reports differ, and what they do not state."""

from phasewise.flows.recipes.marin.notes import (
    ALL_MATH_CACHE,
    ALL_MATH_SIZE,
    EXP600,
    GAINS_DECAYED,
    PAPER,
    R8,
    R32,
    differs,
    drawn_by_inputs,
    rounded_down,
    unstated,
)

DRAWN_OTHERWISE = unstated(
    "order",
    "the library changed how it draws the permutation's parameters (2025-01-29) and counts stages in steps (2025-02-20): the same seed "
    "gives another order before and after. The dates fall near the hand-off of Kestrel to Ocelot",
    source="Levanter 869",
    place="Levanter issue 869",
)

KESTREL_DIFFERENCES = (
    differs(
        "learning_rate",
        "high",
        code="66 cycles of 10,000 steps, each with 1,000 steps of inverse decay to 1e-4 and no warm-up after it: in every stored version",
        retrospective="cycles of 20,000 steps with 2,000 of decay from step 200,000 on, which concerns 46 of the 66. "
        "Retrospective and paper "
        "say so, and figure 2a plots the change: likelier than the code, whose stored versions may not be the one that ran. The recipe "
        "keeps the code's cycles; both schedules have a cycle end at 660,000. Decay shape and jump back are not stated",
        source=f"{R8}, WSD-S and WSD Cycle Change; {PAPER}, section 4.2.1 and figure 2a; exp600",
        place=f"{EXP600}, lines 51 to 78; {R8}, WSD Cycle Change; {PAPER}, figure 2a",
    ),
    differs(
        "model.attend_within_documents",
        "medium",
        code="Levanter's train_lm names the token that ends a document since 2024-12-02 (578fb5b9), and attention stays within documents "
        "from then on. Before, a position saw all of its row that came before it. The code's cycle_length is in Levanter since 2024-11-24 "
        "(a0fc09df), so the run may have begun without the mask; on which versions it was started and restarted is not recorded. The "
        "recipe has the mask from step 0 on",
        retrospective="does not mention what documents in one row see of each other",
        source="Levanter's history",
        place="Levanter src/levanter/main/train_lm.py and src/levanter/models/lm_model.py at 578fb5b9",
    ),
    drawn_by_inputs("1 / √d_model"),
)
KESTREL_NOTES = (DRAWN_OTHERWISE,)

OCELOT_DIFFERENCES = (
    differs(
        "learning_rate",
        "high",
        code="1e-4 → 1.7e-3 in one step, a 17-fold jump with the new RoPE and the threefold batch, without a warm-up",
        retrospective="1.7e-3, about √3 times the old rate",
        source=f"{R8}, Phase 2; exp600",
        place=f"{EXP600}, lines 81 to 116; {R8}, Adjusted Hyperparameters",
    ),
    differs(
        "batch",
        "medium",
        code="3072 sequences, three times Kestrel's",
        retrospective="the summary says 50 % more, the text three times",
        source=f"{R8}, Training Phases and Phase 2",
        place=f"{EXP600}, lines 81 to 116; {R8}, Training Phases",
    ),
    differs(
        "optimizer",
        "high",
        code="0.1: from here on no stored version sets a weight decay, and the helper then takes Levanter's default. Kestrel's 0.05 is set",
        retrospective="0.05, said of Kestrel; a change is not mentioned",
        source=f"exp600; experiments/defaults.py, default_train; Levanter's OptimizerConfig; {R8}, Phase 1",
        place=f"{EXP600}, lines 81 to 116; Levanter src/levanter/optim/config.py, OptimizerConfig.weight_decay; {R8}, Phase 1",
    ),
    differs(
        "ema",
        "medium",
        code="the library's average ran backwards until it was corrected on 2025-02-10: the first evaluations of it mean nothing",
        retrospective="was wrong at first; no dates",
        source=f"Levanter's history; {R8}, Phase 2",
        place=f"{R8}, Adjusted Hyperparameters",
    ),
)
OCELOT_NOTES = (
    DRAWN_OTHERWISE,
    unstated(
        "mixture",
        "a copy of DCLM in us-central2 was found partial and corrupt on 2025-02-11, while Ocelot trained there. Which cache Ocelot read "
        "before that day is not recorded",
        source="Marin issues; exp600",
        place="Marin issues",
    ),
)

JELLYFISH_DIFFERENCES = (
    differs(
        "start",
        "medium",
        code="declared as step 738,376 of Kestrel, a step that Kestrel never had; the file is Ocelot's",
        retrospective="continues Ocelot",
        source=f"exp600; {R8}, Phase 3",
        place=f"{EXP600}; {R8}, Phase 3",
    ),
)

PHOENIX_DIFFERENCES = (
    differs(
        "mixture",
        "high",
        code="no Proof-Pile 2 after the bridge",
        retrospective="the 32B retrospective calls its mixture, which has Proof-Pile 2, the Phoenix recipe",
        source="exp600; Marin 32B retrospective",
        place=f"{EXP600}, lines 465 to 522; {R32}, Data Mix & Batch Schedule",
    ),
)

PHOENIX_NOTES = (GAINS_DECAYED,)

STARLING_DIFFERENCES = (
    differs(
        "mixture",
        "high",
        code="Proof-Pile 2 has weight 0.25 for 55 B tokens, about 4.5 times its size",
        retrospective="the table says once",
        source=f"exp600; {R8}, Phase 5",
        place=f"{EXP600}; {R8}, Phase 5, Data; {PAPER}, table 3",
    ),
    ALL_MATH_CACHE,
)
STARLING_NOTES = (
    ALL_MATH_SIZE,
    rounded_down(
        delivered="each Wikipedia 0.293 % of 0.327 %, medu_science_qa 0.098 % of 0.107 %",
        source="exp600 by block quantisation",
        place=EXP600,
    ),
)

DEEPER_STARLING_DIFFERENCES = (
    differs(
        "start",
        "low",
        code="the checkpoint after step 1,399,923, Starling's last; steps are counted from 1,400,000",
        retrospective="Starling's end",
        source="exp600",
        place=EXP600,
    ),
    differs(
        "tokens",
        "low",
        code="335.5 B tokens (20,000 steps). A comment of the code itself says about 250 B",
        retrospective="12.4 T to 12.7 T",
        source=f"exp600; {R8}, Bonus: Starling Dessert",
        place=f"{EXP600}; {R8}, Bonus: Starling Dessert",
    ),
    ALL_MATH_CACHE,
)
