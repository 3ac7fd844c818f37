"""Several hosts behind real SSH servers on loopback: each has a port, a key and a home folder of its own, and runs commands."""

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import asyncssh

USER = "trainer"


class SshHosts:
    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ssh servers", daemon=True)
        self._thread.start()
        self._servers, self.names, self.processes = list[Any](), list[str](), list[asyncio.subprocess.Process]()
        self._connections: list[list[Any]] = [[] for _ in range(count)]
        client = asyncssh.generate_private_key("ssh-ed25519")
        self.known_hosts, self.key, self.allowed = (folder / name for name in ("known_hosts", "key", "authorized_keys"))
        client.write_private_key(str(self.key))
        client.write_public_key(str(self.allowed))
        self.known_hosts.write_text("".join([self._run(self._open(number)) for number in range(count)]))

    def cut(self, number: int) -> None:
        async def abort() -> None:
            for connection in self._connections[number]:
                connection.abort()
            self._connections[number].clear()

        self._run(abort())

    @property
    def at_work(self) -> int:
        return sum(process.returncode is None for process in self.processes)

    def close(self) -> None:
        async def end() -> None:
            for server in self._servers:
                server.close()
            for process in self.processes:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
            for connection in [one for connections in self._connections for one in connections]:
                connection.abort()

        self._run(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    async def _open(self, number: int) -> str:
        home = self.folder / f"host-{number}"
        home.mkdir()
        key = asyncssh.generate_private_key("ssh-ed25519")
        connections = self._connections[number]

        class Server(asyncssh.SSHServer):
            def connection_made(self, conn: Any) -> None:
                connections.append(conn)

        server = await asyncssh.create_server(
            Server, "127.0.0.1", 0, server_host_keys=[key], authorized_client_keys=str(self.allowed), encoding=None,
            process_factory=lambda process: self._serve(process, home),
        )  # fmt: skip
        self._servers.append(server)
        port = server.sockets[0].getsockname()[1]
        self.names.append(f"{USER}@127.0.0.1:{port}")
        return f"[127.0.0.1]:{port} {key.export_public_key().decode()}"

    async def _serve(self, asked: Any, home: Path) -> None:
        """One command, in a session of its own. A connection that ends closes its input, and does not end it: as OpenSSH does."""
        process: Any = await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", asked.command, stdin=-1, stdout=-1, stderr=asyncio.subprocess.STDOUT,
            env={"PATH": os.environ["PATH"], "HOME": str(home)}, start_new_session=True,
        )  # fmt: skip
        self.processes.append(process)

        async def pass_on_input() -> None:
            with suppress(Exception):  # the connection is gone, in whichever way
                while said := await asked.stdin.read(1024):
                    process.stdin.write(said)
            process.stdin.close()

        told = asyncio.ensure_future(pass_on_input())
        with suppress(Exception):
            while said := await process.stdout.read(2**16):
                with suppress(OSError):
                    asked.stdout.write(said)
        code = await process.wait()
        told.cancel()
        with suppress(OSError):
            if code < 0:
                asked.exit_with_signal(signal.Signals(-code).name.removeprefix("SIG"), False, "", "")
            else:
                asked.exit(code)


@contextmanager
def ssh_hosts(folder: Path, count: int) -> Iterator[SshHosts]:
    with closing(SshHosts(folder, count)) as hosts:
        yield hosts
