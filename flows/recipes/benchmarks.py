"""The benchmarks that a phase can name: two that are made from its own held-out text, and lm-eval's, with the number of their examples."""

from collections.abc import Collection

from tasks.evaluation.measured import MADE_BENCHMARKS, real_of

CORE_BENCHMARKS = (
    "agieval_lsat_ar:3", "arc_easy:10", "arc_challenge:10", "boolq:10", "commonsense_qa:10", "copa:0", "hellaswag:0", "hellaswag:10",
    "lambada_openai:0", "openbookqa:0", "piqa:10", "wsc273:0", "winogrande:0",
)  # fmt: skip
"""The record's, by lm-eval's name and the number of examples in the prompt."""
WITH_MMLU = (*CORE_BENCHMARKS, "mmlu:0", "mmlu:5")


def check_names(benchmarks: Collection[str]) -> None:
    """Refuse names that nothing knows, the same name twice, and none at all.

    Raises:
        ValueError: with what is known.
    """
    known = f"known are {', '.join(MADE_BENCHMARKS)}, made from held-out text, and lm-eval's with their examples, such as arc_easy:10"
    if not benchmarks:
        raise ValueError(f"at least one benchmark must be named, found none: a gate that asks none knows only the loss; {known}")
    for name in real_of(benchmarks):
        if name not in WITH_MMLU and (reason := _why_unknown(name)):
            raise ValueError(f"nothing knows the benchmark {name!r}: {reason}; {known}")
    if len(set(benchmarks)) < len(benchmarks):
        raise ValueError(f"a benchmark must be named once, found {', '.join(benchmarks)}")


def _why_unknown(label: str) -> str:
    """Why a gate cannot ask it; empty where it can."""
    from tasks.evaluation.suites.known import DEFINITIONS  # a third of a second, which the record's own names do without

    name, colon, shots = label.partition(":")
    if name not in DEFINITIONS:
        return f"there is no {name}, only {', '.join(DEFINITIONS)}"
    if not (colon and shots.isascii() and shots.isdigit() and str(int(shots)) == shots):
        return f"behind a colon it must say the number of examples in the prompt, as in {name}:0"
    if DEFINITIONS[name].runs_code:
        return "it runs programs that the model writes, which `phasewise evaluate --suite` does with --allow-code, and a gate never does"
    if int(shots) and DEFINITIONS[name].shots_split is None:
        return f"it has no split for examples, only {name}:0 can be asked"
    return ""
