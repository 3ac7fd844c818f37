"""In which order files of tests run, and which of them one process runs: a plugin of pytest."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling, Scheduling

TESTS = Path(__file__).parent
OPERATED = (
    "deployments/test_asking.py",
    "deployments/test_scheduling.py",
    "deployments/test_strangers.py",
    "deployments/test_operations.py",
)
"""Files that operate `phasewise up`. One process runs them all, one after the other: then it is brought up once. The last ends it."""
SERVED = ("end_to_end/test_run.py", "end_to_end/test_pretrained.py")
"""Files whose commands have one Prefect server, and run in one process after another. Both end with the last of these files."""
TOGETHER = (OPERATED, SERVED, ("end_to_end/data/",), ("tasks/report/card/",), ("flows/trace/",))
"""Files, or folders, that share what takes long to make: one process runs them, and makes it once."""
LONGEST = (
    *OPERATED,
    *SERVED,
    "tasks/report/card/test_on_a_store.py",
    "tasks/training/test_launchers.py",
    "end_to_end/data/test_killed.py",
    "deployments/test_site_browser.py",
    "trainer/test_killed.py",
    "trainer/test_sharding.py",
    "trainer/test_packed_loss.py",
    "test_hostile_files.py",
    "end_to_end/test_bison.py",
    "trainer/test_roll_back.py",
)
"""Files that take longest. They come first: begun last, one of them would run while nothing is left to run beside it."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.relative_to(TESTS).as_posix(), len(LONGEST)))


def runs_with(nodeid: str) -> str:
    """The same for tests that one process runs: those of a file, and of files that go together."""
    file = nodeid.partition("::")[0]
    return next((places[0] for places in TOGETHER if any(f"tests/{place}" in file for place in places)), file)


SHARED = pytest.StashKey[ExitStack]()


@pytest.fixture(scope="session")
def shared(request: pytest.FixtureRequest) -> ExitStack:
    """Whatever is entered here ends with the last of the files that one process runs together: a server costs a tenth of a core."""
    return request.session.stash.setdefault(SHARED, ExitStack())


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is None or runs_with(item.nodeid) != runs_with(nextitem.nodeid):
        item.session.stash.setdefault(SHARED, ExitStack()).close()


class ByFile(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return runs_with(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    return ByFile(config, log) if config.getoption("dist") == "loadfile" else None
