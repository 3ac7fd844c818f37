"""Conversations of every layout, as files of their sources and as caches."""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from phasewise.tasks.data.conversation import AnswerColumn, Conversation, Message
from phasewise.tasks.data.documents import split_texts
from phasewise.tasks.data.source import Source
from phasewise.tasks.data.stand_ins import as_record, conversations_in, roots
from phasewise.tasks.data.template import template_of
from phasewise.tasks.data.tokenizer import train_tokenizer
from phasewise.trainer.data.manifest import SPLITS
from tests.tasks.data.builds import build_cache, write_documents

FileKind = Literal["jsonl", "parquet"]
VOCAB_SIZE = 600
LAYOUTS: dict[str, dict[str, Any]] = {
    "messages": {"messages": "messages"},
    "share_gpt": {
        "messages": "conversations", "role": "from", "content": "value", "roles": {"human": "user", "gpt": "assistant", "system": "system"},
    },
    "messages_and_system": {"messages": "conversations", "role": "from", "content": "value", "system": "system"},
    "messages_and_answer": {"messages": "messages", "answer": AnswerColumn(key="answer")},
    "question_and_answer": {"prompt": "prompt", "answer": AnswerColumn(key="gold_standard_solution")},
    "best_answer": {"prompt": "question", "answer": AnswerColumn(key="inferences", content="completion", best_by="pass_rate")},
    "first_answer": {"prompt": "question", "answer": AnswerColumn(key="responses", content="response")},
}  # fmt: skip
UNICODE: list[list[Message]] = [
    [Message(role="user", content=question), Message(role="assistant", content=answer)]
    for question, answer in (
        ("Wie heißt das auf Deutsch?", "  „Grüße“ – mit Umlauten.  "), ("日本語で?", "はい、そうです。🌳"), ("emoji alone", "👩‍👩‍👧‍👦"),
        ("code", "```python\nfor x in y:\n\tprint(x)\n```\n"), ("combining", "\u0338cafe\u0301 and \u0338 alone"),
        ("spaces", "a  b   c\n\n\n d"), ("Looks like a tag: <|user|> <b>", "{% if x %} {{ y }} & <|nothing|>"),
    )
]  # fmt: skip


def layout(name: str, template: str = "marin") -> Conversation:
    return Conversation(**LAYOUTS[name], template=template)


def made_conversations(count: int) -> list[list[Message]]:
    paths = sorted(roots()["stdlib"].glob("*.py"))
    return list(islice((said for path in paths for said in conversations_in(path, path.stem)), count))


def write_records(path: Path, records: Iterable[Mapping[str, Any]], kind: FileKind = "jsonl") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "jsonl":
        path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")
    else:
        pq.write_table(pa.Table.from_pylist([dict(record) for record in records]), path)


def write_source(folder: Path, how: Conversation, made: Sequence[Sequence[Message]], kind: FileKind = "jsonl", **changes: Any) -> Source:
    write_records(folder / f"a.{kind}", [as_record(said, how) for said in made], kind)
    return Source.model_validate({"url": folder.as_uri(), "include": ("a.*",), "format": kind, "conversation": how, **changes})


def write_caches(source: Source, folder: Path, vocab_size: int = VOCAB_SIZE) -> None:
    """Its documents, a tokenizer that is trained on them, and the caches `train` and `held_out`, all in `folder`."""
    assert source.conversation is not None
    write_documents(source, folder / "documents")
    tokenizer = folder / "tokenizer" / "tokenizer.json"
    special = template_of(source.conversation).special_tokens
    train_tokenizer([split_texts(folder / "documents", "train")], vocab_size, tokenizer, special)
    for split in SPLITS:
        build_cache(folder / "documents", split, tokenizer, folder / split)
