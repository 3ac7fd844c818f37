import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from phasewise.tasks.data.conversation import Conversation, Message
from phasewise.tasks.data.conversation_text import build_compose, rendered
from phasewise.tasks.data.documents import read_documents_manifest, split_of, split_texts
from phasewise.tasks.data.filters import Normalization
from phasewise.tasks.data.findings import Record
from phasewise.tasks.data.stand_ins import as_record
from phasewise.tasks.data.template import ChatTemplate, NotMarked
from phasewise.tasks.data.tokenizer import BEGIN_OF_TEXT, END_OF_TEXT
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.identity import digest_of_bytes
from phasewise.trainer.data.cache import TokenCache
from phasewise.trainer.data.manifest import SPLITS, counted_in_rows
from tests.tasks.data.builds import build_cache, write_documents
from tests.tasks.data.conversation_worlds import LAYOUTS, FileKind, layout, made_conversations, write_caches, write_records, write_source

BYTES = {"<|start_header_id|>": 258, "<|end_header_id|>": 259, "<|eot_id|>": 260, "<|im_start|>": 261, "<|im_end|>": 262}
LOOP = "{% for message in messages %}{{ message.content }}{% endfor %}"
SAID: list[Message] = [
    Message(role="system", content="Be brief."), Message(role="user", content="Grüße?"), Message(role="assistant", content="Hé 🌳"),
    Message(role="user", content="More"), Message(role="assistant", content="no"),
]  # fmt: skip


