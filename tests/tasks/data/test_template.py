import json
import math
import signal
import subprocess
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from pydantic import ValidationError

from phasewise.tasks.data import template as renderers
from phasewise.tasks.data.conversation import Conversation, Message, messages_of
from phasewise.tasks.data.documents import split_of
from phasewise.tasks.data.stand_ins import as_record
from phasewise.tasks.data.template import RENDERER, ChatTemplate, Rendered, Renderer, line_of, template_of, template_text
from phasewise.tasks.data.tokenizer import BEGIN_OF_TEXT, END_OF_TEXT
from phasewise.trainer.base.errors import ConfigError, DataError
from phasewise.trainer.base.identity import digest_of_bytes
from phasewise.trainer.data.cache import TokenCache
from phasewise.trainer.data.manifest import SPLITS, counted_in_rows
from tests.tasks.data.conversation_worlds import LAYOUTS, UNICODE, layout, made_conversations, write_caches, write_records, write_source
from tests.tasks.data.hostile_templates import HOSTILE

SAID: list[Message] = [Message(role="user", content="u"), Message(role="assistant", content="a")]
LOOP = "{% for message in messages %}{{ message.content }}{% endfor %}"
ROOT = Path(__file__).parents[3]
MAX_SECONDS, MAX_MIB = 2.0, 300  # of a processor, with the start of the process: the clock passes faster where other tests run


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed (extra `parity`)")
@pytest.mark.parametrize("template", ["marin", "trinity"])
def test_every_token_and_every_span_is_that_of_apply_chat_template(tmp_path: Path, template: str):
    made = made_conversations(1100)  # some are the same where a layout has no room for all of them
    compared = 0
    for number, name in enumerate(LAYOUTS):
        how, folder = layout(name, template), tmp_path / name
        share = [*made[number :: len(LAYOUTS)], *UNICODE]
        source = write_source(folder / "source", how, share, "parquet" if number % 2 else "jsonl")
        write_caches(source, folder)
        theirs = tokenizer_of_transformers(folder / "tokenizer" / "tokenizer.json", template_of(how).text)
        documents = expected(theirs, [messages_of(as_record(said, how), how) for said in share])
        compared += sum(compare(TokenCache.open(folder / split), documents[split]) for split in SPLITS)
    assert compared >= 1000


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed (extra `parity`)")
def test_a_template_is_given_the_whole_message_as_apply_chat_template_gives_it(tmp_path: Path):
    template = (
        "{{ bos_token }}{% for message in messages %}{{ message | tojson }}{{ message.name or '' }}{% if message.role == 'assistant' %}"
        "{% generation %}{% if message.reasoning_content is string %}<think>{{ message.reasoning_content }}</think>{% endif %}"
        "{{ message.content }}{% endgeneration %}{% endif %}{% endfor %}"
    )
    more = [{}, {"reasoning_content": "It is ü."}, {"name": "a", "tags": ["x", {"y": 1}]}, {"weight": 1, "reasoning": "Hm."}]
    records = [[{**message, **more[(turn + n) % 4]} for turn, message in enumerate(said)] for n, said in enumerate(made_conversations(100))]
    write_records(tmp_path / "source" / "a.jsonl", [{"messages": said} for said in records])
    how = layout("messages", template)
    write_caches(write_source(tmp_path / "none", how, []).but(url=(tmp_path / "source").as_uri()), tmp_path)
    documents = expected(tokenizer_of_transformers(tmp_path / "tokenizer" / "tokenizer.json", template), records)
    assert sum(compare(TokenCache.open(tmp_path / split), documents[split]) for split in SPLITS) > 90


def tokenizer_of_transformers(path: Path, template: str) -> Any:
    build = import_module("transformers").PreTrainedTokenizerFast
    return build(tokenizer_file=str(path), bos_token=BEGIN_OF_TEXT, eos_token=END_OF_TEXT, chat_template=template)


def expected(theirs: Any, conversations: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, dict[str, tuple[list[int], list[bool]]]]:
    """Split → id of a document → its tokens and which count, as `transformers` has them; each document once, in order."""
    found: dict[str, dict[str, tuple[list[int], list[bool]]]] = {split: {} for split in SPLITS}
    for said in conversations:
        even = [{**message, "content": unicodedata.normalize("NFC", message["content"])} for message in said]
        text = theirs.apply_chat_template(even, tokenize=False)
        digest = digest_of_bytes(text.removeprefix(BEGIN_OF_TEXT).encode())
        encoded = theirs.apply_chat_template(even, return_dict=True, return_assistant_tokens_mask=True)
        found[split_of(digest)].setdefault(digest, (encoded["input_ids"], [*map(bool, encoded["assistant_masks"])]))
    return found


