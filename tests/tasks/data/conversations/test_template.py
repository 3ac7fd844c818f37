"""Chat templates: what they may do, and how what they must not do is refused."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from phasewise.tasks.data.conversations.declared import Conversation
from phasewise.tasks.data.conversations.messages import Message
from phasewise.tasks.data.conversations.template import ChatTemplate, Refused, Rendered, resolved, template_of
from phasewise.trainer.base.errors import ConfigError, DataError
from tests.tasks.data.conversations.worlds import layout

SAID: list[Message] = [Message(role="user", content="u"), Message(role="assistant", content="a")]
LOOP = "{% for message in messages %}{{ message.content }}{% endfor %}"


def render(template: str, said: list[Message] = SAID) -> Rendered:
    return ChatTemplate(template, "mine").render(said, "a.jsonl, byte 12")


def test_it_has_what_transformers_gives_a_template():
    """Blocks trimmed, JSON without escapes of HTML, break and continue, tools that are none, and no question to go on from."""
    assert render("{{ messages[0] | tojson }}").text == '{"role": "user", "content": "u"}'
    assert render('{{ "<é>" | tojson(indent=1) }}').text == '"<é>"'
    assert (
        render("{% for m in messages %}\n  {% if loop.index0 %}\n{% continue %}\n  {% endif %}\n{{ m.content }}\n{% endfor %}").text
        == "u\n"
    )
    assert (
        render("{{ bos_token }}{% if tools or documents or add_generation_prompt %}x{% endif %}{{ eos_token }}").text == "<|end_of_text|>"
    )
    assert render("{% for m in [[1, [2]]] recursive %}{{ m if m is number else loop(m) }}{% endfor %}").text == "12"
    assert render("{{ loop is defined }}{{ 'x' if messages[0].tools else messages[0].tools | default('none') }}").text == "Falsenone"
    assert render("{% for m in messages %}{{ loop.length }}{{ loop.last }} {% endfor %}").text == "2False 2True "


def test_answers_are_what_is_between_the_marks():
    marked = "{{ bos_token }}{% for m in messages %}[{% generation %}{{ m.content }}{% endgeneration %}]{% endfor %}"
    assert render(marked) == Rendered("[u][a]", ((1, 2), (4, 5)), begins=True)
    assert render("{% generation %}{% endgeneration %}x") == Rendered("x", ())  # an empty answer is none
    assert not ChatTemplate(LOOP, "mine").marks_answers


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ 1 / 0 }}", "the chat template mine failed at a.jsonl, byte 12: ZeroDivisionError"),
        ("{{ messages[0].content.nothing.more }}", "UndefinedError"),
        ("{{ messages[0].contents }}", "UndefinedError: 'dict object' has no attribute 'contents'"),
        ("{{ 'u' ~ messages[0].contents | trim }}", "UndefinedError: 'dict object' has no attribute 'contents'"),
        ("{{ messages.__class__ }}", "SecurityError: it reaches for the attribute '__class__' of a list"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{% for a in range(1000000) %}{% endfor %}", "OverflowError"),
        ("{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}", "RecursionError"),
        ("{{ messages[0].content.strip }}", "SecurityError: it writes the builtin_function_or_method 'strip' itself"),
        ("{{ lipsum() }}", "UndefinedError: 'lipsum' is undefined"),
        ("x{{ bos_token }}", "must write <|begin_of_text|> once, at the start of a conversation"),
        ("{% macro f() %}x{% generation %}a{% endgeneration %}{% endmacro %}u{{ f() }}", "has a generation block inside a macro"),
        ("{% generation %}{% generation %}a{% endgeneration %}b{% endgeneration %}", "has a generation block inside a macro"),
    ],
)
def test_one_that_fails_or_reaches_for_what_it_must_not_is_named_with_the_record(template: str, message: str):
    with pytest.raises(DataError) as refusal:
        render(template)
    assert message in str(refusal.value)
    assert "mine" in str(refusal.value)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for %}", "the chat template mine cannot be used: "),
        ("{% generation %}", "the chat template mine cannot be used: "),
        ("{{ strftime_now('%Y') }}", "asks for the date by strftime_now"),
        ("{% if strftime_now is defined %}x{% endif %}", "asks for the date by strftime_now"),
        ("{{ ['a', 'b'] | random }}", "No filter named 'random'"),
    ],
)
def test_one_that_cannot_be_used_is_refused_before_anything_is_read(template: str, message: str):
    with pytest.raises(ConfigError) as refusal:
        ChatTemplate(template, "mine")
    assert message in str(refusal.value)


def test_what_it_refuses_itself_is_no_failure():
    with pytest.raises(Refused, match="no such turn"):
        render("{{ raise_exception('no such turn') }}")


def test_its_special_tokens_are_found_or_named():
    how = Conversation(messages="m", template="{{ bos_token }}<|a|>[INST]{{ eos_token }}<|a|>" + LOOP, special_tokens=("[INST]",))
    assert template_of(how).special_tokens == ("<|a|>", "[INST]")


def test_the_token_that_ends_a_turn_is_that_of_an_answer():
    assert [template_of(layout("messages", name)).turn_end() for name in ("marin", "trinity")] == ["<|eot_id|>", "<|im_end|>"]
    assert ChatTemplate("{% generation %}a{{ eos_token }}{% endgeneration %}", "mine").turn_end() == "<|end_of_text|>"
    for end in ("{{ eos_token }}", "<|end|>", "\n<|end|>", ""):  # where no answer is marked, it must be right behind it
        unmarked = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}" + end + "{% endfor %}<|more|>"
        expected = {"{{ eos_token }}": "<|end_of_text|>", "<|end|>": "<|end|>"}
        assert ChatTemplate(unmarked, "mine").turn_end() == expected.get(end, "<|more|>" if end == "" else None)
    assert ChatTemplate(LOOP, "mine").turn_end() is None


def test_a_file_is_the_text_in_it_wherever_it_is(tmp_path: Path):
    """So that the same template in another folder makes the same key, and another text another one."""
    for name in ("a", "b"):
        (tmp_path / name).write_text(LOOP)
    read = [resolved(Conversation(messages="m", template=str(tmp_path / name))) for name in ("a", "b")]
    assert read[0] == read[1]
    assert read[0].template == LOOP
    with pytest.raises(ConfigError, match="must be a file of text, found none at"):
        template_of(Conversation(messages="m", template=str(tmp_path / "c")))
    (tmp_path / "c").write_text("no template")
    with pytest.raises(ConfigError, match="has no braces"):
        template_of(Conversation(messages="m", template=str(tmp_path / "c")))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "either a list of messages"),
        ({"messages": "m", "prompt": "p"}, "either a list of messages"),
        ({"prompt": "p"}, "needs the column of its answer"),
        ({"messages": "m", "roles": {"human": "user"}}, "must be the assistant's"),
        ({"prompt": "p", "answer": {"key": "a", "best_by": "rate"}}, "chooses among the answers of a list"),
        ({"messages": "m", "template": "llama"}, "must be marin or trinity, a file"),
        ({"messages": "m", "special_tokens": ("",)}, "has an empty one"),
    ],
)
def test_what_does_not_fit_together_is_refused(fields: dict[str, object], message: str):
    with pytest.raises(ValidationError) as refusal:
        Conversation.model_validate({"template": "marin", **fields})
    assert message in str(refusal.value)
