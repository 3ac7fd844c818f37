"""Data sets of the Hugging Face hub: fixed commits, retries for a busy server, and plain error messages.

Listing and reading use `huggingface_hub` behind `hf://` of fsspec, where `tasks.data.source` registers this class. It adds:

* A branch or tag is read at one commit, even if the branch moves during the reading.
* A range with a wrong length is requested again. A proxy that sends the whole file would shift every byte.
* An expired signed link is requested again. A request to a busy server (429, 5xx, a lost connection) is repeated for ten minutes, after the
  time in `Retry-After`.
* A busy server, or a missing token, is never reported as a missing file.
"""

import re
import time
from collections.abc import Callable
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any, NoReturn, TypeVar

import httpx2
from huggingface_hub import HfFileSystem
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError
from huggingface_hub.hf_file_system import HfFileSystemFile, HfFileSystemResolvedRepositoryPath
from huggingface_hub.utils import parse_ratelimit_headers

from phasewise.tasks.data.source import HubTrouble

Result = TypeVar("Result")
PATIENCE_SECONDS = 600  # time to wait for a busy server. Dask retries three times more, and finished work is kept.
MAX_PAUSE_SECONDS = 60
MAX_NEW_LINKS = 3
MAX_SHORT_RANGES = 3
COMMIT = re.compile(r"[0-9a-f]{40}")
BUSY = (408, 429, 500, 502, 503, 504)
LINK_RAN_OUT = (400, 401, 403)
TOKEN = "set HF_TOKEN to a token of an account that may read it, on every worker, too"


class Hub(HfFileSystem):
    """`hf://`, read-only, with retries."""

    def resolve_path(self, path: str, revision: str | None = None) -> Any:
        """The parts of a path. The first use of a revision asks the hub for it."""
        try:
            return _retry(lambda: super(Hub, self).resolve_path(path, revision), path)
        except FileNotFoundError as error:
            if isinstance(error.__cause__, GatedRepoError):
                _raise_plainly(path, error.__cause__, 0)
            if isinstance(error.__cause__, RepositoryNotFoundError):
                raise FileNotFoundError(f"hf://{path}: the hub has no such data set, or it is private: then {TOKEN}") from error
            raise

    def find(self, path: str, *arguments: Any, **options: Any) -> Any:
        """Every file below a folder."""
        return _retry(lambda: super(Hub, self).find(path, *arguments, **options), path)

    def info(self, path: str, *arguments: Any, **options: Any) -> dict[str, Any]:
        """The metadata of a file."""
        return _retry(lambda: super(Hub, self).info(path, *arguments, **options), path)

    def exists(self, path: str, **options: Any) -> bool:
        """Whether a file exists. Raises HubTrouble or PermissionError if the hub gives no answer."""
        try:
            self.info(path, **options)
        except FileNotFoundError:
            return False
        return True

    def commit_of(self, path: str) -> str | None:
        """The current commit of a data set's revision, in full. None for a bucket. Raises as `_retry` if the hub gives no commit."""
        place = self.resolve_path(path)
        if not isinstance(place, HfFileSystemResolvedRepositoryPath):
            return None
        if COMMIT.fullmatch(place.revision):
            return place.revision
        return _retry(lambda: self._api.repo_info(place.repo_id, repo_type=place.repo_type, revision=place.revision).sha, path)

    def _open(self, path: str, mode: str = "rb", block_size: int | None = None, revision: str | None = None, **options: Any) -> Any:
        if mode != "rb" or not block_size:
            return super()._open(path, mode, block_size, revision, **options)
        return HubFile(self, path, revision=revision, mode=mode, block_size=block_size, **options)


class HubFile(HfFileSystemFile):
    """A file of the hub that is read by byte ranges."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        def fetch() -> bytes:
            for _ in range(MAX_NEW_LINKS):
                try:
                    return super(HubFile, self)._fetch_range(start, end)
                except HfHubHTTPError as error:  # a signed link may expire between the hub's answer and the store's
                    if error.response.status_code not in LINK_RAN_OUT or not error.response.history:
                        raise
            return super(HubFile, self)._fetch_range(start, end)

        content = b""
        for _ in range(MAX_SHORT_RANGES):
            content = _retry(fetch, self.path)
            if len(content) == end - start:
                return content
        raise HubTrouble(
            f"hf://{self.path}: bytes {start} to {end}: received {len(content):,} instead of {end - start:,} bytes "
            f"{MAX_SHORT_RANGES} times. The server, or a proxy, does not support byte ranges. Set HF_ENDPOINT to a server with byte ranges."
        )


def _retry(call: Callable[[], Result], path: str) -> Result:
    """Repeat a call while the server is busy. Other errors are raised at once."""
    waited = 0.0
    pause = 1.0
    while True:
        try:
            return call()
        except (HfHubHTTPError, httpx2.TransportError) as error:
            is_busy = isinstance(error, httpx2.TransportError) or error.response.status_code in BUSY
            if not is_busy or waited >= PATIENCE_SECONDS:
                _raise_plainly(path, error, waited)
            requested = _requested_pause(error)
            now = pause if requested is None else requested
            time.sleep(now)
            waited += max(now, 1.0)
            pause = min(2 * pause, MAX_PAUSE_SECONDS)


def _requested_pause(error: HfHubHTTPError | httpx2.TransportError) -> float | None:
    """The seconds in `Retry-After`, as a number or a date, or until the rate limit resets. A date refers to the server's clock."""
    if not isinstance(error, HfHubHTTPError):
        return None
    headers = error.response.headers
    value = headers.get("Retry-After", "").strip()
    if value.isascii() and value.isdecimal():
        return float(value)
    with suppress(ValueError, TypeError):
        until = parsedate_to_datetime(value).timestamp()
        now = time.time()
        with suppress(ValueError, TypeError):
            now = parsedate_to_datetime(headers.get("Date", "")).timestamp()
        return max(0.0, until - now)
    limit = parse_ratelimit_headers(headers)
    return float(limit.reset_in_seconds) if limit and limit.remaining == 0 else None


def _raise_plainly(path: str, error: HfHubHTTPError | httpx2.TransportError, waited: float) -> NoReturn:
    """Raise a built-in error with the file, the revision and a remedy, without links, which may have signatures."""
    code = None if isinstance(error, httpx2.TransportError) else error.response.status_code
    if isinstance(error, GatedRepoError) or code in (401, 403):
        raise PermissionError(f"hf://{path}: the hub answers {code}, access is denied. Accept its terms, or {TOKEN}") from error
    if code == 404:
        raise FileNotFoundError(f"hf://{path}: the hub has no such file, revision or data set (404)") from error
    if code is None or code in BUSY:
        answer = f"({code or type(error).__name__}), after {waited:.0f} s of retries"
        raise HubTrouble(f"hf://{path}: the hub is busy or out of reach {answer}. Run again later: finished work is kept.") from error
    raise HubTrouble(f"hf://{path}: the hub answers {code}. Check the address, and run again: finished work is kept.") from error
