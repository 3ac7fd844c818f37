"""The benchmarks that a phase can name: two that are made from its own held-out text, and those of the record, which lm-eval has."""

from collections.abc import Collection

MADE_BENCHMARKS = ("word_order", "next_word")
"""Made from held-out text (`tasks.evaluation.benchmarks`), and so far the only ones that a gate asks."""
CORE_BENCHMARKS = (
    "agieval_lsat_ar:3", "arc_easy:10", "arc_challenge:10", "boolq:10", "commonsense_qa:10", "copa:0", "hellaswag:0", "hellaswag:10",
    "lambada_openai:0", "openbookqa:0", "piqa:10", "wsc273:0", "winogrande:0",
)  # fmt: skip
"""The record's, by lm-eval's name and the number of examples in the prompt."""
WITH_MMLU = (*CORE_BENCHMARKS, "mmlu:0", "mmlu:5")
KNOWN_BENCHMARKS = (*MADE_BENCHMARKS, *WITH_MMLU)


def check_names(benchmarks: Collection[str]) -> None:
    """Refuse names that nothing knows, the same name twice, and none at all.

    Raises:
        ValueError: with what is known.
    """
    known = f"known are {', '.join(MADE_BENCHMARKS)}, made from held-out text, and of lm-eval {', '.join(WITH_MMLU)}"
    if not benchmarks:
        raise ValueError(f"at least one benchmark must be named, found none: a gate that asks none knows only the loss; {known}")
    if unknown := [name for name in benchmarks if name not in KNOWN_BENCHMARKS]:
        raise ValueError(f"nothing knows the benchmark {', '.join(map(repr, unknown))}; {known}")
    if len(set(benchmarks)) < len(benchmarks):
        raise ValueError(f"a benchmark must be named once, found {', '.join(benchmarks)}")


def unmeasured(benchmarks: Collection[str]) -> tuple[str, ...]:
    """Those that no gate asks yet. `phasewise evaluate --suite` measures them."""
    return tuple(name for name in benchmarks if name not in MADE_BENCHMARKS)