def compare(cache: TokenCache, wanted: dict[str, tuple[list[int], list[bool]]]) -> int:
    """How many documents a cache has, when all are as `transformers` has them; only the end token of the document is ours."""
    first, spans = 0, cache.spans()
    assert spans is not None
    for document, (digest, (ids, mask)) in zip(cache.documents(), wanted.items(), strict=True):
        assert (document.id, document.tokens.tolist()) == (digest, [*ids, cache.manifest.end_of_text])
        assert counted_in_rows(spans, np.array([first]), len(document.tokens))[0].tolist() == [*mask, False]
        assert any(mask)
        first += len(document.tokens)
    assert first == cache.manifest.tokens
    return len(wanted)


def render(template: str, said: list[Message] = SAID) -> Rendered:
    return ChatTemplate(template, "mine").render(said, "a.jsonl, byte 12")


@pytest.mark.parametrize(("template", "text"), [
    ("{{ messages[0] | tojson }}", '{"role": "user", "content": "u"}'),
    ('{{ "<é>" | tojson(indent=1) }}', '"<é>"'),
    ("{% for m in messages %}\n  {% if loop.index0 %}\n{% continue %}\n  {% endif %}\n{{ m.content }}\n{% endfor %}", "u\n"),
    ("{{ bos_token }}{% if tools or documents or add_generation_prompt %}x{% endif %}{{ eos_token }}", "<|end_of_text|>"),
    ("{% for m in [[1, [2]]] recursive %}{{ m if m is number else loop(m) }}{% endfor %}", "12"),
    ("{{ loop is defined }}{{ 'x' if messages[0].tools else messages[0].tools | default('none') }}", "Falsenone"),
    ("{% for m in messages %}{{ loop.length }}{{ loop.last }} {% endfor %}", "2False 2True "),
])  # fmt: skip
def test_it_has_what_transformers_gives_a_template(template: str, text: str):
    assert render(template).text == text


@pytest.mark.parametrize(("template", "message"), [
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
])  # fmt: skip
def test_one_that_fails_or_reaches_for_what_it_must_not_is_named_with_the_record(template: str, message: str):
    with pytest.raises(DataError) as refusal:
        render(template)
    assert message in str(refusal.value)
    assert "mine" in str(refusal.value)


@pytest.mark.parametrize(("template", "message"), [
    ("{% for %}", "the chat template mine cannot be used: "),
    ("{% generation %}", "the chat template mine cannot be used: "),
    ("{{ strftime_now('%Y') }}", "asks for the date by strftime_now"),
    ("{% if strftime_now is defined %}x{% endif %}", "asks for the date by strftime_now"),
    ("{{ ['a', 'b'] | random }}", "No filter named 'random'"),
])  # fmt: skip
def test_one_that_cannot_be_used_is_refused_before_anything_is_read(template: str, message: str):
    with pytest.raises(ConfigError) as refusal:
        ChatTemplate(template, "mine")
    assert message in str(refusal.value)


def test_the_token_that_ends_a_turn_is_that_of_an_answer():
    assert [template_of(layout("messages", name)).turn_end() for name in ("marin", "trinity")] == ["<|eot_id|>", "<|im_end|>"]
    assert ChatTemplate("{% generation %}a{{ eos_token }}{% endgeneration %}", "mine").turn_end() == "<|end_of_text|>"
    for end in ("{{ eos_token }}", "<|end|>", "\n<|end|>", ""):  # where no answer is marked, it must be right behind it
        unmarked = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}" + end + "{% endfor %}<|more|>"
        expected = {"{{ eos_token }}": "<|end_of_text|>", "<|end|>": "<|end|>"}
        assert ChatTemplate(unmarked, "mine").turn_end() == expected.get(end, "<|more|>" if end == "" else None)
    assert ChatTemplate(LOOP, "mine").turn_end() is None


def test_a_file_is_the_text_in_it_wherever_it_is(tmp_path: Path):
    for name in ("a", "b"):
        (tmp_path / name).write_text(LOOP)
        assert template_text(Conversation(messages="m", template=str(tmp_path / name))) == LOOP
    with pytest.raises(ConfigError, match="must be a file of text, found none at"):
        template_of(Conversation(messages="m", template=str(tmp_path / "c")))
    (tmp_path / "c").write_text("no template")
    with pytest.raises(ConfigError, match="has no braces"):
        template_of(Conversation(messages="m", template=str(tmp_path / "c")))


