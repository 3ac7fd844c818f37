"""HumanEval and MBPP: a program from what the model wrote and the item's tests, and whether it passes them in the sandbox."""

from collections.abc import Mapping, Sequence
from typing import Any

from phasewise.tasks.evaluation.suites.floors import Floors
from phasewise.tasks.evaluation.suites.sandbox import check_sandbox, run_programs

CONSTANT_ANSWER = {"humaneval": "    return []\n", "mbpp": ""}
"""A dumb answer to every item."""


def score_programs(benchmark: str, samples: Sequence[Mapping[str, Any]]) -> tuple[list[float], tuple[str, ...]]:
    """1 for each item whose program passed, else 0, and what the kernel kept from all of them.

    Raises:
        EvaluationError: the sandbox does not run a harmless program.
    """
    guarded = check_sandbox().guarded
    programs = [program_of(benchmark, sample["doc"], str(sample["filtered_resps"][0])) for sample in samples]
    return [float(ran.passed) for ran in run_programs(programs)], guarded


def code_floors(benchmark: str, samples: Sequence[Mapping[str, Any]]) -> Floors:
    """What the same program scores on every item."""
    programs = [program_of(benchmark, sample["doc"], CONSTANT_ANSWER[benchmark]) for sample in samples]
    passed = [ran.passed for ran in run_programs(programs)]
    return Floors(random=None, constant=sum(passed) / len(passed), longest_choice=None)


def program_of(benchmark: str, item: Mapping[str, Any], written: str) -> str:
    """The program that an item is judged by.

    Args:
        written: by the model, up to its stop string.
    """
    if benchmark == "humaneval":
        return f"{item['prompt']}{written}\n{item['test']}\ncheck({item['entry_point']})\n"
    return "\n".join([written, item["test_setup_code"], *item["test_list"], ""])
