"""The benchmarks that a phase can name: made from held-out text, needles, and lm-eval's."""

from collections.abc import Iterable

from pydantic import ValidationInfo

from phasewise.tasks.evaluation.settings import MADE_BENCHMARKS, MIN_LENGTH, needle_length, needles_of, real_of
from phasewise.trainer.base.errors import ConfigError

CORE_BENCHMARKS = (
    "agieval_lsat_ar:3", "arc_easy:10", "arc_challenge:10", "boolq:10", "commonsense_qa:10", "copa:0", "hellaswag:0", "hellaswag:10",
    "lambada_openai:0", "openbookqa:0", "piqa:10", "wsc273:0", "winogrande:0",
)  # fmt: skip
"""The published run's benchmarks: name in lm-eval and number of examples in the prompt."""
WITH_MMLU = (*CORE_BENCHMARKS, "mmlu:0", "mmlu:5")
KNOWN = (
    f"Known are {', '.join(MADE_BENCHMARKS)}, made from held-out text, needles hidden in it with their length, such as niah:4096, and "
    "lm-eval's or those of evaluation.include with their examples, such as arc_easy:10"
)


def own_of(benchmarks: Iterable[str]) -> tuple[str, ...]:
    """Select the labels outside `benchmarks.yaml`."""
    named = [label for label in real_of(benchmarks) if label not in WITH_MMLU]
    if not named:
        return ()
    from phasewise.tasks.evaluation.benchmark_definitions import DEFINITIONS  # a third of a second

    return tuple(label for label in named if label.partition(":")[0] not in DEFINITIONS)


def checked_names(benchmarks: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
    """Return the names, or reject unknown names, duplicates, and an empty list. Own benchmarks of `include` are read later."""
    if not set(benchmarks) - set(needles_of(benchmarks)):
        needles = " in addition to needles" if benchmarks else ""
        raise ValueError(f"expected at least one benchmark{needles}, found none: a gate without benchmarks judges only the loss. {KNOWN}")
    for label in real_of(benchmarks):
        if label in WITH_MMLU:
            continue
        reason = _reason_against(label, info.data.get("include"))
        if reason:
            raise ValueError(f"nothing knows the benchmark {label!r}: {reason}{'' if reason.endswith('?') else '.'} {KNOWN}")
    for name in needles_of(benchmarks):
        if (needle_length(name) or 0) < MIN_LENGTH:
            raise ValueError(f"{name!r}: expected the tokens of its text after a colon, {MIN_LENGTH} or more, as in niah:4096. {KNOWN}")
    if len(set(benchmarks)) < len(benchmarks):
        raise ValueError(f"a benchmark must be named once, found {', '.join(benchmarks)}")
    return benchmarks


def _reason_against(label: str, include: str | None) -> str:
    """Return the reason why a phase cannot name the label, or an empty text."""
    from phasewise.tasks.evaluation.benchmark_definitions import DEFINITIONS  # a third of a second
    from phasewise.tasks.evaluation.own_benchmarks import find_benchmark

    name, colon, shots = label.partition(":")
    try:
        definition = DEFINITIONS.get(name) or (None if include else find_benchmark(name))
    except ConfigError as error:
        return str(error).removeprefix(f"{name!r}: ").removesuffix(".")
    if not (colon and shots.isascii() and shots.isdigit() and str(int(shots)) == shots):
        return f"expected the number of examples in the prompt after a colon, as in {name}:0"
    if definition is not None and definition.metric == "pass":
        return "it runs programs that the model writes, which `phasewise evaluate --suite` does with --allow-code, and a gate never does"
    if definition is not None and int(shots) and definition.shots_split is None:
        return f"it has no split for examples, only {name}:0 is possible"
    return ""
