"""The rendezvous of hosts before jax joins them: each host writes a file, and waits until all hosts are present and equal.

Files are used and not the coordinator's key-value store, because the coordinator may be missing, and a host without access to the run's
folder must not train. Each attempt (`PHASEWISE_LAUNCH`) has its own folder. `docs/reference/environment.md` has the variables.
"""

import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from phasewise.trainer.base.errors import ConfigError, HostMissing
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import code_digest, digest_of_json
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.storage import as_path, read_json, write_json
from phasewise.trainer.config import RunConfig
from phasewise.trainer.process.child_process import positive_seconds
from phasewise.trainer.process.environment import DECIDING, HOSTS_VARIABLE, LAUNCH_VARIABLE, versions

JOIN_VARIABLE, RENDEZVOUS_VARIABLE = "PHASEWISE_JOIN_SECONDS", "PHASEWISE_RENDEZVOUS"
CHECKPOINT_STORE_VARIABLE = "PHASEWISE_CHECKPOINT_STORE"
DEFAULT_JOIN_SECONDS = 50.0
NAMED_AFTER_SECONDS = 45.0  # the time after which a waiting host prints the missing hosts
LOOK_SECONDS = 0.1
PREFIXES = (
    *DECIDING, "MEGASCALE_", "PHASEWISE_STALL", "PHASEWISE_STOP", "PHASEWISE_HEARTBEAT", "PHASEWISE_SLICES", CHECKPOINT_STORE_VARIABLE,
)  # fmt: skip
OWN = frozenset({"JAX_PROCESS_ID", "JAX_LOCAL_DEVICE_IDS", "JAX_COMPILATION_CACHE_DIR", "MEGASCALE_SLICE_ID"})
"""Variables that may differ between hosts."""


class Presence(Frozen):
    """The description of a host. All fields but name and process id must be equal on all hosts."""

    host: str
    pid: int
    processes: int
    code: str
    run: str
    execution: str
    versions: dict[str, str]
    environment: dict[str, str]


def present(run: RunConfig, processes: int, environment: Mapping[str, str]) -> Presence:
    """Return the presence of this host."""
    return Presence(
        host=socket.gethostname(),
        pid=os.getpid(),
        processes=processes,
        code=code_digest("trainer/**/*.py"),
        run=run.digest,
        execution=digest_of_json([run.execution.model_dump(mode="json"), run.until_step]),
        versions=versions(),
        environment={name: value for name, value in sorted(environment.items()) if name.startswith(PREFIXES) and name not in OWN},
    )


def meet(run: RunConfig, index: int, count: int, environment: Mapping[str, str], *, clock: Callable[[], float] = time.monotonic) -> None:
    """Announce this process, wait for all others, and compare. Without a launch, or for a single process, do nothing."""
    launch = environment.get(LAUNCH_VARIABLE)
    if not launch or count == 1:
        return
    folder = as_path(environment.get(RENDEZVOUS_VARIABLE) or RunFolder(run.output).roll_calls / launch)
    write_json(folder / f"{index}.json", present(run, count, environment).model_dump())
    names = environment.get(HOSTS_VARIABLE, "").split(",")
    found: dict[int, Presence] = {}
    started, has_said = clock(), False
    limit = positive_seconds(environment, JOIN_VARIABLE, DEFAULT_JOIN_SECONDS)
    while True:
        for number in set(range(count)) - found.keys():
            with suppress(FileNotFoundError, ValueError):
                found[number] = Presence.model_validate(read_json(folder / f"{number}.json"))
        if len(found) == count:
            break
        waited = clock() - started
        missing = ", ".join(_named_host(number, names) for number in range(count) if number not in found)
        if waited > limit:
            raise HostMissing(
                f"{count} hosts must join before training, found {len(found)} after {waited:.0f} s: {missing} did not write to {folder}. "
                f"Check that it runs and has access to this folder. {JOIN_VARIABLE} sets the waiting time."
            )
        if waited > NAMED_AFTER_SECONDS and not has_said:
            print(f"trainer: still waiting for {missing}", file=sys.stderr, flush=True)
            has_said = True
        time.sleep(LOOK_SECONDS)
    check_alike([found[number] for number in range(count)], names)


def check_alike(hosts: list[Presence], names: list[str]) -> None:
    """Raise `ConfigError` with every difference of a host from the first host."""
    compared: list[dict[str, str]] = []
    for one in hosts:
        plain = {"processes": str(one.processes), "code": one.code, "run": one.run[:12], "execution": one.execution[:12]}
        compared.append(plain | one.versions | one.environment)
    first, first_name, differing = compared[0], _named_host(0, names, hosts[0]), list[str]()
    for number, (host, other) in enumerate(zip(hosts, compared, strict=True)):
        differing += [
            f"{_named_host(number, names, host)} has {what} {other.get(what, 'not set')}, {first_name} {first.get(what, 'not set')}"
            for what in sorted({**first, **other})
            if other.get(what) != first.get(what)
        ]
    if differing:
        raise ConfigError(f"all hosts of a run must be equal: {'; '.join(differing)}. Make them the same and start again.")


def forget_meetings(folder: Path) -> None:
    """Delete the rendezvous folders of earlier attempts but the newest, which may be of another launcher that just started."""
    meetings = sorted(RunFolder(folder).roll_calls.glob("*"), key=lambda path: path.stat().st_mtime)
    for meeting in meetings[:-1]:
        shutil.rmtree(meeting, ignore_errors=True)


def check_without_shared_folder(run: RunConfig) -> None:
    """Refuse a phase with `recovery`: a rollback needs whole checkpoints on every host, and each host has its shards only."""
    if run.recovery is not None:
        raise ConfigError(
            f"{run.phase} rolls back where its loss jumps (recovery), and hosts without a common folder cannot: a host has its own shards "
            "of a checkpoint only. Set recovery to null, or take a home in a folder that all hosts see."
        )


def _named_host(number: int, names: list[str], found: Presence | None = None) -> str:
    name = names[number] if number < len(names) and names[number] else found.host if found else ""
    return f"host {number} ({name})" if name else f"host {number}"
