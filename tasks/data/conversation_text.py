"""From a conversation's text to its tokens, and from the characters that count to the tokens that do."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import orjson
from jaxtyping import Int

from phasewise.tasks.data.conversation import Conversation, NoConversation, beside, is_read, messages_of
from phasewise.tasks.data.filters import Normalization, normalize
from phasewise.tasks.data.findings import (
    MAX_DOCUMENT_BYTES,
    Fault,
    Finding,
    LeftOut,
    Reason,
    Record,
    Sift,
    Taken,
    Unrendered,
    sample_of,
    texts_in,
)
from phasewise.tasks.data.template import Asked, ChatTemplate, NotMarked, Refused, Rendered, line_of, template_of
from phasewise.tasks.data.tokenizer import BEGIN_OF_TEXT, END_OF_TEXT, load_tokenizer
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.identity import code_digest

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BATCH, BATCH_BYTES = 128, 2**20
"""Conversations are rendered so many at once, or as soon as they are so long."""
Compose = Callable[[Mapping[str, object], str], Fault | LeftOut | Unrendered]
"""A record's fields and where it is → its conversation for `rendered`, or why it is none."""
COMPOSER_CODE = tuple(f"tasks/data/{name}.py" for name in ("conversation", "conversation_text", "renderer", "sandbox", "template"))
COMPOSER = f"conversations-1+{code_digest(*COMPOSER_CODE)}+jinja2-{version('jinja2')}"
"""Version of the code that makes text of conversations. The template itself is a part of the source."""
NO_SPANS = np.zeros((0, 2), np.int64)


def build_compose(how: Conversation, normalization: Normalization) -> Compose:
    """Reads messages and normalises each, for the template to make text of them. Filters measure that text.

    The text itself is not normalised again: its spans would be of another text. A message that spells a token of the template is no
    conversation here: it would end its own turn.

    Raises:
        ConfigError: the template cannot be used.
    """
    chat = template_of(how)
    reserved = re.compile("|".join(map(re.escape, (BEGIN_OF_TEXT, END_OF_TEXT, *chat.special_tokens))))

    def compose(record: Mapping[str, object], where: str) -> Fault | LeftOut | Unrendered:
        try:
            said = messages_of(record, how)
        except NoConversation as reason:
            return _fault(reason.reason, where, record, reason.found) if reason.is_fault else LeftOut(reason.reason, where)  # pyright: ignore[reportArgumentType]
        for message in said:
            message["content"] = normalize(message["content"], normalization)
            message["others"] = _normalized(message.get("others", {}), normalization)
            if any(map(reserved.search, texts_in([message["content"], message["others"]]))):
                return _fault("special token in a message", where, record)
            if not is_read(message, chat.names):
                return _fault("field of a message that nothing reads", where, record)
        return Unrendered(said, line_of(said), where, record)

    return compose


def rendered(found: Iterable[Taken], how: Conversation, sift: Sift, place: str) -> Iterator[Finding]:
    """What was found, in order, with the text of each conversation. Many are rendered at once.

    Raises:
        DataError: the template fails, with where the conversation is.
    """
    batch = list[Taken]()
    size = 0
    try:
        for one in found:
            batch.append(one)
            size += len(one.line) if isinstance(one, Unrendered) else 0
            if size >= BATCH_BYTES or len(batch) == BATCH:
                full, batch, size = batch, [], 0
                yield from _rendered(full, how, sift, place)
    except Exception:  # whatever ends the reading: what was read before it comes first
        yield from _rendered(batch, how, sift, place)
        raise
    yield from _rendered(batch, how, sift, place)


def _rendered(batch: Sequence[Taken], how: Conversation, sift: Sift, place: str) -> Iterator[Finding]:
    chat = template_of(how)
    waiting = [one for one in batch if isinstance(one, Unrendered)]
    texts = iter(chat.render_all([Asked(one.messages, one.line, f"{place}, {one.where}") for one in waiting]) if waiting else ())
    for one in batch:
        yield _finding(one, next(texts), how, sift) if isinstance(one, Unrendered) else one


def _finding(one: Unrendered, text: Rendered | Refused | NotMarked, how: Conversation, sift: Sift) -> Finding:
    chat = template_of(how)
    if isinstance(text, Refused):
        return Fault("refused by the chat template", one.where, sample_of(str(text).encode(errors="replace")))
    if isinstance(text, NotMarked):
        return _fault("weight 0 without marks around the answer", one.where, one.record)
    if 4 * len(text.text) > MAX_DOCUMENT_BYTES and len(text.text.encode()) > MAX_DOCUMENT_BYTES:
        return Fault("too long", one.where, sample_of(text.text.encode()))
    found = sift(text.text, one.where, one.record)
    if not isinstance(found, Record):
        return found
    unread = beside(one.record, one.messages, how, chat.names)
    return found._replace(spans=text.spans if chat.marks_answers else None, beside=unread.others, unread=unread.texts)


def _normalized(value: object, how: Normalization) -> Any:
    if isinstance(value, str):
        return normalize(value, how)
    if isinstance(value, list):
        return [_normalized(one, how) for one in cast("list[object]", value)]
    if isinstance(value, dict):
        return {name: _normalized(one, how) for name, one in cast("dict[str, object]", value).items()}
    return value


def _fault(reason: Reason, where: str, record: Mapping[str, object], found: str = "") -> Fault:
    about = f"{found} in " if found else ""
    return Fault(reason, where, sample_of(about.encode() + orjson.dumps(record, default=str)))


class Encoded(NamedTuple):
    """A conversation's tokens, without the begin and end tokens of a document, and the spans `[start, stop)` of them that count."""

    ids: list[int]
    spans: Int[np.ndarray, "n 2"]


