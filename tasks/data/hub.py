"""Data sets of the Hugging Face hub: which commit is read, patience with a server that is busy, and refusals in plain words.

Listing and reading are `huggingface_hub`'s own, behind `hf://` of fsspec, where `tasks.data.source` names this class. Added is what it
leaves open:

* a branch or a tag is read at the commit that it was found at, however long that takes and whoever moves it meanwhile;
* a range is as long as was asked for, or it is asked for again: a proxy that sends the whole file instead would shift every byte after it;
* a signed link that has run out is asked for again; so is what a busy server refuses (429, 5xx, a lost connection), for ten minutes, and
  not before the time that its `Retry-After` names;
* that a server is busy, or asks for a token, is never taken for "there is no such file".
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
PATIENCE_SECONDS = 600
"""How long a server may be busy before a read is given up. Dask asks three times more, and what is finished is kept."""
MAX_PAUSE_SECONDS = 60
MAX_NEW_LINKS = 3
MAX_SHORT_RANGES = 3
COMMIT = re.compile(r"[0-9a-f]{40}")
BUSY = (408, 429, 500, 502, 503, 504)
LINK_RAN_OUT = (400, 401, 403)
TOKEN = "set HF_TOKEN to a token of an account that may read it, on every worker, too"


class Hub(HfFileSystem):
    """`hf://`, read only, with patience."""

    def resolve_path(self, path: str, revision: str | None = None) -> Any:
        """The parts of a path. The first time that a revision is met, the hub is asked whether it is there."""
        try:
            return _patiently(lambda: super(Hub, self).resolve_path(path, revision), path)
        except FileNotFoundError as error:
            if isinstance(error.__cause__, GatedRepoError):
                _raise_in_words(path, error.__cause__, 0)
            if isinstance(error.__cause__, RepositoryNotFoundError):
                raise FileNotFoundError(f"hf://{path}: the hub has no such data set, or it is private: then {TOKEN}") from error
            raise

    def find(self, path: str, *arguments: Any, **options: Any) -> Any:
        """Every file below a folder."""
        return _patiently(lambda: super(Hub, self).find(path, *arguments, **options), path)

    def info(self, path: str, *arguments: Any, **options: Any) -> dict[str, Any]:
        """What the hub says of a file."""
        return _patiently(lambda: super(Hub, self).info(path, *arguments, **options), path)

    def exists(self, path: str, **options: Any) -> bool:
        """Whether there is such a file.

        Raises:
            HubTrouble, PermissionError: the hub does not say.
        """
        try:
            self.info(path, **options)
        except FileNotFoundError:
            return False
        return True

    def commit_of(self, path: str) -> str | None:
        """The commit that a data set's revision is at now, in full; None for a bucket, which has none.

        Raises:
            FileNotFoundError: there is no such data set or revision.
            PermissionError, HubTrouble: it may not be read, or the hub does not say.
        """
        place = self.resolve_path(path)
        if not isinstance(place, HfFileSystemResolvedRepositoryPath):
            return None
        if COMMIT.fullmatch(place.revision):
            return place.revision
        return _patiently(lambda: self._api.repo_info(place.repo_id, repo_type=place.repo_type, revision=place.revision).sha, path)

    def _open(self, path: str, mode: str = "rb", block_size: int | None = None, revision: str | None = None, **options: Any) -> Any:
        if mode != "rb" or not block_size:
            return super()._open(path, mode, block_size, revision, **options)
        return HubFile(self, path, revision=revision, mode=mode, block_size=block_size, **options)


class HubFile(HfFileSystemFile):
    """A file of the hub that is read by ranges."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        content = b""
        for _ in range(MAX_SHORT_RANGES):
            content = _patiently(lambda: self._with_new_links(start, end), self.path)
            if len(content) == end - start:
                return content
        raise HubTrouble(
            f"hf://{self.path}: bytes {start} to {end} were asked for, and {len(content):,} came instead of {end - start:,}, "
            f"{MAX_SHORT_RANGES} times: the server, or a proxy before it, does not give parts of files. Set HF_ENDPOINT to one that does."
        )

    def _with_new_links(self, start: int, end: int) -> bytes:
        """A range; a signed link that ran out between the hub's answer and the store's is asked for again."""
        for _ in range(MAX_NEW_LINKS):
            try:
                return super()._fetch_range(start, end)
            except HfHubHTTPError as error:
                if error.response.status_code not in LINK_RAN_OUT or not error.response.history:
                    raise
        return super()._fetch_range(start, end)


def _patiently(call: Callable[[], Result], path: str) -> Result:
    """What the call returns, asked again while the server is busy; what is no trouble of the server is raised in words at once."""
    waited = 0.0
    pause = 1.0
    while True:
        try:
            return call()
        except (HfHubHTTPError, httpx2.TransportError) as error:
            if not (isinstance(error, httpx2.TransportError) or error.response.status_code in BUSY) or waited >= PATIENCE_SECONDS:
                _raise_in_words(path, error, waited)
            asked_for = _asked_to_wait(error)
            now = pause if asked_for is None else asked_for
            time.sleep(now)
            waited += max(now, 1.0)
            pause = min(2 * pause, MAX_PAUSE_SECONDS)


def _asked_to_wait(error: HfHubHTTPError | httpx2.TransportError) -> float | None:
    """Seconds that the server asked for, by `Retry-After` as a number or a date, or by when its limit begins anew; None where it named
    none. A date is compared with the server's own clock, if it says what it is.
    """
    if not isinstance(error, HfHubHTTPError):
        return None
    headers = error.response.headers
    value = headers.get("Retry-After", "").strip()
    if value.isascii() and value.isdecimal():
        return float(value)
    if (until := _date(value)) is not None:
        now = _date(headers.get("Date", ""))
        return max(0.0, until - (time.time() if now is None else now))
    limit = parse_ratelimit_headers(headers)
    return float(limit.reset_in_seconds) if limit and limit.remaining == 0 else None


def _date(value: str) -> float | None:
    with suppress(ValueError, TypeError):
        return parsedate_to_datetime(value).timestamp()
    return None


def _raise_in_words(path: str, error: HfHubHTTPError | httpx2.TransportError, waited: float) -> NoReturn:
    """The same as an error of Python's own, with file, revision and what to do; without links, which may carry a signature."""
    if isinstance(error, httpx2.TransportError):
        raise HubTrouble(_busy(path, type(error).__name__, waited)) from error
    code = error.response.status_code
    if isinstance(error, GatedRepoError) or code in (401, 403):
        raise PermissionError(f"hf://{path}: the hub answers {code}, it may not be read as it is: accept its terms, or {TOKEN}") from error
    if code == 404:
        raise FileNotFoundError(f"hf://{path}: the hub has no such file, revision or data set (404)") from error
    if code in BUSY:
        raise HubTrouble(_busy(path, str(code), waited)) from error
    raise HubTrouble(f"hf://{path}: the hub answers {code}. Look at the address, and run again: what is finished is kept.") from error


def _busy(path: str, answer: str, waited: float) -> str:
    found = f"({answer}), after {waited:.0f} s of asking again"
    return f"hf://{path}: the hub is busy or out of reach {found}. Run again later: what is finished is kept."
