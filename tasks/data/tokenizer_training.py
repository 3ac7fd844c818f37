"""Byte-level BPE tokenizers: training on the text of components, truncation by the rank of the merges, and their measures on text."""

import json
import random
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from pydantic import Field, ValidationError

from phasewise.tasks.data.tokenizer import (
    BEGIN_OF_TEXT,
    END_OF_TEXT,
    DocumentTokens,
    check_tokenizer,
    load_tokenizer,
    tokenizer_key,
    train_bpe,
    write_tokenizer,
)
from phasewise.trainer.base.errors import ConfigError, DataError
from phasewise.trainer.base.frozen import Frozen, in_one_line
from phasewise.trainer.base.identity import code_digest, digest_of_bytes, digest_of_file, read_sealed, write_sealed
from phasewise.trainer.base.storage import parse_json, write_atomically

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.pre_tokenizers import PreTokenizer

TOKENIZER_NAME = "tokenizer.json"
MANIFEST_NAME = "tokenizer_manifest.json"
FORMAT_VERSION = 1
SplitName = Literal["trinity", "llama3", "gpt2", "llama2", "neox"]
SPLITS: tuple[SplitName, ...] = get_args(SplitName)
MAX_DIGITS = 510
"""Maximum of digits in a run. Longer runs are first cut from the left into runs of this length, which is divisible by three."""
DIGITS = (
    rf"\d{{1,{MAX_DIGITS}}}",  # a run is separate from its surroundings
    r"\A\d{1,2}(?=(?:\d{3})+\z)",  # an incomplete group comes first
    r"\d{3}",
)
"""Groups of three from the right: 1|234|567. Each pattern cuts the pieces of the previous pattern. The look-ahead covers at most
`MAX_DIGITS` digits once for each piece, so the time is linear (Trinity Large report, 2.1.1)."""
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
"""Pattern of DeepSeek V3: a mark with the following letters, letters with the previous character, marks, white space."""
LLAMA3 = rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{WHITE_SPACE}"
"""Pattern of Llama 3, with groups of three digits from the left: 123|456|7."""
LLAMA2 = (
    r"[\p{N}\r\n\t]",  # separate tokens: digit, line end, tab
    r" ?[\p{L}\p{M}]+| ?[^\s\p{L}\p{M}\p{N}]+| +(?= \S)| +",
)
"""Rules of Llama 2's vocabulary: no token mixes letters and marks, or a digit and another character, and a space starts the next token or
belongs to a run of spaces. SentencePiece applies these rules in training, and no pattern in encoding."""
NEOX_SPACES = r" {2,24}"  # GPT-NeoX has an entry for each run of 2 to 24 spaces. The rest is cut as in GPT-2.
PATTERNS: dict[SplitName, tuple[str, ...]] = {
    "trinity": (*DIGITS, f"[{SCRIPTS}]+", WORDS),
    "llama3": (LLAMA3,),
    "gpt2": (),
    "llama2": LLAMA2,
    "neox": (NEOX_SPACES,),
}
"""Patterns before the conversion to bytes. `gpt2` and `neox` also use GPT-2's pattern, after these."""
SPECIAL_TOKENS = (BEGIN_OF_TEXT, END_OF_TEXT)
MIN_VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)  # without further special tokens
MAX_BYTES = 100_000_000
TRAINED_BY = f"byte-bpe-2+{code_digest(sys.modules[__name__])}+tokenizers-{version('tokenizers')}"
DigitGroups = Literal["single digits", "threes from the right", "threes from the left", "no rule"]
MAX_LENGTH, NUMBERS_OF_A_LENGTH = 18, 20
EXAMPLES = ("1234567", "3.14159", "1,000,000", "x = 2026")
SPACES = (1, 2, 4, 8, 16)
SPACES_AND_ENDS = {"two line ends": "\n\n", "four line ends": "\n\n\n\n", "two tabs": "\t\t", "a line end of two characters": "\r\n"}
BATCH_DOCUMENTS = 64


class TrainedOn(Frozen):
    """The training text from one component."""

    component: str  # or a file of a folder
    documents_key: str  # key of all its documents, or digest of the text that was read from a folder
    cache_digest: str | None  # of the training cache with the verdict, which was made of the same documents. None for a folder
    phase: str | None  # phase with the verdict that passed the component. None for a folder, whose text nobody judged
    verdict_digest: str | None  # SHA-256 of the verdict's file
    documents: int = Field(gt=0)  # documents, text_bytes: amount that was read from the start of the training split
    text_bytes: int = Field(gt=0)
    is_whole: bool  # whether the complete split was read


