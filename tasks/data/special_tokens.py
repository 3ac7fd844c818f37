"""The tokens that begin and end a document: which ids they have, and whether everybody means the same ones."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from phasewise.tasks.data.tokenizer import BEGIN_OF_TEXT, END_OF_TEXT, load_tokenizer
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.data.manifest import Manifest

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class SpecialTokens(NamedTuple):
    """Ids of the tokens that begin and end a document. Llama 3 has 128,000 and 128,001, our own tokenizer 0 and 1."""

    begin: int
    end: int


def special_tokens(tokenizer: "Tokenizer", place: Path | str = "") -> SpecialTokens:
    """The ids in a tokenizer.

    Args:
        place: its file, for the message.

    Raises:
        DataError: it lacks one, or has one id for both.
    """
    begin = tokenizer.token_to_id(BEGIN_OF_TEXT)
    end = tokenizer.token_to_id(END_OF_TEXT)
    if begin is None or end is None or begin == end:
        raise DataError(
            f"the tokenizer {place} must have the tokens {BEGIN_OF_TEXT} and {END_OF_TEXT}, which begin and end every document, found the "
            f"ids {begin} and {end}. Take a tokenizer that has both, or let Phasewise train one."
        )
    return SpecialTokens(begin, end)


def check_special_tokens(path: Path, vocab_size: int) -> None:
    """Refuse a tokenizer that a model of this vocabulary cannot be trained with, before anything is tokenized.

    Raises:
        DataError: it lacks the begin or the end token, or has an id that the vocabulary does not.
    """
    tokenizer = load_tokenizer(path)
    special_tokens(tokenizer, path)
    token, highest = max(tokenizer.get_vocab(with_added_tokens=True).items(), key=lambda entry: entry[1])
    if highest >= vocab_size:
        raise DataError(
            f"the tokenizer {path} must have ids below the recipe's tokenizer.vocab_size of {vocab_size:,}, found {highest:,} ({token}). "
            f"State a vocab_size of at least {highest + 1:,}, in the tokenizer and in every model."
        )


def shared_special_tokens(found: Mapping[str, SpecialTokens]) -> SpecialTokens:
    """The ids that all have.

    Args:
        found: the special tokens of each tokenizer, by its name; at least one.

    Raises:
        DataError: two have others.
    """
    by_ids = {special: name for name, special in found.items()}
    if len(by_ids) > 1:
        named = ", ".join(f"{special.begin} and {special.end} in {name}" for special, name in by_ids.items())
        raise DataError(
            f"all documents must begin and end with the same tokens, found the ids {named}: prepare the data with one tokenizer."
        )
    return next(iter(by_ids))


def special_tokens_of(manifest: Manifest) -> SpecialTokens:
    """The ids that a cache was made with."""
    return SpecialTokens(manifest.begin_of_text, manifest.end_of_text)
