"""Reading of one file, whole, as a source's piece."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from phasewise.tasks.data.reading import read_piece
from phasewise.tasks.data.source import Piece, Source

Read = Callable[..., list[Any]]


@pytest.fixture
def read() -> Read:
    def read(path: Path, file_format: str, **changes: object) -> list[Any]:
        source = Source.model_validate({"url": str(path.parent), "include": ("*",), "format": file_format, **changes})
        return list(read_piece(source, Piece(name=path.name, url=str(path))))

    return read
