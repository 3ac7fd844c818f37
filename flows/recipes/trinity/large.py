"""Trinity Large: 398.6 B parameters, 13.4 B of them active, and 17 T tokens in three phases, sampled 13 : 4 : 3 from a mix of 20 T.

The main line has the final configuration of the run from its first step. `first-runs` has the earlier configuration, which lost its expert
balance. Six changes followed, and six dense layers instead of three made a new run necessary. Phase 3 draws from document buffers,
`phase-3-mixed-buffer` from one buffer over all components, `phase-3-without-buffer` from permuted rows. `trinity.yaml` lists public notes
and this project's choices.
"""

from phasewise.flows.recipes.facts import with_facts
from phasewise.flows.recipes.phase import FromScratch, Phase, continued
from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.recipes.trinity.settings import (
    BUFFER_DOCUMENTS,
    EXTENSION_TOKENS,
    LARGE_MIXTURES,
    LENGTH_BIAS,
    ORDER,
    TOKENIZER,
    TRILLION,
    WARMUP_STEPS,
    context_extension,
    evaluated,
    gates,
    instruction,
    muon,
    steps_for,
    trinity,
)
from phasewise.flows.recipes.waivers import accepted_without_cooldown
from phasewise.flows.recipes.words import constant, cosine, linear, stability
from phasewise.trainer.config import CheckpointPolicy, Experts, SignBalancing, Smebu, Steps, always

SEQ_LEN, SEQ_LEN_LONG = 8_192, 262_144
PEAK, FLOOR = 8e-4, 8e-5

# 12,288 sequences of 8,192 tokens a step up to 4.9 T, and 16,384 from there on. Phases of 13/20, 4/20 and 3/20 of 17 T.
#              4.90 T / 100,663,296 tokens a step = 48,677 steps
#   phase 1   11.05 T: the 6.15 T that are left / 134,217,728 tokens a step = 45,821 steps, to step 94,498
#   phase 2    3.40 T / 134,217,728 tokens a step = 25,332 steps, to step 119,830
#   phase 3    2.55 T / 134,217,728 tokens a step = 18,999 steps, to step 138,829
BEFORE, AFTER = 12_288, 16_384
STEP_UP = steps_for(4.9 * TRILLION, sequences=BEFORE, seq_len=SEQ_LEN)
END_1 = STEP_UP + steps_for((17 * 13 / 20 - 4.9) * TRILLION, sequences=AFTER, seq_len=SEQ_LEN)
END_2 = END_1 + steps_for(17 * 4 / 20 * TRILLION, sequences=AFTER, seq_len=SEQ_LEN)
END_3 = END_2 + steps_for(17 * 3 / 20 * TRILLION, sequences=AFTER, seq_len=SEQ_LEN)
DECAY = cosine(END_1, END_3, PEAK, FLOOR)

EXPERTS = Experts(
    num_experts=256,
    num_active=4,
    num_shared=1,
    d_expert=3072,
    route_scale=2.448,
    num_dense_layers=6,
    balancing=Smebu(kind="smebu", rate=5e-4, sharpness=2.0, momentum=0.5),
    sequence_loss=1e-4,
)
LARGE = trinity(
    num_layers=60,
    d_model=3072,
    d_ff=12_288,
    num_query_heads=48,
    num_kv_heads=8,
    seq_len=SEQ_LEN,
    within_documents=True,
    experts=EXPERTS,
)

PHASE_1 = Phase(
    name="phase-1",
    start=FromScratch(seed=0),
    stop_step=END_1,
    model=LARGE,
    optimizer=muon(adam_learning_rate_scale=0.25),
    learning_rate=(linear(0, WARMUP_STEPS, 0.0, PEAK), constant(WARMUP_STEPS, END_1, PEAK)),
    batch=Steps[int](((0, BEFORE), (STEP_UP, AFTER))),
    mixture=always(LARGE_MIXTURES[0]),
    order=ORDER,
    stability=stability(z_loss=1e-6),
    slice=always("2x v5p-2048"),
    checkpoints=CheckpointPolicy(every_steps=5_000, every_minutes=10, keep_all=True),
    evaluation=evaluated(),
    gates=gates(),
)

PHASE_2 = continued(
    PHASE_1,
    name="phase-2",
    stop_step=END_2,
    declares=("schedule", "mixture"),
    learning_rate=(DECAY,),
    schedule_goes_on=True,
    mixture=always(LARGE_MIXTURES[1]),
)

PHASE_3 = continued(
    PHASE_2,
    name="phase-3",
    stop_step=END_3,
    declares=("mixture", "order", "coverage"),
    learning_rate=(DECAY,),
    mixture=always(LARGE_MIXTURES[2]),
    order=PHASE_2.order.but(buffer_documents=BUFFER_DOCUMENTS),
    evaluation=PHASE_2.evaluation.but(benchmarks=(*PHASE_2.evaluation.benchmarks, f"niah:{SEQ_LEN}")),
)

#   extension  117 B / 134,217,728 tokens a step = 872 steps of 512 sequences, to step 139,701. The cosine ends at a twentieth
END_4 = END_3 + steps_for(EXTENSION_TOKENS, sequences=AFTER, seq_len=SEQ_LEN)
CONTEXT_EXTENSION = context_extension(PHASE_3, seq_len=SEQ_LEN_LONG, learning_rate=(cosine(END_3, END_4, FLOOR, FLOOR / 2),))

PHASE_3_MIXED_BUFFER = PHASE_3.but(name="phase-3-mixed-buffer", branch=True, order=PHASE_3.order.but(buffer_over="mixture"))

PHASE_3_WITHOUT_BUFFER = continued(
    PHASE_2,
    name="phase-3-without-buffer",
    stop_step=END_3,
    declares=("mixture",),
    branch=True,
    learning_rate=(DECAY,),
    mixture=always(LARGE_MIXTURES[2]),
)

FIRST_RUNS = PHASE_1.but(
    name="first-runs",
    stop_step=10_000,
    branch=True,
    abandoned=True,
    model=LARGE.but(
        attend_within_documents=False,
        experts=EXPERTS.but(num_dense_layers=3, balancing=SignBalancing(kind="sign", rate=0.001), sequence_loss=0.0),
    ),
    stability=stability(z_loss=None),
)

SFT = instruction(CONTEXT_EXTENSION, peak=PEAK)
PHASES = with_facts(
    "trinity-large", (PHASE_1, PHASE_2, PHASE_3, CONTEXT_EXTENSION, SFT, PHASE_3_MIXED_BUFFER, PHASE_3_WITHOUT_BUFFER, FIRST_RUNS)
)

TRINITY_LARGE = Recipe(
    name="trinity-large",
    scale="full",
    tokenizer=TOKENIZER,
    phases=PHASES,
    accepts=(accepted_without_cooldown(PHASES, source="the phase's `learning_rate`: Trinity Large report, §3.4.2"),),
    length_bias=LENGTH_BIAS,
)
