"""Reading a home for a card: files by their path in the home, with their digests, and contradictions between them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from phasewise.tasks.store.publisher import WORKED_ON
from phasewise.trainer.base.identity import NotAsWritten, digest_of_bytes, digest_of_file, unsealed
from phasewise.trainer.base.json_reader import parse_json

MAX_READ_BYTES = 64 * 2**30
SHOWN_CHARACTERS = 64


class Disagreement(NamedTuple):
    """A field of the card, and in words the difference between the card and the bytes."""

    field: str
    words: str

    @property
    def line(self) -> str:
        """One line for people."""
        return f"{self.field}: {self.words}"


class HomeFiles:
    """The files of a home, each read once.

    Args:
        work: the folder of runs, verdicts and reports, if it is not below `root`: those of a home on a store are brought to this machine.
        max_read_bytes: shards and checkpoint files beyond this bound are listed in `unread`.

    Attributes:
        digests: path in the home → SHA-256 of each file that was read.
        problems: contradictions between files, by the field of the card that they decide.
        unread: files and fields that could not be checked. They never count as checked.
        read_bytes: bytes that were read for digests only.
    """

    def __init__(self, root: Path, *, work: Path | None = None, max_read_bytes: int = MAX_READ_BYTES) -> None:
        self.root, self._work = root, work or root
        self.digests: dict[str, str] = {}
        self.problems: list[Disagreement] = []
        self.unread: list[Disagreement] = []
        self.read_bytes = 0
        self._max_read_bytes = max_read_bytes

    def place(self, path: str) -> Path:
        """The file or folder at a path in the home."""
        return (self._work if path.split("/", 1)[0] in WORKED_ON else self.root) / path

    def json(self, field: str, path: str) -> Any:
        """The fields of a JSON file; None if the file is missing or was changed, which is a problem of the field."""
        if not self.place(path).is_file():
            self.problem(field, f"the home has no {path}")
            return None
        content = self.place(path).read_bytes()
        self.digests[path] = digest_of_bytes(content)
        return self.tried(field, lambda: unsealed(parse_json(content, allows_nan=True), path, may_lack_seal=True), NotAsWritten, ValueError)

    def check(self, field: str, path: str, expected: str | None = None) -> str | None:
        """The SHA-256 of a file. A file with another digest than `expected` is a problem of the field, and so is a missing one."""
        place = self.place(path)
        if not place.is_file():
            self.problem(field, f"the home has no {path}")
            return expected
        if path not in self.digests:
            size = place.stat().st_size
            if expected is not None and self.read_bytes + size > self._max_read_bytes:
                self.skip(field, f"{path} ({size:,} bytes) was not read: the bound of {self._max_read_bytes:,} bytes is reached")
                return expected
            self.read_bytes += size
            self.digests[path] = digest_of_file(place)
        if expected is not None:
            self.agree(field, f"the bytes of {path} have", expected[:16], self.digests[path][:16])
        return self.digests[path]

    def agree(self, field: str, speaker: str, expected: Any, found: Any) -> None:
        """Note a problem of the field if two files of the home disagree; `speaker` names the second one."""
        if expected != found:
            self.problem(field, f"the home says {shown(expected)}, {speaker} {shown(found)}")

    def problem(self, field: str, words: str) -> None:
        """Note a contradiction in the home."""
        self.problems.append(Disagreement(field, words))

    def skip(self, field: str, words: str) -> None:
        """Note something that could not be checked."""
        self.unread.append(Disagreement(field, words))

    def tried(self, field: str, read: Callable[[], Any], *errors: type[Exception]) -> Any:
        """The result of `read`; None if it raises one of these errors, which is a problem of the field."""
        try:
            return read()
        except errors as error:
            self.problem(field, " ".join(str(error).split()).replace(str(self.root), "the home").replace(str(self._work), "the home"))
            return None


def shown(value: Any) -> str:
    """A value in one line."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
