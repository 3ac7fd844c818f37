"""What is measured, what is a hole, and what is read from before."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import pytest
from tokenizers import Tokenizer

from phasewise.tasks.data.tokenizer import SpecialTokens
from phasewise.tasks.evaluation import harness, suite
from phasewise.tasks.evaluation.language_model import JaxLanguageModel
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.config import ModelConfig
from phasewise.trainer.model.params import Params
from tests.tasks.evaluation.suites.conftest import RunLines, Scripted, WriteItems, riddles, sums

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def test_a_real_model_gets_a_value_a_floor_and_the_probability_of_the_right_choice(
    params: Params, config: ModelConfig, tokenizer: Tokenizer, special: SpecialTokens, run_lines: RunLines, write_items: WriteItems
) -> None:
    write_items("arc_easy/test", riddles(3))
    write_items("gsm8k/test", sums(2))
    model = JaxLanguageModel(params=params, config=config, tokenizer=tokenizer, special=special)
    run = run_lines(model, "arc_easy:0", "gsm8k_cot:8")
    riddle, sum_ = run.results
    kept = json.loads(run.path.read_text())["benchmarks"]
    scores = [[score - max(item["log_likelihoods"]) for score in item["log_likelihoods"]] for item in kept["arc_easy:0"]["answers"]]
    shares = [2.718281828459045 ** of_item[0] / sum(2.718281828459045**score for score in of_item) for of_item in scores]
    assert riddle["choice_probability"] == pytest.approx(sum(shares) / 3)
    assert [item["gold"] for item in kept["arc_easy:0"]["answers"]] == [[0], [0], [0]]
    prompts = [f"Question: {row['question']}\nAnswer: {choice}" for row in riddles(3) for choice in row["choices"]["text"]]
    too_long = sum(len(tokenizer.encode(prompt).ids) > config.seq_len for prompt in prompts)
    assert 0 < too_long < 9
    assert (riddle["cut"], riddle["max_new_tokens"]) == ({"contexts": too_long, "of": 9}, None)
    assert riddle["remarks"] == [f"{too_long} of 9 contexts lost their beginning: the model sees fewer tokens"]
    assert sum_["choice_probability"] is None
    assert (sum_["cut"], sum_["max_new_tokens"]) == ({"contexts": 2, "of": 2}, [256, 24])
    assert sum_["remarks"] == [
        "2 of 2 contexts lost their beginning: the model sees fewer tokens",
        "at most 24 new tokens, where the benchmark lets it write 256",
    ]


def test_what_cannot_be_measured_is_a_row_with_its_reason(
    scripted: Scripted, run_lines: RunLines, write_items: WriteItems, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_items("arc_easy/test", riddles(3))
    write_items("arc_challenge/test", riddles(3))
    write_items("arc_challenge/train", riddles(2))
    write_items("boolq/validation", [{"wren": 1}])
    write_items("humaneval/test", [{"prompt": "", "test": "", "entry_point": "f"}])
    (write_items("mmlu/test", []).parent / "test.jsonl").write_text("not JSON\n")
    monkeypatch.setattr(harness.importlib.util, "find_spec", lambda name: None)
    labels = [
        "arc_easy:3",
        "arc_challenge:3",
        "piqa:0",
        "boolq:0",
        "humaneval:0",
        "humaneval:10",
        "leaderboard_gpqa_diamond:5",
        "ifeval:0",
        "mmlu:0",
    ]
    run = run_lines(scripted(), *labels)
    assert [result["benchmark"] for result in run.results] == labels
    assert all((result["value"], result["items"], result["baseline"]) == (None, 0, None) for result in run.results)
    reasons = {result["benchmark"]: result["hole"] or "" for result in run.results}
    assert reasons["arc_easy:3"] == "no split for its 3 shots: no file arc_easy/train.jsonl"
    assert reasons["arc_challenge:3"] == "no split for its 3 shots: arc_challenge/train.jsonl has 2 rows for arc_challenge"
    assert reasons["piqa:0"] == "no items: no file piqa/validation.jsonl"
    assert reasons["boolq:0"].startswith("lm-eval could not load it: ")
    assert reasons["humaneval:0"] == "it runs programs that the model writes: allow it with --allow-code"
    assert reasons["humaneval:10"] == "no split for its 10 shots: lm-eval would take them from the items themselves"
    assert reasons["leaderboard_gpqa_diamond:5"] == reasons["humaneval:10"].replace("10", "5")
    assert reasons["ifeval:0"] == "a package is missing: install langdetect, immutabledict, nltk"
    assert reasons["mmlu:0"].startswith("no items: mmlu/test.jsonl must be JSON lines with the field subject")
    assert not run.path.exists()


def test_a_row_that_breaks_its_form_is_a_hole_and_the_others_are_measured(
    scripted: Scripted, run_lines: RunLines, write_items: WriteItems
) -> None:
    broken = {"text": ["hat"], "label": ["A"]}
    write_items("arc_easy/test", [*riddles(2), {"question": "Where?", "choices": broken, "answerKey": "B"}])
    write_items("arc_challenge/test", riddles(3))
    easy, challenge = run_lines(scripted(), "arc_easy:0", "arc_challenge:0").results
    assert (easy["hole"] or "").startswith("lm-eval could not put an item of it: ")
    assert challenge["items"] == 3


def test_an_answer_that_is_none_of_the_choices_is_a_hole_and_not_a_wrong_answer(
    scripted: Scripted, run_lines: RunLines, write_items: WriteItems
) -> None:
    write_items("piqa/validation", [{"goal": "Rest", "sol1": "sit", "sol2": "lie", "label": label} for label in (0, 2)])
    [found] = run_lines(scripted(), "piqa:0").results
    assert found["value"] is None
    assert found["hole"] == "the answer of piqa's item 1 must be one of its 2 choices, found 2: correct the item."


def test_a_benchmark_of_several_parts_counts_each_item_once(scripted: Scripted, run_lines: RunLines, write_items: WriteItems) -> None:
    from phasewise.tasks.evaluation.benchmark_definitions import find_definition

    subjects = [part.task.removeprefix("mmlu_") for part in find_definition("mmlu").parts]

    def question(subject: str, answer: int) -> dict[str, Any]:
        return {"question": "Which?", "subject": subject, "choices": ["w", "x", "y", "z"], "answer": answer}

    write_items("mmlu/test", [question(name, 0) for name in subjects] + [question(subjects[0], 1)] * 3)
    [found] = run_lines(scripted(lambda _context, text: 0.0 if text.strip() == "A" else -1.0), "mmlu:0").results
    assert found["items"] == len(subjects) + 3
    assert found["value"] == pytest.approx(len(subjects) / (len(subjects) + 3))
    assert found["setting"]
    assert (found["setting"]["items"], found["setting"]["asked"]) == (60, 60)


def test_what_holds_is_read_and_what_decides_it_changed_is_measured_again(
    scripted: Scripted, run_lines: RunLines, write_items: WriteItems, params: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_items("arc_easy/test", riddles(3))
    write_items("arc_challenge/test", riddles(3))
    labels = ("arc_easy:0", "arc_challenge:0")
    first = run_lines(scripted(), *labels)
    unasked = scripted()
    again = run_lines(unasked, *labels)
    assert (again.read, unasked.asked, again.results) == (labels, [], first.results)

    edited = json.loads(first.path.read_text())
    edited["benchmarks"]["arc_easy:0"]["result"]["value"] = 0.75
    first.path.write_text(json.dumps(edited))
    assert run_lines(scripted(), *labels).read == ()

    write_items("arc_easy/test", [*riddles(2), *riddles(1, answer=2)])
    assert run_lines(scripted(), *labels).read == ("arc_challenge:0",)
    write_items("arc_easy/dev", riddles(1))  # a file that decides nothing
    assert run_lines(scripted(), *labels).read == labels

    read_text = harness.text_digest
    monkeypatch.setattr(harness, "text_digest", lambda include: read_text(include) + ("x" if "arc_easy" in str(include) else ""))
    assert run_lines(scripted(), *labels).read == ("arc_challenge:0",)
    monkeypatch.setattr(harness, "version", lambda _: "99")
    assert run_lines(scripted(), *labels).read == ()
    other = scripted(weights=jax.tree.map(lambda weight: weight + 1, params))
    assert run_lines(other, *labels).read == ()
    run_lines(scripted(), *labels)
    sampled = scripted()
    sampled.seed = 1
    assert run_lines(sampled, *labels).read == ()
    seeing_less = scripted()
    seeing_less.config = seeing_less.config.but(seq_len=2048)
    assert run_lines(seeing_less, *labels).read == ()


def test_a_definition_counts_with_what_it_includes_and_the_code_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "lm_eval_tasks", lambda: tmp_path)

    def digest() -> str:
        harness.text_digest.cache_clear()
        return harness.text_digest(str(tmp_path / "a/one.yaml"))

    for name, text in {"a/one.yaml": "include: _base\ntask: one", "a/_base": '"include": "../b/deep.yaml"', "b/deep.yaml": "x: 1"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "b/code.py").write_text("x = 1")
    seen = [digest()]
    for name in ("a/one.yaml", "a/_base", "b/deep.yaml", "b/code.py"):
        path = tmp_path / name
        path.write_text(path.read_text() + "\n# changed")
        seen.append(digest())
    harness.text_digest.cache_clear()
    assert len(set(seen)) == 5


def test_weights_that_are_gone_leave_nothing_in_the_file(
    scripted: Scripted, run_lines: RunLines, write_items: WriteItems, params: Params, folder: Path
) -> None:
    write_items("arc_easy/test", riddles(3))
    write_items("arc_challenge/test", riddles(3))
    run_lines(scripted(), "arc_easy:0", "arc_challenge:0")
    (folder / "arc_easy/test.jsonl").unlink()
    run = run_lines(scripted(weights=jax.tree.map(lambda weight: weight + 1, params)), "arc_easy:0", "arc_challenge:0")
    assert [result["hole"] is None for result in run.results] == [False, True]
    assert list(json.loads(run.path.read_text())["benchmarks"]) == ["arc_challenge:0"]


def test_a_cut_off_evaluation_goes_on_where_it_was(
    scripted: Scripted, run_lines: RunLines, write_items: WriteItems, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels: Sequence[str] = ("arc_easy:0", "arc_challenge:0")
    write_items("arc_easy/test", riddles(3))
    write_items("arc_challenge/test", riddles(3))
    whole = suite.measure

    def killed(model: Any, prepared: Any, *, limit: int | None) -> Any:
        if prepared.asked.benchmark == "arc_challenge":
            raise MemoryError
        return whole(model, prepared, limit=limit)

    monkeypatch.setattr(suite, "measure", killed)
    with pytest.raises(MemoryError):
        run_lines(scripted(), *labels)
    monkeypatch.undo()
    assert run_lines(scripted(), *labels).read == ("arc_easy:0",)


def test_programs_are_run_where_that_is_allowed(scripted: Scripted, run_lines: RunLines, write_items: WriteItems) -> None:
    items = [
        {
            "prompt": f"def add_{number}(a):\n",
            "entry_point": f"add_{number}",
            "canonical_solution": "",
            "test": f"def check(f):\n    assert f(1) == {1 + number}\n",
        }
        for number in range(3)
    ]
    write_items("humaneval/test", items)
    model = scripted(say=lambda context: "    return a + 1\n")
    [found] = run_lines(model, "humaneval:0", allow_code=True).results
    assert (found["metric"], found["value"], found["items"], found["baseline"]) == ("pass", pytest.approx(1 / 3), 3, 0.0)
    assert set(found["guarded"]) <= {"network", "processes", "files"}


def test_a_folder_that_is_not_there_is_refused(scripted: Scripted, run_lines: RunLines, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--benchmarks must be a folder"):
        run_lines(scripted(), "arc_easy:0", benchmarks=tmp_path / "nowhere")


def test_without_a_network_the_hub_is_a_hole(scripted: Scripted, run_lines: RunLines, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets.config

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    arc, joined = run_lines(scripted(), "arc_easy:0", "hellaswag_joined:0", benchmarks=None).results
    assert (arc["hole"] or "").startswith("lm-eval could not load it: ")
    assert joined["hole"] == "its items come only from a folder: give one with --benchmarks"
