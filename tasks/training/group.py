"""Several processes that are one program: where one ends early, all end, and the one that was the reason is named.

A launcher that starts processes itself, here or over a connection, gives them to a group. It goes by monotonic clocks.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from phasewise.tasks.training.protocol import decisive, ending, last_words, log_of
from phasewise.trainer.base.exit_codes import ExitCode
from phasewise.trainer.process.stopping import stop_seconds

GRACE_SECONDS = 5.0
"""How long the others have to say something of their own after one ended early: they cannot go on."""
DONE_SECONDS = 60.0
"""How long the others have to end after one that is done. They wait for one another at the end, so they end nearly together."""


class Member(Protocol):
    """One process on one host.

    Attributes:
        log_before: how many bytes its log had before it.
    """

    name: str
    log_before: int

    def code(self) -> int | None:
        """Its exit code or minus its signal; None while it is at work."""
        ...

    def wait(self, seconds: float) -> None:
        """Until it ends, at most so long."""
        ...

    def stop(self) -> None:
        """Ask it to save and to end."""
        ...

    def kill(self) -> None:
        """End it and what it started, and return when it has ended."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


class Group:
    """An attempt of several processes, the first of which writes what is written once.

    Args:
        done_seconds: how long the others have to end after one that is done.
    """

    send_seconds = 0.0

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.monotonic, done_seconds: float = DONE_SECONDS) -> None:
        self._folder, self._clock, self._done_seconds = folder, clock, done_seconds
        self._members: list[Member] = []
        self._cut: set[int] = set()
        self._first_ended: float | None = None
        self._is_said = False

    def add(self, member: Member) -> None:
        """The process of the next host."""
        self._members.append(member)

    def look(self) -> int | None:
        """See `Attempt`."""
        codes = [member.code() for member in self._members]
        ended = [code for code in codes if code is not None]
        if len(ended) == len(codes):
            return self._ended(ended)
        if ended:
            now = self._clock()
            self._first_ended = now if self._first_ended is None else self._first_ended
            if now - self._first_ended > grace_seconds(ended, self._done_seconds):
                self._cut |= {number for number, code in enumerate(codes) if code is None}
                self._kill(self._cut)
        return None

    def wait(self, seconds: float) -> None:
        """See `Attempt`."""
        running = next((member for member in self._members if member.code() is None), None)
        if running is not None:
            running.wait(seconds)

    def stop(self) -> None:
        """See `Attempt`."""
        for member in self._members:
            member.stop()

    def kill(self) -> None:
        """See `Attempt`."""
        self._kill(range(len(self._members)))

    def close(self) -> None:
        """See `Attempt`."""
        for member in self._members:
            member.close()

    def _kill(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._members[number].kill()

    def _ended(self, codes: list[int]) -> int:
        """The code that counts; those that were cut off have none of their own."""
        own = {number: code for number, code in enumerate(codes) if number not in self._cut}
        code = decisive(own.values())
        if not code and self._cut:
            code = ExitCode.LOST
        if len(codes) > 1 and not self._is_said:
            self._is_said = True
            self._say(own, code)
        return code

    def _say(self, own: dict[int, int], code: int) -> None:
        """Repeat in the first host's log who was the reason, and why."""
        lines = [f"{self._named(number)} did not end with the others" for number in sorted(self._cut)] if code == ExitCode.LOST else []
        for number in [number for number, one in own.items() if one == code and code][:1]:
            words = last_words(log_of(self._folder, number), self._members[number].log_before)
            lines.append(f"{self._named(number)} {ending(code)}{f': {words}' if words else ''}")
        with open(log_of(self._folder, 0), "a", encoding="utf-8") as log:
            log.writelines(f"trainer: {line}\n" for line in lines)

    def _named(self, number: int) -> str:
        return f"host {number} ({self._members[number].name})"


def grace_seconds(ended: Sequence[int], done_seconds: float = DONE_SECONDS) -> float:
    """How long the other processes may go on after these have ended."""
    if all(code in (ExitCode.DONE, ExitCode.MOVES) for code in ended):
        return done_seconds
    if decisive(ended) == ExitCode.PREEMPTED:
        return stop_seconds()
    return GRACE_SECONDS
