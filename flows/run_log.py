"""What the steps say, as lines of the run in the Prefect UI: in whatever process a flow of ours runs, however that was configured."""

import copy
import logging

from prefect.context import FlowRunContext, TaskRunContext
from prefect.logging.handlers import APILogHandler

from phasewise.tasks.progress import LOGGER, PROGRESS_LOGGER, Milestones


class RunLog(logging.Handler):
    """Hands what is said within a flow run to Prefect; of the progress of work only the milestones."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._api = APILogHandler()
        self._milestones = Milestones()

    def emit(self, record: logging.LogRecord) -> None:
        """A line of the run that this is said in; nothing outside of one."""
        if FlowRunContext.get() is None and TaskRunContext.get() is None:
            return
        progress = getattr(record, "progress", None)
        if progress is None:
            self._api.emit(record)
        elif words := self._milestones.line(progress):
            line = copy.copy(record)
            line.msg = words
            line.args = ()
            line.name = LOGGER.name
            self._api.emit(line)


def show_in_ui() -> None:
    """Have the lines go there, once a process."""
    for logger in (LOGGER, PROGRESS_LOGGER):
        if not any(isinstance(handler, RunLog) for handler in logger.handlers):
            logger.addHandler(RunLog())
