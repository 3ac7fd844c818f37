import json
from pathlib import Path
from typing import Any

import jax
import pytest

from phasewise.tasks.evaluation import harness, suite
from phasewise.tasks.evaluation.language_model import JaxLanguageModel
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.model.params import Params
from tests.tasks.evaluation.suites.conftest import Bench, riddles, sums

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
BOTH = ("arc_easy:0", "arc_challenge:0")


def both(bench: Bench) -> None:
    for name in ("arc_easy", "arc_challenge"):
        bench.write(f"{name}/test", riddles(3))


def test_a_real_model_gets_a_value_a_floor_and_the_probability_of_the_right_choice(model: JaxLanguageModel, bench: Bench):
    bench.write("arc_easy/test", riddles(3))
    bench.write("gsm8k/test", sums(2))
    run = bench.run(model, "arc_easy:0", "gsm8k_cot:8")
    riddle, sum_ = run.results
    kept = json.loads(run.path.read_text())["benchmarks"]
    scores = [[score - max(item["log_likelihoods"]) for score in item["log_likelihoods"]] for item in kept["arc_easy:0"]["answers"]]
    shares = [2.718281828459045 ** of_item[0] / sum(2.718281828459045**score for score in of_item) for of_item in scores]
    assert riddle["choice_probability"] == pytest.approx(sum(shares) / 3)
    assert [item["gold"] for item in kept["arc_easy:0"]["answers"]] == [[0], [0], [0]]
    prompts = [f"Question: {row['question']}\nAnswer: {choice}" for row in riddles(3) for choice in row["choices"]["text"]]
    too_long = sum(len(model.tokenizer.encode(prompt).ids) > model.config.seq_len for prompt in prompts)
    assert 0 < too_long < 9
    assert (riddle["cut"], riddle["max_new_tokens"]) == ({"contexts": too_long, "of": 9}, None)
    assert riddle["remarks"] == [f"{too_long} of 9 contexts lost their beginning: the model sees fewer tokens"]
    assert sum_["choice_probability"] is None
    assert (sum_["cut"], sum_["max_new_tokens"]) == ({"contexts": 2, "of": 2}, [256, 24])
    fewer = "at most 24 new tokens, where the benchmark lets it write 256"
    assert sum_["remarks"] == ["2 of 2 contexts lost their beginning: the model sees fewer tokens", fewer]


