"""Supervised fine-tuning of Trinity: conversations of up to 64 K tokens, packed greedily, with a loss on the answers alone."""

from phasewise.flows.recipes.phase import Change, Phase, continued
from phasewise.flows.recipes.trinity.notes import unstated
from phasewise.flows.recipes.trinity.settings import evaluated, gates, linear
from phasewise.trainer.config import always
from phasewise.validations.limits import PackingLimits

SEQ_LEN = 65_536
SEQUENCES, STEPS = 64, 10_000
WARMUP, PEAK_SHARE = 0.03, 0.1
PACKING = PackingLimits(min_counted_percent=1.0, max_cut_percent=25.0)

NOTES = (
    unstated("start", "the report describes the fine-tuning of Large; that of the small models is taken to be the same", place="§4"),
    unstated(
        "learning_rate",
        "the share of the pre-training peak that the warm-up goes to is blank: a tenth, and a warm-up over 3 % of the steps, are this "
        "project's choice",
        place="§4",
    ),
    unstated("batch", "neither batch nor steps are stated: 64 sequences and 10,000 steps are this project's choice", place="§4"),
    unstated(
        "mixture",
        "the conversations are not public: at full scale there is nothing to read, and a recipe of one's own gives the component a source",
        place="§4",
    ),
    unstated("loss_on", "which tokens are predicted is not stated: the answers, as is usual, is this project's choice", place="§4"),
    unstated("optimizer", "whether the optimizer's state is carried is not stated: here it begins afresh", place="§4"),
)


def instruction(parent: Phase, *, peak: float, name: str = "sft", mixture: str = "instruction_trinity") -> Phase:
    """Fine-tuning of what a phase ends with: linear warm-up to a share of the peak, linear to 0; longer samples are cut.

    Args:
        parent: the phase that it starts from; rows of another length than 64 K are a change that it declares.
        peak: the largest learning rate of pre-training.
    """
    start, stop = parent.stop_step, parent.stop_step + STEPS
    top, rate = start + int(WARMUP * STEPS), PEAK_SHARE * peak
    model = parent.model.but(seq_len=SEQ_LEN)
    others: tuple[Change, ...] = ("seq_len",) if model != parent.model else ()
    return continued(
        parent,
        name=name,
        stop_step=stop,
        fresh=("optimizer",),
        declares=("batch", "schedule", "optimizer_state", "mixture", "order", "packing", "loss_on", *others),
        branch=True,
        model=model,
        learning_rate=(linear(start, top, 0.0, rate), linear(top, stop, rate, 0.0)),
        batch=always(SEQUENCES),
        mixture=always({mixture: 100.0}),
        order=parent.order.but(first_step=start, buffer_documents=None),
        packing="greedy",
        loss_on="answers",
        evaluation=evaluated(),
        gates=gates(max_increase_bits_per_byte=0.5, max_epochs=None, packing=PACKING, min_answer_gain_nats=0.0),
        notes=NOTES,
    )
