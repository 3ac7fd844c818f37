import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from phasewise.tasks.data.conversation import Conversation
from phasewise.tasks.data.conversation_text import build_compose, rendered
from phasewise.tasks.data.documents import read_to_parts
from phasewise.tasks.data.filters import Normalization
from phasewise.tasks.data.findings import Fault, Finding, LeftOut, Record, Tally, check_readable, has_text, reach, texts_in
from phasewise.tasks.data.listing import fingerprint
from phasewise.tasks.data.plan import DataPlan, plan_data
from phasewise.tasks.data.prepare import make_missing_tokenizer
from phasewise.tasks.data.source import Source
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import DataError
from tests.tasks.data.builds import bundles, write_documents
from tests.tasks.data.conversation_worlds import VOCAB_SIZE, FileKind, layout, made_conversations, write_records, write_source

KINDS: tuple[FileKind, FileKind] = ("jsonl", "parquet")
U, A = {"role": "user", "content": "Why is it so?"}, {"role": "assistant", "content": "Because it is."}
IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}, A]


class Layout(NamedTuple):
    """A public set's record; its columns that are in the text, that must be read or left out by name, and that are named in preparing."""

    how: Mapping[str, Any]
    record: Mapping[str, Any]
    read: str
    refused: str = ""
    reported: str = ""


LAYOUTS = {name: Layout(**fields) for name, fields in json.loads(Path(__file__).with_name("layouts.json").read_text()).items()}


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_column_is_read_refused_or_reported(tmp_path: Path, name: str):
    one, kind = LAYOUTS[name], KINDS[list(LAYOUTS).index(name) % 2]
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
    assert tally.beside == dict.fromkeys(reported, tally.documents)
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


def system(content: Any) -> dict[str, Any]:
    return {"role": "system", "content": content}


def answer(content: Any) -> list[dict[str, Any]]:
    return [U, {"role": "assistant", "content": content}]


MEANINGS: dict[str, list[Any]] = {
    "text": [
        *([system(content), U, A] for content in ("", None, " \n", [])), [system(""), system(""), U, A], json.dumps([U, A]),
        answer([{"type": "output_text", "text": "Because "}, {"type": "text", "text": "it is."}]),
    ],
    "empty content": [[{"role": "user", "content": ""}, A], answer([{"type": "text", "text": ""}])],
    "no messages": ["", "[]"],
    "wrong type": ["[" * 2000, "{'role': 'user'}", answer([{"text": "a"}]), answer({"text": "a"})],
    "part that is not text": [IMAGE, answer([{"type": "reasoning", "content": "t"}])],
}  # fmt: skip


@pytest.mark.parametrize(("found", "messages"), [(found, messages) for found, many in MEANINGS.items() for messages in many])
def test_one_meaning_has_one_rule(found: str, messages: Any):
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


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return write_source(tmp_path / "source", layout("messages"), made_conversations(60))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def planned(source: Source, home: Home) -> DataPlan:
    return plan_data({"web": source}, home, vocab_size=VOCAB_SIZE)


@pytest.mark.parametrize("change", [
    {"template": "trinity"}, {"template": "{% for m in messages %}{{ m.content }}{% endfor %}"}, {"content": "text"},
    {"roles": {"user": "user", "assistant": "assistant"}}, {"system": "system"}, {"answer": {"key": "answer"}},
    {"special_tokens": ("[INST]",)}, {"leave_out": ("name",)},
])  # fmt: skip
def test_every_setting_of_a_conversation_is_in_the_keys(source: Source, home: Home, change: dict[str, Any]):
    assert source.conversation is not None
    others = source.but(conversation={**source.conversation.model_dump(), **change})
    web, other = (planned(one, home).components["web"] for one in (source, others))
    assert (web.documents.key == other.documents.key, web.train.key == other.train.key) == (False, False)


def test_the_tokenizer_has_the_special_tokens_of_the_template(source: Source, home: Home):
    plan = planned(source, home)
    assert plan.special_tokens == ("<|end_header_id|>", "<|eot_id|>", "<|start_header_id|>")
    write_documents(source, plan.components["web"].documents.folder)
    make_missing_tokenizer(plan, VOCAB_SIZE, None)
    added = {token["content"]: token["id"] for token in json.loads(plan.tokenizer.read_text())["added_tokens"]}
    assert list(added) == ["<|begin_of_text|>", "<|end_of_text|>", *plan.special_tokens]
    assert not [token for token in json.loads(plan.tokenizer.read_text())["model"]["vocab"] if "eot" in token and token not in added]
    more = plan_data({"web": source}, home, vocab_size=VOCAB_SIZE, special_tokens=("<|more|>",))
    assert more.special_tokens == ("<|end_header_id|>", "<|eot_id|>", "<|more|>", "<|start_header_id|>")
    assert more.tokenizer != plan.tokenizer
