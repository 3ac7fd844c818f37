"""The text of token caches: a tokenizer's table of words is made once a process, not for every shard."""

from functools import lru_cache
from pathlib import Path

from phasewise.tasks.data.tokenizer import load_tokenizer, tokenizer_digest
from phasewise.validations.evidence.leakage.words.detokenize import Detokenize, build_detokenizer


def open_detokenizer(path: Path) -> Detokenize:
    """From token ids to text, by the tokenizer in a file."""
    return _detokenizer(path, tokenizer_digest(path))


@lru_cache(maxsize=4)
def _detokenizer(path: Path, _digest: str) -> Detokenize:
    return build_detokenizer(load_tokenizer(path))
