"""Which files of tests take how much processor time: a plugin of pytest, which says it at the end of a run.

Counted is what the process of the tests takes, and what processes take that it waited for. What it began and left to others, or what was
killed before its own children ended, is not. A process that several files share is counted where it ends.
"""

import resource
from collections import defaultdict
from collections.abc import Iterator, Mapping

import pytest

NAME = "processor seconds"
MIN_SECONDS, MAX_FILES = 15.0, 25
_begun = pytest.StashKey[float]()
_by_file: dict[str, float] = defaultdict(float)


def processor_seconds() -> float:
    """Of this process and of those it waited for, until now."""
    found = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in found)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Fixtures count for the test that needs them first."""
    item.stash[_begun] = processor_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """The report of the teardown, which follows, carries it to the process that sums up."""
    try:
        return (yield)
    finally:
        item.user_properties.append((NAME, processor_seconds() - item.stash[_begun]))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """In the process that sums up."""
    if report.when == "teardown":
        _by_file[report.nodeid.partition("::")[0]] += sum(float(str(value)) for name, value in report.user_properties if name == NAME)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The files that take most, and the sum."""
    if most := lines(_by_file):
        terminalreporter.section(NAME)
        for line in most:
            terminalreporter.write_line(line)


def lines(by_file: Mapping[str, float]) -> list[str]:
    """The files that take long, the longest first, and all together; nothing where none does."""
    most = sorted(by_file.items(), key=lambda one: -one[1])[:MAX_FILES]
    long = [(name, seconds) for name, seconds in most if seconds >= MIN_SECONDS]
    if not long:
        return []
    return [f"{seconds:7.1f} {name}" for name, seconds in [*long, (f"all {len(by_file)} files", sum(by_file.values()))]]
