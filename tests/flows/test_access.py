import os
import shutil
from pathlib import Path

import pytest

from phasewise.flows.prefect.access import AUTH_NAME, AUTH_VARIABLES, auth_of, auth_of_running, hide_from_children, keep_links, page_token
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import ConfigError


def test_a_home_keeps_its_secrets_and_has_its_own(tmp_path: Path) -> None:
    here, there = Home(tmp_path / "here"), Home(tmp_path / "there")
    assert auth_of_running(here) is None
    auth, token = auth_of(here), page_token(here)
    assert (auth_of(here), page_token(here), auth_of_running(here)) == (auth, token, auth)
    assert len({auth, auth.partition(":")[2], token, auth_of(there), page_token(there)}) == 5
    here.root.rename(tmp_path / "moved")
    assert auth_of(Home(tmp_path / "moved")) == auth


def test_only_their_owner_reads_them_and_one_that_others_could_read_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = Home(tmp_path)
    before = os.umask(0)
    try:
        auth_of(home)
        page_token(home)
        keep_links(home, ("http://127.0.0.1",))
    finally:
        os.umask(before)
    files = list(home.prefect.iterdir())
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert len(files) == 3
    home = Home(tmp_path / "home")
    auth = auth_of(home)
    shutil.copytree(home.root, tmp_path / "copy", copy_function=shutil.copyfile)
    path = tmp_path / "copy" / "prefect" / AUTH_NAME
    path.chmod(0o644)
    assert auth_of(Home(tmp_path / "copy")) != auth
    assert path.stat().st_mode & 0o777 == 0o600
    assert auth_of(home) == auth


def test_an_empty_file_is_written_again_and_what_is_no_file_is_refused_in_a_line(tmp_path: Path) -> None:
    home = Home(tmp_path / "empty")
    home.prefect.mkdir(parents=True)
    for content in (b"", b"\n"):
        (home.prefect / AUTH_NAME).write_bytes(content)
        assert auth_of(home).startswith("phasewise:")
    home = Home(tmp_path)
    (home.prefect / AUTH_NAME).mkdir(parents=True)
    with pytest.raises(ConfigError, match="expected a secret that this user may read and write"):
        auth_of(home)
    with pytest.raises(ConfigError, match="cannot be read"):
        auth_of_running(home)


def test_prefect_keeps_what_children_are_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect.context import refresh_global_settings_context
    from prefect.settings import get_current_settings

    for name in AUTH_VARIABLES:
        monkeypatch.setenv(name, "of-another")
    try:
        assert hide_from_children("phasewise:own") == dict.fromkeys(AUTH_VARIABLES, "of-another")
        settings = get_current_settings()
        assert settings.api.auth_string is not None
        assert settings.api.auth_string.get_secret_value() == "phasewise:own"
        assert settings.api.key is None
        assert settings.to_environment_variables(exclude_unset=True)["PREFECT_API_AUTH_STRING"] == "phasewise:own"
        assert not set(AUTH_VARIABLES) & set(os.environ)
        monkeypatch.setenv("PREFECT_API_AUTH_STRING", "of-another")
        hide_from_children()
        auth = get_current_settings().api.auth_string
        assert auth is not None
        assert auth.get_secret_value() == "of-another"
        assert not set(AUTH_VARIABLES) & set(os.environ)
    finally:
        refresh_global_settings_context()
