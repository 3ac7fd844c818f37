"""Caches of conversations beside `apply_chat_template`: text, ids and assistant mask, every token of 1,000 conversations of all layouts.

Needs `transformers` of the extra `parity` (no PyTorch). `test_spans.py` has hand-written expectations of the same, without it.
"""

import unicodedata
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from phasewise.tasks.data.conversations.messages import messages_of
from phasewise.tasks.data.conversations.stand_ins import as_record
from phasewise.tasks.data.conversations.template import template_of
from phasewise.tasks.data.parts import split_of
from phasewise.tasks.data.tokenizer import BEGIN_OF_TEXT, END_OF_TEXT
from phasewise.trainer.base.identity import digest_of_bytes
from phasewise.trainer.data.cache import TokenCache
from phasewise.trainer.data.manifest import SPLITS
from phasewise.trainer.data.spans import counted
from tests.tasks.data.conversations.worlds import (
    BEYOND_ASCII,
    LAYOUTS,
    layout,
    made_conversations,
    write_caches,
    write_records,
    write_source,
)

CONVERSATIONS = 1000
ENOUGH_MADE = 1100
"""Some are the same where a layout has no room for all of them."""


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed (extra `parity`)")
@pytest.mark.parametrize("template", ["marin", "trinity"])
def test_every_token_and_every_span_is_that_of_apply_chat_template(tmp_path: Path, template: str):
    """What each layout holds of its share, and everywhere some text beyond ASCII."""
    made = made_conversations(ENOUGH_MADE)
    compared = 0
    for number, name in enumerate(LAYOUTS):
        how, folder = layout(name, template), tmp_path / name
        share = [*made[number :: len(LAYOUTS)], *BEYOND_ASCII]
        source = write_source(folder / "source", how, share, "parquet" if number % 2 else "jsonl")
        write_caches(source, folder)
        theirs = tokenizer_of_transformers(folder / "tokenizer" / "tokenizer.json", template_of(how).text)
        documents = expected(theirs, [messages_of(as_record(said, how), how) for said in share])
        compared += sum(compare(TokenCache.open(folder / split), documents[split]) for split in SPLITS)
    assert compared >= CONVERSATIONS


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed (extra `parity`)")
def test_a_template_is_given_the_whole_message_as_apply_chat_template_gives_it(tmp_path: Path):
    """Thoughts of an answer, names and nested fields; each conversation has some of them."""
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
    theirs = tokenizer_of_transformers(tmp_path / "tokenizer" / "tokenizer.json", template)
    documents = expected(theirs, records)
    assert sum(compare(TokenCache.open(tmp_path / split), documents[split]) for split in SPLITS) > 90


def tokenizer_of_transformers(path: Path, template: str) -> Any:
    """As an exported folder has it."""
    build = import_module("transformers").PreTrainedTokenizerFast
    tokenizer = build(tokenizer_file=str(path), bos_token=BEGIN_OF_TEXT, eos_token=END_OF_TEXT)
    tokenizer.chat_template = template
    return tokenizer


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
    spans = cache.spans()
    assert spans is not None
    first = 0
    for document, (digest, (ids, mask)) in zip(cache.documents(), wanted.items(), strict=True):
        assert document.id == digest
        assert document.tokens.tolist() == [*ids, cache.manifest.end_of_text]
        assert counted(spans, first, len(document.tokens)).tolist() == [*mask, False]
        assert any(mask)
        first += len(document.tokens)
    assert first == cache.manifest.tokens
    return len(wanted)
