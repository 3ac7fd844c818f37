"""Writes where the wall time of a training goes: a line in `spent.jsonl` for each life of the trainer, `life.json` while one goes on.

Who is lost with its machine writes no line. Then whoever goes on, here or elsewhere, finds `life.json`, which says what was known of that
life a few seconds before, and writes its line.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from phasewise.tasks.store.keeping import keeper_of
from phasewise.tasks.training.spent import LifeSpent, OpenLife, read_lives, read_open_life
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.storage import write_json
from phasewise.trainer.process.heartbeat import read_heartbeat

NOTE_SECONDS = 10.0


class Clock:
    """Counts the lives of a run that one launcher starts. What cannot be written is not written: no training fails for it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ended: float | None = None

    @contextmanager
    def life(self, from_step: int, *, slice_name: str = "") -> Iterator[Callable[[], None]]:
        """One life, however it ends. What is yielded notes how far it is, and is called often.

        Args:
            slice_name: as in `LifeSpent`.
        """
        found = self._found_dead()
        life = _Life(self._folder, from_step, found, slice_name=slice_name)
        pause = 0.0 if self._ended is None else max(0.0, life.began - self._ended)
        life.note(pause)
        try:
            yield lambda: life.note(pause, every=NOTE_SECONDS)
        finally:
            self._ended = time.monotonic()
            ended = life.so_far(pause)
            _append(self._folder, ended.but(is_whole=True))
            with suppress(OSError):
                RunFolder(self._folder).life.unlink(missing_ok=True)

    def _found_dead(self) -> Mapping[str, Any]:
        """Write the line of a life that nobody saw end. What its trainer said last is returned: it may still be at work.

        Not where the home is on a store: whoever takes the work over there has shut it out.
        """
        found = read_open_life(self._folder)
        if found is None:
            return {}
        lost, said = found.with_its_heartbeat(read_heartbeat(self._folder))
        if lost.started_at not in [life.started_at for life in read_lives(self._folder)]:
            away = max(0.0, time.time() - lost.started_at - lost.wall_seconds)
            _append(self._folder, lost.but(away_seconds=away))
        return {} if keeper_of(self._folder) else said


class _Life:
    """Attributes:
    began: by the monotonic clock.
    """

    def __init__(self, folder: Path, from_step: int, taken: Mapping[str, Any], *, slice_name: str) -> None:
        self._folder, self._taken = folder, taken
        self._from_step, self._slice_name = from_step, slice_name
        self.began, self._started_at = time.monotonic(), time.time()
        said = read_heartbeat(folder)
        self._before = (said.get("time"), said.get("pid"))
        self._noted: float | None = None

    def so_far(self, pause: float) -> LifeSpent:
        """What is known of it. Of a trainer that another launcher had started it is what came since."""
        said = read_heartbeat(self._folder)
        said = said if (said.get("time"), said.get("pid")) != self._before else {}
        is_taken = bool(said and self._taken and said.get("token") == self._taken.get("token"))
        had: Mapping[str, float] = self._taken.get("spent", {}) if is_taken else {}
        from_step = self._taken.get("step", self._from_step) if is_taken else self._from_step
        return LifeSpent(
            wall_seconds=time.monotonic() - self.began,
            pause_seconds=pause,
            seconds={work: max(0.0, spent - had.get(work, 0.0)) for work, spent in said.get("spent", {}).items()},
            from_step=from_step,
            to_step=said.get("step", from_step),
            peak_memory_bytes=said.get("peak_memory_bytes"),
            slice_name=self._slice_name,
            started_at=self._started_at,
            is_whole=False,
        )

    def note(self, pause: float, every: float = 0.0) -> None:
        """Write down what is known, at most each `every` seconds."""
        now = time.monotonic()
        if self._noted is not None and now - self._noted < every:
            return
        self._noted = now
        before = [self._before[0], self._before[1]]
        with suppress(OSError):
            write_json(RunFolder(self._folder).life, OpenLife(life=self.so_far(pause), before=before).model_dump(mode="json"))


def _append(folder: Path, life: LifeSpent) -> None:
    with suppress(OSError), open(RunFolder(folder).spent, "a", encoding="utf-8") as file:
        file.write(life.model_dump_json() + "\n")
