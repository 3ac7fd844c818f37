"""Starts the trainer over ssh on every worker of one or several TPU slices.

Each host has a lock of its own, which its trainer holds: a TPU has one program at a time. The trainer ends when its connection does, and
where the connection is cut without an end, when nothing was heard for `PARENT_SECONDS`.
"""

import asyncio
import os
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phasewise.tasks.home import SCRATCH_VARIABLE
from phasewise.tasks.store.keeping import keeper_of
from phasewise.tasks.store.publisher import Kept
from phasewise.tasks.training.group import DONE_SECONDS, Group
from phasewise.tasks.training.hosts.gathering import GatheredAttempt, gathered
from phasewise.tasks.training.hosts.limits import SEND_VARIABLE, save_and_send_seconds, send_seconds
from phasewise.tasks.training.passed_on import passed_on
from phasewise.tasks.training.protocol import Life, log_of
from phasewise.tasks.training.tpu_vm.connections import Host, Loop, Worker, connect
from phasewise.trainer.base.errors import TrainingError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.process.child_process import python_command
from phasewise.trainer.process.parent import SILENT_VARIABLE
from phasewise.trainer.process.roll_call import forget_roll_calls
from phasewise.trainer.process.stopping import STOP_VARIABLE, stop_seconds
from phasewise.trainer.process.surroundings import HOSTS_VARIABLE, LAUNCH_VARIABLE, SLICES_VARIABLE

BUSY = 96
"""What the command ends with where another trainer has the host."""
START_SECONDS = 60.0
PARENT_SECONDS = 60.0
BUSY_LOOK_SECONDS = 1.0
SENT_SECONDS = 600.0
"""How long hosts that send what they have on their own may end after the first one that is done."""
LOCK = '"$HOME/.phasewise-trainer.lock"'
OWNER = '"$HOME/.phasewise-trainer.owner"'


class Workers(Frozen):
    """The hosts of a run, all of which see its folder under the same path, or reach the store that its home is on.

    Attributes:
        slices: the workers of each slice in order, as ssh names them: `[user@]name[:port]`.
        python: of the environment that trains, on every host.
        project: the folder of this project on every host.
        port: of the coordinator, on the first host.
        known_hosts: the file that has the hosts' keys; None is the user's own.
        key: the private key that opens the hosts; None is what the user's ssh would try.
        scratch: where hosts have their part of the work of a home on a store; None is each user's cache folder.
        environment: variables of every process.
    """

    slices: tuple[tuple[str, ...], ...]
    python: str
    project: str
    port: int = 8476
    known_hosts: Path | None = None
    key: Path | None = None
    scratch: str | None = None
    environment: Mapping[str, str] = {}

    @property
    def hosts(self) -> list[Host]:
        """All of them, in the order of the processes."""
        return [Host.parse(name) for one in self.slices for name in one]


