"""Says where a run goes on under other conditions than before (versions, variables, processor), which the trainer finds out."""

from pathlib import Path

from phasewise.tasks.progress import say
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.config import RunConfig
from phasewise.trainer.events import read_events


class OtherConditions:
    """Looks for events `replanned` that came since it was made (`trainer.process.going_on`)."""

    def __init__(self, run: RunConfig) -> None:
        self._run, self._path = run, RunFolder.at(run.output).events
        self._size, self._seen = self._size_now(), len(self._texts())

    def look(self) -> None:
        """Say what is new. Call it often: the file is read only where it has grown."""
        size = self._size_now()
        if size == self._size:
            return
        self._size, texts = size, self._texts()
        for text in texts[self._seen :]:
            say(f"{self._run.phase}: {text}")
        self._seen = len(texts)

    def _size_now(self) -> int:
        return self._path.stat().st_size if self._path.exists() else 0

    def _texts(self) -> list[str]:
        return [str(event.get("text")) for event in read_events(Path(self._run.output)) if event.get("kind") == "replanned"]
