"""Benchmarks of a user: lm-eval's YAML, JSON lines of questions and answers, and lm-eval's tasks by name."""

import json
from pathlib import Path
from typing import Any, cast

import pytest

from phasewise.tasks.evaluation.gate_benchmarks import gate_folders, gate_key, gate_results
from phasewise.tasks.evaluation.own_benchmarks import find_benchmark, suite_of_tasks
from phasewise.tasks.evaluation.settings import BENCHMARKS_VARIABLE
from phasewise.tasks.evaluation.suite import Measured, Options, run_suite
from phasewise.trainer.base.errors import ConfigError, DataError
from phasewise.validations.evidence.gate import gate_notes, gate_tables
from tests.tasks.evaluation.suites.conftest import Bench, riddles, sums
from tests.tasks.evaluation.suites.test_gated import LIMITS, evaluation_of, judge, stops

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
ITEMS = 200
YAML = """
task: mymath
dataset_path: json
dataset_kwargs: {data_files: {test: mymath/test.jsonl}}
output_type: generate_until
test_split: test
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_target: "{{answer.split('####')[-1].strip()}}"
generation_kwargs: {until: ["Question:"], do_sample: false, max_gen_toks: 64}
filter_list:
  - name: last-number
    filter: [{function: regex, regex_pattern: "(-?[0-9][0-9,.]*)", group_select: -1}, {function: take_first}]
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
metadata: {version: 1.0}
"""


def measured(model: Any, folder: Path | None, tasks: str, **options: Any) -> Measured:
    how = Options(options.pop("benchmarks", None), include=folder, **options)
    return run_suite(
        suite_of_tasks(tasks, folder), model, how, place=(folder or how.benchmarks or Path()).parent / "model", weights="last", about={}
    )


def adds(context: str) -> str:
    """Every second sum is right."""
    number = int(context.rpartition("What is ")[2].split()[0])
    return f" I think that it is {number + 1}" if number % 2 else " 1000"


@pytest.fixture
def own(bench: Bench, folder: Path) -> Path:
    bench.write("mymath/test", sums(ITEMS))
    (folder / "mymath.yaml").write_text(YAML)
    return folder


def test_a_yaml_and_questions_of_ones_own_are_measured(bench: Bench, own: Path):
    bench.write("lines/test", sums(10))
    bench.write("lines/train", sums(3))
    bench.write("towns", [{"question": f"Name of town {number}?", "answer": f"Town {number}", "meta": number} for number in range(4)])
    bench.write("letters", [{"question": "Two?", "choices": ["a", "2", "c"], "answer": answer} for answer in ("2", 1, "B", "b")])

    def say(context: str) -> str:
        return adds(context) if "What is" in context else f" the\ntown {context[-10]}" if "town 1" in context else " town 2.\nQuestion:"

    def score(_context: str, text: str) -> float:
        return -1.0 if text == " 2" else -2.0

    run = measured(bench.scripted(score, say), own, "mymath,lines,lines:2,towns,letters")
    found = {row["benchmark"]: (row["metric"], row["value"], row["items"]) for row in run.results}
    half = ("exact_match", 0.5, 10)
    assert found == {
        "mymath:0": ("exact_match", 0.5, ITEMS),
        "lines:0": half,
        "lines:2": half,
        "towns:0": ("exact_match", 0.25, 4),
        "letters:0": ("acc", 1.0, 4),
    }
    again = measured(bench.scripted(score, say), own, "mymath,lines,lines:2,towns,letters")
    assert len(again.read) == 5
    (own / "mymath.yaml").write_text(YAML.replace("64", "65"))
    bench.write("lines/train", sums(4))
    assert measured(bench.scripted(score, say), own, "mymath,lines,lines:2,towns,letters").read == ("lines:0", "towns:0", "letters:0")


