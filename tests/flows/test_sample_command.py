"""`phasewise sample` and `phasewise chat` with a small Hugging Face folder."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from lm_eval.api.instance import Instance

from phasewise.flows.cli import main
from phasewise.flows.cli.sample import Writing, chat
from phasewise.tasks.evaluation.model_loading import model_of_folder

FOLDER = Path(__file__).parents[1] / "tasks" / "evaluation" / "golden" / "model"
TEMPLATE = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
GREEDY = Writing(tokens=24, temperature=0.0, top_k=0, top_p=1.0, seed=0)


def call(*words: object, typed: str | None = None) -> Result:
    return CliRunner().invoke(main.main, list(map(str, words)), input=typed)


def test_a_greedy_sample_is_the_text_of_the_evaluation_and_a_seed_keeps_a_drawn_one():
    model = model_of_folder(FOLDER)
    prompts = ("The river", "A quick")
    requests = [Instance("generate_until", {}, (text, {"max_gen_toks": 24}), number) for number, text in enumerate(prompts)]
    greedy = call("sample", FOLDER, *prompts, "--tokens", 24, "--temperature", 0, "--json")
    assert greedy.exit_code == 0, greedy.output
    assert [one["text"] for one in json.loads(greedy.stdout)["samples"]] == model.generate_until(requests)
    plain = call("sample", FOLDER, *prompts, "--tokens", 24, "--temperature", 0)
    assert plain.stdout == "".join(f"{prompt}{text}\n" for prompt, text in zip(prompts, model.generate_until(requests), strict=True))
    drawn = [call("sample", FOLDER, "--tokens", 24, "--seed", seed, "--json").stdout for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_conversation_continues_with_the_template_s_text(tmp_path: Path):
    folder = Path(shutil.copytree(FOLDER, tmp_path / "model"))
    without = call("chat", folder, typed="hello\n")
    assert without.exit_code == 2, without.output
    assert "must have one chat template, and has no chat template" in without.stderr
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    messages = chat(str(folder), None, None, ["hello\n", "more"], GREEDY, system="be short")
    assert [one["role"] for one in messages] == ["system", "user", "assistant", "user", "assistant"]
    context = f"[system] be short\n[user] hello\n[assistant] {messages[2]['content']}\n[user] more\n[assistant]"
    expected = model_of_folder(FOLDER).generate_until([Instance("generate_until", {}, (context, {"max_gen_toks": 24}), 0)])
    assert messages[4]["content"] == expected[0].strip()
    said = call("chat", folder, "--system", "be short", "--tokens", 24, "--temperature", 0, typed="hello\n\nmore\n")
    assert said.exit_code == 0, said.output
    assert said.stdout.split() == f"{messages[2]['content']} {messages[4]['content']}".split()


@pytest.mark.parametrize(
    ("words", "said"), [(("--tokens", 100_000), "--tokens must be less than"), (("--top-p", 0), "--top-p"), (("--top-p", 1.5), "--top-p")]
)
def test_impossible_settings_are_refused_before_anything_is_written(words: tuple[object, ...], said: str):
    refused = call("sample", FOLDER, "The river", *words)
    assert refused.exit_code == 2, refused.output
    assert refused.stdout == ""
    assert said in refused.stderr
