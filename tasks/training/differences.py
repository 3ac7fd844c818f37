"""What differs between a run and the one that is in its folder: field by field, old and new value."""

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any, NamedTuple

from trainer.base.run_folder import RunFolder
from trainer.base.storage import read_json
from trainer.base.wording import name_some
from trainer.config import DECIDES_BITS, RunConfig

MAX_CHARACTERS = 60
NOTHING = "nothing"


class Difference(NamedTuple):
    """One field of a run, such as `stability.max_grad_norm[0][1]`, with both values in words."""

    field: str
    before: str
    now: str

    def __str__(self) -> str:
        return f"{self.field}: {self.before} → {self.now}"


def differences(run: RunConfig) -> tuple[Difference, ...]:
    """What decides a run's weights and is not as it was when the run in its folder was trained; empty where there is none, or the same.

    A file from before a field existed, or one that can't be read any more, is compared as it is written.
    """
    path = RunFolder.at(run.output).run_file
    if not path.exists():
        return ()
    written = read_json(path)
    try:
        before = RunConfig.model_validate(written).decisive
    except ValueError:
        before = {name: written.get(name, NOTHING) for name in run.decisive}
    return tuple(_between(before, run.decisive, ""))


def execution_differences(before: RunConfig, now: RunConfig) -> tuple[Difference, ...]:
    """What differs in how two runs are carried out, of what decides bits: mesh, parts of the batch, kernels, what is kept."""
    was, found = (run.execution.model_dump(mode="json", include=set(DECIDES_BITS)) for run in (before, now))
    return tuple(_between(was, found, "execution"))


def name_differences(found: tuple[Difference, ...], *, most: int = 3) -> str:
    """The first few, in one line."""
    return name_some(found, most, "; ")


def _between(before: Any, now: Any, field: str) -> Iterator[Difference]:
    if before == now:
        return
    if isinstance(before, dict) and isinstance(now, dict):
        for name in {**before, **now}:
            yield from _between(before.get(name, NOTHING), now.get(name, NOTHING), f"{field}.{name}" if field else name)
    elif isinstance(before, list) and isinstance(now, list):
        for number, (was, item) in enumerate(zip_longest(before, now, fillvalue=NOTHING)):
            yield from _between(was, item, f"{field}[{number}]")
    else:
        yield Difference(field, _shown(before), _shown(now))


def _shown(value: Any) -> str:
    text = "off" if value is None else str(value)
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]} …"