def test_a_gate_asks_own_benchmarks_without_another_folder(bench: Bench, own: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(BENCHMARKS_VARIABLE, raising=False)
    before = gate_key(["mymath:0"], str(own))
    [result] = gate_results(cast(Any, bench.scripted(say=adds)), ["mymath:0"], gate_folders(["mymath:0"], str(own)))
    assert (result["value"], result["items"], len(result["answers"])) == (0.5, ITEMS, ITEMS)
    bench.write("mymath/test", [{"question": "Other?", "answer": "#### 3"}])
    edited = gate_key(["mymath:0"], str(own))
    (own / "mymath.yaml").write_text(YAML.replace("Question: ", "Q: "))
    assert len({*before.values(), *edited.values(), *gate_key(["mymath:0"], str(own)).values()}) == 3
    with pytest.raises(ConfigError, match="the gate asks mymath:2, which cannot be measured: no split for its 2 shots"):
        gate_key(["mymath:2"], str(own))
    with pytest.raises(ConfigError, match="the gate asks sciq:0: PHASEWISE_BENCHMARKS must name a folder"):
        gate_key(["mymath:0", "sciq:0"], str(own))


def test_a_task_of_lm_eval_is_asked_by_name_with_items_of_a_folder(bench: Bench, folder: Path):
    fact = {"support": "", "distractor1": "a", "distractor2": "b", "distractor3": "c", "correct_answer": "wren"}
    bench.write("sciq/test", [fact | {"question": f"Which {number}?"} for number in range(3)])
    bench.write("gsm8k/test", sums(2))
    run = measured(bench.scripted(lambda _, text: -1.0 if text == " wren" else -3.0), None, "sciq,sciq:1", benchmarks=folder)
    sciq, shots = run.results
    assert (sciq["metric"], sciq["value"], sciq["items"]) == ("acc", 1.0, 3)
    assert shots["hole"] == "no split for its 1 shots: no file sciq/train.jsonl"
    group = find_benchmark("blimp")
    assert (len(group.parts), group.metric, group.parts[0].split) == (67, "acc", "train")


def test_code_and_templates_of_a_yaml_run_only_where_it_is_allowed(bench: Bench, own: Path, tmp_path: Path):
    (own / "mine.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w').close()\n\ndef words(doc):\n    return 'What is ' + doc['question'][8:]\n"
    )
    code = YAML.replace('"Question: {{question}}\\nAnswer:"', "!function mine.words")
    assert "!function" in code
    (own / "mymath.yaml").write_text(code)
    [refused] = measured(bench.scripted(say=adds), own, "mymath").results
    assert (refused["hole"] or "").startswith("its definition runs Python code outside lm-eval: allow it with --allow-code")
    with pytest.raises(ConfigError, match="its definition runs Python code outside lm-eval"):
        gate_key(["mymath:0"], str(own))
    assert not (tmp_path / "ran").exists()
    [allowed] = measured(bench.scripted(say=adds), own, "mymath", allow_code=True).results
    assert (allowed["value"], (tmp_path / "ran").exists()) == (0.5, True)
    (own / "mymath.yaml").write_text(YAML.replace("{{question}}", "{{cycler.__init__.__globals__.os.getcwd()}}"))
    [template] = measured(bench.scripted(say=adds), own, "mymath").results
    assert "SecurityError" in (template["hole"] or "")


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("quiz.jsonl", '{"question": "Where?"}', r"quiz.jsonl, line 1: expected a question with text and an answer, found .* question"),
        ("quiz.jsonl", '{"question": "Where?", "answer": "a"}\n\nno', "quiz.jsonl, line 3: expected a JSON object"),
        ("quiz.jsonl", '{"question": "Where?", "answer": "so #### "}', "line 1: expected an answer, found 'so #### '"),
        ("quiz.jsonl", '{"question": "Where?", "choices": ["a", "b"], "answer": "c"}', "as one of the choices, .*found 'c'"),
        ("quiz.jsonl", '{"question": "Where?", "choices": ["a"], "answer": "a"}', "a list of at least two choices"),
        ("quiz.jsonl", '{"question": "a", "answer": 1}\n{"question": "b", "choices": ["a", "b"], "answer": 1}', "in all rows or in none"),
        ("quiz.jsonl", "", "quiz.jsonl: expected rows with question and answer, found none"),
        ("quizz.jsonl", "", r"'quiz': expected a benchmark of Phasewise, lm-eval or .*, found none, did you mean quizz"),
        ("quiz/train.jsonl", "", "'quiz': expected a benchmark"),
        ("arc_easy.jsonl", "", "names its benchmark arc_easy, which is the name of a known benchmark: rename yours"),
        ("a.yaml", "task: quiz\ntest_split: test\ndataset_kwargs: {data_files: {test: q.jsonl}}\ndataset_path: json", "no file .*q.jsonl"),
        ("a.yaml", "task: quiz\ntest_split: test\ndataset_kwargs: {data_files: q.csv}\ndataset_path: csv", "expected dataset_path json"),
        ("a.yaml", "task: quiz\ndataset_path: json", "quiz: expected a test_split or a validation_split, found neither"),
        ("a.yaml", "task: quiz\noutput_type: loglikelihood_rolling", "expected output_type multiple_choice"),
        ("a.yaml", "task: quiz\nmetric_list: [{metric: f1, aggregation: f1}]", "expected a metric with the aggregation mean, found f1"),
        ("a.yaml", "task: quiz\nclass: !function mine.Task", "expected a definition in YAML, found the Python class mine.Task"),
        ("a.yaml", "task: quiz\n  wrong: [", "a.yaml: expected a definition of lm-eval in YAML"),
        ("a.yaml", "task: quiz\ninclude: a.yaml", "expected no circle of includes"),
        ("a.yaml", "group: quiz\ntask: [nowhere]", "quiz: expected tasks that exist, found 'nowhere'"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_one_error(folder: Path, file: str, content: str, said: str):
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).write_text(content)
    name = "arc_easy" if file.startswith("arc") else "quiz"
    with pytest.raises((ConfigError, DataError), match=said):
        find_benchmark(name, folder)


def test_a_name_stands_once(bench: Bench, own: Path):
    (own / "again.yml").write_text("task: mymath")
    with pytest.raises(ConfigError, match=r"mymath: expected one definition in .*, found again.yml and mymath.yaml"):
        find_benchmark("mymath", own)
    for name in ("twice", "twice/test"):
        bench.write(name, [json.loads('{"question": "a", "answer": "b"}'), *riddles(0)])
    (own / "again.yml").unlink()
    with pytest.raises(ConfigError, match="twice: expected one file of items, found"):
        find_benchmark("twice", own)


def test_items_without_an_answer_widen_the_interval_and_count_against_passing(bench: Bench, own: Path, tmp_path: Path):
    def some(context: str) -> str:
        number = int(context.rpartition("What is ")[2].split()[0])
        return "I do not know." if number % 10 in (0, 2, 4) else adds(context)

    [row] = measured(bench.scripted(say=some), own, "mymath").results
    assert (row["value"], row["items"], row["ungraded"]) == (0.5, ITEMS, 60)  # 100 right, 40 wrong
    assert row["interval"] == pytest.approx((0.4314, 0.8495), abs=1e-4)  # Wilson's of 100 and of 160 among 200, by hand
    folders, labels = gate_folders(["mymath:0"], str(own)), ["mymath:0"]
    whole, silent = (
        evaluation_of(gate_results(cast(Any, bench.scripted(say=say)), labels, folders), name)
        for name, say in (("whole", adds), ("silent", some))
    )
    assert [sum("ungraded" in answer for answer in one["results"][0]["answers"]) for one in (whole, silent)] == [0, 60]
    assert judge(tmp_path, silent, whole).passes
    [note] = gate_notes(gate_tables(whole, silent, LIMITS), asks_floor=True)  # the parent may have been right on all 60
    assert "mymath:0 exact_match: 0.500, +0.000 (-0.367 to +0.019) to silent's 0.500" in note
    assert judge(tmp_path, whole, silent).passes
    rises = LIMITS.but(max_score_rise=0.1)
    assert judge(tmp_path, silent, silent, rises).passes
    [reason] = stops(judge(tmp_path, silent, whole, rises))  # the checkpoint may be right on items that the parent has wrong
    assert reason.what.startswith("mymath:0 exact_match rose from whole's 0.500 to 0.500, by +0.000 (-0.019 to +0.367)")
    [note] = gate_notes(gate_tables(silent, None, LIMITS), asks_floor=True)
    assert "0.500 (95 % interval 0.431 to 0.850, from all 60 of 200 ungraded items wrong to all right)" in note
    bench.write("mymath/test", [*sums(3), {"question": "What is 1 + 3?", "answer": "####"}])
    [row] = measured(bench.scripted(say=adds), own, "mymath").results
    assert row["ungraded"] == 1
