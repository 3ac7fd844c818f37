"""What every configuration, plan and verdict is made of."""

from typing import Any, Self

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """Immutable, and a misspelt field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def but(self, **fields: Any) -> Self:
        """The same with other fields, checked as a new one is. (`model_copy` checks nothing.)

        Raises:
            ValidationError: a field is unknown, or the whole is not valid.
        """
        return type(self).model_validate(self.model_dump() | fields)
