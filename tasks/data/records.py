"""Records that a build has left, read back."""

from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from trainer.base.errors import DataError
from trainer.base.frozen import Frozen
from trainer.base.storage import read_json

Model = TypeVar("Model", bound=Frozen)


def read_model(model: type[Model], path: Path) -> Model:
    """The record in a file.

    Raises:
        DataError: the file is not one.
    """
    try:
        return model.model_validate(read_json(path))
    except (ValidationError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path} does not read ({reason}). Delete {path.parent} and prepare the data again.") from None
