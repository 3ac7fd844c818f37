"""Records that a build leaves, sealed, and reads back."""

from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import read_sealed, write_sealed
from phasewise.trainer.base.problems import in_one_line

Model = TypeVar("Model", bound=Frozen)


def write_model(path: Path, record: Frozen) -> None:
    """Write a record, atomically."""
    write_sealed(path, record.model_dump(mode="json"))


def read_model(model: type[Model], path: Path) -> Model:
    """The record in a file.

    Raises:
        DataError: the file is missing, is not one, or was changed after it was written.
    """
    try:
        return model.model_validate(read_sealed(path))
    except (FileNotFoundError, ValidationError, ValueError) as error:
        raise DataError(f"{path} does not read ({in_one_line(error)}). Delete {path.parent} and prepare the data again.") from None
