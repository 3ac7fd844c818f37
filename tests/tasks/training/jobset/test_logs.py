"""What pods say comes here line by line: none is lost, none comes twice, whatever becomes of the connection, the node and the launcher."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from phasewise.tasks.training.jobset import cluster as cluster_module
from phasewise.tasks.training.jobset import logs
from phasewise.tasks.training.jobset.cluster import Cluster, Missing, NotStarted, Unreachable
from phasewise.tasks.training.jobset.logs import Logs, PodLog
from tests.tasks.training.jobset.api_server import ApiServer, api_server
from tests.tasks.training.jobset.pods import Pods

POD = "phasewise-1-slice-0-0-x1"
HEAD = f"what {POD} says:"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (cluster_module, logs):
        monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)


class Scripted:
    """A cluster that gives these answers one after the other, and the last one from then on; an error after pieces cuts the answer."""

    def __init__(self, *answers: list[Any]) -> None:
        self.answers, self.asked = list(answers), list[bool]()

    def log(self, pod: str, container: str, *, follows: bool) -> Iterator[bytes]:
        self.asked.append(follows)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        for one in answer:
            if isinstance(one, Exception):
                raise one
            yield one


def stamped(*numbers: int) -> bytes:
    return b"".join(f"2026-01-01T00:00:{number:02}.000000001Z line {number}\n".encode() for number in numbers)


def read(path: Path, *answers: list[Any]) -> list[str]:
    """What is in the file when all of it was read."""
    scripted: Any = Scripted(*answers)
    log = PodLog(scripted, POD, path)
    log.end()
    log.join(10.0)
    return path.read_text().splitlines()


def lines(*numbers: int) -> list[str]:
    return [HEAD, *(f"line {number}" for number in numbers)]


CUT = Unreachable("cut")


@pytest.mark.parametrize(
    "answers",
    [
        [[stamped(1, 2, 3)]],
        [[stamped(1, 2)[:60], stamped(1, 2)[60:], stamped(3)]],
        [[stamped(1), stamped(2)[:20], CUT], [stamped(1, 2, 3)]],
        [[NotStarted("ContainerCreating")], [CUT], [stamped(1), CUT], [stamped(1), CUT], [stamped(1, 2, 3)]],
        [[b"unable to retrieve container logs for containerd://0123"], [stamped(1, 2, 3)]],
    ],
)
def test_each_line_comes_once(tmp_path: Path, answers: list[list[Any]]):
    assert read(tmp_path / "trainer.log", *answers) == lines(1, 2, 3)


def test_lines_that_are_alike_are_as_many_as_the_pod_said(tmp_path: Path):
    same = stamped(1) + stamped(2) * 3
    assert read(tmp_path / "trainer.log", [stamped(1) + stamped(2), CUT], [same]) == lines(1, 2, 2, 2)


def test_a_last_line_without_an_end_is_a_line(tmp_path: Path):
    assert read(tmp_path / "trainer.log", [stamped(1, 2)[:-1]]) == lines(1, 2)


def test_where_the_node_began_a_new_file_the_times_say_what_is_here(tmp_path: Path):
    assert read(tmp_path / "trainer.log", [stamped(1, 2, 3), CUT], [stamped(3, 4), CUT], [stamped(3, 4, 5)]) == lines(1, 2, 3, 4, 5)


def test_lines_that_are_nowhere_any_more_are_said_to_be_missing(tmp_path: Path):
    found = read(tmp_path / "trainer.log", [stamped(1, 2), CUT], [stamped(5, 6)])
    assert found == [*lines(1, 2), f"the node has cut the log of {POD} here: lines may be missing", "line 5", "line 6"]


def test_a_launcher_that_comes_after_another_adds_the_rest(tmp_path: Path):
    path = tmp_path / "trainer.log"
    path.write_text("before\n" + "\n".join(lines(1, 2)) + "\nli")
    assert read(path, [stamped(1, 2, 3)]) == ["before", *lines(1, 2, 3)]


def test_a_pod_that_is_gone_has_said_all_where_it_was_heard_to_its_end(tmp_path: Path):
    scripted: Any = Scripted([stamped(1), stamped(2)[:-1]], [Missing("no such pod")])
    PodLog(scripted, POD, tmp_path / "heard").join(10.0)
    assert (tmp_path / "heard").read_text().splitlines() == lines(1, 2)
    assert scripted.asked == [True, True]
    cut: Any = Scripted([stamped(1), CUT], [Missing("no such pod")])
    PodLog(cut, POD, tmp_path / "cut").join(10.0)
    assert (tmp_path / "cut").read_text().splitlines() == [*lines(1), f"{POD} is gone, and the last that it said may be missing: cut"]
    never: Any = Scripted([Missing("no such pod")])
    PodLog(never, POD, tmp_path / "never").join(10.0)
    assert "it was never read" in (tmp_path / "never").read_text()


def test_a_server_that_stays_away_keeps_nobody_for_ever_and_it_is_said(tmp_path: Path):
    scripted: Any = Scripted([stamped(1), CUT])
    log = PodLog(scripted, POD, tmp_path / "trainer.log")
    log.end()
    log.join(0.1)
    assert (tmp_path / "trainer.log").read_text().splitlines() == [*lines(1), f"the rest of what {POD} said could not be read: cut"]


SAYS = """
i=0; while [ $i -lt 40 ]; do i=$((i + 1)); echo "$HOST says $i"; [ $i = 20 ] && while [ ! -e GO ]; do sleep 0.02; done; done; printf last
"""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[ApiServer, str]]:
    with api_server(tmp_path, lambda _: []) as found:
        yield found


def pods_that_say(server: ApiServer, script: str) -> Pods:
    """Two pods that wait in the middle for a file."""
    container = {
        "command": ["/bin/sh", "-c", script.replace("GO", str(server.folder / "go"))],
        "env": [
            {"name": "HOST", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}}
        ],
        "volumeMounts": [],
    }
    pod = {
        "metadata": {"annotations": {"phasewise/launch": "one", "phasewise/hosts": "2"}},
        "spec": {"terminationGracePeriodSeconds": 1, "volumes": [], "containers": [container]},
    }
    job = {"name": "slice", "replicas": 1, "template": {"spec": {"completions": 2, "template": pod}}}
    server.create({"metadata": {"name": "phasewise-1"}, "spec": {"replicatedJobs": [job]}})
    return server.pods["phasewise-1"]


@pytest.mark.parametrize("faults", [[], ["400", "400", "503"], ["100", "300", "words", "700", "1300"]])
def test_from_a_server_that_gives_logs_as_a_node_does(served: tuple[ApiServer, str], tmp_path: Path, faults: list[str]):
    server, address = served
    cluster = Cluster("default", host=address)
    server.log_faults += faults
    pods = pods_that_say(server, SAYS)
    found = Logs(cluster, tmp_path)
    found.follow(pods.objects)
    found.follow(pods.objects)  # as the launcher asks again and again
    until(lambda: all((tmp_path / name).read_text().count("says 20\n") for name in ("trainer.log", "trainer-1.log")))
    (server.folder / "go").touch()
    until(lambda: all(code is not None for code in pods.codes))
    found.finish()
    for host, name in enumerate(("trainer.log", "trainer-1.log")):
        head, *said = (tmp_path / name).read_text().splitlines()
        assert head.startswith("what phasewise-1-slice-0-")
        assert said == [*(f"{host} says {number}" for number in range(1, 41)), "last"]
    assert not server.log_faults
    with pytest.raises(Missing):
        list(cluster.log("nobody", "trainer", follows=False))


def test_a_pod_that_says_nothing_for_long_is_asked_again_and_nothing_is_made_of_it(
    served: tuple[ApiServer, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    server, address = served
    monkeypatch.setattr(cluster_module, "LOG_SECONDS", 0.2)
    pods = pods_that_say(server, SAYS)
    found = Logs(Cluster("default", host=address), tmp_path)
    with caplog.at_level("INFO", "phasewise"):
        found.follow(pods.objects)
        until(lambda: len([path for _, path in server.asked if "/log" in path]) > 4)
        (server.folder / "go").touch()
        until(lambda: None not in pods.codes)
        found.finish()
    assert (tmp_path / "trainer.log").read_text().splitlines()[1:] == [*(f"0 says {number}" for number in range(1, 41)), "last"]
    assert not caplog.text


def until(holds: Callable[[], Any]) -> None:
    waits = threading.Event()
    for _ in range(3000):
        if holds():
            return
        waits.wait(0.02)
    raise AssertionError("it did not happen")
