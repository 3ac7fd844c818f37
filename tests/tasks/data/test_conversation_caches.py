"""A component of conversations in a home: what decides its keys, and what is not as it was written."""

import json
from pathlib import Path
from typing import Any

import pytest

from phasewise.tasks.data.caches import encode_part
from phasewise.tasks.data.conversation import Conversation
from phasewise.tasks.data.documents import bucket_ranges, find_copies, finish_documents, read_to_parts
from phasewise.tasks.data.plan import DataPlan, plan_data
from phasewise.tasks.data.prepare import finish_cache, make_missing_tokenizer
from phasewise.tasks.data.source import Source
from phasewise.tasks.home import Home
from phasewise.trainer.data.manifest import SPLITS
from tests.tasks.data.conversation_worlds import VOCAB_SIZE, layout, made_conversations, write_source


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return write_source(tmp_path / "source", layout("messages"), made_conversations(60))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def planned(source: Source, home: Home) -> DataPlan:
    return plan_data({"web": source}, home, vocab_size=VOCAB_SIZE)


def build(plan: DataPlan) -> None:
    """What data preparation does, without Dask."""
    web = plan.components["web"]
    folder = web.documents.folder
    records = [read_to_parts(bundle, web.part_bytes, folder) for bundle in web.bundles]
    finish_documents("web", web.source, web.listing, records, [find_copies(folder, bucket_ranges(records)[0], 0)], folder)
    make_missing_tokenizer(plan, VOCAB_SIZE, None)
    for split in SPLITS:
        encode_part(folder, 0, plan.tokenizer, {split: web.cache(split).folder})
        finish_cache("web", split, folder, plan.tokenizer, web.cache(split).key, web.cache(split).folder)


@pytest.mark.parametrize(
    "change",
    [
        {"template": "trinity"},
        {"template": "{% for m in messages %}{{ m.content }}{% endfor %}"},
        {"roles": {"user": "user", "assistant": "assistant"}},
        {"content": "text"},
        {"system": "system"},
        {"answer": {"key": "answer"}},
        {"special_tokens": ("[INST]",)},
        {"leave_out": ("name",)},
    ],
)
def test_every_setting_of_a_conversation_is_in_the_keys(source: Source, home: Home, change: dict[str, Any]):
    assert source.conversation is not None
    others = source.but(conversation={**source.conversation.model_dump(), **change})
    web, other = (planned(one, home).components["web"] for one in (source, others))
    assert web.documents.key != other.documents.key
    assert web.train.key != other.train.key


def test_the_tokenizer_has_the_special_tokens_of_the_template(source: Source, home: Home):
    plan = planned(source, home)
    assert plan.special_tokens == ("<|end_header_id|>", "<|eot_id|>", "<|start_header_id|>")
    build(plan)
    added = {token["content"]: token["id"] for token in json.loads(plan.tokenizer.read_text())["added_tokens"]}
    assert list(added) == ["<|begin_of_text|>", "<|end_of_text|>", *plan.special_tokens]
    assert not [token for token in json.loads(plan.tokenizer.read_text())["model"]["vocab"] if "eot" in token and token not in added]
    more = plan_data({"web": source}, home, vocab_size=VOCAB_SIZE, special_tokens=("<|more|>",))
    assert more.special_tokens == ("<|end_header_id|>", "<|eot_id|>", "<|more|>", "<|start_header_id|>")
    assert more.tokenizer != plan.tokenizer


def test_a_template_s_file_may_move_and_may_not_change(source: Source, home: Home, tmp_path: Path):
    assert source.conversation is not None
    keys = list[str]()
    for name, text in (("a", "{{ messages }}"), ("b", "{{ messages }}"), ("c", "{{ messages[0] }}")):
        (tmp_path / name).write_text(text)
        moved = source.but(conversation=Conversation(messages="messages", template=str(tmp_path / name)).model_dump())
        keys.append(planned(moved, home).components["web"].train.key)
    assert keys[0] == keys[1] != keys[2]
