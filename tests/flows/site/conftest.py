from pathlib import Path

import pytest

from phasewise.flows.site.site import Site
from phasewise.tasks.home import Home
from tests.flows.site.homes import site_of, write_home


@pytest.fixture(scope="session")
def finished_home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Not to be written to: `write_home` in a test's own folder is for that."""
    return write_home(tmp_path_factory.mktemp("home"))


@pytest.fixture
def site(finished_home: Home) -> Site:
    return site_of(finished_home)


@pytest.fixture
def own_home(tmp_path: Path) -> Home:
    return write_home(tmp_path / "home")