@pytest.mark.parametrize(("fields", "message"), [
    ({}, "either a list of messages"), ({"messages": "m", "prompt": "p"}, "either a list of messages"),
    ({"prompt": "p"}, "needs the column of its answer"), ({"messages": "m", "roles": {"human": "user"}}, "must be the assistant's"),
    ({"prompt": "p", "answer": {"key": "a", "best_by": "rate"}}, "chooses among the answers of a list"),
    ({"messages": "m", "template": "llama"}, "must be marin or trinity, a file"),
    ({"messages": "m", "context": "c"}, "a context ('c') follows a question in a separate column"),
    ({"messages": "m", "leave_out": ("m",)}, "leave_out names m, which the conversation is made of"),
    ({"messages": "m", "special_tokens": ("",)}, "has an empty one"),
])  # fmt: skip
def test_what_does_not_fit_together_is_refused(fields: dict[str, object], message: str):
    with pytest.raises(ValidationError) as refusal:
        Conversation.model_validate({"template": "marin", **fields})
    assert message in str(refusal.value)


@pytest.fixture(scope="module")
def outcomes() -> dict[str, dict[str, Any]]:
    """What comes of each hostile template, in a process of its own, so that the peaks are theirs."""
    command = [sys.executable, "-P", "-m", "tests.tasks.data.hostile_templates"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONPATH": str(ROOT)})
    return {row["name"]: row for row in map(json.loads, ran.stdout.splitlines())}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_template_that_takes_all_is_refused_soon_and_by_name(outcomes: dict[str, dict[str, Any]], name: str):
    found = outcomes[name]
    assert found["said"].startswith((f"DataError: the chat template {name} ", f"ConfigError: the chat template {name} ")), found
    assert any(limit in found["said"] for limit in (*renderers.LIMITS.values(), "recursion depth", "Range too big")), found
    assert found["said"].count("\n") == 0
    assert found["processor_seconds"] <= MAX_SECONDS
    assert max(found["own_mib"], found["child_mib"]) <= MAX_MIB


@pytest.mark.parametrize("value", [math.nan, math.inf, 2**70, 1.5, True, None, "ü🌳", "\ud800", [{"a": [1, "x"]}, []], {"b": {}}])
def test_what_a_message_has_arrives_as_it_is(value: object):
    said = [Message(role="user", content="u", others={"more": value})]
    _, found = RENDERER.ask("{{ messages[0].more | tojson(ensure_ascii=true) }}", ("", ""), [line_of(said)])
    assert found[:2] == ["text", json.dumps(value)]


def test_a_process_that_was_killed_or_does_not_answer_is_replaced(monkeypatch: pytest.MonkeyPatch):
    own = Renderer()
    line = line_of([Message(role="user", content="u")])
    assert own.ask(LOOP, ("", ""), [line])[1][1] == "u"
    (child,) = [one for one in psutil.Process().children() if one.pid == own._process.pid]  # pyright: ignore  # the process itself is meant
    child.kill()
    psutil.wait_procs([child])
    assert own.ask(LOOP, ("", ""), [line])[1][1] == "u"
    assert own._process  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(renderers, "WALL_SECONDS", 0.5)
    own._process.send_signal(signal.SIGSTOP)  # pyright: ignore[reportPrivateUsage]
    assert own.ask(LOOP, ("", ""), [line_of([Message(role="user", content="u" * 2**20)])])[-1] == ["limit", "clock"]


def test_it_can_open_nothing_and_start_nothing_and_ends_with_its_parent():
    tries = (
        "open('/etc/passwd')", "__import__('socket').socket()", "os.fork()", "os.execv('/bin/true', ['true'])",
        "__import__('ctypes').CDLL(None)",
    )  # fmt: skip
    attempt = "    try:\n        {}\n        print('done')\n    except Exception as e:\n        print(type(e).__name__)\n"
    attempts = "".join(map(attempt.format, tries))
    program = renderers.PROGRAM.read_text().replace("    sys.addaudithook(refuse)\n", f"    sys.addaudithook(refuse)\n{attempts}")
    ran = subprocess.run([sys.executable, "-P", "-c", program], input="", capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["SecurityError"] * len(tries)
    parent = "import os; from phasewise.tasks.data.template import RENDERER as r; r.ask('x', ('', ''), ())\n"
    parent += "print(r._process.pid, flush=True); os.kill(os.getpid(), 9)"
    said = subprocess.run([sys.executable, "-c", parent], capture_output=True, text=True, check=False, env={"PYTHONPATH": str(ROOT)}).stdout
    _, alive = psutil.wait_procs([psutil.Process(int(said))] if psutil.pid_exists(int(said)) else [], timeout=30)
    assert not alive