class TokenizerManifest(Frozen):
    """The manifest of a tokenizer that `phasewise tokenizer` wrote."""

    format_version: int = FORMAT_VERSION
    tokenizer_digest: str  # SHA-256 of `tokenizer.json`
    vocab_size: int = Field(gt=0)  # entries with the special tokens
    special_tokens: tuple[str, ...] = ()  # special tokens without BOS and EOS
    truncated_from: int | None = None  # entries of the original tokenizer. None if it was trained at its size.
    split: SplitName
    max_bytes_per_component: int = Field(gt=0)  # limit of training text from a component. The last document is complete.
    recipe: str | None  # None for the text of a folder
    scale: str | None
    trained_on: tuple[TrainedOn, ...] = Field(min_length=1)
    trained_by: str  # versions of the training code


def names_folder(name: str) -> bool:
    """Whether a recipe's `tokenizer.name` is a local folder, by its first characters. Other names are names on the hub."""
    return name.startswith(("/", "./", "../", "~/"))


def copy_tokenizer(name: str, vocab_size: int, path: Path, around: DocumentTokens) -> None:
    """Copy the tokenizer of a folder to the path for its key. Raises as `checked_file`, or DataError if it changed after the plan."""
    content = checked_file(name).read_bytes()
    if not tokenizer_key((), vocab_size, f"sha256:{digest_of_bytes(content)}", around=around).startswith(path.parent.name):
        raise DataError(f"the tokenizer of {name} changed while the data were prepared. Run again when no process writes there.")
    write_tokenizer(path, content, around)


