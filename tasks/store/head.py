"""The head of a recipe's work on a store: one small object that says which files are committed, and who may commit the next ones.

All else on the store is content under the name of its digest, and counts for nothing until the head names it. The head is replaced with
the store's precondition that it is still the version that was read: of two who replace it one is refused, whatever their clocks say.
"""

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from pydantic import Field, ValidationError

from phasewise.trainer.base.errors import ConfigError, StorageError, TakenOver
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.storage import file_system_of

ABSENT = "0"
"""The generation of an object that is not there."""


class Version(NamedTuple):
    """What an object holds, and the generation that it has."""

    content: bytes
    generation: str


def bucket_and_name(place: Path) -> tuple[Any, str, str]:
    """Return the file system, the bucket and the object's name of a URL on a store.

    Raises:
        ConfigError: the store cannot replace an object on the condition that it is still a certain version.
    """
    store = file_system_of(place)
    if store is None or "gs" not in store[0].protocol:
        raise ConfigError(
            f"training needs a store that replaces an object only if it is still the version that was read, found {place}: that is "
            "known for gs:// alone. Take a home on gs://, or a local folder."
        )
    bucket, name = store[1].split("/", 1)
    return store[0], bucket, name


def read_version(place: Path, known: str | None = None) -> Version | None:
    """Read an object by its name, without a listing; None if it is missing, or still has the generation `known`."""
    file_system, bucket, name = bucket_and_name(place)
    while True:
        try:
            _, about = file_system.call("GET", "b/{}/o/{}", bucket, name)
            generation = str(json.loads(about)["generation"])
            if generation == known:
                return None
            _, content = file_system.call("GET", "b/{}/o/{}", bucket, name, alt="media", ifGenerationMatch=generation)
            return Version(content, generation)
        except FileNotFoundError:
            return None
        except FileExistsError:  # gcsfs's word for a precondition that does not hold: replaced between the two requests
            continue


class Piece(Frozen):
    """Bytes of a file, or the whole file.

    Attributes:
        sha256: of the bytes; the object's name.
    """

    sha256: str
    size_bytes: int


Files = Mapping[str, tuple[Piece, ...]]
"""Name below the home → its pieces in order. Of a checkpoint only the list of its files is named, which names the others."""


class Head(Frozen):
    """What is committed.

    Attributes:
        number: who works there has the next number of the one before: a fencing number.
        holder: no two who work have the same.
        commit: no two heads have the same.
        launch: the launch whose first host commits for the holder (`tasks.training.hosts`); empty if the holder commits itself.
    """

    format: int = 1
    number: int = 0
    holder: str = ""
    commit: str = ""
    launch: str = ""
    files: dict[str, tuple[Piece, ...]] = Field(default_factory=dict)

    def taken(self) -> "Head":
        """Return the same files under a new holder."""
        return Head(number=self.number + 1, holder=uuid.uuid4().hex, commit=uuid.uuid4().hex, files=self.files)

    def followed(self, files: Files, launch: str = "") -> "Head":
        """Return the next commit of the same holder."""
        return Head(number=self.number, holder=self.holder, commit=uuid.uuid4().hex, launch=launch, files=dict(files))


@dataclass(frozen=True)
class HeadObject:
    """The object, at its URL."""

    place: Path

    def read(self) -> tuple[Head, str]:
        """Return the head and its generation; an empty one and 0 if nothing was ever committed."""
        return self.read_changed(None) or (Head(), ABSENT)

    def read_changed(self, known: str | None) -> tuple[Head, str] | None:
        """Return the head and its generation, if that is not `known` any more."""
        if (found := read_version(self.place, known)) is None:
            return None
        try:
            return Head.model_validate_json(found.content), found.generation
        except ValidationError as error:
            raise StorageError(
                f"{self.place} must say which files are committed, and does not read: {error.errors()[0]['msg']}. Bring back an earlier "
                "version of this object."
            ) from error

    def replace(self, head: Head, generation: str) -> str:
        """Put `head` in the place of the version `generation`, and return the new one."""
        content = head.model_dump_json(exclude=None if head.launch else {"launch"}).encode()  # as before there were launches
        file_system, bucket, name = bucket_and_name(self.place)
        upload = f"{file_system._location}/upload/storage/v1/b/{quote(bucket)}/o"  # gcsfs has no public word for it
        binary = {"Content-Type": "application/octet-stream"}
        try:
            _, answer = file_system.call(
                "POST", upload, uploadType="media", name=name, ifGenerationMatch=generation, headers=binary, data=content
            )
            return str(json.loads(answer)["generation"])
        except FileExistsError:
            found = read_version(self.place)
            if found is not None and found.content == content:  # the answer to our first request was lost, and gcsfs asked again
                return found.generation
            raise TakenOver(
                f"{self.place} is another's: this one has number {head.number}, the store has {self.read()[0].number}. Nothing more of "
                "this one is kept; the other one goes on."
            ) from None