class TpuVmLauncher:
    """Workers that are reached by ssh."""

    kind = "tpu_vm"

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def clear(self, folder: Path) -> None:
        """Nothing: hosts end with their connection."""

    def owner(self, folder: Path) -> str | None:
        """Nobody, as far as the folder is concerned: whoever has the hosts is named when they are asked for."""
        return None

    def start(self, life: Life) -> "SshGroup | GatheredAttempt":
        """See `Launcher`. Where the home is on a store, hosts have folders of their own."""
        keeper = keeper_of(life.folder)
        if keeper is None:
            return self._begun_on_hosts(life, None, DONE_SECONDS)
        return gathered(keeper, life, len(self._workers.hosts), lambda kept: self._begun_on_hosts(life, kept, SENT_SECONDS))

    def _begun_on_hosts(self, life: Life, kept: Kept | None, done_seconds: float) -> "SshGroup":
        loop = Loop()
        forget_roll_calls(life.folder)
        try:
            return SshGroup(life.folder, loop, loop.run(self._started(life, loop, kept)), done_seconds)
        except BaseException:
            loop.close()
            raise

    async def _started(self, life: Life, loop: Loop, kept: Kept | None) -> list[Worker]:
        """The program on all hosts, or on none."""
        commands = list(zip(self._workers.hosts, self.commands(life, kept), strict=True))
        found = await asyncio.gather(
            *(self._start(life, loop, number, host, command) for number, (host, command) in enumerate(commands)), return_exceptions=True
        )
        failed = [one for one in found if isinstance(one, BaseException)]
        workers = [one for one in found if isinstance(one, Worker)]
        if failed:
            for worker in workers:
                await worker._kill()  # pyright: ignore[reportPrivateUsage]  # from within the loop
                await worker._close()  # pyright: ignore[reportPrivateUsage]
            raise failed[0]
        return workers

    async def _start(self, life: Life, loop: Loop, number: int, host: Host, command: str) -> Worker:
        connection = await connect(host, self._workers.known_hosts, self._workers.key)
        log = log_of(life.folder, number)
        try:
            process, pid = await asyncio.wait_for(self._begun(life, connection, host, command), START_SECONDS + _patience())
        except BaseException as error:
            connection.abort()
            if isinstance(error, TimeoutError):
                raise TrainingError(f"{host} did not start the trainer within {START_SECONDS:.0f} s: look at it by ssh.") from None
            raise
        return Worker(loop, connection, process, host, log, pid, log_before=log.stat().st_size if log.exists() else 0)

    async def _begun(self, life: Life, connection: Any, host: Host, command: str) -> tuple[Any, int]:
        """The process and its id. A host that this launcher's own last life still has is waited for."""
        until = time.monotonic() + _patience()
        while True:
            process = await connection.create_process(command, encoding=None, stderr=asyncio.subprocess.STDOUT)
            said = (await process.stdout.readline()).decode(errors="replace").strip()
            if said.startswith("pid "):
                return process, int(said.removeprefix("pid "))
            await process.wait_closed()
            if process.exit_status != BUSY:
                raise TrainingError(f"{host} did not start the trainer: it said '{said}' and ended with {process.exit_status}.")
            if said.removeprefix("busy ") != life.owner or time.monotonic() > until:
                other = said.removeprefix("busy ") or "another program"
                raise TrainingError(f"{host} has a trainer already, of {other}: a TPU has one program at a time. Wait for it, or stop it.")
            await asyncio.sleep(BUSY_LOOK_SECONDS)

    def commands(self, life: Life, kept: Kept | None = None) -> list[str]:
        """Of each host, for its shell, which becomes the trainer; with `kept` the program that brings and sends what the trainer has."""
        workers = self._workers
        first = workers.hosts[0].name
        shared = {
            **passed_on(os.environ),
            **({SCRATCH_VARIABLE: workers.scratch} if workers.scratch else {}),
            **workers.environment,
            "JAX_COORDINATOR_ADDRESS": f"{first}:{workers.port}",
            "JAX_NUM_PROCESSES": str(len(workers.hosts)),
            LAUNCH_VARIABLE: life.name,
            SLICES_VARIABLE: str(len(workers.slices)),
            HOSTS_VARIABLE: ",".join(map(str, workers.hosts)),
            SILENT_VARIABLE: f"{PARENT_SECONDS:g}",
            STOP_VARIABLE: f"{stop_seconds():g}",
            **({SEND_VARIABLE: f"{send_seconds():g}"} if kept is not None else {}),
        }
        if len(workers.slices) > 1:
            shared |= {"MEGASCALE_COORDINATOR_ADDRESS": first, "MEGASCALE_NUM_SLICES": str(len(workers.slices))}
        places = [number for number, one in enumerate(workers.slices) for _ in one]
        return [
            self._command(
                life, kept, {**shared, "JAX_PROCESS_ID": str(index), **({"MEGASCALE_SLICE_ID": str(of)} if len(workers.slices) > 1 else {})}
            )
            for index, of in enumerate(places)
        ]

    def _command(self, life: Life, kept: Kept | None, environment: Mapping[str, str]) -> str:
        variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
        owner = shlex.quote(life.owner)
        program = ["phasewise.trainer", str(life.run_file), "--with-parent"]
        if kept is not None:
            program = [
                "phasewise.tasks.training.hosts",
                str(kept.store),
                kept.run_name,
                Path(life.run.output).name,
                str(kept.work),
                "--python",
                self._workers.python,
            ]
        return (
            f'exec 9>>{LOCK} && {{ flock -n 9 || {{ echo "busy $(cat {OWNER})"; exit {BUSY}; }}; }} && echo {owner} >{OWNER} && '
            f"cd {shlex.quote(self._workers.project)} && export {variables} && "
            f'echo "pid $$" && exec {shlex.join(python_command(*program, python=self._workers.python))}'
        )


class SshGroup(Group):
    """The trainers on all hosts, and the thread that talks to them."""

    def __init__(self, folder: Path, loop: Loop, workers: list[Worker], done_seconds: float = DONE_SECONDS) -> None:
        super().__init__(folder, done_seconds=done_seconds)
        self._loop = loop
        for worker in workers:
            self.add(worker)

    def close(self) -> None:
        """See `Attempt`."""
        super().close()
        self._loop.close()


def _patience() -> float:
    """How long the last life of this launcher may still have a host: until it hears nothing, and has saved."""
    return PARENT_SECONDS + save_and_send_seconds()
