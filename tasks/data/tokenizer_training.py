"""Byte-level BPE: training it on the text of components, and cutting a vocabulary to a smaller size by the rank of its merges."""

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field, ValidationError

from phasewise.tasks.data.tokenizer import DIGEST_NAME, check_tokenizer, load_tokenizer, tokenizer_digest, tokenizer_key, train_bpe
from phasewise.trainer.base.errors import ConfigError, DataError
from phasewise.trainer.base.frozen import Frozen, in_one_line
from phasewise.trainer.base.identity import digest_of_bytes, read_sealed, write_sealed
from phasewise.trainer.base.storage import write_atomically

if TYPE_CHECKING:
    from tokenizers import Tokenizer
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

from phasewise.tasks.data.tokenizer import BEGIN_OF_TEXT, END_OF_TEXT
from phasewise.trainer.base.identity import code_digest
from phasewise.trainer.base.storage import parse_json

TOKENIZER_NAME = "tokenizer.json"
MANIFEST_NAME = "tokenizer_manifest.json"
FORMAT_VERSION = 1
SplitName = Literal["trinity", "llama3", "gpt2", "llama2", "neox"]
SPLITS: tuple[SplitName, ...] = get_args(SplitName)
MAX_DIGITS = 510
"""A longer run of digits is cut into runs of so many, from its beginning. It is divisible by three."""
DIGITS = (
    rf"\d{{1,{MAX_DIGITS}}}",  # a run is apart from what is around it
    r"\A\d{1,2}(?=(?:\d{3})+\z)",  # what does not fill a group of three comes first
    r"\d{3}",
)
"""Groups of three that begin at the right: 1|234|567. A pattern is put to each piece that the one before it made. A look ahead has at
most `MAX_DIGITS` digits before it and is tried once a piece, so the time is proportional to the length (Trinity Large report, 2.1.1)."""
SCRIPTS = (
    "\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u2f00-\u2fdf"  # Chinese characters, and their radicals
    "\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f"  # Japanese syllables
    "\u0e00-\u0e7f\u0e80-\u0eff\u1780-\u17ff"  # Thai, Lao, Khmer
    "\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff"  # Myanmar
    "\uac00-\ud7af\u1100-\u11ff"  # Korean
)
"""Scripts without spaces between words, as a set of characters (Trinity Large report, 2.1.1)."""
ASCII_MARKS = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
WHITE_SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
WORDS = rf"{ASCII_MARKS}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|{WHITE_SPACE}"
"""DeepSeek V3's: a mark with the letters after it; letters with what is before them; marks; white space."""
LLAMA3 = rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{WHITE_SPACE}"
"""Llama 3's: groups of three digits begin at the left: 123|456|7."""
LLAMA2 = (
    r"[\p{N}\r\n\t]",  # a digit, a line end and a tab are tokens of their own
    r" ?[\p{L}\p{M}]+| ?[^\s\p{L}\p{M}\p{N}]+| +(?= \S)| +",
)
"""What Llama 2's vocabulary can have: no token has letters and marks in it, or a digit and anything else, and a space is the beginning of
the token that follows it, or in a run of spaces. SentencePiece has these rules when it chooses entries, and no pattern when it cuts."""
NEOX_SPACES = r" {2,24}"
"""GPT-NeoX has an entry for each run of 2 to 24 spaces, which is found before anything else; the rest is cut as by GPT-2."""
PATTERNS: dict[SplitName, tuple[str, ...]] = {
    "trinity": (*DIGITS, f"[{SCRIPTS}]+", WORDS),
    "llama3": (LLAMA3,),
    "gpt2": (),
    "llama2": LLAMA2,
    "neox": (NEOX_SPACES,),
}
"""Before bytes; those that have GPT-2's have it after these."""
SPECIAL_TOKENS = (BEGIN_OF_TEXT, END_OF_TEXT)
MIN_VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)
"""Where there are no more special tokens."""
MAX_BYTES = 100_000_000
TRAINED_BY = f"byte-bpe-2+{code_digest(sys.modules[__name__])}+tokenizers-{version('tokenizers')}"


