"""A tokenizer in a folder: `tokenizer.json`, and a manifest that says what it was trained on and how. The manifest comes last."""

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field, ValidationError

from phasewise.tasks.data.tokenizer import DIGEST_NAME, check_tokenizer, load_tokenizer, tokenizer_digest, tokenizer_key
from phasewise.tasks.data.vocabularies.splits import SplitName
from phasewise.trainer.base.errors import ConfigError, DataError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import digest_of_bytes, read_sealed, write_sealed
from phasewise.trainer.base.problems import in_one_line
from phasewise.trainer.base.storage import write_atomically

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER_NAME = "tokenizer.json"
MANIFEST_NAME = "tokenizer_manifest.json"
FORMAT_VERSION = 1


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
