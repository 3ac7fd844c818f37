"""Trinity Nano and Mini: three phases of 7, 1.8 and 1.2 T tokens, the context extension, and the fine-tuning as a branch.

Nano has 6.12 B parameters, 1.02 B of them active per token. Mini has 26.1 B, 3.47 B of them active. Values come from the Trinity Large
report. `trinity.yaml` names the source of each value, and lists choices of this project: `phasewise show trinity-mini --notes`,
`--sources`.
"""

from phasewise.flows.recipes.facts import with_facts
from phasewise.flows.recipes.phase import FromScratch, Phase, continued
from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.recipes.trinity.settings import (
    BUFFER_DOCUMENTS,
    EXTENSION_TOKENS,
    LENGTH_BIAS,
    ORDER,
    SMALL_MIXTURES,
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
from phasewise.flows.recipes.words import constant, linear, stability
from phasewise.trainer.config import CheckpointPolicy, Experts, ModelConfig, SignBalancing, always

# 10 T tokens in batches of 4,096 and, after phase 1, 8,192 sequences of 4,096 tokens.
#   phase 1   7.0 T / 16,777,216 tokens a step = 417,233 steps
#   phase 2   1.8 T / 33,554,432 tokens a step =  53,644 steps, to step 470,877
#   phase 3   1.2 T / 33,554,432 tokens a step =  35,763 steps, to step 506,640
#   extension 117 B / 33,554,432 tokens a step =   3,487 steps, to step 510,127
SEQ_LEN, PEAK = 4_096, 1e-3
BEFORE, AFTER = 4_096, 8_192
END_1 = steps_for(7.0 * TRILLION, sequences=BEFORE, seq_len=SEQ_LEN)
END_2 = END_1 + steps_for(1.8 * TRILLION, sequences=AFTER, seq_len=SEQ_LEN)
END_3 = END_2 + steps_for(1.2 * TRILLION, sequences=AFTER, seq_len=SEQ_LEN)

EXPERTS = Experts(
    num_experts=128,
    num_active=8,
    num_shared=1,
    d_expert=256,
    route_scale=2.826,
    num_dense_layers=2,
    balancing=SignBalancing(kind="sign", rate=0.001),
    sequence_loss=0.0,
)
NANO = trinity(
    num_layers=56,
    d_model=1024,
    d_ff=3072,
    num_query_heads=8,
    num_kv_heads=2,
    seq_len=SEQ_LEN,
    within_documents=False,
    experts=EXPERTS,
)
MINI = trinity(
    num_layers=32,
    d_model=2048,
    d_ff=6144,
    num_query_heads=32,
    num_kv_heads=4,
    seq_len=SEQ_LEN,
    within_documents=False,
    experts=EXPERTS.but(d_expert=1024),
)


def small_phases(model: ModelConfig, *, long_seq_len: int) -> tuple[Phase, ...]:
    """Seven tenths of the tokens at a constant rate, then twice the batch and another mixture, then a decay to 0, then longer rows.

    The branch `phase-3-from-buffers` is the third phase with Large's document buffers.
    """
    phase_1 = Phase(
        name="phase-1",
        start=FromScratch(seed=0),
        stop_step=END_1,
        model=model,
        optimizer=muon(adam_learning_rate_scale=0.2),
        learning_rate=(linear(0, WARMUP_STEPS, 0.0, PEAK), constant(WARMUP_STEPS, END_1, PEAK)),
        batch=always(BEFORE),
        mixture=always(SMALL_MIXTURES[0]),
        order=ORDER,
        stability=stability(z_loss=1e-4),
        slice=always("v5p-1024"),
        checkpoints=CheckpointPolicy(every_steps=20_000, every_minutes=10, keep_all=True),
        evaluation=evaluated(),
        gates=gates(),
    )
    phase_2 = continued(
        phase_1,
        name="phase-2",
        stop_step=END_2,
        declares=("batch", "mixture"),
        learning_rate=(constant(END_1, END_2, PEAK),),
        batch=always(AFTER),
        mixture=always(SMALL_MIXTURES[1]),
    )
    phase_3 = continued(
        phase_2,
        name="phase-3",
        stop_step=END_3,
        declares=("schedule", "mixture"),
        learning_rate=(linear(END_2, END_3, PEAK, 0.0),),
        mixture=always(SMALL_MIXTURES[2]),
        evaluation=evaluated(needles=(model.seq_len,)),
    )
    from_buffers = continued(
        phase_2,
        name="phase-3-from-buffers",
        stop_step=END_3,
        declares=("schedule", "mixture", "order", "coverage"),
        branch=True,
        learning_rate=phase_3.learning_rate,
        mixture=phase_3.mixture,
        order=phase_2.order.but(buffer_documents=BUFFER_DOCUMENTS),
    )
    steps = steps_for(EXTENSION_TOKENS, sequences=AFTER, seq_len=SEQ_LEN)
    top, end = END_3 + round(0.1 * steps), END_3 + steps
    rates = (linear(END_3, top, 0.0, 0.1 * PEAK), linear(top, end, 0.1 * PEAK, 0.0))
    extension = context_extension(phase_3, seq_len=long_seq_len, learning_rate=rates, declares=("schedule",))
    return phase_1, phase_2, phase_3, extension, instruction(extension, peak=PEAK), from_buffers


TRINITY_NANO, TRINITY_MINI = (
    Recipe(
        name=name,
        scale="full",
        tokenizer=TOKENIZER,
        phases=with_facts(name, phases),
        accepts=(accepted_without_cooldown(phases, source="the phase's `learning_rate`: Trinity Large report, §3.4.2"),),
        length_bias=LENGTH_BIAS,
    )
    for name, phases in (
        ("trinity-nano", small_phases(NANO, long_seq_len=262_144)),
        ("trinity-mini", small_phases(MINI, long_seq_len=131_072)),
    )
)