class TrainedOn(Frozen):
    """What was read of a component.

    Attributes:
        documents_key: of all its documents: files, filters, code.
        cache_digest: of the manifest of the training cache that was judged; it was made of the same documents.
        phase: whose verdict on its data let the component pass.
        verdict_digest: SHA-256 of that verdict's file.
        documents, text_bytes: how much of the training split was read, from its beginning.
        is_whole: whether that is all of it.
    """

    component: str
    documents_key: str
    cache_digest: str
    phase: str
    verdict_digest: str
    documents: int = Field(gt=0)
    text_bytes: int = Field(gt=0)
    is_whole: bool


class TokenizerManifest(Frozen):
    """Beside a tokenizer that `phasewise tokenizer` wrote.

    Attributes:
        tokenizer_digest: SHA-256 of `tokenizer.json`.
        vocab_size: entries, with the special tokens.
        special_tokens: those besides the two that begin and end a document.
        truncated_from: entries of the tokenizer that it was cut from; None where it was trained at its size.
        max_bytes_per_component: a component gave no more than this, and the rest of the document in which that ends.
        trained_by: versions of the code that trained it.
    """

    format_version: int = FORMAT_VERSION
    tokenizer_digest: str
    vocab_size: int = Field(gt=0)
    special_tokens: tuple[str, ...] = ()
    truncated_from: int | None = None
    split: SplitName
    max_bytes_per_component: int = Field(gt=0)
    recipe: str
    scale: str
    trained_on: tuple[TrainedOn, ...] = Field(min_length=1)
    trained_by: str


def names_folder(name: str) -> bool:
    """Whether a recipe's `tokenizer.name` is a folder of this machine: it begins with `/`, `./`, `../` or `~/`. Else it is of the hub."""
    return name.startswith(("/", "./", "../", "~/"))


def folder_at(name: str) -> Path:
    """The folder that a recipe or a command names."""
    return Path(name).expanduser()


def content_name(name: str | None) -> str | None:
    """What a key names a tokenizer by: one of the hub by its name, one in a folder by the digest of its file, wherever the folder is.

    Raises:
        ConfigError, DataError: as `checked_file`.
    """
    return f"sha256:{tokenizer_digest(checked_file(name))}" if name is not None and names_folder(name) else name


def copy_tokenizer(name: str, vocab_size: int, path: Path) -> None:
    """Write the tokenizer of a folder to its place in a home, which is named by its key.

    Raises:
        ConfigError, DataError: as `checked_file`; or it is not the one any more that the place is named by.
    """
    content = checked_file(name).read_bytes()
    digest = digest_of_bytes(content)
    if not tokenizer_key((), vocab_size, f"sha256:{digest}").startswith(path.parent.name):
        raise DataError(f"the tokenizer of {name} changed while the data were prepared. Run again when nobody writes there.")
    write_atomically(path.with_name(DIGEST_NAME), digest.encode())
    write_atomically(path, content)


