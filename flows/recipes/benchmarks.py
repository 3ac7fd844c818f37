"""The benchmarks that a phase can name: two that are made from its own held-out text, needles that are hidden in it, and lm-eval's."""

from collections.abc import Collection

from phasewise.tasks.evaluation.settings import MADE_BENCHMARKS, MIN_LENGTH, needle_length, needles_of, real_of

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
    known = (
        f"known are {', '.join(MADE_BENCHMARKS)}, made from held-out text, needles hidden in it with their length, such as niah:4096, and "
        "lm-eval's with their examples, such as arc_easy:10"
    )
    if not set(benchmarks) - set(needles_of(benchmarks)):
        needles = " beside needles" if benchmarks else ""
        raise ValueError(f"at least one benchmark must be named{needles}, found none: a gate that asks none knows only the loss; {known}")
    for name in real_of(benchmarks):
        if name not in WITH_MMLU and (reason := _why_unknown(name)):
            raise ValueError(f"nothing knows the benchmark {name!r}: {reason}; {known}")
    for name in needles_of(benchmarks):
        if (needle_length(name) or 0) < MIN_LENGTH:
            raise ValueError(f"{name!r} must say the tokens of its text behind a colon, {MIN_LENGTH} or more, as in niah:4096; {known}")
    if len(set(benchmarks)) < len(benchmarks):
        raise ValueError(f"a benchmark must be named once, found {', '.join(benchmarks)}")


def _why_unknown(label: str) -> str:
    from phasewise.tasks.evaluation.benchmark_definitions import DEFINITIONS  # a third of a second, which the record's own names do without

    name, colon, shots = label.partition(":")
    if name not in DEFINITIONS:
        return f"there is no {name}, only {', '.join(DEFINITIONS)}"
    if not (colon and shots.isascii() and shots.isdigit() and str(int(shots)) == shots):
        return f"behind a colon it must say the number of examples in the prompt, as in {name}:0"
    if DEFINITIONS[name].metric == "pass":
        return "it runs programs that the model writes, which `phasewise evaluate --suite` does with --allow-code, and a gate never does"
    if int(shots) and DEFINITIONS[name].shots_split is None:
        return f"it has no split for examples, only {name}:0 can be asked"
    return ""


def check_lengths(phase: str, benchmarks: Collection[str], seq_len: int) -> None:
    """Refuse needles in a text that is longer than the rows of the phase.

    Raises:
        ValueError: with the length of the rows.
    """
    for name in needles_of(benchmarks):
        if (needle_length(name) or 0) > seq_len:
            raise ValueError(
                f"phase {phase} cannot be asked {name} (evaluation.benchmarks): its rows have {seq_len:,} tokens, and the needle would be "
                f"cut off. Take {name.partition(':')[0]}:{seq_len} or less, or longer rows"
            )
