"""Whether a checkpoint's score on a benchmark can be compared with its parent's, and on what.

Two scores are compared where the benchmark was put to both models in the same way. What differs is named, and fails the gate: a comparison
that nobody can make is not one that the checkpoint passed. A parent that was never asked the benchmark is another matter: then the floor
alone decides, and the verdict says so. `docs/reference/gates.md` has the rules, decision 14 the reasons.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from phasewise.trainer.base.errors import DataError

NEEDLE_BENCHMARKS = ("niah", "niah_written")
"""A choice among the values of all keys, and the value as the model writes it."""


def is_needle(benchmark: str) -> bool:
    """Whether a benchmark asks for needles: `niah:4096`, `niah_written:4096`."""
    return benchmark.partition(":")[0] in NEEDLE_BENCHMARKS


Evaluation = Mapping[str, Any]
Result = Mapping[str, Any]
STEADY_SHARE, ANNEALED_SHARE = 0.5, 0.1
"""A phase that ends at half of the peak rate or more is steady; at a tenth or less it is annealed; in between it is in mid-decay."""
ALIKE_FACTOR = 2.0
"""Two phases in mid-decay are at the same point where their rates differ by at most this factor."""
ROUNDING = 1e-9
SETTING_WORDS: Mapping[str, str] = {
    "version": "version of the benchmark",
    "shots": "examples in the prompt",
    "filter": "filter of the answers",
    "items": "number of items",
    "asked": "items that were asked",
    "items_digest": "items",
    "prompts_digest": "prompts",
    "precision": "precision",
}
"""What must be equal, by its name in an evaluation's `setting`. A name that is not here is compared as well."""
Favours = Literal["neither", "checkpoint", "parent"]


class Comparison(NamedTuple):
    """How a benchmark of a checkpoint is compared with the parent's.

    Attributes:
        parent: the phase that is compared with; None where there is none.
        limited: why the score is not that of the whole benchmark, which fails the gate whatever the parent has; empty where it is.
        differs: what else keeps the two from being compared, and fails the gate; empty where nothing does.
        asks_fall, asks_rise: whether the gate asks for a fall, and for a rise.
        why_not: why one of them is not asked, or neither, in words; empty where both are.
    """

    name: str
    parent: str | None
    limited: str
    differs: str
    asks_fall: bool
    asks_rise: bool
    why_not: str

    @property
    def asks(self) -> bool:
        """Whether anything is compared."""
        return self.asks_fall or self.asks_rise


def compare(name: str, result: Result, evaluation: Evaluation, parent: Evaluation | None) -> Comparison:
    """The comparison of one benchmark's metric.

    Args:
        name: benchmark and metric, as `name_of` gives it.
        result: the checkpoint's, out of `evaluation`.
        parent: the parent's evaluation; None where the phase starts from scratch.

    Raises:
        DataError: a learning rate is not one.
    """
    # Why a score is not that of the whole benchmark; empty where it is
    setting = result.get("setting")
    if setting is None:
        limited = "the evaluation does not say how it was put"
    else:
        asked, items = setting["asked"], setting["items"]
        if asked == items == result["items"]:
            limited = ""
        else:
            limited = f"only {min(asked, result['items']):,} of its {items:,} items were asked, which are the first and no sample"
    if parent is None:
        return Comparison(name, None, limited, "", False, False, "there is no phase before it")
    phase = str(parent.get("phase", "the parent"))
    theirs = next((one for one in parent["results"] if name_of(one) == name), None)
    if theirs is None:
        return Comparison(name, phase, limited, "", False, False, f"{phase} was never measured on it")
    differs = "; ".join(filter(None, (_differences(result, theirs), _missing_point(evaluation, parent, phase))))
    if limited or differs:
        return Comparison(name, phase, limited, differs, False, False, "the two were not measured alike")
    favoured = favoured_by_schedule(evaluation["schedule"], parent["schedule"])
    why_not = {
        "neither": "",
        "checkpoint": f"a rise over {phase} is not asked for: this phase ends nearer to the end of its decay, which raises scores",
        "parent": f"a fall below {phase} is not asked for: that phase ended nearer to the end of its decay, which raises scores",
    }[favoured]
    return Comparison(name, phase, "", "", favoured != "parent", favoured != "checkpoint", why_not)


def name_of(result: Result) -> str:
    """Benchmark and metric: what a row of the evidence is named by."""
    return f"{result['benchmark']} {result['metric']}"


def favoured_by_schedule(point: Mapping[str, Any], parent: Mapping[str, Any]) -> Favours:
    """Which of the two is further down its learning rate, where that is worth something.

    Rates are relative to the peak. Of two phases under the same kind of optimizer that is the higher of their two peaks: a phase that
    goes on at an annealed rate is annealed, though its own rate never falls.

    Args:
        point, parent: `end`, the learning rate at the phase's end, `peak`, its highest in the phase, and `optimizer`, its kind.

    Raises:
        DataError: a rate is none.
    """
    for one in (point, parent):
        if not 0 <= one["end"] <= one["peak"] * (1 + ROUNDING) or not one["peak"] > 0:
            raise DataError(
                f"an evaluation must say a learning rate between 0 and the phase's peak, found {one['end']} at a peak of {one['peak']}. "
                "Delete evaluation.json beside the checkpoints and evaluate again."
            )
    higher = max(point["peak"], parent["peak"])
    same_kind = point["optimizer"] == parent["optimizer"]
    share, theirs = (one["end"] / (higher if same_kind else one["peak"]) for one in (point, parent))
    if _stage(share) == _stage(theirs) and (_stage(share) != 1 or max(share, theirs) <= ALIKE_FACTOR * min(share, theirs)):
        return "neither"
    return "checkpoint" if share < theirs else "parent"


def _stage(share: float) -> int:
    """0 steady, 1 in mid-decay, 2 annealed."""
    if share >= STEADY_SHARE * (1 - ROUNDING):
        return 0
    return 2 if share <= ANNEALED_SHARE * (1 + ROUNDING) else 1


def _differences(result: Result, theirs: Result) -> str:
    ours, parents = result.get("setting"), theirs.get("setting")
    if ours is None or parents is None:
        return "" if parents is not None else "the parent's evaluation does not say how it was put"
    names = [*SETTING_WORDS, *sorted({*ours, *parents} - {*SETTING_WORDS})]
    changed = [(name, ours.get(name), parents.get(name)) for name in names if ours.get(name) != parents.get(name)]
    return "; ".join(_difference(name, one, other) for name, one, other in changed)


def _difference(name: str, ours: Any, parents: Any) -> str:
    words = SETTING_WORDS.get(name, name)
    if name.endswith("_digest"):
        return f"other {words} ({str(ours)[:8]}, the parent's {str(parents)[:8]})"
    return f"{words} {ours}, the parent's {parents}"


def _missing_point(evaluation: Evaluation, parent: Evaluation, phase: str) -> str:
    without = [who for who, one in (("this phase", evaluation), (phase, parent)) if not one.get("schedule")]
    return f"the evaluation of {' and '.join(without)} does not say at which learning rate the phase ended" if without else ""