def check_target(folder: Path) -> None:
    """Refuse to write where something is.

    Raises:
        ConfigError: the folder is there and not empty, or is a file.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ConfigError(f"the folder for the tokenizer must be new or empty, found something at {folder}. Name another one.")


def write_folder(folder: Path, content: str, manifest: TokenizerManifest) -> None:
    """Write a tokenizer and its manifest, which names it."""
    assert manifest.tokenizer_digest == digest_of_bytes(content.encode())
    write_atomically(folder / TOKENIZER_NAME, content.encode())
    write_sealed(folder / MANIFEST_NAME, manifest.model_dump(mode="json"))


def read_tokenizer_manifest(folder: Path) -> TokenizerManifest | None:
    """The manifest of a tokenizer; None where it has none, because something else wrote it.

    Raises:
        DataError: the manifest or the tokenizer was changed after it was written.
    """
    path = folder / MANIFEST_NAME
    if not path.exists():
        return None
    try:
        manifest = TokenizerManifest.model_validate(read_sealed(path))
    except (ValueError, TypeError, ValidationError) as error:
        raise DataError(f"{path} does not read as the manifest of a tokenizer ({in_one_line(error)}). {_again(folder)}") from None
    found = tokenizer_digest(folder / TOKENIZER_NAME)
    if found != manifest.tokenizer_digest:
        raise DataError(
            f"{folder / TOKENIZER_NAME} must be the file that its manifest names, {manifest.tokenizer_digest[:16]}, found {found[:16]}: it "
            f"was changed after it was written. {_again(folder)}"
        )
    return manifest


def checked_file(name: str | Path) -> Path:
    """The `tokenizer.json` of a folder, or of a file's own path, if it is what it claims to be.

    Raises:
        ConfigError: there is none.
        DataError: it does not read as a tokenizer, or it or its manifest was changed after it was written.
    """
    path = folder_at(str(name))
    folder = path if path.is_dir() else path.parent
    file = folder / TOKENIZER_NAME if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(f"a tokenizer is a folder with a {TOKENIZER_NAME}, or such a file, found none at {path}.")
    if file.name == TOKENIZER_NAME:
        read_tokenizer_manifest(folder)
        check_tokenizer(file)  # of a home
    open_tokenizer(file)
    return file


def open_tokenizer(file: Path) -> "Tokenizer":
    """The tokenizer of a file.

    Raises:
        DataError: it does not read as one.
    """
    try:
        return load_tokenizer(file)
    except Exception as error:  # the library raises a bare Exception
        raise DataError(f"{file} does not read as a tokenizer ({error}). Name one that the library tokenizers reads.") from None


def _again(folder: Path) -> str:
    return f"Delete {folder} and train it again, or take the manifest out if the change is meant."


def build_pre_tokenizer(name: SplitName) -> "PreTokenizer":
    """Cuts a text, and writes the bytes of each piece as the characters of byte-level BPE.

    Args:
        name: `trinity` has the three stages of the Trinity Large report, 2.1.1: digits, scripts, words. `llama3` has one pattern. `gpt2`
            is the one that a recipe's own tokenizer has. `neox` has that one, and runs of spaces apart. `llama2` has the rules of Llama 2.
    """
    from tokenizers import Regex, pre_tokenizers

    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PATTERNS[name]]
    has_pattern_of_its_own = name in ("gpt2", "neox")
    return pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=has_pattern_of_its_own)])


class Amount(NamedTuple):
    """How much of a component's training text was read."""

    documents: int
    text_bytes: int


class Trained(NamedTuple):
    """A tokenizer as the text of its `tokenizer.json`, and how much of each component it was trained on."""

    content: str
    amounts: dict[str, Amount]


def check_vocab_size(vocab_size: int, special_tokens: Sequence[str] = ()) -> None:
    """Refuse a vocabulary that has no room for every byte and the special tokens.

    Args:
        special_tokens: those besides the two that begin and end a document.

    Raises:
        ConfigError: it is too small.
    """
    least = MIN_VOCAB_SIZE + len(special_tokens)
    if vocab_size < least:
        raise ConfigError(f"--vocab-size must be at least {least}, for 256 bytes and {least - 256} special tokens, found {vocab_size:,}.")


