"""Settings of a phase as a person reads them. How a single value is written is in `trainer/base/wording.py`."""

from collections.abc import Mapping
from typing import Any

from phasewise.trainer.base.wording import in_words


def by_steps(entries: list[list[Any]]) -> str:
    """A value that changes at steps: `1 from 0, 0.2 from 56,400`."""
    if len(entries) == 1:
        return in_words(entries[0][1])
    return ", ".join(f"{in_words(value)} from {step:,}" for step, value in entries)


def arrows(entries: list[list[Any]]) -> str:
    """The same without the steps: `8,192 → 7,680 → 8,192`."""
    return " → ".join(in_words(value) for _, value in entries)


def rate_ends(segments: list[dict[str, Any]], start_step: int, stop_step: int) -> str:
    """A learning rate from → to in four digits, with the highest between where it rises above both."""
    from phasewise.trainer.config import LearningRateSegment
    from phasewise.trainer.schedule import turns_of

    turns = turns_of(tuple(map(LearningRateSegment.model_validate, segments)), start_step, stop_step)
    return " → ".join(f"{rate:.4g}" for rate in (turns[:1] if set(turns) == {turns[0]} else turns))


def shares(mixture: dict[str, float]) -> str:
    """Every share, the largest first."""
    return ", ".join(f"{name} {share:.2f} %" for name, share in sorted(mixture.items(), key=lambda item: -item[1]))


def mixture_in_a_word(entries: list[list[Any]]) -> str:
    """The family with the most text, such as all of `nemotron_…`, and its share; where that changes, from stage to stage."""
    found: list[tuple[str, int]] = []
    for _, mixture in entries:
        families: dict[str, float] = {}
        for name, share in mixture.items():
            family = name.partition("_")[0]
            families[family] = families.get(family, 0.0) + share
        largest = max(families, key=lambda family: families[family])
        if (largest, round(families[largest])) not in found[-1:]:
            found.append((largest, round(families[largest])))
    if len({family for family, _ in found}) == 1:
        return f"{found[0][0]} {' → '.join(str(share) for _, share in found)} %"
    return " → ".join(f"{family} {share} %" for family, share in found)


def packing_in_words(packing: str) -> str:
    """How documents become rows."""
    return {
        "chunk": "chunk: documents one after the other, cut into full rows",
        "pad": "pad: each document in a row of its own, cut after the row's length",
        "greedy": "greedy: whole documents in a row as long as they fit, cut after the row's length",
    }[packing]


def loss_in_words(loss_on: str) -> str:
    """Which tokens are predicted."""
    return {"all": "all tokens", "answers": "answers alone"}[loss_on]


def rows_in_words(packing: str, loss_on: str) -> str:
    """Both, where they are not those of most phases; else nothing."""
    if (packing, loss_on) == ("chunk", "all"):
        return ""
    return f"packing {packing}, loss on {loss_in_words(loss_on)}"


def bias_in_words(bias: Mapping[str, Any]) -> str:
    """How the documents of a component are taken by their length."""
    seed = f", seed {bias['seed']}" if bias["seed"] else ""
    return (
        f"{100 * bias['ceiling']:g} % from {bias['full_tokens']:,} tokens on, of shorter ones in proportion to their length, and at least "
        f"{100 * bias['floor']:g} %{seed}"
    )
