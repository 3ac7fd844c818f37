"""One object on a store that is replaced only where it is still the version that was read: the store compares, not we."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.storage import file_system_of

ABSENT = "0"
"""The generation of an object that is not there."""
CONDITION_FAILED = FileExistsError
"""gcsfs's word for a precondition that does not hold."""


class Version(NamedTuple):
    """What an object holds, and the generation that it has."""

    content: bytes
    generation: str


class AnotherVersion(Exception):
    """The object is not the version any more that was to be replaced."""


@dataclass(frozen=True)
class VersionedObject:
    """The object. It is read by its name; no listing is asked.

    Attributes:
        place: its URL.
    """

    place: Path

    @classmethod
    def at(cls, place: Path) -> "VersionedObject":
        """The object at this URL.

        Raises:
            ConfigError: the store cannot replace an object on the condition that it is still a certain version.
        """
        store = file_system_of(place)
        if store is None or "gs" not in store[0].protocol:
            raise ConfigError(
                f"training needs a store that replaces an object only if it is still the version that was read, found {place}: that is "
                "known for gs:// alone. Take a home on gs://, or a local folder."
            )
        return cls(place)

    def read(self, known: str | None = None) -> Version | None:
        """What it holds; None where it is not there, or still has the generation `known`."""
        file_system, bucket, name = self._named()
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
            except CONDITION_FAILED:
                continue  # replaced between the two requests

    def replace(self, content: bytes, generation: str) -> str:
        """Put `content` in the place of the version `generation`, and return the new one. Contents that are to differ must differ.

        Raises:
            AnotherVersion: another one is there.
        """
        file_system, bucket, name = self._named()
        upload = f"{file_system._location}/upload/storage/v1/b/{quote(bucket)}/o"  # gcsfs has no public word for it
        try:
            _, answer = file_system.call(
                "POST",
                upload,
                uploadType="media",
                name=name,
                ifGenerationMatch=generation,
                headers={"Content-Type": "application/octet-stream"},
                data=content,
            )
            return str(json.loads(answer)["generation"])
        except CONDITION_FAILED:
            found = self.read()
            if found is not None and found.content == content:  # the answer to our first request was lost, and gcsfs asked again
                return found.generation
            raise AnotherVersion from None

    def _named(self) -> tuple[Any, str, str]:
        store = file_system_of(self.place)
        assert store is not None
        return (store[0], *store[1].split("/", 1))  # pyright: ignore[reportReturnType]  # two parts
