import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from phasewise.tasks import locks
from phasewise.tasks.locks import LEASE_VARIABLE, AlreadyHeld, Holder, held, held_all, holder_of, holding
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.storage import as_path, write_atomically
from tests.stores.fixtures import FaultyStore

HOLDER = """if True:
    import sys
    from phasewise.tasks.locks import held, holding
    from phasewise.trainer.base.storage import as_path
    with {}:
        print("held", flush=True)
        sys.stdin.read()
"""
HOLDING = HOLDER.format('holding(as_path(sys.argv[1]), "`phasewise up`", url="http://127.0.0.1:1/api")')
HOLD = HOLDER.format("held(as_path(sys.argv[1]))")
COUNT = """if True:
    import sys
    from phasewise.tasks.locks import held
    from phasewise.trainer.base.storage import as_path, read_json, write_json
    counter = as_path(sys.argv[2])
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(int(sys.argv[3])):
        with held(as_path(sys.argv[1])):
            write_json(counter, read_json(counter) + 1)
"""


@pytest.fixture(autouse=True)
def short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LEASE_VARIABLE, "2")


@contextmanager
def held_by_another(place: Path, program: str = HOLD) -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen([sys.executable, "-c", program, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout
            assert other.stdout.readline() == b"held\n"
            yield other
        finally:
            other.kill()


def is_free(place: Path) -> bool:
    try:
        with held(place, wait=False):
            return True
    except ConfigError as refusal:
        if f"another run is at work in {place.parent}: wait for it" not in str(refusal):
            raise
        return False


def test_one_holds_and_the_next_gets_it(store: Path):
    place = store / "locks" / "a b"
    for _ in range(2):
        with held(place) as still_held:
            assert still_held()
            assert not is_free(place)
            assert still_held()
    with pytest.raises(ValueError, match="work failed"), held(place, wait=False):
        raise ValueError("work failed")
    assert is_free(place)  # free after an error


def test_two_processes_contend_and_no_count_is_lost(store: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(LEASE_VARIABLE, "30")  # nobody dies here, and a busy machine shall not look like death
    counter = store / "count.json"
    counter.write_bytes(b"0")
    command = [sys.executable, "-c", COUNT, str(store / "lock"), str(counter), "10"]
    with ExitStack() as stack:
        start = partial(subprocess.Popen, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        processes = [stack.enter_context(start()) for _ in range(2)]
        assert [process.stdout.readline() for process in processes if process.stdout] == [b"ready\n"] * 2
        for process in processes:
            process.stdin.close() if process.stdin else None  # both begin now
    assert ([process.returncode for process in processes], counter.read_bytes()) == ([0, 0], b"20\n")


@pytest.mark.parametrize("wait", [pytest.param(True, marks=pytest.mark.long), False])
def test_the_lock_of_a_killed_holder_comes_free(store: Path, wait: bool, monkeypatch: pytest.MonkeyPatch):
    if "gs:" not in str(store):
        monkeypatch.setenv(LEASE_VARIABLE, "3600")  # here without a wait
    with held_by_another(store / "lock") as other:
        assert not is_free(store / "lock")
        other.kill()
        other.wait()
        with held(store / "lock", wait=wait) as still_held:
            assert still_held()


def test_a_lease_time_that_is_none_and_other_stores_are_refused(gcs: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ConfigError, match="for folders on this machine and for gs:// only"), held(as_path("memory://folder/lock")):
        pass
    for seconds in ("0", "-1", "abc", "nan", "inf"):
        monkeypatch.setenv(LEASE_VARIABLE, seconds)
        with pytest.raises(ConfigError, match=f"{LEASE_VARIABLE} must be .* above 0, found '{seconds}'"), held(gcs / "lock"):
            pass
    assert not (gcs / "lock").exists()


def test_of_those_who_come_at_once_one_holds(store: Path):
    def work(place: Path) -> None:
        gate.wait()
        with held(place):
            alone.append(inside.acquire(blocking=False))
            write_atomically(place.with_name("work"), b"takes a while")
            inside.release()

    alone: list[bool] = []
    for round_number in range(3):
        gate = threading.Barrier(4)
        inside = threading.Semaphore(1)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, [store / f"lock-{round_number}"] * 4))
    assert alone == [True] * 12


def test_all_of_several_are_held_whatever_their_order(store: Path):
    places, rounds = [store / "a", store / "b"], 5

    def work(order: list[Path]) -> None:
        for _ in range(rounds):
            with held_all(order) as still_held:
                assert still_held()
                done.append(order[0].name)

    done: list[str] = []
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, (places, places[::-1] + places)))
    assert sorted(done) == ["a"] * rounds + ["b"] * rounds
    with held(store / "b", wait=False), pytest.raises(ConfigError, match="another run"), held_all(places, wait=False):
        pass
    assert is_free(store / "a")  # what was taken before the refusal is free again


