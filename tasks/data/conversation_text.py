"""Conversations as documents: text of the chat template, tokens, and the spans of the assistant's tokens."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import orjson
from jaxtyping import Int

from phasewise.tasks.data.conversation import BUILT_IN, REASONING, TRAINED, Conversation, NoConversation, messages_of, unread_of
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
from phasewise.tasks.data.template import Asked, ChatTemplate, NotMarked, Refused, line_of, template_of
from phasewise.tasks.data.tokenizer import BEGIN_OF_TEXT, END_OF_TEXT, DocumentTokens, special_tokens
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.identity import DIGITS, code_digest, digest_of_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BATCH, BATCH_BYTES = 128, 2**20  # limits of a batch of conversations that is rendered in one request
Compose = Callable[[Mapping[str, object], str], Fault | LeftOut | Unrendered]
"""The fields of a record and its place → the conversation for `rendered`, or a reason against it."""
COMPOSER_CODE = tuple(f"tasks/data/{name}.py" for name in ("conversation", "conversation_text", "sandbox", "template"))
COMPOSER = f"conversations-1+{code_digest(*COMPOSER_CODE)}+templates-{digest_of_json(BUILT_IN)[:DIGITS]}+jinja2-{version('jinja2')}"
"""Version of the code and built-in templates that render conversations. Another template is a field of the source."""
NO_SPANS = np.zeros((0, 2), np.int64)


def build_compose(how: Conversation, normalization: Normalization) -> Compose:
    """Read and normalise the messages of a record.

    The rendered text is not normalised again, because its spans would move. A message with a special token of the template is a fault,
    because it could end its own turn.

    Raises ConfigError if the template is unusable.
    """
    chat = template_of(how)
    reserved = re.compile("|".join(map(re.escape, (BEGIN_OF_TEXT, END_OF_TEXT, *chat.special_tokens))))

    def normalized(value: object) -> Any:
        if isinstance(value, str):
            return normalize(value, normalization)
        if isinstance(value, list):
            return [normalized(one) for one in cast("list[object]", value)]
        if isinstance(value, dict):
            return {name: normalized(one) for name, one in cast("dict[str, object]", value).items()}
        return value

    def compose(record: Mapping[str, object], where: str) -> Fault | LeftOut | Unrendered:
        try:
            messages = messages_of(record, how)
        except NoConversation as error:
            if not error.is_fault:
                return LeftOut(error.reason, where)
            return _fault(error.reason, where, record, error.found)  # pyright: ignore[reportArgumentType]
        for message in messages:
            message["content"] = normalize(message["content"], normalization)
            message["others"] = normalized(message.get("others", {}))
            if any(map(reserved.search, texts_in([message["content"], message["others"]]))):
                return _fault("special token in a message", where, record)
            others = message["others"]
            reasoning = {name for name in REASONING if name in others}
            is_reasoning_read = not reasoning or not {*REASONING[:2], *reasoning}.isdisjoint(chat.names)
            if not is_reasoning_read or any(name in others and name not in chat.names for name in TRAINED):
                return _fault("field of a message that nothing reads", where, record)
        return Unrendered(messages, line_of(messages), where, record)

    return compose


def _fault(reason: Reason, where: str, record: Mapping[str, object], found: str = "") -> Fault:
    subject = f"{found} in " if found else ""
    return Fault(reason, where, sample_of(subject.encode() + orjson.dumps(record, default=str)))


def rendered(found: Iterable[Taken], how: Conversation, sift: Sift, place: str) -> Iterator[Finding]:
    """Render the conversations among the findings in batches and in order. Raises DataError with the place if the template fails."""
    batch: list[Taken] = []
    size = 0
    try:
        for one in found:
            batch.append(one)
            size += len(one.line) if isinstance(one, Unrendered) else 0
            if size >= BATCH_BYTES or len(batch) == BATCH:
                full, batch, size = batch, [], 0
                yield from _render(full, how, sift, place)
    except Exception:  # findings before the error come first
        yield from _render(batch, how, sift, place)
        raise
    yield from _render(batch, how, sift, place)


def _render(batch: Sequence[Taken], how: Conversation, sift: Sift, place: str) -> Iterator[Finding]:
    chat = template_of(how)
    asked = [Asked(one.messages, one.line, f"{place}, {one.where}") for one in batch if isinstance(one, Unrendered)]
    texts = iter(chat.render_all(asked) if asked else ())
    for one in batch:
        if not isinstance(one, Unrendered):
            yield one
            continue
        text = next(texts)
        if isinstance(text, Refused):
            yield Fault("refused by the chat template", one.where, sample_of(str(text).encode(errors="replace")))
        elif isinstance(text, NotMarked):
            yield _fault("weight 0 without marks around the answer", one.where, one.record)
        elif 4 * len(text.text) > MAX_DOCUMENT_BYTES and len(text.text.encode()) > MAX_DOCUMENT_BYTES:
            yield Fault("too long", one.where, sample_of(text.text.encode()))
        else:
            record = sift(text.text, one.where, one.record)
            if isinstance(record, Record):
                unread, beside = unread_of(one.record, one.messages, how, chat.names)
                record = record._replace(spans=text.spans if chat.marks_answers else None, beside=beside, unread=unread)
            yield record


class Encoded(NamedTuple):
    """The tokens of a document without its BOS and EOS token, and the spans `[start, stop)` of trained tokens."""

    ids: list[int]
    spans: Int[np.ndarray, "n 2"]


def encode_conversations(
    tokenizer: "Tokenizer", special_tokens: Mapping[str, int], texts: Sequence[str], spans: Sequence[Sequence[int]]
) -> Iterator[Encoded]:
    """Encode rendered conversations. A special token of the template becomes a single token.

    The text between two special tokens is encoded separately, as in the `tokenizers` library. Messages contain no special token of the
    template, because `build_compose` refuses these messages.

    Spans of characters become spans of tokens, as by `char_to_token` of `transformers`: from the first token with the first character to
    the first token with the last character, and a token across an edge counts. If no token has the character, the next token starts the
    span, or the previous token ends it. Spans with a common token are joined.

    `special_tokens`: token → id. `spans`: for each text the characters to train on: start, stop, start, stop …
    """
    longest_first = sorted(special_tokens, key=lambda token: (-len(token), token))
    pattern = re.compile(f"({'|'.join(map(re.escape, longest_first))})") if longest_first else None
    pieces = [[piece for piece in (pattern.split(text) if pattern else [text]) if piece] for text in texts]
    plain = [piece for of_text in pieces for piece in of_text if piece not in special_tokens]
    encodings = iter(tokenizer.encode_batch(plain, add_special_tokens=False))
    for of_text, characters in zip(pieces, spans, strict=True):
        ids: list[int] = []
        starts: list[int] = []
        stops: list[int] = []
        position = 0
        for piece in of_text:
            if piece in special_tokens:
                ids.append(special_tokens[piece])
                starts.append(position)
                stops.append(position + len(piece))
            else:
                encoding = next(encodings)
                ids += encoding.ids
                starts += [position + start for start, _ in encoding.offsets]
                stops += [position + stop for _, stop in encoding.offsets]
            position += len(piece)

        edges = np.asarray(characters, np.int64).reshape(-1, 2)
        begins, ends = np.asarray(starts, np.int64), np.asarray(stops, np.int64)
        first = np.searchsorted(ends, edges[:, 0], side="right")
        last = np.searchsorted(ends, edges[:, 1] - 1, side="right")
        holds = np.append(begins, np.iinfo(np.int64).max)[last] < edges[:, 1]
        joined: list[list[int]] = []
        for start, stop in np.stack([first, last + holds], axis=1).tolist():
            if start >= stop:
                continue
            if joined and start < joined[-1][1]:
                joined[-1][1] = max(stop, joined[-1][1])
            else:
                joined.append([start, stop])
        yield Encoded(ids, np.array(joined, np.int64).reshape(-1, 2))


def ids_of_tokens(tokenizer: "Tokenizer", chat: ChatTemplate, place: Path | str, around: DocumentTokens | None = None) -> dict[str, int]:
    """Token → id of the special tokens that a chat template writes, and of the EOS token, which templates write as `END_OF_TEXT`.

    `place`: file of the tokenizer. `around`: as `named` of `special_tokens`. Raises DataError if the tokenizer lacks a token or strips the
    space around it, or the template writes an undeclared special token.
    """
    tokens = tokenizer.get_added_tokens_decoder()
    added = {token.content: number for number, token in tokens.items()}
    end = special_tokens(tokenizer, place, around).after
    used = (*chat.special_tokens, tokenizer.id_to_token(end) or "")
    if taking := sorted(token.content for token in tokens.values() if token.content in used and (token.lstrip or token.rstrip)):
        raise DataError(
            f"the tokenizer {place} must leave the text beside {', '.join(taking)} as it is, and takes the space there (lstrip, rstrip): "
            f"the training text would differ from the text of the chat template {chat.name}. Set both to false in its tokenizer.json."
        )
    if missing := [token for token in chat.special_tokens if token not in added]:
        raise DataError(
            f"the tokenizer {place} must have {', '.join(missing)} as special tokens, one token each: the chat template {chat.name} writes "
            "them. Take another tokenizer, or let Phasewise train a tokenizer: name the tokens in the recipe's tokenizer.special_tokens."
        )
    probe = chat.probe()
    if unnamed := [token for token in added if probe and token in probe.text and token not in used]:
        raise DataError(
            f"the chat template {chat.name} writes {', '.join(unnamed)}, special tokens of the tokenizer {place}, without "
            "spelling the tokens out: name the tokens in the source's conversation.special_tokens."
        )
    return {token: added[token] for token in used if token in added} | {END_OF_TEXT: end}
