"""Every benchmark that a suite can name. Metric and filter are those that the definition's authors report, unless it says otherwise."""

from collections.abc import Iterable

from phasewise.tasks.evaluation.suites.definition import SHOTS_IN_DEFINITION, Definition, Part, Rows
from phasewise.tasks.evaluation.suites.names import AGIEVAL, BBH_CHOICES, BBH_COT, MATH, MMLU, MMLU_PRO, MUSR
from phasewise.trainer.base.errors import ConfigError

MATH_MODULES = ("sympy", "antlr4", "math_verify")


def find_definition(name: str) -> Definition:
    """The benchmark of this name.

    Raises:
        ConfigError: none is known by it.
    """
    if name not in DEFINITIONS:
        raise ConfigError(f"a suite must name benchmarks that are known, found {name!r}; known are {', '.join(DEFINITIONS)}.")
    return DEFINITIONS[name]


def _one(name: str, include: str, metric: str, *, file: str = "", split: str = "test", task: str = "", **others: object) -> Definition:
    """A benchmark that is one task of lm-eval, with its items in a folder of its name."""
    part = Part(task=task or name, include=include, file=file or f"{name}/{{split}}.jsonl")
    return Definition.model_validate({"name": name, "parts": (part,), "metric": metric, "split": split, **others})


def _agieval() -> Iterable[Definition]:
    for name in AGIEVAL:
        task = f"agieval_{name.replace('-', '_')}"
        yield _one(task, f"agieval/{name}.yaml", "acc", file=f"agieval/{name}.jsonl", shots_split=None)


def _mmlu() -> Definition:
    parts = tuple(
        Part(
            task=f"mmlu_{name}",
            include=f"mmlu/default/mmlu_{name}.yaml",
            file="mmlu/{split}.jsonl",
            rows=Rows(field="subject", values=(name,)),
        )
        for name in MMLU
    )
    return Definition(name="mmlu", parts=parts, metric="acc", shots_split="dev")


def _mmlu_pro() -> Definition:
    parts = tuple(
        Part(
            task=f"mmlu_pro_{name}",
            include=f"mmlu_pro/mmlu_pro_{name}.yaml",
            file="mmlu_pro/{split}.jsonl",
            rows=Rows(field="category", values=(name.replace("_", " "),)),
        )
        for name in MMLU_PRO
    )
    return Definition(name="mmlu_pro", parts=parts, metric="exact_match", filter="custom-extract", shots_split="validation")


def _bbh_cot() -> Definition:
    parts = tuple(
        Part(task=f"bbh_cot_fewshot_{name}", include=f"bbh/cot_fewshot/{name}.yaml", file=f"bbh/{name}.jsonl") for name in BBH_COT
    )
    return Definition(name="bbh_cot_fewshot", parts=parts, metric="exact_match", filter="get-answer", shots_split=SHOTS_IN_DEFINITION)


def _bbh_choices() -> Definition:
    parts = tuple(
        Part(task=f"leaderboard_bbh_{name}", include=f"leaderboard/bbh_mc/{name}.yaml", file=f"bbh/{name}.jsonl") for name in BBH_CHOICES
    )
    return Definition(name="leaderboard_bbh", parts=parts, metric="acc_norm", shots_split=SHOTS_IN_DEFINITION)


def _musr() -> Definition:
    parts = tuple(
        Part(task=f"leaderboard_musr_{name}", include=f"leaderboard/musr/musr_{name}.yaml", file=f"musr/{name}.jsonl", split=name)
        for name in MUSR
    )
    return Definition(name="leaderboard_musr", parts=parts, metric="acc_norm", shots_split=None)


def _math(name: str, **others: object) -> Definition:
    parts = tuple(
        Part(
            task=f"{name}_{subject}",
            include=f"{name}/{name}_{subject}.yaml",
            file="hendrycks_math/{split}.jsonl",
            rows=Rows(field="type", values=(kind,)),
        )
        for subject, kind in MATH
    )
    return Definition.model_validate({"name": name, "parts": parts, "metric": "exact_match", **others})


def _joined_hellaswag() -> Definition:
    settings = {
        "output_type": "multiple_choice", "test_split": "test", "doc_to_text": "{{ctx}}", "doc_to_choice": "{{endings}}",
        "doc_to_target": "{{label}}", "metadata": {"version": 1.0},
        "metric_list": [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in ("acc", "acc_norm")],
    }  # fmt: skip
    parts = tuple(Part(task=f"hellaswag_joined_{name}", file=f"hellaswag/part_{name}_test.jsonl") for name in ("a", "b"))
    return Definition(
        name="hellaswag_joined", parts=parts, metric="acc_norm", settings=settings, shots_split=None, on_hub=False,
        remark="2,000 of HellaSwag's items, opening and activity in one text: other prompts than lm-eval's hellaswag",
    )  # fmt: skip


def _choices(text: str, choices: str, target: str) -> dict[str, object]:
    """The definition of a benchmark of choices whose file has them as they are put."""
    metrics = [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in ("acc", "acc_norm")]
    return {
        "output_type": "multiple_choice", "test_split": "test", "doc_to_text": text, "doc_to_choice": choices, "doc_to_target": target,
        "metric_list": metrics, "metadata": {"version": 1.0},
    }  # fmt: skip