def check_target(folder: Path) -> None:
    """Check that a folder for a tokenizer is new or empty. Raises ConfigError if it has files, or is a file."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ConfigError(f"the folder for the tokenizer must be new or empty, found something at {folder}. Name a new folder.")


def write_folder(folder: Path, content: str, manifest: TokenizerManifest) -> None:
    """Write a tokenizer and its manifest."""
    assert manifest.tokenizer_digest == digest_of_bytes(content.encode())
    write_atomically(folder / TOKENIZER_NAME, content.encode())
    write_sealed(folder / MANIFEST_NAME, manifest.model_dump(mode="json"))


def read_tokenizer_manifest(folder: Path) -> TokenizerManifest | None:
    """The manifest of a tokenizer. None for tokenizers without a manifest. Raises DataError if the manifest or the tokenizer was edited."""
    path = folder / MANIFEST_NAME
    if not path.exists():
        return None
    remedy = f"Delete {folder} and train it again, or take the manifest out if the change is meant."
    try:
        manifest = TokenizerManifest.model_validate(read_sealed(path))
    except (ValueError, TypeError, ValidationError) as error:
        raise DataError(f"{path} does not read as the manifest of a tokenizer ({in_one_line(error)}). {remedy}") from None
    found = digest_of_file(folder / TOKENIZER_NAME)
    if found != manifest.tokenizer_digest:
        raise DataError(
            f"{folder / TOKENIZER_NAME} must be the file that its manifest names, {manifest.tokenizer_digest[:16]}, found {found[:16]}: it "
            f"was changed after it was written. {remedy}"
        )
    return manifest


def checked_file(name: str | Path) -> Path:
    """The `tokenizer.json` in a folder or at a path. Raises ConfigError if it is missing, DataError if it is invalid or was edited."""
    path = Path(name).expanduser()
    folder = path if path.is_dir() else path.parent
    file = folder / TOKENIZER_NAME if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(f"a tokenizer is a folder with a {TOKENIZER_NAME}, or such a file, found none at {path}.")
    if file.name == TOKENIZER_NAME:
        read_tokenizer_manifest(folder)
        check_tokenizer(file)  # for a tokenizer in a home
    open_tokenizer(file)
    return file


def open_tokenizer(file: Path) -> "Tokenizer":
    """Read a tokenizer. Raises DataError if the file is not a tokenizer."""
    try:
        return load_tokenizer(file)
    except Exception as error:  # the library raises a bare Exception
        raise DataError(f"{file} does not read as a tokenizer ({error}). Name a file for the library tokenizers.") from None


def build_pre_tokenizer(name: SplitName) -> "PreTokenizer":
    """Cut a text by the patterns of `name`, and write the bytes of each piece as characters of byte-level BPE."""
    from tokenizers import Regex, pre_tokenizers

    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PATTERNS[name]]
    return pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=name in ("gpt2", "neox"))])


def check_vocab_size(vocab_size: int, special_tokens: Sequence[str] = ()) -> None:
    """Raise ConfigError if a vocabulary has no room for every byte, BOS, EOS and the special tokens."""
    least = MIN_VOCAB_SIZE + len(special_tokens)
    if vocab_size < least:
        raise ConfigError(f"--vocab-size must be at least {least}, for 256 bytes and {least - 256} special tokens, found {vocab_size:,}.")


class Amount(NamedTuple):
    """The training text that was read from a component."""

    documents: int
    text_bytes: int


class Trained(NamedTuple):
    """The text of a trained `tokenizer.json`, and component → training text."""

    content: str
    amounts: dict[str, Amount]


def train(
    components: Mapping[str, Iterable[str]],
    vocab_size: int,
    *,
    split: SplitName,
    max_bytes: int = MAX_BYTES,
    special_tokens: Sequence[str] = (),
) -> Trained:
    """Train on the first documents of each component with at least `max_bytes` bytes in total.

    `components`: component → training texts. Special tokens in them are not trained on. `special_tokens`: after BOS and EOS. Raises
    ConfigError if the vocabulary has no room for them, DataError if the text has too few different pairs.
    """
    check_vocab_size(vocab_size, special_tokens)
    amounts: dict[str, Amount] = {}

    def read_texts() -> Iterator[str]:
        for name, texts in components.items():
            documents = text_bytes = 0
            for text in texts:
                if text_bytes >= max_bytes:
                    break
                documents += 1
                text_bytes += len(text.encode())
                yield text
            amounts[name] = Amount(documents, text_bytes)

    tokenizer = train_bpe(read_texts(), vocab_size, build_pre_tokenizer(split), special_tokens)
    if (found := tokenizer.get_vocab_size()) < vocab_size:
        raise DataError(
            f"the text must give {vocab_size:,} entries, found {found:,} in {sum(one.text_bytes for one in amounts.values()):,} bytes: no "
            "pair of entries is left to merge. Ask for a smaller --vocab-size, or read more text."
        )
    return Trained(tokenizer.to_str(pretty=True), amounts)


def truncate(content: str, vocab_size: int, special_tokens: Sequence[str] = ()) -> str:
    """Truncate a tokenizer to its first `vocab_size` entries. The result is the text of a `tokenizer.json`.

    Merges depend only on earlier merges, so training at the smaller size gives the same tokenizer (Trinity Large report, 2.1.2). Raises
    ConfigError for an impossible size, DataError if the entries are not special tokens, bytes and merges, in this order.
    """
    check_vocab_size(vocab_size, special_tokens)
    written: dict[str, Any] = parse_json(content)
    model = written.get("model", {})
    is_bpe = model.get("type") == "BPE" and "merges" in model
    by_id: dict[int, str] = {number: token for token, number in model["vocab"].items()} if is_bpe else {}
    entries = [by_id[number] for number in sorted(by_id)]
    merged = list(dict.fromkeys("".join(merge) for merge in model["merges"])) if is_bpe else []
    special = [*SPECIAL_TOKENS, *special_tokens]
    num_special = len(special)
    has_every_id = sorted(by_id) == list(range(len(entries)))
    if not (is_bpe and has_every_id and entries[:num_special] == special and entries[num_special + 256 :] == merged):
        raise DataError(
            f"a tokenizer is cut by the rank of its merges: its entries must be {num_special} special tokens, 256 bytes, then one for each "
            "merge in order, as `phasewise tokenizer train` writes."
        )
    if vocab_size > len(entries):
        raise ConfigError(f"--vocab-size must be at most the {len(entries):,} entries of the tokenizer, found {vocab_size:,}.")
    model["vocab"] = {token: number for number, token in enumerate(entries[:vocab_size])}
    made: set[str] = set()  # two merges may make the same entry
    kept: list[Sequence[str]] = []
    for merge in model["merges"]:
        if len(made) == vocab_size - num_special - 256:
            break
        made.add("".join(merge))
        kept.append(merge)
    model["merges"] = kept
    from tokenizers import Tokenizer

    return Tokenizer.from_str(json.dumps(written)).to_str(pretty=True)


def pieces_of(tokenizer: "Tokenizer", text: str) -> list[str]:
    """The text of each token. Only the first token of a character has its text."""
    pieces: list[str] = []
    covered = 0
    for _, stop in tokenizer.encode(text, add_special_tokens=False).offsets:
        pieces.append(text[covered : max(covered, stop)])
        covered = max(covered, stop)
    return pieces


def digit_groups(tokenizer: "Tokenizer") -> DigitGroups:
    """The grouping of digits in fixed random numbers of 1 to 18 digits. A group may have several tokens if it has no entry."""
    generator = random.Random(0)
    is_single = is_from_right = is_from_left = True
    for length in range(1, MAX_LENGTH + 1):
        for _ in range(NUMBERS_OF_A_LENGTH):
            start = 0
            for piece in pieces_of(tokenizer, "".join(generator.choices("0123456789", k=length))):
                stop = start + len(piece)
                is_single &= len(piece) == 1
                is_from_right &= (stop - 1 - length % 3) // 3 == (start - length % 3) // 3
                is_from_left &= (stop - 1) // 3 == start // 3
                start = stop
    if is_single:
        return "single digits"
    return "threes from the right" if is_from_right else "threes from the left" if is_from_left else "no rule"


def white_space_tokens(tokenizer: "Tokenizer") -> dict[str, int]:
    """White space → the added tokens between `x` and `y`. 0 if the token of the next word includes the white space."""
    between = {f"{count} {'space' if count == 1 else 'spaces'}": " " * count for count in SPACES} | SPACES_AND_ENDS
    letters = len(pieces_of(tokenizer, "x")) + len(pieces_of(tokenizer, "y"))
    return {name: len(pieces_of(tokenizer, f"x{space}y")) - letters for name, space in between.items()}


class Fit(NamedTuple):
    """A tokenizer's counts on some text."""

    documents: int
    text_bytes: int
    characters: int
    words: int  # runs without white space. Scripts without spaces have few words, so their fertility has no meaning.
    tokens: int
    not_back: int  # documents whose tokens do not decode to the text
    bytes_per_token: float
    characters_per_token: float
    fertility: float | None  # tokens for each word. None without words.