def train(
    components: Mapping[str, Iterable[str]],
    vocab_size: int,
    *,
    split: SplitName,
    max_bytes: int = MAX_BYTES,
    special_tokens: Sequence[str] = (),
) -> Trained:
    """Train on the first `max_bytes` bytes of each component's texts, and on the rest of the document that they end in.

    Args:
        components: component → its training texts. Where one spells a special token, nothing is learnt from that.
        special_tokens: those besides the two that begin and end a document, such as a chat template writes. They come after these.

    Raises:
        ConfigError: the vocabulary is smaller than bytes and special tokens.
        DataError: the text has too few different pieces for a vocabulary of this size.
    """
    check_vocab_size(vocab_size, special_tokens)
    amounts: dict[str, Amount] = {}
    tokenizer = train_bpe(_texts(components, max_bytes, amounts), vocab_size, build_pre_tokenizer(split), special_tokens)
    if (found := tokenizer.get_vocab_size()) < vocab_size:
        raise DataError(
            f"the text must give {vocab_size:,} entries, found {found:,} in {sum(one.text_bytes for one in amounts.values()):,} bytes: no "
            "pair of entries is left to merge. Ask for a smaller --vocab-size, or read more text."
        )
    return Trained(tokenizer.to_str(pretty=True), amounts)


def truncate(content: str, vocab_size: int, special_tokens: Sequence[str] = ()) -> str:
    """The same tokenizer with its first `vocab_size` entries, as the text of its `tokenizer.json`.

    A merge has the rank in which it was learnt, and none rests on a later one. So this is the tokenizer that training at the smaller size
    gives (Trinity Large report, 2.1.2).

    Args:
        special_tokens: those that it was trained with, besides the two that begin and end a document.

    Raises:
        ConfigError: the size is not smaller, or has no room for bytes and special tokens.
        DataError: it is no byte-level BPE whose entries are special tokens, bytes and merges, in this order.
    """
    check_vocab_size(vocab_size, special_tokens)
    written: dict[str, Any] = parse_json(content)
    ranked = _ranked(written, [*SPECIAL_TOKENS, *special_tokens])
    if vocab_size > len(ranked):
        raise ConfigError(f"--vocab-size must be at most the {len(ranked):,} entries that there are, found {vocab_size:,}.")
    model = written["model"]
    model["vocab"] = {token: number for number, token in enumerate(ranked[:vocab_size])}
    # The merges up to the one that makes the last of so many entries. Two merges may make the same one
    merges = model["merges"]
    num_entries = vocab_size - MIN_VOCAB_SIZE - len(special_tokens)
    made: set[str] = set()
    kept: list[Sequence[str]] = []
    for merge in merges:
        if len(made) == num_entries:
            break
        made.add("".join(merge))
        kept.append(merge)
    model["merges"] = kept
    from tokenizers import Tokenizer

    return Tokenizer.from_str(json.dumps(written)).to_str(pretty=True)


def _ranked(written: Mapping[str, Any], special_tokens: Sequence[str]) -> list[str]:
    """The entries by id, which are by rank."""
    model = written.get("model", {})
    is_bpe = model.get("type") == "BPE" and "merges" in model
    by_id: dict[int, str] = {number: token for token, number in model["vocab"].items()} if is_bpe else {}
    ranked = [by_id[number] for number in sorted(by_id)]
    made = list(dict.fromkeys("".join(merge) for merge in model["merges"])) if is_bpe else []
    has_every_id = sorted(by_id) == list(range(len(ranked)))
    first = len(special_tokens)
    if not (is_bpe and has_every_id and ranked[:first] == list(special_tokens) and ranked[first + 256 :] == made):
        raise DataError(
            f"a tokenizer is cut by the rank of its merges: its entries must be {first} special tokens, 256 bytes, then one for each merge "
            "in order, as `phasewise tokenizer train` writes them. This one has others."
        )
    return ranked


def _texts(components: Mapping[str, Iterable[str]], max_bytes: int, amounts: dict[str, Amount]) -> Iterator[str]:
    """The texts to train on, one component after the other; `amounts` has what was read when all were taken."""
    for name, texts in components.items():
        documents = text_bytes = 0
        for text in texts:
            if text_bytes >= max_bytes:
                break
            documents += 1
            text_bytes += len(text.encode())
            yield text
        amounts[name] = Amount(documents, text_bytes)