def _trivia() -> Definition:
    settings = {
        "output_type": "generate_until", "test_split": "validation", "doc_to_text": "{{context}}", "doc_to_target": "{{aliases}}",
        "generation_kwargs": {"until": ["\n", ".", ","], "do_sample": False, "temperature": 0.0}, "target_delimiter": " ",
        "filter_list": [{"name": "remove_whitespace", "filter": [{"function": "remove_whitespace"}, {"function": "take_first"}]}],
        "metric_list": [
            {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True, "ignore_case": True, "ignore_punctuation": True}
        ],
        "metadata": {"version": 3.0},
    }  # fmt: skip
    return _one(
        "triviaqa", "triviaqa/default.yaml", "exact_match", file="triviaqa_sub3000/test.jsonl", split="validation",
        filter="remove_whitespace", local_settings=settings, remark="from a folder: a sample of 3,000 questions, without examples",
    )  # fmt: skip


def _code() -> Iterable[Definition]:
    generation = {"do_sample": False, "max_gen_toks": 1024}
    bypass = [{"metric": "bypass", "aggregation": "bypass", "higher_is_better": True}]
    human = {
        "output_type": "generate_until", "dataset_path": "openai/openai_humaneval", "test_split": "test", "doc_to_text": "{{prompt}}",
        "doc_to_target": "{{entry_point}}", "metric_list": bypass, "metadata": {"version": 1.0},
        "generation_kwargs": {**generation, "until": ["\nclass", "\ndef", "\n#", "\nif", "\nprint"]},
    }  # fmt: skip
    basic = {
        "output_type": "generate_until", "test_split": "test", "fewshot_split": "prompt", "target_delimiter": "",
        "doc_to_text": (
            "You are an expert Python programmer, and here is your task: {{text}} Your code should pass these tests:\n\n"
            "{{test_list[0]}}\n{{test_list[1]}}\n{{test_list[2]}}\n[BEGIN]\n"
        ),
        "doc_to_target": "{{code}}\n[DONE]", "metric_list": bypass, "metadata": {"version": 1.0},
        "generation_kwargs": {**generation, "until": ["[DONE]"]}, "fewshot_config": {"sampler": "first_n"},
    }  # fmt: skip
    yield _one("humaneval", "", "pass", settings=human, shots_split=None)
    yield _one(
        "mbpp", "", "pass", settings=basic, shots_split="prompt", shots_rows=Rows(field="task_id", values=(2, 3, 4)), on_hub=False,
        fields=("text", "code", "task_id", "test_setup_code", "test_list"),
    )  # fmt: skip


def _all() -> Iterable[Definition]:
    yield from _agieval()
    yield _one("arc_easy", "arc/arc_easy.yaml", "acc")
    yield _one("arc_challenge", "arc/arc_challenge.yaml", "acc_norm")
    yield _one("boolq", "super_glue/boolq/default.yaml", "acc", split="validation")
    yield _one("commonsense_qa", "commonsense_qa/default.yaml", "acc", split="validation")
    yield _one("copa", "super_glue/copa/default.yaml", "acc", split="validation")
    yield _one("hellaswag", "hellaswag/hellaswag.yaml", "acc_norm", split="validation")
    yield _joined_hellaswag()
    yield _one("lambada_openai", "lambada/lambada_openai.yaml", "acc", shots_split=None)
    yield _one("openbookqa", "openbookqa/openbookqa.yaml", "acc_norm")
    yield _one("piqa", "piqa/piqa.yaml", "acc_norm", split="validation")
    yield _one(
        "wsc273", "wsc273/default.yaml", "acc", shots_split=None, local_settings=_choices("gold", "{{context_options}}", "{{continuation}}")
    )  # fmt: skip
    yield _one("winogrande", "winogrande/default.yaml", "acc", split="validation")
    yield _one("social_iqa", "", "acc", settings=_choices("{{query}}", "{{choices}}", "gold"), shots_split=None, on_hub=False)
    yield _trivia()
    yield _mmlu()
    yield _mmlu_pro()
    yield _one("leaderboard_mmlu_pro", "leaderboard/mmlu_pro/mmlu_pro.yaml", "acc", file="mmlu_pro/{split}.jsonl", shots_split="validation")
    yield _bbh_cot()
    yield _bbh_choices()
    yield _musr()
    for size in ("main", "diamond"):
        include = f"leaderboard/gpqa/gpqa_{size}_zeroshot.yaml"
        yield _one(f"leaderboard_gpqa_{size}", include, "acc_norm", file=f"gpqa/{size}.jsonl", split="train", shots_split=None)
    yield _one("gsm8k", "gsm8k/gsm8k.yaml", "exact_match", filter="strict-match")
    yield _one(
        "gsm8k_cot", "gsm8k/gsm8k-cot.yaml", "exact_match", filter="strict-match", file="gsm8k/{split}.jsonl",
        shots_split=SHOTS_IN_DEFINITION,
    )  # fmt: skip
    yield _math("hendrycks_math")
    yield _math("minerva_math", shots_split=SHOTS_IN_DEFINITION, modules=MATH_MODULES)
    yield _one(
        "minerva_math500", "minerva_math/minerva_math500.yaml", "exact_match", shots_split=SHOTS_IN_DEFINITION, modules=MATH_MODULES
    )  # fmt: skip
    yield _one(
        "ifeval", "ifeval/ifeval.yaml", "prompt_level_strict_acc", file="ifeval/test.jsonl", split="train", shots_split=None,
        modules=("langdetect", "immutabledict", "nltk"),
    )  # fmt: skip
    yield from _code()


DEFINITIONS = {definition.name: definition for definition in _all()}
