"""Who may reach the servers of a home: a secret for each, in a file that only its owner reads."""

import os
import secrets
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

from phasewise.tasks.home import Home
from phasewise.tasks.progress import say
from phasewise.trainer.base.errors import ConfigError

AUTH_NAME, PAGE_NAME, LINKS_NAME = "auth", "page-token", "links"
"""Files in the home's folder of Prefect: Prefect's auth string, the token of our page, and the links that carry both."""
AUTH_VARIABLES = ("PREFECT_API_AUTH_STRING", "PREFECT_API_KEY", "PREFECT_SERVER_API_AUTH_STRING")
USER = "phasewise"
OTHERS = stat.S_IRWXG | stat.S_IRWXO


def auth_of(home: Home) -> str:
    """The auth string of the home's Prefect server, made where there is none: `phasewise:…`.

    Raises:
        ConfigError: the file cannot be kept from others.
    """
    return _secret(home.prefect / AUTH_NAME, f"{USER}:")


def page_token(home: Home) -> str:
    """The token of the home's page, made where there is none.

    Raises:
        ConfigError: the file cannot be kept from others.
    """
    return _secret(home.prefect / PAGE_NAME, "")


def auth_of_running(home: Home) -> str | None:
    """The auth string of the server that another process has brought up; None where the server has none.

    Raises:
        ConfigError: the file is another user's.
    """
    path = home.prefect / AUTH_NAME
    try:
        return path.read_text(encoding="ascii").strip() or None
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: the Prefect server of this home is its owner's alone, and its secret cannot be read: {error}."
        ) from None


def keep_links(home: Home, links: Iterable[str]) -> Path:
    """Write the links that carry the secrets where only their owner reads them."""
    path = home.prefect / LINKS_NAME
    _write(path, "".join(f"{link}\n" for link in links))
    return path


def hide_from_children(auth: str | None = None) -> dict[str, str]:
    """Have Prefect read its settings now, with this auth string if one is given, and take the secrets out of the environment.

    Prefect gives flow runs what it has read. Trainers, Dask's workers and all other children do not need it.

    Returns:
        What was taken out.
    """
    from prefect.context import refresh_global_settings_context

    taken = {name: os.environ.pop(name) for name in AUTH_VARIABLES if name in os.environ}
    os.environ.update(taken if auth is None else {AUTH_VARIABLES[0]: auth})
    refresh_global_settings_context()
    for name in AUTH_VARIABLES:
        os.environ.pop(name, None)
    return taken


def _secret(path: Path, prefix: str) -> str:
    """What the file says. One that others could read, as after a copy, may be known to them: another secret is made, and said."""
    try:
        if path.exists():
            mode, text = path.stat().st_mode, path.read_text(encoding="ascii").strip()
            if text and not mode & OTHERS:
                return text
            if text:
                say(f"{path}: expected a file that only its owner reads, found mode {stat.filemode(mode)}: made another secret")
        made = prefix + secrets.token_urlsafe(32)
        _write(path, made + "\n")
        return made
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: expected a secret that this user may read and write, found: {error}. Remove the file.") from None


def _write(path: Path, text: str) -> None:
    """Write a file that only its owner reads; it is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.chmod(0o700)  # the database of Prefect is there, too
    number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with open(number, "w", encoding="ascii") as file:
            file.write(text)
        if os.stat(name).st_mode & OTHERS:
            raise ConfigError(f"{path}: this file system keeps no file from other users. Choose a home on another one with --home.")
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
