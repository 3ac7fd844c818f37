"""What becomes of every column of public sets of conversations, layout by layout: nothing that a person wrote is dropped in silence."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pydantic import ValidationError

from phasewise.tasks.data.conversation import AnswerColumn, Conversation
from phasewise.tasks.data.conversation_text import build_compose, rendered
from phasewise.tasks.data.documents import check_readable, read_to_parts
from phasewise.tasks.data.filters import Normalization
from phasewise.tasks.data.findings import Fault, Finding, LeftOut, Record, Tally, beside_of, has_text, reach, texts_in
from phasewise.tasks.data.listing import fingerprint
from phasewise.tasks.data.source import Source
from phasewise.trainer.base.errors import DataError
from tests.tasks.data.builds import bundles
from tests.tasks.data.conversation_worlds import FileKind, write_records

SAID = [{"role": "user", "content": "Why is it so?"}, {"role": "assistant", "content": "Because it is."}]
TURNS = [{"from": "human", "value": "Why is it so?"}, {"from": "gpt", "value": "Because it is."}]
ROLES = {"system": "system", "human": "user", "gpt": "assistant"}
CALL = [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]
TOOLS = json.dumps([{"name": "f", "parameters": {}}], separators=(",", ":"))


class Layout(NamedTuple):
    """A public set's record, and what must become of each of its columns.

    Attributes:
        read: columns that are in the text.
        refused: columns that must be read or left out by name.
        reported: columns that are named when the data are prepared.
    """

    how: Mapping[str, Any]
    record: Mapping[str, Any]
    read: str
    refused: str = ""
    reported: str = ""


Q = {"prompt": "question", "answer": AnswerColumn(key="answer")}
LAYOUTS: dict[str, Layout] = {
    "alpaca": Layout(
        {"prompt": "instruction", "answer": AnswerColumn(key="output")},
        {"instruction": "Name the colour.", "input": "grass", "output": "Green.", "text": "Below is an instruction."},
        read="instruction output",
        refused="input text",
    ),
    "alpaca with its input": Layout(
        {"prompt": "instruction", "context": "input", "answer": AnswerColumn(key="output"), "leave_out": ("text",)},
        {"instruction": "Name the colour.", "input": "grass", "output": "Green.", "text": "Below is an instruction."},
        read="instruction input output",
    ),
    "dolly": Layout(
        {"prompt": "instruction", "answer": AnswerColumn(key="response")},
        {"instruction": "When did it start?", "context": "It started in 1999.", "response": "1999", "category": "closed_qa"},
        read="instruction response",
        refused="context",
        reported="category",
    ),
    "orca": Layout(
        {"prompt": "question", "system": "system_prompt", "answer": AnswerColumn(key="response")},
        {"id": "flan.1", "system_prompt": "Be brief.", "question": "Why is it so?", "response": "Because."},
        read="system_prompt question response",
        reported="id",
    ),
    "share_gpt": Layout(
        {"messages": "conversations", "role": "from", "content": "value", "roles": ROLES},
        {"id": "x_1", "conversations": TURNS, "system": "Be brief.", "tools": TOOLS},
        read="conversations",
        refused="system tools",
        reported="id",
    ),
    "share_gpt with its system text": Layout(
        {"messages": "conversations", "role": "from", "content": "value", "roles": ROLES, "system": "system"},
        {"conversations": TURNS, "system": "Be brief.", "tools": "[]", "model": "gpt-4", "hash": 7},
        read="conversations system",
        reported="model",
    ),
    "openai": Layout(
        {"messages": "messages"},
        {"messages": SAID, "tools": [CALL[0]], "parallel_tool_calls": False, "functions": []},
        read="messages",
        refused="tools",
    ),
    "tulu": Layout({"messages": "messages"}, {"id": "a_1", "messages": SAID, "source": "ai2/x"}, read="messages", reported="id source"),
    "ultrachat": Layout(
        {"messages": "messages"}, {"prompt": "Why is it so?", "prompt_id": "1f", "messages": SAID}, read="messages", refused="prompt",
        reported="prompt_id",
    ),
    "wildchat": Layout(
        {"messages": "conversation"},
        {"conversation": [{**one, "header": {"agent": "Mozilla (X11)"}, "toxic": False, "language": "en"} for one in SAID], "model": "m"},
        read="conversation",
        refused="header",
        reported="model language",
    ),
    "messages as a string": Layout(
        {"messages": "conversation"}, {"conversation": json.dumps(SAID), "source": "x"}, read="conversation", reported="source"
    ),
    "prompt and completion": Layout(
        {"prompt": "prompt", "answer": AnswerColumn(key="completion")},
        {"prompt": "Why is it so?", "completion": "Because.", "meta": {"lang": "en", "licence": None}},
        read="prompt completion",
        reported="meta",
    ),
    "gsm8k": Layout(Q, {"question": "How many?", "answer": "Two. #### 2"}, read="question answer"),
    "squad": Layout(
        Q, {"question": "Who?", "context": "Ada wrote it.", "answer": "Ada", "title": "Ada_Lovelace"}, read="question answer",
        refused="context", reported="title",
    ),
    "open thoughts": Layout(
        {"prompt": "problem", "answer": AnswerColumn(key="solution")},
        {"problem": "What is 1 + 1?", "reasoning": "Well", "solution": "2", "domain": "math", "test_cases": {"in": ["1 2"]}},
        read="problem solution",
        refused="reasoning test_cases",
        reported="domain",
    ),
    "preference": Layout(
        {"prompt": "prompt", "answer": AnswerColumn(key="chosen")},
        {"prompt": "Why?", "chosen": "Because.", "rejected": "No", "score_chosen": 8.5},
        read="prompt chosen",
        refused="rejected",
    ),
    "preference as messages": Layout(
        {"messages": "chosen", "leave_out": ("rejected", "prompt")},
        {"prompt": "Why is it so?", "chosen": SAID, "rejected": SAID[:1]},
        read="chosen",
    ),
    "text parts": Layout(
        {"messages": "messages"},
        {"messages": [{**one, "content": [{"type": "text", "text": one["content"]}]} for one in SAID], "images": []},
        read="messages",
    ),
    "best of several": Layout(
        {"prompt": "question", "answer": AnswerColumn(key="inferences", content="completion", best_by="pass_rate")},
        {"question": "Why?", "inferences": [{"completion": "So it is.", "pass_rate": 1.0, "plan": "Say so", "model_name": "m"}]},
        read="question",
        refused="plan",
        reported="model_name",
    ),
    "history": Layout(
        Q, {"question": "And then?", "answer": "No.", "history": [["Hi", "Hello"]], "分类": "开放问答"}, read="question answer",
        refused="history 分类",
    ),
    "below an object": Layout(
        {"messages": "data.messages"},
        {"data": {"messages": SAID, "context": "It is about it.", "lang": "en"}, "id": "1"},
        read="data.messages",
        refused="data.context",
        reported="data.lang id",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_every_column_is_read_refused_or_reported(tmp_path: Path, name: str, kind: FileKind):
    """And what the refusal says to leave out is what lets the conversations through."""
    one = LAYOUTS[name]
    write_records(tmp_path / "in" / f"a.{kind}", [one.record] * 40, kind)
    how = Conversation.model_validate({"template": "trinity", **one.how})
    source = Source.model_validate({"url": str(tmp_path / "in"), "include": ("a.*",), "format": kind, "conversation": how})
    read, refused, reported = (set(names.split()) for names in one[2:])
    named = {column.partition(".")[0] for column in (*read, *refused, *reported, *how.columns)} | {*how.leave_out}
    assert {column for column, value in one.record.items() if has_text(value) and value != "[]"} <= named
    tally = tally_of(source, tmp_path / "out")
    assert (set(tally.unread), set(tally.beside)) == (refused, reported)
    assert {*tally.unread.values(), *tally.beside.values()} <= {40}
    if refused:
        with pytest.raises(DataError, match=r"component web: every text of a record must be read or left out by name") as said:
            check_readable("web", source, tally, tmp_path)
        leave_out = json.loads(str(said.value).partition("leave_out=")[2].rstrip("."))
        source = source.but(conversation={**how.model_dump(), "leave_out": leave_out})
        tally = tally_of(source, tmp_path / "left-out")
    check_readable("web", source, tally, tmp_path)
    assert beside_of(tally) == ", ".join(f"{column} (100%)" for column in sorted(reported))
    found = find(source.conversation, one.record)
    assert isinstance(found, Record)
    values = [reach(one.record, column) for column in read]
    values = [json.loads(value) if isinstance(value, str) and value.startswith("[{") else value for value in values]
    texts = [text for value in values for text in texts_in(value)]
    assert all(text in found.text for text in texts if " " in text and "Mozilla" not in text)
    not_read = [text for column in refused for text in texts_in(reach(one.record, column)) if text not in texts]
    assert not any(text in found.text for text in not_read if " " in text)


def tally_of(source: Source, folder: Path) -> Tally:
    (bundle,) = bundles(source, fingerprint(source))
    return read_to_parts(bundle, 1 << 20, folder).tally


def find(how: Conversation | None, record: Mapping[str, Any]) -> Finding:
    assert how is not None
    taken = build_compose(how, Normalization())(record, "row 0")
    (found,) = rendered([taken], how, lambda text, where, record: Record(text, where), "a.jsonl")
    return found


U, A = SAID


@pytest.mark.parametrize(
    ("messages", "found"),
    [
        ([{"role": "system", "content": ""}, U, A], "text"),
        ([{"role": "system", "content": None}, U, A], "text"),
        ([{"role": "system", "content": " \n"}, U, A], "text"),
        ([{"role": "system", "content": []}, U, A], "text"),
        ([{"role": "system", "content": ""}, {"role": "system", "content": ""}, U, A], "text"),
        (json.dumps([U, A]), "text"),
        ([U, {"role": "assistant", "content": [{"type": "output_text", "text": "Because "}, {"type": "text", "text": "it is."}]}], "text"),
        ([{"role": "user", "content": ""}, A], "empty content"),
        ([U, {"role": "assistant", "content": [{"type": "text", "text": ""}]}], "empty content"),
        ("", "no messages"),
        ("[]", "no messages"),
        ("[" * 2000, "wrong type"),
        ("{'role': 'user'}", "wrong type"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}, A], "part that is not text"),
        ([U, {"role": "assistant", "content": [{"type": "reasoning", "content": "t"}]}], "part that is not text"),
        ([U, {"role": "assistant", "content": [{"text": "a"}]}], "wrong type"),
        ([U, {"role": "assistant", "content": {"text": "a"}}], "wrong type"),
    ],
)
def test_one_meaning_has_one_rule(messages: Any, found: str):
    how = Conversation(messages="messages", template="trinity")
    one = find(how, {"messages": messages})
    if isinstance(one, Record):
        assert (found, one.text) == ("text", "<|im_start|>user\nWhy is it so?<|im_end|>\n<|im_start|>assistant\nBecause it is.<|im_end|>\n")
        return
    assert isinstance(one, Fault | LeftOut)
    assert one.reason == found
    if found == "part that is not text":
        assert isinstance(one, Fault)
        assert one.sample.startswith(("image_url in ", "reasoning in "))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"messages": "m", "context": "c"}, r"a context \('c'\) follows a question in a separate column"),
        ({"messages": "m", "leave_out": ("m",)}, "leave_out names m, which the conversation is made of"),
    ],
)
def test_a_layout_that_contradicts_itself_is_refused(fields: dict[str, Any], said: str):
    with pytest.raises(ValidationError, match=said):
        Conversation.model_validate({"template": "trinity", **fields})