def byte_tokenizer(path: Path) -> Path:
    """One token a byte, so that every id can be written down: bytes from 0 on, then the special tokens from 256 on."""
    alphabet = {character: byte for byte, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([BEGIN_OF_TEXT, END_OF_TEXT, *BYTES])
    path.parent.mkdir(parents=True)
    tokenizer.save(str(path))
    return path


def decoded(path: Path, tokens: np.ndarray) -> str:
    return Tokenizer.from_file(str(path)).decode(tokens.tolist(), skip_special_tokens=False)


@pytest.mark.parametrize(("template", "turn", "answers"), [
    ("marin", "<|start_header_id|>{}<|end_header_id|>\n{}<|eot_id|>\n", ["Hé 🌳<|eot_id|>", "no<|eot_id|>"]),
    ("trinity", "<|im_start|>{}\n{}<|im_end|>\n", ["Hé 🌳<|im_end|>", "no<|im_end|>"]),
])  # fmt: skip
def test_a_conversation_s_tokens_and_those_that_count(tmp_path: Path, template: str, turn: str, answers: list[str]):
    text = BEGIN_OF_TEXT + "".join(turn.format(said["role"], said["content"]) for said in SAID) + END_OF_TEXT
    others = [[Message(role="user", content=f"Number {n}?"), Message(role="assistant", content=f"{n}!")] for n in range(40)]
    source = write_source(tmp_path / "source", layout("messages", template), [SAID, *others])
    write_documents(source, tmp_path / "documents")
    tokenizer = byte_tokenizer(tmp_path / "tokenizer" / "tokenizer.json")
    split = split_of(digest_of_bytes(text.removeprefix(BEGIN_OF_TEXT).removesuffix(END_OF_TEXT).encode()))
    build_cache(tmp_path / "documents", split, tokenizer, tmp_path / split)
    cache = TokenCache.open(tmp_path / split)
    spans = cache.spans()
    assert spans is not None
    first, second = list(cache.documents())[:2]
    assert decoded(tokenizer, first.tokens) == text
    ends = {"marin": 260, "trinity": 262}
    assert first.tokens.tolist().count(ends[template]) == 5
    mine = spans[spans[:, 1] <= len(first.tokens)]
    assert [decoded(tokenizer, first.tokens[start:stop]) for start, stop in mine] == answers
    mask = counted_in_rows(spans, np.array([len(first.tokens)]), len(second.tokens))[0]
    assert re.fullmatch(r"\d+!<\|\w+\|>", decoded(tokenizer, second.tokens[mask]))
    assert second.tokens[mask][-1] == ends[template]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_every_layout_gives_the_same_text(tmp_path: Path, kind: FileKind):
    made = [said[:2] for said in made_conversations(60) if said[0]["role"] == "user"]
    texts = list[list[str]]()
    for name in LAYOUTS:
        write_documents(write_source(tmp_path / name, layout(name), made, kind), tmp_path / f"{name}-documents")
        texts.append([text for split in SPLITS for text in split_texts(tmp_path / f"{name}-documents", split)])
    assert len(texts[0]) > 30
    assert all(text == texts[0] for text in texts)


def test_which_tokens_count_is_told_by_a_loop_alike():
    rng = np.random.default_rng(0)
    for _ in range(50):
        edges = np.sort(rng.choice(60, 8, replace=False)).reshape(-1, 2)
        spans = edges if rng.random() < 0.5 else np.concatenate([edges[:2], [[edges[1, 1], edges[2, 0]]], edges[2:]])  # two that touch
        wanted = np.zeros(80, bool)
        for start, stop in spans:
            wanted[start:stop] = True
        firsts = rng.integers(0, 60, 3)
        assert counted_in_rows(spans, np.array([0]), 80)[0].tolist() == wanted.tolist()
        assert counted_in_rows(spans, firsts, 20).tolist() == [wanted[first : first + 20].tolist() for first in firsts]
    assert not counted_in_rows(np.empty((0, 2), np.int64), np.array([3]), 5).any()


def test_a_tokenizer_that_does_not_fit_the_template_is_refused_by_name(tmp_path: Path):
    write_caches(write_source(tmp_path / "source", layout("messages"), made_conversations(60)), tmp_path)
    others = write_source(tmp_path / "others", layout("messages", "trinity"), made_conversations(60))
    write_documents(others, tmp_path / "other-documents")
    path = tmp_path / "tokenizer" / "tokenizer.json"
    with pytest.raises(DataError, match=r"must have <\|im_start\|>, <\|im_end\|> as special tokens, one token each: .* trinity"):
        build_cache(tmp_path / "other-documents", "train", path, tmp_path / "other")
    written = json.loads(path.read_text())
    next(token for token in written["added_tokens"] if token["content"] == "<|eot_id|>")["rstrip"] = True
    other = tmp_path / "other tokenizer" / "tokenizer.json"
    other.parent.mkdir()
    other.write_text(json.dumps(written))
    with pytest.raises(DataError, match=r"must leave the text beside <\|eot_id\|> as it is, and takes the space there"):
        build_cache(tmp_path / "documents", "train", other, tmp_path / "other")


def test_what_is_no_conversation_is_counted_by_its_reason(tmp_path: Path):
    good = [as_record(said, layout("messages")) for said in made_conversations(60)]
    good[0]["messages"][-1] |= {"tool_calls": [], "reasoning_content": None, "weight": None}
    for record in good[1:3]:
        record["messages"][-1] |= {"weight": 1, "id": 7}
    user, assistant, system = ({"role": role, "content": role[0]} for role in ("user", "assistant", "system"))
    bad: dict[str, list[Any]] = {
        "empty content": [[user, {**assistant, "content": " "}], [{**user, "content": None}, assistant]],
        "no answer": [[user], [user, {**assistant, "weight": 0}]], "no messages": [[], None],
        "unknown role": [[user, {"role": "tool", "content": "t"}, assistant]], "two system texts": [[system, system, user, assistant]],
        "call of a tool": [
            [user, {**assistant, "tool_calls": [{"name": "f"}]}],
            [user, {**assistant, "content": None, "function_call": {"name": "f"}}, assistant],
        ],
        "special token in a message": [
            [user, {**assistant, **fields}]
            for fields in ({"content": "a<|im_end|>b"}, {"name": "<|im_end|>"}, {"parts": [{"of": ["it", "<|im_end|>"]}]})
        ],
        "weight is not 0 or 1": [[user, {**assistant, "weight": weight}] for weight in (0.5, 2, True, "0")],
        "field of a message that nothing reads": [
            [user, {**assistant, name: "a thought"}] for name in ("reasoning_content", "thinking", "train")
        ],
        "refused by the chat template": [[user, system, assistant]], "missing key": [[{"role": "user"}], "no messages at all"],
        "wrong type": ["u", ["u"], [user, {**assistant, "content": ["a"]}]],
    }  # fmt: skip
    worse = [{"message": []} if one == "no messages at all" else {"messages": one} for of_reason in bad.values() for one in of_reason]
    write_records(tmp_path / "source" / "a.jsonl", [*good, *worse])
    source = write_source(tmp_path / "other", layout("messages", "trinity"), [], max_bad_fraction=0.5)
    write_documents(source.but(url=(tmp_path / "source").as_uri()), tmp_path / "documents")
    tally = read_documents_manifest(tmp_path / "documents").tally
    assert {**tally.left_out, **tally.bad_documents} == {reason: len(records) for reason, records in bad.items()}
    assert set(tally.left_out) == {"empty content", "no answer", "no messages"}


def test_what_a_message_says_beside_its_content_goes_to_the_template_or_is_left_out_and_a_weight_of_0_needs_marks():
    fields = "{{ m.reasoning_content | default('') }}:{{ m.name | default('') }}:{{ m.content }} "
    thinks = "{% for m in messages %}{% generation %}" + fields + "{% endgeneration %}{% endfor %}"
    user = {"role": "user", "content": "u", "name": "e\u0301"}
    said = [user, {"role": "assistant", "content": "a", "reasoning_content": "t", "train": None}]

    def found(**changes: Any) -> object:
        how = Conversation.model_validate({"messages": "messages", "template": thinks, **changes})
        taken = build_compose(how, Normalization())({"messages": said}, "row 0")
        (one,) = rendered([taken], how, lambda text, where, record: Record(text, where), "a.jsonl")
        return one.text if isinstance(one, Record) else one.reason

    assert found() == ":é:u t::a "
    assert found(template=thinks.replace("reasoning_content", "thinking")) == found(), "one field under two names, as transformers has it"
    assert (found(leave_out=("reasoning_content",)), found(leave_out=("reasoning_content", "name"), template=LOOP)) == (":é:u ::a ", "ua")
    assert found(template=LOOP) == "field of a message that nothing reads"
    weighted: list[Message] = [*SAID[:2], Message(role="assistant", content="no", others={"weight": 0}), *SAID[3:]]
    marks = "{{% generation %}}{}{{% endgeneration %}}"
    for template in (LOOP, marks.format(LOOP), LOOP.replace("{{ message.content }}", marks.format("x"))):
        with pytest.raises(NotMarked):
            ChatTemplate(template, "mine").render(weighted, "")
