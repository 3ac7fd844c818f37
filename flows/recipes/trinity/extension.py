"""The extension of the context, which follows the last phase of pre-training: longer rows of other text, and nothing else (report, §3.5).

Windows and RoPE of the local layers stay, and the global ones have no positions: no weight changes its meaning.
"""

from collections.abc import Sequence

from phasewise.flows.recipes.phase import Change, Note, Phase, continued
from phasewise.flows.recipes.trinity.mixtures import LONG_MIXTURE
from phasewise.flows.recipes.trinity.settings import gates, steps_for
from phasewise.trainer.config import LearningRateSegment, always

TOKENS = 117e9
MAX_INCREASE_BITS_PER_BYTE = 0.05
"""Bits per byte may rise by so much: the rate rises again, or the text is another."""


def extension_steps(parent: Phase, *, tokens: float = TOKENS) -> int:
    """Steps for the tokens of the extension, as many a step as the parent's last ones have."""
    return steps_for(tokens, sequences=parent.batch.at(parent.stop_step - 1), seq_len=parent.model.seq_len)


def context_extension(
    parent: Phase,
    *,
    seq_len: int,
    learning_rate: Sequence[LearningRateSegment],
    declares: tuple[Change, ...] = (),
    notes: tuple[Note, ...],
) -> Phase:
    """The phase, from the end of its parent: the same tokens a step, in fewer and longer rows; needles are looked for in both lengths.

    Args:
        seq_len: a multiple of the parent's.
        declares: what changes besides the rows, their text and, with these, their order.
    """
    longer = seq_len // parent.model.seq_len
    return continued(
        parent,
        name="context-extension",
        stop_step=learning_rate[-1].end_step,
        declares=("seq_len", *declares, "mixture", "order"),
        model=parent.model.but(seq_len=seq_len),
        learning_rate=tuple(learning_rate),
        batch=always(parent.batch.at(parent.stop_step - 1) // longer),
        mixture=always(LONG_MIXTURE),
        order=parent.order.but(first_step=parent.stop_step),
        evaluation=parent.evaluation.but(benchmarks=(*parent.evaluation.benchmarks, f"niah:{seq_len}")),
        gates=gates(max_increase_bits_per_byte=MAX_INCREASE_BITS_PER_BYTE),
        notes=notes,
    )
