import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import asyncssh
import pytest

from phasewise.tasks.training.launchers import ProcessGroup
from phasewise.tasks.training.tpu_vm import Host, TpuVmLauncher, Workers
from phasewise.trainer.base.errors import ConfigError, TrainingError
from phasewise.trainer.base.run_folder import RunFolder
from tests.tasks.training.conftest import PATIENCE_SECONDS, BareLife, are_here, pid_said_by, until
from tests.tasks.training.ssh_hosts import SshHosts, ssh_hosts


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[SshHosts]:
    with ssh_hosts(tmp_path, 2) as found:
        yield found


@pytest.fixture
def workers(hosts: SshHosts, stand_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workers:
    monkeypatch.setattr("phasewise.tasks.training.launchers.GRACE_SECONDS", 0.5)
    return Workers(slices=(tuple(hosts.names),), python=str(stand_in), project=str(tmp_path), known_hosts=hosts.known_hosts, key=hosts.key)


def ended(group: ProcessGroup) -> int:
    until(lambda: group.look() is not None)
    code = group.look()
    group.close()
    assert code is not None
    return code


def test_a_refusal_of_one_host_ends_all_and_is_repeated(hosts: SshHosts, workers: Workers, bare_life: BareLife):
    life = bare_life()
    (life.folder / "end-1").write_text("3")
    assert ended(TpuVmLauncher(workers).start(life)) == 3
    assert hosts.at_work == 0
    assert RunFolder(life.folder).log(0).read_text().endswith(f"host 1 ({Host.parse(hosts.names[1])}) ended diverged: the reason of 1\n")


def test_the_process_ends_when_its_connection_dies(hosts: SshHosts, workers: Workers, bare_life: BareLife):
    life = bare_life()
    group = TpuVmLauncher(workers).start(life)
    until(lambda: are_here(life))
    hosts.cut(1)
    until(lambda: hosts.at_work == 1)
    assert ended(group) == 5
    assert hosts.at_work == 0
    assert f"the connection to {Host.parse(hosts.names[1])} broke off" in RunFolder(life.folder).log(0).read_text()


def test_a_host_that_another_has_is_refused_and_the_other_host_is_left(hosts: SshHosts, workers: Workers, bare_life: BareLife):
    group = TpuVmLauncher(workers).start(bare_life(owner="the first"))
    with pytest.raises(TrainingError, match="has a trainer already, of the first: a TPU has one program at a time"):
        TpuVmLauncher(workers).start(bare_life(owner="the second"))
    assert hosts.at_work == 2
    assert group.look() is None
    group.kill()
    group.close()
    until(lambda: hosts.at_work == 0)


def test_what_is_left_of_the_own_last_life_is_waited_for(hosts: SshHosts, workers: Workers, bare_life: BareLife):
    life = bare_life()
    (life.folder / "end-0").write_text("deaf")
    first = TpuVmLauncher(workers).start(life)
    until(lambda: are_here(life))
    pids, group = [pid_said_by(life, number) for number in (0, 1)], list[ProcessGroup]()
    thread = threading.Thread(target=lambda: group.append(TpuVmLauncher(workers).start(bare_life())))
    thread.start()
    until(lambda: len(hosts.processes) > 2)
    for number in (0, 1):
        os.kill(pids[number], signal.SIGKILL)
    thread.join(PATIENCE_SECONDS)
    assert group
    for one in (first, group[0]):
        one.kill()
        one.close()


def test_hosts_that_cannot_start_the_trainer_or_have_another_key_are_refused(hosts: SshHosts, workers: Workers, bare_life: BareLife):
    with pytest.raises(TrainingError, match=r"127\.0\.0\.1:\d+ did not start the trainer: it said '.*/nowhere"):
        TpuVmLauncher(workers.model_copy(update={"project": "/nowhere"})).start(bare_life())
    lines = hosts.known_hosts.read_text().splitlines()
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    hosts.known_hosts.write_text(f"{lines[0]}\n{lines[1].partition(' ')[0]} {other}")
    with pytest.raises(ConfigError, match=r"the key of 127\.0\.0\.1:\d+ is unknown or has changed .*compare the fingerprint"):
        TpuVmLauncher(workers).start(bare_life())
    until(lambda: hosts.at_work == 0)


def test_what_processes_are_started_with_and_what_is_no_host(bare_life: BareLife, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "old:1")
    monkeypatch.setenv("XLA_FLAGS", "--a --b='c d'")
    workers = Workers(slices=(("me@a:2222", "b"), ("c", "d")), python="/p y/python", project="/project")
    commands = TpuVmLauncher(workers).commands(bare_life())
    assert [f"JAX_PROCESS_ID={number} " in command + " " for number, command in enumerate(commands)] == [True] * 4
    assert [f"MEGASCALE_SLICE_ID={number}" in commands[2 * number + 1] for number in (0, 1)] == [True, True]
    for command in commands:
        assert "JAX_COORDINATOR_ADDRESS=a:8476" in command
        assert "old:1" not in command
        assert "MEGASCALE_NUM_SLICES=2" in command
        assert "PHASEWISE_HOSTS=a:2222,b,c,d" in command
        assert "'/p y/python' -P -m phasewise.trainer" in command
    for text in ("", "me@", "host:ssh"):
        with pytest.raises(ConfigError, match="must be written"):
            Host.parse(text)
