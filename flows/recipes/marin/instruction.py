"""Supervised fine-tuning of Marin 8B: what was released (exp1237), and the trial on Spoonbill.

It trains on conversations, by Marin's chat template (`flows/recipes/catalogue/instruction.py`), packed into rows, with a loss on the
answers alone. The record's steps start from 0; here they go on from the parent's.
"""

from flows.recipes.marin.notes import PAPER, R8, differs, unstated
from flows.recipes.marin.settings import ADAMW, evaluated, gates, linear, stability
from flows.recipes.phase import Discrepancy, Note, Phase, continued
from trainer.config import LearningRateSegment, MixtureShares, always
from validations.limits import PackingLimits

NO_DECAY = ADAMW.but(weight_decay=0.0)
WARMUP = 0.03
PACKING = PackingLimits(min_counted_percent=1.0, max_cut_percent=25.0)
"""What is worth a warning: a component that hardly teaches anything, and one of which much is cut off."""
NO_MASK = unstated(
    "model.attend_within_documents",
    "whether conversations in one row see each other is not written down: here they do not, as in all phases",
    source="Marin experiment code, exp1237",
    place="exp1237",
)
NOT_CUT = unstated(
    "packing",
    "the code leaves Levanter's chat format as it is, which packs conversations that fit into one row. How it lays them, and what becomes "
    "of longer ones, is not written down: here greedily in their order, and cut after a row's length",
    source="Levanter documentation, Dataset Format Reference",
    place="docs/reference/Data-Formats.md, `chat` format",
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
            notes=(NOT_CUT, NO_MASK),
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
                NOT_CUT,
                NO_MASK,
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
            *(("architecture",) if parent.model.float32_attention else ()),
            *(("coverage",) if again else ()),
        ),
        branch=True,
        model=parent.model.but(float32_attention=False),
        optimizer=NO_DECAY,
        learning_rate=_warmed_up(start, stop, rate),
        batch=always(128),
        mixture=always(mixture),
        order=parent.order.but(first_step=start),
        packing="greedy",
        loss_on="answers",
        stability=stability(z_loss=None, ema=None),
        slice=always("v4-128"),
        evaluation=evaluated(loss_every_steps=1_000),
        gates=gates(max_increase_bits_per_byte=0.5, max_epochs=None, packing=PACKING, min_answer_gain_nats=0.0),
        discrepancies=differences,
        notes=notes,
    )


def _warmed_up(start: int, stop: int, rate: float) -> tuple[LearningRateSegment, ...]:
    top = start + int(WARMUP * (stop - start))
    return linear(start, top, 0.0, rate), linear(top, stop, rate, 0.0)
