"""Lines of `phasewise why`, and its answer with the comparison of the traced data."""

from typing import Any

from rich.console import Console

from phasewise.flows.cli.trace import ID_SHOWN, plain
from phasewise.flows.recipes import split_target
from phasewise.flows.recipes.recipe import Scale, scale_in_words
from phasewise.flows.trace.causes import explain
from phasewise.flows.trace.trace_context import open_traced
from phasewise.trainer.base.errors import ConfigError

MAX_CAUSES, MAX_ROWS = 10, 5


def why(target: str, scale: Scale, home: str | None, step: int, *, replays: bool) -> dict[str, Any]:
    """Explain the loss of a step in the shape of `--json`. Read only."""
    if split_target(target)[1] is None:
        raise ConfigError(f"a step is one of a phase: `phasewise why {target}/PHASE --step {step}`.")
    traced = open_traced(target, scale, home, only_phase=True)
    found, trained = explain(traced, step, replays=replays), traced.phases[0].trained
    if trained.trained == "otherwise":
        found["remarks"].append(f"{found['phase']} was trained on other data: {', '.join(trained.differs)}. The documents may be wrong.")
    return {**found, "trained": trained.trained}


def print_why(found: dict[str, Any]) -> None:
    """Print the loss, the ranked causes, the first rows with their documents, and the replay."""
    expected = "" if found["expected"] is None else f", {found['expected']:.4g} expected ({found['score']:+.1f} deviations)"
    lines = [
        f"{found['recipe']} {scale_in_words(found['scale'])} {found['phase']} step {found['step']:,}: {found['kind']}",
        f"loss {found['loss']:.4g}{expected}; all rows share {found['common']:+.1f} deviations",
        "causes, in standard deviations:",
        *(f"  {cause['score']:6.1f}  {cause['kind']:9}  {plain(cause['name'])}" for cause in found["causes"][:MAX_CAUSES]),
    ]
    for row in found["rows"][:MAX_ROWS]:
        lines.append(
            f"row {row['row']} of {row['component']}: loss {row['loss']:.4g}, {row['expected']:.4g} expected ({row['score']:+.1f})"
        )
        for one in row["documents"]:
            tokens = f"{one['offset']:,}–{one['offset'] + one['tokens'] - 1:,}"
            loss = f", loss {one['loss']:.4g}" if "loss" in one else ""
            lines += [
                f"  {plain(one['document'][:ID_SHOWN])} {plain(one['file'])} tokens {tokens}{loss}",
                f"    {plain(one['text'] or '')}",
            ]
    if replayed := found["replay"]:
        before = f"{replayed['loss_before']:.4g} with the weights before the last update"
        lines.append(f"replay from step {replayed['from_step']:,}: loss {replayed['loss']:.4g}, {before}")
        each = (
            f"  {part['name']} frozen: loss {part['loss']:.4g}, removes {part['removes']:.0%} of the rise" for part in replayed["parts"]
        )
        lines += [*each, f"named by the replay: {replayed['named'] or 'no part, the last update did not cause the rise'}"]
    Console(highlight=False, soft_wrap=True, markup=False).print("\n".join(lines))
