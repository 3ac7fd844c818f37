import json
from pathlib import Path
from typing import Any

import pytest

from phasewise.tasks.evaluation.harness import Setting, read_setting

ITEMS = [{"question": "One and one?", "answer": "two"}, {"question": "Two and two?", "answer": "four"}]
DEFINITION: dict[str, Any] = {
    "task": "sums",
    "dataset_path": "json",
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "Question: {{question}}\nAnswer:",
    "doc_to_choice": ["two", "four"],
    "doc_to_target": "{{answer}}",
    "metric_list": [{"metric": "acc"}],
    "metadata": {"version": 1.0},
}


def measured(
    folder: Path, *, items: list[dict[str, str]] = ITEMS, limit: int | None = None, precision: str = "float32", **changed: Any
) -> Setting:
    from lm_eval.api.model import LM
    from lm_eval.evaluator import evaluate
    from lm_eval.tasks import TaskManager

    class Same(LM):
        """Finds every text equally likely."""

        def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
            return [(-1.0, False) for _ in requests]

        def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
            raise NotImplementedError

        def generate_until(self, requests: list[Any]) -> list[str]:
            raise NotImplementedError

    folder.mkdir()
    (folder / "test.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    files = {"data_files": {"test": str(folder / "test.jsonl")}, "cache_dir": str(folder / "cache")}
    task = {**DEFINITION, "dataset_kwargs": files, **changed}
    manager = TaskManager(include_defaults=False)
    found = evaluate(lm=Same(), task_dict=manager.load([task]), bootstrap_iters=1, log_samples=True, limit=limit)
    assert found is not None
    return read_setting(found, ["sums"], filter_name="none", precision=precision)


@pytest.mark.parametrize(
    ("changed", "fields"),
    [
        ({}, set[str]()),
        ({"metadata": {"version": 2.0}}, {"version"}),
        ({"precision": "bfloat16"}, {"precision"}),
        ({"doc_to_text": "Q: {{question}}\nA:"}, {"prompts_digest"}),
        ({"items": ITEMS[::-1]}, {"items_digest", "prompts_digest"}),
        ({"items": [{**ITEMS[0], "note": "a field that no prompt has"}, ITEMS[1]]}, {"items_digest"}),
        ({"limit": 1}, {"asked", "items_digest", "prompts_digest"}),
        ({"num_fewshot": 1, "fewshot_split": "test", "fewshot_config": {"sampler": "first_n"}}, {"shots", "prompts_digest"}),
    ],
)
def test_a_setting_tells_what_was_put_otherwise(tmp_path: Path, changed: dict[str, Any], fields: set[str]) -> None:
    before, after = measured(tmp_path / "before"), measured(tmp_path / "after", **changed)
    assert {name for name in before if before[name] != after[name]} == fields
