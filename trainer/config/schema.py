"""Values that change at given steps."""

from itertools import pairwise
from typing import Any, Generic, TypeVar

from pydantic import ConfigDict, RootModel, model_validator

T = TypeVar("T")


class Steps(RootModel[tuple[tuple[int, T], ...]], Generic[T]):
    """A value that changes at given steps: `((0, 8192), (18_500, 7680))` is 8192 until step 18,500 and 7680 from there on.

    The first entry holds before its own step too. A value without steps is that value at every step.
    """

    model_config = ConfigDict(frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _is_one_value_or_many(cls, value: Any) -> Any:
        return value if isinstance(value, list | tuple | RootModel) else ((0, value),)

    @model_validator(mode="after")
    def _steps_increase(self) -> "Steps[T]":
        if not self.root:
            raise ValueError("a value by steps needs at least one entry, such as [[0, 1024]]")
        for (before, _), (after, _) in pairwise(self.root):
            if after <= before:
                raise ValueError(f"steps must increase, but {after} follows {before}")
        return self

    def at(self, step: int) -> T:
        """The value in force when `step` updates have been applied."""
        return next((value for start, value in reversed(self.root) if start <= step), self.root[0][1])

    def within(self, start_step: int, stop_step: int) -> tuple[tuple[int, T], ...]:
        """The entries in force over `[start_step, stop_step)`, the first one moved to `start_step`."""
        inside = tuple(entry for entry in self.root if start_step < entry[0] < stop_step)
        return ((start_step, self.at(start_step)), *inside)


def always(value: T) -> Steps[T]:
    """The same value at every step."""
    return Steps(((0, value),))
