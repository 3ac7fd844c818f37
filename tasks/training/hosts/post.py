"""What a host says of itself on the store: one small object for each host of a launch, which the host alone replaces.

    runs/RUN/launches/LAUNCH/N                 the post of host N
    runs/RUN/launches/LAUNCH/N.files/NAME/I    piece I of a file that is not large
    runs/RUN/launches/LAUNCH/launcher          the launcher's sign (`tasks.training.hosts.sign`)

The posts of a launch are deleted when it ends, and those of others when one begins. A host that wakes up after that finds its post gone,
and the store refuses the next one.
"""

import uuid
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from phasewise.tasks.store.head import Piece
from phasewise.tasks.store.versioned import ABSENT, AnotherVersion, VersionedObject
from phasewise.trainer.base.errors import StorageError, TakenOver
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import digest_of_bytes
from phasewise.trainer.base.storage import cleaning_up, file_system_of, write_atomically

LAUNCHES_NAME = "launches"
Stage = Literal["here", "ready", "at work", "ended"]
"""It came; what its trainer needs is here; the trainer works; all that the trainer left is sent."""
STAGES: Sequence[Stage] = ("here", "ready", "at work", "ended")


class Post(Frozen):
    """What a host says.

    Attributes:
        number: no two posts of a host have the same.
        claim: of the program that is this host; no two programs have the same.
        presence: what its trainer says in the roll call (`trainer.process.roll_call`); empty before.
        heartbeat: the trainer's last sign of life, as it wrote it.
        files: names below the home that the trainer wrote or changed since it began, with their pieces.
        gone: names that it deleted since.
        sending: digests of content that is on its way.
        sent: digests of content that is on the store, of the checkpoints that are here.
    """

    format: int = 1
    launch: str
    host: int
    number: int = 0
    claim: str = Field(default_factory=lambda: uuid.uuid4().hex)
    stage: Stage = "here"
    presence: dict[str, Any] = Field(default={})
    heartbeat: str = ""
    files: dict[str, tuple[Piece, ...]] = Field(default={})
    gone: tuple[str, ...] = ()
    sending: tuple[str, ...] = ()
    sent: tuple[str, ...] = ()

    def has_reached(self, stage: Stage) -> bool:
        """Whether it is at this stage, or further."""
        return STAGES.index(self.stage) >= STAGES.index(stage)


@dataclass(frozen=True)
class Posts:
    """Those of one launch.

    Attributes:
        folder: its URL.
    """

    folder: Path

    @classmethod
    def of(cls, home: Path, run_name: str, launch: str) -> "Posts":
        """In a home on a store."""
        return cls(home / "runs" / run_name / LAUNCHES_NAME / launch)

    @property
    def sign(self) -> Path:
        """Where the launcher gives a sign."""
        return self.folder / "launcher"

    def put(self, post: Post, generation: str = ABSENT) -> str:
        """Put a post in the place of the one of that generation, which the new one is returned of.

        Raises:
            TakenOver: another program has this host's place in the launch, or the launch is over.
        """
        place, content = VersionedObject.at(self._place(post.host)), post.model_dump_json().encode()
        try:
            return place.replace(content, generation)
        except AnotherVersion:
            found = self.read(post.host)
        try:
            if found is not None and found[0].claim == post.claim:  # an earlier post of this program, whose answer was lost
                return place.replace(content, found[1])
            raise AnotherVersion
        except AnotherVersion:
            why = "another program is this host" if generation == ABSENT else "the launch is over, or another program is this host"
            raise TakenOver(
                f"host {post.host} of the launch {post.launch} is refused by {self.folder}: {why}. Nothing more of this one is kept."
            ) from None

    def read(self, host: int, known: str | None = None) -> tuple[Post, str] | None:
        """The post of a host and its generation; None where there is none, or it is still the one that is known.

        Raises:
            StorageError: what is there is no post of this version.
        """
        found = VersionedObject(self._place(host)).read(known)
        if found is None:
            return None
        try:
            return Post.model_validate_json(found.content), found.generation
        except ValidationError as error:
            raise StorageError(
                f"{self._place(host)} must be a host's post, and does not read: {error.errors()[0]['msg']}. Have all hosts use the same "
                "version of this program."
            ) from error

    def send_piece(self, host: int, name: str, index: int, content: bytes) -> None:
        """A piece of a file, in the place of what it was before."""
        write_atomically(self._piece(host, name, index), content)

    def content(self, host: int, name: str, pieces: Sequence[Piece]) -> bytes | None:
        """A file's bytes; None where a piece was replaced since the post was read."""
        found: list[bytes] = []
        for index, piece in enumerate(pieces):
            with suppress(FileNotFoundError):
                content = self._piece(host, name, index).read_bytes()
                if digest_of_bytes(content) == piece.sha256:
                    found.append(content)
                    continue
            return None
        return b"".join(found)

    def others(self) -> list[Post]:
        """Those of all other launches of the same work, as far as they read: by a listing, which may lag."""
        launches = {parts[0] for parts in _below(self.folder.parent)} - {self.folder.name}
        return [post for launch in sorted(launches) for post in Posts(self.folder.parent / launch).all()]

    def all(self) -> list[Post]:
        """Those of this launch, as far as they read: by a listing, which may lag."""
        found: list[Post] = []
        for parts in _below(self.folder):
            if len(parts) == 1 and parts[0].isdecimal():
                with suppress(StorageError):
                    found += [one[0] for one in [self.read(int(parts[0]))] if one]
        return found

    def clear(self) -> None:
        """Delete them and their files."""
        _delete_below(self.folder, keep=())

    def clear_others(self) -> None:
        """Delete those of all other launches of the same work."""
        _delete_below(self.folder.parent, keep=(self.folder.name,))

    def _place(self, host: int) -> Path:
        return self.folder / str(host)

    def _piece(self, host: int, name: str, index: int) -> Path:
        return self.folder / f"{host}.files" / name / str(index)


def _delete_below(folder: Path, keep: Collection[str]) -> None:
    """By a listing. One that lags leaves something, which the next launch finds."""
    store = file_system_of(folder)
    assert store is not None
    file_system, name = store
    for parts in _below(folder):
        if parts[0] not in keep:
            with cleaning_up(folder):
                file_system.rm_file("/".join((name, *parts)))


def _below(folder: Path) -> list[tuple[str, ...]]:
    """The names of the objects there, in parts."""
    store = file_system_of(folder)
    assert store is not None
    file_system, name = store
    return [tuple(str(found).removeprefix(f"{name}/").split("/")) for found in file_system.find(name)]
