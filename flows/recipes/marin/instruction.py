"""Supervised fine-tuning of Marin 8B: what was released (exp1237), and the trial on Spoonbill.

It trains on conversations, by Marin's chat template (`flows/recipes/catalogue/instruction.py`), packed into rows, with a loss on the
answers alone. The record's steps start from 0; here they go on from the parent's.
"""

from phasewise.flows.recipes.marin.notes import PAPER, R8, differs, unstated
from phasewise.flows.recipes.marin.settings import ADAMW, evaluated, gates, linear, stability
from phasewise.flows.recipes.phase import Discrepancy, Note, Phase, continued
from phasewise.trainer.config import LearningRateSegment, MixtureShares, always
from phasewise.validations.limits import PackingLimits

NO_DECAY = ADAMW.but(weight_decay=0.0)
WARMUP = 0.03
PACKING = PackingLimits(min_counted_percent=1.0, max_cut_percent=25.0)
"""What is worth a warning: a component that hardly teaches anything, and one of which much is cut off."""
SEED = unstated(
    "order",
    "data seed 1, which the first fine-tuning on Tulu 3 set and the others took over with its configuration",
    source="Marin experiment code, exp606, exp916 and exp1237",
    place="experiments/exp606_sft.py, tulu_sft_config",
)
AT_MOST_64 = unstated(
    "packing",
    "Levanter's chat format fills rows greedily, in the order of the conversations, with at most 64 of them (4 before April 2025), and "
    "cuts what is longer than a row at its end. Here there is no limit to their number",
    source="Levanter at 52d8856f",
    place="Levanter src/levanter/data/text.py, dataset_for_format and MultiturnChatDataset; src/levanter/data/packing.py",
)
TEMPLATE = unstated(
    "mixture",
    "the trial's conversations were rendered by the chat template of Llama 3.1 Instruct, with its tokenizer. Here they are rendered by "
    "Marin's template, as those of the release",
    source="Marin experiment code, exp606 and exp916",
    place="experiments/exp606_sft.py, tulu3_llama_tokenize_step",
)
FLOAT32 = unstated(
    "model.float32_attention",
    "the code names the model of deeper-spoonbill, with attention in float32. Levanter's fine-tuning before 2025-04-20 took the model from "
    "the exported folder, which does not hold that setting. On which version the trial ran is not recorded. Here it is as the code names "
    "it",
    source="Marin experiment code, exp916; Marin 938 (2025-04-03); Levanter's history",
    place="experiments/tootsie/exp916_tootsie_spoonbill_cooldown.py; Levanter src/levanter/main/sft.py",
)
# Percent, by the number of documents.
RELEASE_WEIGHTS = {
    "natural_reasoning": 23.4,
    "smoltalk": 21.3,
    "tulu_3_sft_mixture": 19.2,
    "verifiable_math_problems": 15.9,
    "dolphin_r1_reasoning": 11.9,
    "dolphin_r1_nonreasoning": 4.4,
    "openthoughts_114k_math": 1.8,
    "acecode_89k": 1.8,
    "bespoke_stratos_17k": 0.34,
}
RELEASE_STEPS, SPOONBILL_STEPS = 10_228, 3_834


def instruction(deeper_starling: Phase, deeper_spoonbill: Phase) -> tuple[Phase, ...]:
    """The release, and the trial on one data set."""
    total = sum(RELEASE_WEIGHTS.values())
    release: MixtureShares = {name: 100 * weight / total for name, weight in RELEASE_WEIGHTS.items()}
    return (
        _tuned(
            deeper_starling,
            "sft",
            steps=RELEASE_STEPS,
            rate=1e-4,
            mixture=release,
            notes=(AT_MOST_64, SEED),
            differences=(
                differs(
                    "learning_rate",
                    "high",
                    code="1e-4, warm-up over 3 %, then linear to 0",
                    retrospective="1.7e-4, in the paper too",
                    source="Marin experiment code, exp1237; Marin 8B retrospective, SFT; Marin paper",
                    place=f"exp1237; {R8}, SFT; {PAPER}, section 4.3",
                ),
                differs(
                    "stop_step",
                    "low",
                    code="10,228 steps of 128 sequences",
                    retrospective="10,227 steps",
                    source="Marin experiment code, exp1237; Marin 8B retrospective, SFT",
                    place=f"exp1237; {R8}, SFT",
                ),
                differs(
                    "mixture",
                    "high",
                    code="nine data sets, without tuenguyen/dolphin_r1_reasoning",
                    retrospective="lists tuenguyen/dolphin_r1_reasoning, too",
                    source="Marin experiment code, exp1237; Marin 8B retrospective, SFT",
                    place=f"exp1237; {R8}, SFT",
                ),
            ),
        ),
        _tuned(
            deeper_spoonbill,
            "sft-spoonbill",
            steps=SPOONBILL_STEPS,
            rate=5e-6,
            mixture={"tulu_3_sft_mixture": 100.0},
            differences=(),
            notes=(
                AT_MOST_64,
                SEED,
                TEMPLATE,
                FLOAT32,
                unstated(
                    "stop_step",
                    "3,834 steps: three epochs by the formula. A comment of the code itself says two epochs",
                    source="Marin experiment code, SFT of Spoonbill",
                    place="Marin experiment code, SFT of Spoonbill",
                ),
            ),
        ),
    )


def _tuned(
    parent: Phase,
    name: str,
    *,
    steps: int,
    rate: float,
    mixture: MixtureShares,
    differences: tuple[Discrepancy, ...],
    notes: tuple[Note, ...],
) -> Phase:
    again = bool(mixture.keys() & set(parent.components))  # Spoonbill had a little of Tulu 3
    start, stop = parent.stop_step, parent.stop_step + steps
    return continued(
        parent,
        name=name,
        stop_step=stop,
        fresh=("optimizer",),
        declares=(
            *("batch", "learning_rate", "schedule", "optimizer", "optimizer_state", "mixture", "order", "ema", "z_loss", "slice"),
            *("packing", "loss_on"),
            *(("coverage",) if again else ()),
        ),
        branch=True,
        optimizer=NO_DECAY,
        learning_rate=_warmed_up(start, stop, rate),
        batch=always(128),
        mixture=always(mixture),
        order=parent.order.but(first_step=start, seed=1),
        packing="greedy",
        loss_on="answers",
        stability=stability(z_loss=None, ema=None),
        slice=always("v4-128"),
        checkpoints=parent.checkpoints.but(every_steps=1_000),
        evaluation=evaluated(loss_every_steps=1_000),
        gates=gates(max_increase_bits_per_byte=0.5, max_epochs=None, packing=PACKING, min_answer_gain_nats=0.0),
        discrepancies=differences,
        notes=notes,
    )


def _warmed_up(start: int, stop: int, rate: float) -> tuple[LearningRateSegment, ...]:
    top = start + int(WARMUP * (stop - start))
    return linear(start, top, 0.0, rate), linear(top, stop, rate, 0.0)
