"""Reading a home for a card: every file that a claim rests on, by its path in the home and its digest, and what is wrong with it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from phasewise.tasks.store.publisher import WORKED_ON
from phasewise.trainer.base.identity import NotAsWritten, digest_of_bytes, digest_of_file, unsealed
from phasewise.trainer.base.json_reader import parse_json

MAX_READ_BYTES = 64 * 2**30
"""What is read for its digest where nothing else is asked for. Beyond that, files are named as not read."""
SHOWN = 64


class Disagreement(NamedTuple):
    """A field of the card, and in words what it says and what the bytes say."""

    field: str
    words: str

    @property
    def line(self) -> str:
        """One line for people."""
        return f"{self.field}: {self.words}"


class HomeFiles:
    """The files of a home, read once each.

    Args:
        work: where its runs, verdicts and reports are, if that is not below `root`: those of a home on a store are brought to this machine.

    Attributes:
        problems: where the home contradicts itself, by the field of the card that rests on it.
        unread: what could not be checked, by field. It never counts as checked.
        read_bytes: how much was read for digests alone.
    """

    def __init__(self, root: Path, *, work: Path | None = None, max_read_bytes: int = MAX_READ_BYTES) -> None:
        self.root, self._work = root, work or root
        self.problems: list[Disagreement] = []
        self.unread: list[Disagreement] = []
        self.read_bytes = 0
        self._max_read_bytes = max_read_bytes
        self._contents: dict[str, bytes | None] = {}
        self._digests: dict[str, str] = {}

    def place(self, path: str) -> Path:
        """Where a file or folder is that is named by its path in the home."""
        return (self._work if path.split("/", 1)[0] in WORKED_ON else self.root) / path

    def json(self, field: str, path: str) -> Any:
        """The fields of a JSON file of the home; None where it is missing or was changed, which is a problem of the field."""
        content = self._content(path)
        if content is None:
            self.problem(field, f"the home has no {path}")
            return None
        try:
            return unsealed(parse_json(content, allows_nan=True), f"{path} of the home", may_lack_seal=True)
        except NotAsWritten as error:
            self.problem(field, str(error))
        except ValueError as error:
            self.problem(field, f"{path} of the home is no JSON: {error}")
        return None

    def has(self, path: str) -> bool:
        """Whether the file is there."""
        return self.place(path).is_file()

    def ground(self, *paths: str) -> dict[str, str]:
        """Path → SHA-256 of whole files, as a claim names what it rests on; those that are missing are left out."""
        return {path: digest_of_bytes(content) for path in paths if (content := self._content(path)) is not None}

    def check(self, field: str, path: str, said: str) -> str:
        """The SHA-256 of a file, read in pieces; `said` is what another file says that it is, and a problem where it is not.

        A file beyond the bound is not read; then `said` is given back, and the field is named as not read.
        """
        place = self.place(path)
        if not place.is_file():
            self.problem(field, f"the home has no {path}")
            return said
        if path not in self._digests:
            size = place.stat().st_size
            if self.read_bytes + size > self._max_read_bytes:
                self.skip(field, f"{path} ({size:,} bytes) was not read: the bound of {self._max_read_bytes:,} bytes is reached")
                return said
            self.read_bytes += size
            self._digests[path] = digest_of_file(place)
        found = self._digests[path]
        if found != said:
            self.problem(field, f"the home says {said[:16]}, the bytes of {path} have {found[:16]}")
        return found

    def agree(self, field: str, what: str, said: Any, found: Any) -> None:
        """A problem of the field where two files of the home say different things; `what` names who says the second."""
        if said != found:
            self.problem(field, f"the home says {shown(said)}, {what} {shown(found)}")

    def problem(self, field: str, words: str) -> None:
        """The home contradicts itself."""
        self.problems.append(Disagreement(field, words))

    def skip(self, field: str, words: str) -> None:
        """Something could not be checked."""
        self.unread.append(Disagreement(field, words))

    def tried(self, field: str, read: Callable[[], Any], *errors: type[Exception]) -> Any:
        """What `read` gives; None where it raises one of these, which is a problem of the field."""
        try:
            return read()
        except errors as error:
            self.problem(field, " ".join(str(error).split()).replace(str(self.root), "the home").replace(str(self._work), "the home"))
            return None

    def _content(self, path: str) -> bytes | None:
        if path not in self._contents:
            place = self.place(path)
            self._contents[path] = place.read_bytes() if place.is_file() else None
        return self._contents[path]


def shown(value: Any) -> str:
    """A value in one line."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
