"""Marin 8B's main line: where the code as it was run and the retrospective differ."""

from flows.recipes.marin.notes import ALL_MATH_CACHE, ALL_MATH_SIZE, note, rounded_down

R8 = "Marin 8B retrospective"

DRAWN_OTHERWISE = note(
    "order",
    code="the library changed how it draws the permutation's parameters (2025-01-29) and counts stages in steps (2025-02-20): the "
    "same seed gives another order before and after",
    retrospective="not mentioned",
    source="Levanter 869; the dates fall near the hand-off of Kestrel to Ocelot",
)

KESTREL_NOTES = (
    note(
        "learning_rate",
        code="66 cycles of 10,000 steps, each with 1,000 steps of inverse decay to 1e-4 and no warm-up after it",
        retrospective="cycles of 20,000 steps with 2,000 of decay from step 200,000 on; decay shape and jump back not stated",
        source=f"{R8}, WSD-S and WSD Cycle Change; exp600",
    ),
    DRAWN_OTHERWISE,
)

OCELOT_NOTES = (
    note(
        "learning_rate",
        code="1e-4 → 1.7e-3 in one step, a 17-fold jump with the new RoPE and the threefold batch, without a warm-up",
        retrospective="1.7e-3, about √3 times the old rate",
        source=f"{R8}, Phase 2; exp600",
    ),
    note(
        "batch",
        code="3072 sequences, three times Kestrel's",
        retrospective="the summary says 50 % more, the text three times",
        source=f"{R8}, Training Phases and Phase 2",
    ),
    note(
        "ema",
        code="the library's average ran backwards until it was mended on 2025-02-10: the first evaluations of it mean nothing",
        retrospective="was wrong at first; no dates",
        source=f"Levanter's history; {R8}, Phase 2",
    ),
    DRAWN_OTHERWISE,
    note(
        "mixture",
        code="a copy of DCLM in us-central2 was found partial and corrupt on 2025-02-11, while Ocelot trained there",
        retrospective="which cache Ocelot read before that day is not recorded",
        source="Marin issues; exp600",
    ),
)

JELLYFISH_NOTES = (
    note(
        "start",
        code="declared as step 738,376 of Kestrel, a step that Kestrel never had; the file is Ocelot's",
        retrospective="continues Ocelot",
        source=f"exp600; {R8}, Phase 3",
    ),
)

PHOENIX_NOTES = (
    note(
        "mixture",
        code="no Proof-Pile 2 after the bridge",
        retrospective="the 32B retrospective calls its mixture, which has Proof-Pile 2, the Phoenix recipe",
        source="exp600; Marin 32B retrospective",
    ),
)

STARLING_NOTES = (
    note(
        "mixture",
        code="Proof-Pile 2 has weight 0.25 for 55 B tokens, about 4.5 times its size",
        retrospective="the table says once",
        source=f"exp600; {R8}, Phase 5",
    ),
    ALL_MATH_CACHE,
    ALL_MATH_SIZE,
    rounded_down(delivered="each Wikipedia 0.293 % of 0.327 %, medu_science_qa 0.098 % of 0.107 %", source="exp600 by block quantisation"),
)

DEEPER_STARLING_NOTES = (
    note(
        "start",
        code="the checkpoint after step 1,399,923, Starling's last; steps are counted from 1,400,000",
        retrospective="Starling's end",
        source="exp600",
    ),
    note("tokens", code="335.5 B tokens (20,000 steps)", retrospective="a comment says about 250 B", source="exp600"),
    ALL_MATH_CACHE,
)
