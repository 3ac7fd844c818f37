"""Whether what the home says still holds: `flows.record` asked in the background, and again when files have changed or time has passed."""

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

from phasewise.flows.record import PhaseRecord, read_record
from phasewise.flows.resolved import resolve, resolving_once
from phasewise.flows.site.shelf import Set, Shelf

RECHECK_SECONDS = 10.0


@dataclass(frozen=True)
class Checked:
    """What was found of a recipe.

    Attributes:
        at: when, in seconds since 1970.
        records: phase → its record.
        problem: why nothing could be found out, in words.
    """

    at: float
    records: dict[str, PhaseRecord]
    problem: str = ""


class Checker:
    """Asks in a thread of its own, one recipe after the other; a page never waits for it."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._found: dict[str, Checked] = {}
        self._wanted: dict[str, Set] = {}
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None

    def latest(self, found: Set) -> Checked | None:
        """What was last found out; None where nobody has asked yet. Asks again where that is some time ago."""
        if found.recipe is None or not found.in_home:
            return None
        checked = self._found.get(found.run_name)
        if checked is None or time.time() - checked.at > RECHECK_SECONDS:
            self._ask(found)
        return checked

    def now(self, sets: Iterable[Set]) -> None:
        """Find out, in this thread."""
        for found in sets:
            if found.recipe is not None and found.in_home:
                self._found[found.run_name] = check(self._shelf, found)

    def _ask(self, found: Set) -> None:
        with self._wake:
            self._wanted[found.run_name] = found
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, daemon=True, name="check the home")
                self._thread.start()
            self._wake.notify()

    def _work(self) -> None:
        while True:
            with self._wake:
                while not self._wanted:
                    self._wake.wait()
                found = next(iter(self._wanted.values()))
            self._found[found.run_name] = check(self._shelf, found)
            with self._wake:
                self._wanted.pop(found.run_name, None)


def check(shelf: Shelf, found: Set) -> Checked:
    """Every phase of the main line, and of the branches those that the home has."""
    here = {name for name in shelf.phase_names(found) if shelf.home.run(found.run_name, name).exists()}
    records: dict[str, PhaseRecord] = {}
    try:
        with resolving_once():
            _read_all(shelf, found, here, records)
    except Exception as error:  # a home may hold anything, and a thread that ended would leave every page "being checked"
        return Checked(time.time(), records, str(error) or type(error).__name__)
    return Checked(time.time(), records)


def _read_all(shelf: Shelf, found: Set, here: set[str], records: dict[str, PhaseRecord]) -> None:
    branches = [phase.name for phase in found.recipe.phases if phase.branch and phase.name in here] if found.recipe else []
    for name in [found.target, *(f"{found.target}/{branch}" for branch in branches)]:
        resolved, _ = resolve(name, found.scale, str(shelf.home.root), reads_only=True)  # pyright: ignore[reportArgumentType]  # one of SCALES
        for phase in resolved.recipe.phases:
            if phase.name not in records:
                records[phase.name] = read_record(resolved, phase)