class ScriptFit(NamedTuple):
    """The tokens of one script, and their bytes of text."""

    text_bytes: int
    tokens: int
    bytes_per_token: float


class Measured(NamedTuple):
    """A tokenizer's counts on all subsets."""

    subsets: dict[str, Fit]
    scripts: dict[str, ScriptFit]


def measure(tokenizer: "Tokenizer", subsets: Mapping[str, Iterable[str]]) -> Measured:
    """Tokenize every text as a document, without BOS and EOS.

    A token counts for the script of the first character after white space, with the token's bytes, so the scripts add up to the total. If
    several tokens form a character, the first token has the bytes. `subsets`: name → texts. Raises DataError if a subset has no tokens.
    """
    tokens_of = Counter[str]()
    bytes_of = Counter[str]()
    fits: dict[str, Fit] = {}
    for name, texts in subsets.items():
        counts = Counter[str]()
        unread = iter(texts)
        while batch := list(islice(unread, BATCH_DOCUMENTS)):
            for text, encoding in zip(batch, tokenizer.encode_batch(batch, add_special_tokens=False), strict=True):
                back = tokenizer.decode(encoding.ids, skip_special_tokens=False)
                counts.update(
                    documents=1, text_bytes=len(text.encode()), characters=len(text), words=len(text.split()), tokens=len(encoding.ids),
                    not_back=int(back != text),
                )  # fmt: skip
                covered = 0
                script = "white space"
                for start, stop in encoding.offsets:
                    piece = text[start:stop].lstrip() or text[start:stop]
                    script = script_of(piece[0]) if piece else script
                    tokens_of[script] += 1
                    bytes_of[script] += len(text[covered : max(covered, stop)].encode())
                    covered = max(covered, stop)
                if encoding.offsets:
                    bytes_of[script] += len(text[covered:].encode())
        if not counts["tokens"]:
            raise DataError(f"{name} must have text with tokens, found none in {counts['documents']} documents.")
        tokens, words = counts["tokens"], counts["words"]
        fits[name] = Fit(
            **{field: counts[field] for field in ("documents", "text_bytes", "characters", "words", "tokens", "not_back")},
            bytes_per_token=counts["text_bytes"] / tokens,
            characters_per_token=counts["characters"] / tokens,
            fertility=tokens / words if words else None,
        )
    scripts = {name: ScriptFit(bytes_of[name], count, bytes_of[name] / count) for name, count in tokens_of.most_common()}
    return Measured(fits, scripts)


@cache
def script_of(character: str) -> str:
    """A letter's script in the words of Unicode's names (`latin`, `cjk`), or digits, white space, or punctuation and symbols."""
    if character.isspace():
        return "white space"
    category = unicodedata.category(character)
    if category.startswith("N"):
        return "digits"
    if not category.startswith(("L", "M")):
        return "punctuation and symbols"
    return unicodedata.name(character, "unnamed").split()[0].lower()
