"""The suites, each line with where it comes from."""

from phasewise.tasks.evaluation.suites.definition import Asked, Suite
from phasewise.tasks.evaluation.suites.known import DEFINITIONS
from phasewise.tasks.evaluation.suites.names import AGIEVAL
from phasewise.trainer.base.errors import ConfigError

CORE_TASKS = "the record's CORE_TASKS with their shots (Marin, evaluation settings)"
LEADERBOARD = "the record's leaderboard tasks (Marin, evaluation settings)"
GENERATION = "the record's generation tasks (Marin, evaluation settings)"
TRINITY = "Trinity Large report, table 3"
HERE = "what a folder of benchmarks has: chosen here, from no record"

CORE = (
    ("agieval_lsat_ar", 3), ("arc_easy", 10), ("arc_challenge", 10), ("boolq", 10), ("commonsense_qa", 10), ("copa", 0), ("hellaswag", 0),
    ("hellaswag", 10), ("lambada_openai", 0), ("openbookqa", 0), ("piqa", 10), ("wsc273", 0), ("winogrande", 0),
)  # fmt: skip


def find_suite(name: str) -> Suite:
    """The suite of this name.

    Raises:
        ConfigError: there is none.
    """
    if name not in SUITES:
        raise ConfigError(f"--suite must be one of {', '.join(SUITES)}, niah or niah:LENGTH, found {name!r}.")
    return SUITES[name]


def _lines(source: str, *asked: tuple[str, int]) -> tuple[Asked, ...]:
    return tuple(Asked(benchmark=name, shots=shots, source=source) for name, shots in asked)


_core = _lines(CORE_TASKS, *CORE)
_generation = (
    *_lines(GENERATION, ("bbh_cot_fewshot", 3), ("gsm8k_cot", 8), ("minerva_math", 4), ("ifeval", 0), ("humaneval", 10)),
    *_lines("this project's: the record's 10 shots have no split to come from", ("humaneval", 0)),
    *_lines("this project's: lm-eval's own number of shots", ("mbpp", 3)),
)
_leaderboard = _lines(
    LEADERBOARD, ("leaderboard_bbh", 3), ("leaderboard_gpqa_main", 0), ("leaderboard_mmlu_pro", 5), ("leaderboard_musr", 0)
)
_trinity = (
    *_lines(TRINITY, ("hellaswag", 5), ("winogrande", 5), ("mmlu", 5), ("mmlu_pro", 5), ("triviaqa", 5), ("arc_challenge", 0)),
    *_lines(f"{TRINITY}; its number of shots is not given, lm-eval's is taken", ("minerva_math500", 4), ("bbh_cot_fewshot", 3)),
    *_lines(TRINITY, ("leaderboard_gpqa_diamond", 5)),
    *_lines(f"{TRINITY} has MBPP+, which adds tests; MBPP itself is measured", ("mbpp", 3)),
)
_folder = _lines(
    HERE, *((f"agieval_{name.replace('-', '_')}", 0) for name in AGIEVAL), ("arc_easy", 0), ("arc_challenge", 0), ("boolq", 0),
    ("commonsense_qa", 0), ("copa", 0), ("hellaswag", 0), ("hellaswag_joined", 0), ("lambada_openai", 0), ("openbookqa", 0), ("piqa", 0),
    ("social_iqa", 0), ("winogrande", 0), ("wsc273", 0), ("mmlu", 0), ("mmlu", 5), ("mmlu_pro", 5), ("leaderboard_mmlu_pro", 0),
    ("leaderboard_bbh", 3), ("bbh_cot_fewshot", 3), ("gsm8k", 5), ("gsm8k_cot", 8), ("hendrycks_math", 0), ("triviaqa", 0), ("ifeval", 0),
    ("humaneval", 0), ("mbpp", 3),
)  # fmt: skip

SUITES = {
    suite.name: suite
    for suite in (
        Suite(name="core", about="the record's 13", asked=_core),
        Suite(name="core+mmlu", about="the record's 13 and MMLU", asked=(*_core, *_lines(CORE_TASKS, ("mmlu", 0), ("mmlu", 5)))),
        Suite(name="generation", about="what the model writes itself", asked=_generation),
        Suite(name="leaderboard", about="the harder ones of the Open LLM Leaderboard", asked=_leaderboard),
        Suite(name="trinity", about="what Trinity's report gives of its base model", asked=_trinity),
        Suite(name="folder", about="each benchmark of a folder once, and MMLU twice", asked=_folder),
    )
}
_unknown = {one.benchmark for suite in SUITES.values() for one in suite.asked} - DEFINITIONS.keys()
assert not _unknown, f"suites name benchmarks that nothing defines: {_unknown}"
