"""Before the processes of a run join: each host says who it is in the run's folder, and each looks whether all are there and alike.

It goes by files, and not by the coordinator's store of keys: the coordinator is one of the hosts that may be missing, and a host that
does not see the run's folder must not train. Each life of a run (`PHASEWISE_LAUNCH`) has a folder of its own: what was said in an earlier
one does not count.
"""

import math
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from phasewise.trainer.base.code_digest import code_digest
from phasewise.trainer.base.errors import ConfigError, HostMissing
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import digest_of_json
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.storage import read_json, write_json
from phasewise.trainer.config import RunConfig
from phasewise.trainer.process.conditions import DECIDING, versions
from phasewise.trainer.process.surroundings import HOSTS_VARIABLE, LAUNCH_VARIABLE

JOIN_VARIABLE = "PHASEWISE_JOIN_SECONDS"
DEFAULT_JOIN_SECONDS = 50.0
NAMED_AFTER_SECONDS = 45.0
"""After so long a host that waits says for whom, also where it may wait longer."""
LOOK_SECONDS = 0.1
PREFIXES = (
    *DECIDING,
    "MEGASCALE_",
    "PHASEWISE_STALL",
    "PHASEWISE_STOP",
    "PHASEWISE_HEARTBEAT",
    "PHASEWISE_SLICES",
    "PHASEWISE_APART",
)
OWN = frozenset({"JAX_PROCESS_ID", "JAX_LOCAL_DEVICE_IDS", "JAX_COMPILATION_CACHE_DIR", "MEGASCALE_SLICE_ID"})
"""What may differ from host to host."""


class Presence(Frozen):
    """What a host says of itself. All but name and process id must be the same on all.

    Attributes:
        code: digest of the trainer's code, without comments and layout.
        run, execution: digests of what is trained, and of how, and how far, it is carried out.
    """

    host: str
    pid: int
    processes: int
    code: str
    run: str
    execution: str
    versions: dict[str, str]
    environment: dict[str, str]

    @property
    def compared(self) -> dict[str, str]:
        """What must be the same everywhere, by name."""
        plain = {"processes": str(self.processes), "code": self.code, "run": self.run[:12], "execution": self.execution[:12]}
        return plain | self.versions | self.environment


def present(run: RunConfig, processes: int, environment: Mapping[str, str]) -> Presence:
    """This host."""
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


def answer_roll_call(
    run: RunConfig, place: tuple[int, int] | None, environment: Mapping[str, str], *, clock: Callable[[], float] = time.monotonic
) -> None:
    """Say that this process is there, wait for all others, and compare. Without a launch, or alone, there is nothing to do.

    Args:
        place: which of how many processes this is.

    Raises:
        HostMissing: one does not come in time; it is named.
        ConfigError: one is not like the first; what differs is named.
    """
    launch = environment.get(LAUNCH_VARIABLE)
    if not launch or place is None or place[1] == 1:
        return
    index, count = place
    folder = RunFolder.at(run.output).roll_calls / launch
    write_json(folder / f"{index}.json", present(run, count, environment).model_dump())
    names = environment.get(HOSTS_VARIABLE, "").split(",")
    found: dict[int, Presence] = {}
    started, limit, has_said = clock(), join_seconds(environment), False
    while len(found) < count:
        found |= {number: one for number in range(count) if number not in found and (one := read_presence(folder, number))}
        waited = clock() - started
        missing = ", ".join(named_host(number, names) for number in range(count) if number not in found)
        if missing and waited > limit:
            raise HostMissing(
                f"{count} hosts must be there before training begins, found {len(found)} after {waited:.0f} s: {missing} did not come to "
                f"{folder}. Look whether it runs and sees this folder; {JOIN_VARIABLE} is how long it is waited for."
            )
        if missing and waited > NAMED_AFTER_SECONDS and not has_said:
            print(f"trainer: still waiting for {missing}", file=sys.stderr, flush=True)
            has_said = True
        if missing:
            time.sleep(LOOK_SECONDS)
    check_alike([found[number] for number in range(count)], names)


def check_alike(hosts: list[Presence], names: list[str]) -> None:
    """Refuse hosts that would not compute the same.

    Raises:
        ConfigError: with each that differs from the first, and in what.
    """
    first = hosts[0].compared
    first_name = named_host(0, names, hosts[0])
    differing: list[str] = []
    for number, host in enumerate(hosts):
        other = host.compared
        name = named_host(number, names, host)
        differing += [
            f"{name} has {what} {other.get(what, 'not set')}, {first_name} {first.get(what, 'not set')}"
            for what in sorted({**first, **other})
            if other.get(what) != first.get(what)
        ]
    if differing:
        raise ConfigError(f"all hosts of a run must be alike; {'; '.join(differing)}. Make them the same and start again.")


def forget_roll_calls(folder: Path) -> None:
    """Delete those of earlier lives of the run in this folder, but for the newest: another launcher may just have asked for that one."""
    calls = sorted(RunFolder(folder).roll_calls.glob("*"), key=lambda call: call.stat().st_mtime)
    for call in calls[:-1]:
        shutil.rmtree(call, ignore_errors=True)


def read_presence(folder: Path, number: int) -> Presence | None:
    """What a process has said; None where it has said nothing yet."""
    with suppress(FileNotFoundError, ValidationError, ValueError):
        return Presence.model_validate(read_json(folder / f"{number}.json"))
    return None


def named_host(number: int, names: list[str], found: Presence | None = None) -> str:
    """A host for people: its number, and its name where it is known."""
    name = names[number] if number < len(names) and names[number] else found.host if found else ""
    return f"host {number} ({name})" if name else f"host {number}"


def join_seconds(environment: Mapping[str, str]) -> float:
    """How long all hosts are waited for.

    Raises:
        ConfigError: the variable is no number above 0.
    """
    text = environment.get(JOIN_VARIABLE) or str(DEFAULT_JOIN_SECONDS)
    with suppress(ValueError):
        if 0 < (seconds := float(text)) < math.inf:
            return seconds
    raise ConfigError(f"{JOIN_VARIABLE} must be a number of seconds above 0, found '{text}'. Correct it, or leave it unset.")