def test_what_cannot_be_measured_is_a_row_with_its_reason(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    both(bench)
    bench.write("arc_challenge/train", riddles(2))
    bench.write("boolq/validation", [{"wren": 1}])
    bench.write("humaneval/test", [{"prompt": "", "test": "", "entry_point": "f"}])
    (bench.write("mmlu/test", []).parent / "test.jsonl").write_text("not JSON\n")
    monkeypatch.setattr(harness.importlib.util, "find_spec", lambda name: None)
    reasons = {
        "arc_easy:3": "no split for its 3 shots: no file arc_easy/train.jsonl",
        "arc_challenge:3": "no split for its 3 shots: arc_challenge/train.jsonl has 2 rows for arc_challenge",
        "piqa:0": "no items: no file piqa/validation.jsonl",
        "boolq:0": "lm-eval could not load it: ",
        "humaneval:0": "it runs programs that the model writes: allow it with --allow-code",
        "humaneval:10": "no split for its 10 shots: lm-eval would take them from the items themselves",
        "leaderboard_gpqa_diamond:5": "no split for its 5 shots: lm-eval would take them from the items themselves",
        "ifeval:0": "a package is missing: install langdetect, immutabledict, nltk",
        "mmlu:0": "no items: mmlu/test.jsonl must be JSON lines with the field subject",
    }
    run = bench.run(bench.scripted(), *reasons)
    assert [result["benchmark"] for result in run.results] == list(reasons)
    assert all((result["value"], result["items"], result["baseline"]) == (None, 0, None) for result in run.results)
    for result in run.results:
        assert (result["hole"] or "").startswith(reasons[result["benchmark"]])
    assert not run.path.exists()


def test_a_row_that_breaks_its_form_or_has_no_answer_among_its_choices_is_a_hole(bench: Bench):
    broken = {"text": ["hat"], "label": ["A"]}
    bench.write("arc_easy/test", [*riddles(2), {"question": "Where?", "choices": broken, "answerKey": "B"}])
    bench.write("arc_challenge/test", riddles(3))
    easy, challenge = bench.run(bench.scripted(), *BOTH).results
    assert (easy["hole"] or "").startswith("lm-eval could not put an item of it: ")
    assert challenge["items"] == 3
    bench.write("piqa/validation", [{"goal": "Rest", "sol1": "sit", "sol2": "lie", "label": label} for label in (0, 2)])
    [found] = bench.run(bench.scripted(), "piqa:0").results
    assert found["value"] is None
    assert found["hole"] == "the answer of piqa's item 1 must be one of its 2 choices, found 2: correct the item."


def test_a_benchmark_of_several_parts_counts_each_item_once(bench: Bench):
    from phasewise.tasks.evaluation.benchmark_definitions import find_definition

    subjects = [part.task.removeprefix("mmlu_") for part in find_definition("mmlu").parts]

    def question(subject: str, answer: int) -> dict[str, Any]:
        return {"question": "Which?", "subject": subject, "choices": ["w", "x", "y", "z"], "answer": answer}

    bench.write("mmlu/test", [question(name, 0) for name in subjects] + [question(subjects[0], 1)] * 3)
    [found] = bench.run(bench.scripted(lambda _context, text: 0.0 if text.strip() == "A" else -1.0), "mmlu:0").results
    assert found["items"] == len(subjects) + 3
    assert found["value"] == pytest.approx(len(subjects) / (len(subjects) + 3))
    assert found["setting"]
    assert (found["setting"]["items"], found["setting"]["asked"]) == (60, 60)


def test_what_holds_is_read_and_what_decides_it_changed_is_measured_again(bench: Bench, params: Params, monkeypatch: pytest.MonkeyPatch):
    both(bench)
    first = bench.run(bench.scripted(), *BOTH)
    unasked = bench.scripted()
    again = bench.run(unasked, *BOTH)
    assert (again.read, unasked.asked, again.results) == (BOTH, [], first.results)
    edited = json.loads(first.path.read_text())
    edited["benchmarks"]["arc_easy:0"]["result"]["value"] = 0.75
    first.path.write_text(json.dumps(edited))
    assert bench.run(bench.scripted(), *BOTH).read == ()
    bench.write("arc_easy/test", [*riddles(2), *riddles(1, answer=2)])
    assert bench.run(bench.scripted(), *BOTH).read == ("arc_challenge:0",)
    bench.write("arc_easy/dev", riddles(1))  # a file that decides nothing
    assert bench.run(bench.scripted(), *BOTH).read == BOTH
    read_text = harness.text_digest
    monkeypatch.setattr(harness, "text_digest", lambda include: read_text(include) + ("x" if "arc_easy" in str(include) else ""))
    assert bench.run(bench.scripted(), *BOTH).read == ("arc_challenge:0",)
    monkeypatch.setattr(harness, "version", lambda _: "99")
    assert bench.run(bench.scripted(), *BOTH).read == ()
    other = bench.scripted(weights=jax.tree.map(lambda weight: weight + 1, params))
    assert bench.run(other, *BOTH).read == ()
    bench.run(bench.scripted(), *BOTH)
    sampled = bench.scripted()
    sampled.seed = 1
    assert bench.run(sampled, *BOTH).read == ()
    seeing_less = bench.scripted()
    seeing_less.config = seeing_less.config.but(seq_len=2048)
    assert bench.run(seeing_less, *BOTH).read == ()


def test_a_definition_counts_with_what_it_includes_and_the_code_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
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


def test_weights_that_are_gone_leave_nothing_in_the_file(bench: Bench, params: Params, folder: Path):
    both(bench)
    bench.run(bench.scripted(), *BOTH)
    (folder / "arc_easy/test.jsonl").unlink()
    run = bench.run(bench.scripted(weights=jax.tree.map(lambda weight: weight + 1, params)), *BOTH)
    assert [result["hole"] is None for result in run.results] == [False, True]
    assert list(json.loads(run.path.read_text())["benchmarks"]) == ["arc_challenge:0"]


def test_a_cut_off_evaluation_goes_on_where_it_was(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    both(bench)
    whole = suite.measure

    def killed(model: Any, prepared: Any, *, limit: int | None) -> Any:
        if prepared.asked.benchmark == "arc_challenge":
            raise MemoryError
        return whole(model, prepared, limit=limit)

    monkeypatch.setattr(suite, "measure", killed)
    with pytest.raises(MemoryError):
        bench.run(bench.scripted(), *BOTH)
    monkeypatch.undo()
    assert bench.run(bench.scripted(), *BOTH).read == ("arc_easy:0",)


def test_programs_are_run_where_that_is_allowed(bench: Bench):
    for_all = {"canonical_solution": "", "prompt": "def add(a):\n", "entry_point": "add"}
    bench.write("humaneval/test", [for_all | {"test": f"def check(f):\n    assert f(1) == {1 + number}\n"} for number in range(3)])
    model = bench.scripted(say=lambda context: "    return a + 1\n")
    [found] = bench.run(model, "humaneval:0", allow_code=True).results
    assert (found["metric"], found["value"], found["items"], found["baseline"]) == ("pass", pytest.approx(1 / 3), 3, 0.0)
    assert set(found["guarded"]) <= {"network", "processes", "files"}


def test_no_such_folder_is_refused_and_the_hub_without_a_network_is_a_hole(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import datasets.config

    with pytest.raises(ConfigError, match="--benchmarks must be a folder"):
        bench.run(bench.scripted(), "arc_easy:0", benchmarks=tmp_path / "nowhere")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    arc, joined = bench.run(bench.scripted(), "arc_easy:0", "hellaswag_joined:0", benchmarks=None).results
    assert (arc["hole"] or "").startswith("lm-eval could not load it: ")
    assert joined["hole"] == "its items come only from a folder: give one with --benchmarks"