def test_a_holder_notices_that_its_lease_was_taken(gcs: Path):
    with ExitStack() as second:
        with held(gcs / "lock") as still_held:
            (gcs / "lock").unlink()
            second.enter_context(held(gcs / "lock"))
            while still_held():
                pass
        assert not is_free(gcs / "lock")


def test_a_lease_outlives_a_store_that_is_busy_for_a_while(faulty_store: FaultyStore):
    with held(faulty_store.root / "lock") as still_held:
        faulty_store.faults.refuse(method="PATCH", times=8)
        while faulty_store.faults.waiting:
            assert still_held()
        assert not is_free(faulty_store.root / "lock")
        faulty_store.faults.refuse(method="PATCH", times=1_000_000)
        while still_held():  # a holder without a store does not believe that it holds
            pass
    assert is_free(faulty_store.root / "lock")


@pytest.mark.parametrize("fault", ["refuse", "tear", "drop_reply"])
def test_a_fault_makes_no_second_holder_and_no_lock_for_ever(faulty_store: FaultyStore, fault: str):
    for method in ("POST", "GET", "PATCH", "DELETE"):
        getattr(faulty_store.faults, fault)(where="lock", method=method, times=2)
        with held(faulty_store.root / "lock") as still_held:
            assert still_held()
            assert not is_free(faulty_store.root / "lock")
        assert not (faulty_store.root / "lock").exists()
        faulty_store.faults.clear()


def test_a_lease_is_its_maker_s_although_he_never_heard_so(faulty_store: FaultyStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(LEASE_VARIABLE, "3600")  # taken for another's, it would be waited for
    faulty_store.faults.drop_reply(where="lock", method="POST", times=2)
    with held(faulty_store.root / "lock"):
        assert len(faulty_store.faults.happened) == 2


def waiting_clock(patch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that only waiting moves."""
    clock = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    clock.sleep = lambda seconds: setattr(clock, "now", clock.now + seconds)
    patch.setattr(locks, "time", clock)
    return clock


def test_what_dead_holders_left_runs_out_together(gcs: Path, monkeypatch: pytest.MonkeyPatch):
    places = [gcs / f"lock-{number}" for number in range(8)]
    for place in places:
        write_atomically(place, b"{}")
    monkeypatch.setenv(LEASE_VARIABLE, "30")
    clock = waiting_clock(monkeypatch)
    with held_all(places) as all_held:
        assert all_held()
    assert 30 <= clock.now < 60


def test_a_holder_with_a_longer_lease_time_is_waited_for(gcs: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(LEASE_VARIABLE, "60")
    lease = locks._Lease.at(gcs / "lock")  # pyright: ignore[reportPrivateUsage]
    assert lease is not None
    generation = lease.create()
    assert generation is not None
    for _ in range(2):  # as it was made, and after a sign of life
        found = lease.version()
        assert found is not None
        assert found.seconds == 60
        metadata = locks._metadata()  # pyright: ignore[reportPrivateUsage]
        lease.call("PATCH", ifGenerationMatch=generation, json={"metadata": {"beat": "1", **metadata}})
    monkeypatch.setenv(LEASE_VARIABLE, "10")
    clock = waiting_clock(monkeypatch)
    with held(gcs / "lock"):
        assert clock.now >= 60


def test_who_holds_it_is_said_until_he_is_gone_however_he_went(tmp_path: Path):
    place = tmp_path / "lock"
    assert holder_of(place) is None
    with held_by_another(place, HOLDING) as process:
        holder = holder_of(place)
        assert holder is not None
        assert (holder.what, holder.pid, holder.url) == ("`phasewise up`", process.pid, "http://127.0.0.1:1/api")
        said = rf"^`phasewise up` \(process {process.pid}, since .*\) is at work in {tmp_path}: wait for it"
        with pytest.raises(AlreadyHeld, match=said), holding(place, "a run"):
            raise AssertionError("entered twice")
        process.kill()
    assert holder_of(place) is None
    with holding(place, "a run"):
        assert str(holder_of(place)).startswith("a run (process ")
    with holding(place, "outer"):  # the process that holds it may enter again
        with holding(place, "inner"):
            pass
        assert str(holder_of(place)).startswith("outer ")
    assert holder_of(place) is None


def test_who_is_waited_for_is_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    place = tmp_path / "lock"
    named, looks = list[Holder](), list[float]()
    monkeypatch.setattr("phasewise.trainer.base.storage.PROBE_SECONDS", 0.0)
    with held_by_another(place, HOLDING) as process:

        def look_again(seconds: float) -> None:
            looks.append(seconds)
            if len(looks) == 5:
                process.kill()
                process.wait()

        monkeypatch.setattr("phasewise.tasks.locks.time.sleep", look_again)
        with holding(place, "a run", on_wait=named.append):
            assert str(holder_of(place)).startswith("a run ")
    assert (len(looks), [holder.pid for holder in named]) == (5, [process.pid])
