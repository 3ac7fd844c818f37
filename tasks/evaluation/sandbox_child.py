"""Run one generated program with as few rights as the kernel allows. A script for `python -I -S` without Phasewise imports.

Standard input has one line of JSON with the program, its limits, its folder and a secret. The script prints a line of JSON with the active
guards and, only if the program finishes, the secret.
"""

import ctypes
import json
import os
import resource
import signal
import struct
import sys

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x20000, 0x08000000, 0x10000000, 0x20000000, 0x40000000
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
READ_FILE, READ_DIR = 1 << 2, 1 << 3
CHANGES_SINCE = {1: (1 << 13) - 1 - READ_FILE - READ_DIR, 2: 1 << 13, 3: 1 << 14, 5: 1 << 15}
"""Version of Landlock → rights to change or run files that it can deny (`linux/landlock.h`)."""
SIGNALS_AND_SOCKETS = 3
FORBIDDEN_EXIT = 77
FORBIDDEN = (
    "os.kill", "os.killpg", "os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "os.startfile", "os.remove",
    "os.rename", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown", "os.utime", "os.chflags", "os.setxattr",
    "os.removexattr", "os.mkdir", "os.chdir", "os.fchdir", "shutil.", "subprocess.", "socket.", "ctypes.", "pty.", "signal.pthread_kill",
    "sys.addaudithook", "resource.", "fcntl.", "syslog.", "webbrowser.", "urllib.", "ftplib.", "http.", "smtplib.", "mmap.",
)  # fmt: skip
"""Prefixes of Python's audit events that end a program."""


def main() -> None:
    """Restrict the process, and run the program."""
    given = json.loads(sys.stdin.readline())
    report = os.dup(1)
    libc = ctypes.CDLL(None, use_errno=True)
    kept = {"network": False, "processes": False}
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWNS) == 0:
        kept = {"network": True, "processes": True}
    child = os.fork()
    if child:
        os.close(report)
        os.waitpid(child, 0)
        os._exit(0)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The program has no input and no output
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    kept["files"] = guard_files(libc, given["folder"])
    os.write(report, (json.dumps(kept) + "\n").encode())
    for what, most in (
        (resource.RLIMIT_CPU, given["cpu_seconds"]),
        (resource.RLIMIT_AS, given["memory_bytes"]),
        (resource.RLIMIT_FSIZE, given["file_bytes"]),
        (resource.RLIMIT_NOFILE, 32),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))
    os.chdir(given["folder"])
    run(given["program"], given["secret"], given["folder"], report)


def guard_files(libc: ctypes.CDLL, folder: str) -> bool:
    """Deny changes and execution of files outside the folder by Landlock. Return whether the kernel supports it."""
    version = libc.syscall(LANDLOCK_CREATE, None, 0, 1)
    if version < 1:
        return False
    changes = sum(flags for since, flags in CHANGES_SINCE.items() if since <= version)
    scoped = SIGNALS_AND_SOCKETS if version >= 6 else 0
    network = 3 if version >= 4 else 0
    rules = struct.pack("QQQ", changes, network, scoped)[: 24 if version >= 6 else 16 if version >= 4 else 8]
    ruleset = libc.syscall(LANDLOCK_CREATE, rules, len(rules), 0)
    if ruleset < 0:
        return False
    place = os.open(folder, os.O_PATH)
    allowed = struct.pack("=Qi", changes & ~1, place)
    if libc.syscall(LANDLOCK_ADD, ruleset, 1, allowed, 0) or libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return False
    return libc.syscall(LANDLOCK_RESTRICT, ruleset, 0) == 0


def run(program: str, secret: str, folder: str, report: int) -> None:
    """Run the program and write the secret, unless it fails, exits or does something forbidden."""
    leave, write = os._exit, os.write
    inside = os.path.realpath(folder) + os.sep

    def watch(event: str, arguments: tuple) -> None:
        if event == "open":
            path, _mode, flags = arguments
            writes = (flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
            if not writes or (isinstance(path, str) and os.path.realpath(path).startswith(inside)):
                return
            leave(FORBIDDEN_EXIT)
        if event.startswith(FORBIDDEN):
            leave(FORBIDDEN_EXIT)

    code = compile(program, "<program>", "exec", dont_inherit=True)
    sys.argv = ["program"]
    sys.addaudithook(watch)
    try:
        exec(code, {"__name__": "__main__", "__builtins__": __builtins__})
    except BaseException:
        leave(1)
    write(report, secret.encode())
    leave(0)


if __name__ == "__main__":
    main()
