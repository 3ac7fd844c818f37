"""Which tokens end an answer, for all that has a model write: its evaluation, and what an exported folder tells others."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from phasewise.tasks.data.conversations.template import ChatTemplate, chat_of
from phasewise.trainer.data.manifest import read_manifest

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def turn_ends(chats: Iterable[ChatTemplate]) -> tuple[str, ...]:
    """The special tokens that end an answer in these templates, each once, sorted. A model that saw several may write any of them."""
    return tuple(sorted({end for chat in chats if (end := chat.turn_end()) is not None}))


def turn_end_ids(tokenizer: "Tokenizer", chats: Iterable[ChatTemplate]) -> tuple[int, ...]:
    """Their ids, sorted; a token that the tokenizer lacks can't be written."""
    ids = (tokenizer.token_to_id(token) for token in turn_ends(chats))
    return tuple(sorted(number for number in ids if number is not None))


def chats_of_caches(folders: Iterable[Path]) -> tuple[ChatTemplate, ...]:
    """The chat templates of those caches that hold conversations.

    Raises:
        DataError: a folder is no cache.
    """
    found = (chat_of(read_manifest(folder).source) for folder in folders)
    return tuple(chat for chat in found if chat is not None)
