"""The benchmarks that a phase can name: made from held-out text, needles, and lm-eval's."""

from collections.abc import Collection

from phasewise.tasks.evaluation.settings import MADE_BENCHMARKS, MIN_LENGTH, needle_length, needles_of, real_of

CORE_BENCHMARKS = (
    "agieval_lsat_ar:3", "arc_easy:10", "arc_challenge:10", "boolq:10", "commonsense_qa:10", "copa:0", "hellaswag:0", "hellaswag:10",
    "lambada_openai:0", "openbookqa:0", "piqa:10", "wsc273:0", "winogrande:0",
)  # fmt: skip
"""The published run's benchmarks: name in lm-eval and number of examples in the prompt."""
WITH_MMLU = (*CORE_BENCHMARKS, "mmlu:0", "mmlu:5")
KNOWN = (
    f"known are {', '.join(MADE_BENCHMARKS)}, made from held-out text, needles hidden in it with their length, such as niah:4096, and "
    "lm-eval's with their examples, such as arc_easy:10"
)


def checked_names(benchmarks: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names, or reject unknown names, duplicates, and an empty list."""
    if not set(benchmarks) - set(needles_of(benchmarks)):
        needles = " in addition to needles" if benchmarks else ""
        raise ValueError(f"expected at least one benchmark{needles}, found none: a gate without benchmarks judges only the loss. {KNOWN}")
    for label in real_of(benchmarks):
        if label in WITH_MMLU:
            continue
        from phasewise.tasks.evaluation.benchmark_definitions import DEFINITIONS  # a third of a second

        name, colon, shots = label.partition(":")
        reason = ""
        if name not in DEFINITIONS:
            reason = f"there is no {name}, only {', '.join(DEFINITIONS)}"
        elif not (colon and shots.isascii() and shots.isdigit() and str(int(shots)) == shots):
            reason = f"expected the number of examples in the prompt after a colon, as in {name}:0"
        elif DEFINITIONS[name].metric == "pass":
            reason = (
                "it runs programs that the model writes, which `phasewise evaluate --suite` does with --allow-code, and a gate never does"
            )
        elif int(shots) and DEFINITIONS[name].shots_split is None:
            reason = f"it has no split for examples, only {name}:0 is possible"
        if reason:
            raise ValueError(f"nothing knows the benchmark {label!r}: {reason}. {KNOWN}")
    for name in needles_of(benchmarks):
        if (needle_length(name) or 0) < MIN_LENGTH:
            raise ValueError(f"{name!r}: expected the tokens of its text after a colon, {MIN_LENGTH} or more, as in niah:4096. {KNOWN}")
    if len(set(benchmarks)) < len(benchmarks):
        raise ValueError(f"a benchmark must be named once, found {', '.join(benchmarks)}")
    return benchmarks


def check_lengths(phase: str, benchmarks: Collection[str], seq_len: int) -> None:
    """Reject needles in texts that are longer than a row, with ValueError."""
    for name in needles_of(benchmarks):
        if (needle_length(name) or 0) > seq_len:
            raise ValueError(
                f"phase {phase} cannot measure {name} (evaluation.benchmarks): its rows have {seq_len:,} tokens, and the needle would be "
                f"cut off. Take {name.partition(':')[0]}:{seq_len} or less, or longer rows"
            )