class _Piece(NamedTuple):
    """A stretch of a text: a special token, or what is between two. `start` is its first character."""

    start: int
    text: str
    special: int | None


class ConversationEncoder:
    """Encodes what templates wrote. Their special tokens become one token each, wherever they are: no message spells one.

    What is between two special tokens is encoded alone, as the `tokenizers` library does, and no other special token of the tokenizer is
    made of a message that spells it.

    Args:
        special_tokens: token → id.
    """

    def __init__(self, tokenizer: "Tokenizer", special_tokens: Mapping[str, int]):
        self._tokenizer, self._special = tokenizer, special_tokens
        longest_first = sorted(special_tokens, key=lambda token: (-len(token), token))
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def encode(self, texts: Sequence[str], spans: Sequence[Sequence[int]]) -> Iterator[Encoded]:
        """The tokens of each text.

        Args:
            spans: of each text the characters that count: start, stop, start, stop …
        """
        pieces = [list(self._pieces(text)) for text in texts]
        plain = [piece.text for of_text in pieces for piece in of_text if piece.special is None]
        encodings = iter(self._tokenizer.encode_batch(plain, add_special_tokens=False))
        for of_text, characters in zip(pieces, spans, strict=True):
            ids, starts, stops = list[int](), list[int](), list[int]()
            for piece in of_text:
                if piece.special is not None:
                    ids.append(piece.special)
                    starts.append(piece.start)
                    stops.append(piece.start + len(piece.text))
                    continue
                encoding = next(encodings)
                ids += encoding.ids
                starts += [piece.start + start for start, _ in encoding.offsets]
                stops += [piece.start + stop for _, stop in encoding.offsets]
            yield Encoded(ids, token_spans(characters, starts, stops))

    def _pieces(self, text: str) -> Iterator[_Piece]:
        at = 0
        for match in self._pattern.finditer(text) if self._pattern else ():
            if match.start() > at:
                yield _Piece(at, text[at : match.start()], None)
            yield _Piece(match.start(), match.group(), self._special[match.group()])
            at = match.end()
        if at < len(text):
            yield _Piece(at, text[at:], None)


def ids_of_tokens(tokenizer: "Tokenizer", chat: ChatTemplate, place: Path | str = "") -> dict[str, int]:
    """What a chat template writes as special tokens, and the id of each; with the end token, which it may write, too.

    Args:
        place: the tokenizer's file, for the message.

    Raises:
        DataError: the tokenizer lacks one or has one that takes the space beside it, or the template writes a special token of the
            tokenizer that it does not name.
    """
    tokens = tokenizer.get_added_tokens_decoder()
    added = {token.content: number for number, token in tokens.items()}
    used = {*chat.special_tokens, END_OF_TEXT}
    if taking := sorted(token.content for token in tokens.values() if token.content in used and (token.lstrip or token.rstrip)):
        raise DataError(
            f"the tokenizer {place} must leave the text beside {', '.join(taking)} as it is, and takes the space there (lstrip, rstrip): "
            f"what is trained on would not be what the chat template {chat.name} gives it later. Set both to false in its tokenizer.json."
        )
    if missing := [token for token in chat.special_tokens if token not in added]:
        raise DataError(
            f"the tokenizer {place} must have {', '.join(missing)} as special tokens, one token each: the chat template {chat.name} writes "
            "them. Take a tokenizer that has them, or let Phasewise train one: name them in the recipe's tokenizer.special_tokens."
        )
    probe = chat.probe()
    if unnamed := [token for token in added if probe and token in probe.text and token not in (*chat.special_tokens, END_OF_TEXT)]:
        raise DataError(
            f"the chat template {chat.name} writes {', '.join(unnamed)}, which the tokenizer {place} has as special tokens, and does not "
            "spell them out: name them in the source's conversation.special_tokens."
        )
    return {token: added[token] for token in (*chat.special_tokens, END_OF_TEXT) if token in added}


def check_templates(path: Path, chats: Iterable[ChatTemplate]) -> None:
    """Refuse a tokenizer that what these chat templates write cannot be encoded with, before anything is.

    Raises:
        DataError: as `ids_of_tokens`.
    """
    tokenizer = load_tokenizer(path)
    for chat in chats:
        ids_of_tokens(tokenizer, chat, path)


def token_spans(characters: Sequence[int], starts: Sequence[int], stops: Sequence[int]) -> Int[np.ndarray, "n 2"]:
    """The spans of tokens of spans of characters.

    As `transformers` has it (`char_to_token`): from the first token that holds the first character to the first that holds the last one.
    So a token that straddles the start or the end counts. Where no token holds a character, the next one that follows the start begins, and
    the last one before the end ends. Spans that meet in one token are one.

    Args:
        characters: start, stop, start, stop …
        starts, stops: of each token, in characters; they never descend.
    """
    edges = np.asarray(characters, np.int64).reshape(-1, 2)
    begins, ends = np.asarray(starts, np.int64), np.asarray(stops, np.int64)
    first = np.searchsorted(ends, edges[:, 0], side="right")
    last = np.searchsorted(ends, edges[:, 1] - 1, side="right")
    holds = np.append(begins, np.iinfo(np.int64).max)[last] < edges[:, 1]
    found = np.stack([first, last + holds], axis=1)
    return _joined(found[found[:, 0] < found[:, 1]])


def _joined(spans: Int[np.ndarray, "n 2"]) -> Int[np.ndarray, "m 2"]:
    joined: list[list[int]] = []
    for start, stop in spans.tolist():
        if joined and start < joined[-1][1]:
            joined[-1][1] = max(stop, joined[-1][1])
        else:
            joined.append([start, stop])
    return np.array(joined, np.int64).reshape(-1, 2)
