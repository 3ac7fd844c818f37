"""Requests to a server beside the work: the work goes on, however long the server is away, and catches up once it is back."""

import threading
import time
from collections.abc import Callable
from contextvars import Context, copy_context

import httpx

from phasewise.tasks.progress import say

AGAIN_SECONDS = 2.0
"""So long after a request that failed the next one is made."""


class Background:
    """One thread that makes requests, one after the other. Use it as a context: leaving it waits a while for what is still to be made.

    Of each kind of request only the latest waits: a picture of an hour ago is of no use to anybody.

    Args:
        end_seconds: how long is waited at the end. A process does not stay for requests that are still under way then.
    """

    def __init__(self, end_seconds: float = 10.0) -> None:
        self._end_seconds = end_seconds
        self._waiting: dict[str, tuple[Context, Callable[[], object]]] = {}
        self._changed = threading.Condition()
        self._is_over = False
        self._is_away = False
        self._thread = threading.Thread(target=self._work, name="requests", daemon=True)

    def __enter__(self) -> "Background":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify()
        self._thread.join(self._end_seconds)

    def ask(self, kind: str, request: Callable[[], object]) -> None:
        """Have a request made soon, in place of one of its kind that was not begun. One that the server does not answer is made again."""
        with self._changed:
            self._waiting[kind] = (copy_context(), request)
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_over)
                if not self._waiting:
                    return
                kind = next(iter(self._waiting))
                context, request = self._waiting.pop(kind)
            if not self._made(context, request):
                with self._changed:
                    self._waiting.setdefault(kind, (context, request))
                    self._changed.wait_for(lambda: self._is_over, AGAIN_SECONDS)
                    if self._is_over:
                        return

    def _made(self, context: Context, request: Callable[[], object]) -> bool:
        """Whether the server answered; that it is away, and that it is back, is said once."""
        try:
            context.run(request)
        except httpx.HTTPError as error:
            if not self._is_away:
                context.run(say, f"the Prefect server does not answer ({type(error).__name__}): the work goes on without it")
            self._is_away = True
            return False
        if self._is_away:
            context.run(say, "the Prefect server answers again")
        self._is_away = False
        return True


def wait_until(answers: Callable[[], bool], seconds: float) -> bool:
    """Whether it answers, at once or within so long."""
    deadline = time.monotonic() + seconds
    is_said = False
    while not answers():
        if time.monotonic() >= deadline:
            return False
        if not is_said:
            say("waiting for the Prefect server to answer")
            is_said = True
        time.sleep(AGAIN_SECONDS)
    return True
