"""A disk that becomes full at a file: where this folder is in PYTHONPATH, the first process that is about to write a file of the name in
PHASEWISE_TEST_FULL takes all room of the disk at PHASEWISE_TEST_DISK.

Python imports this file at every start. From then on the errors are the file system's own, in every process and in C++ as well.
"""

import fnmatch
import os
import sys
from contextlib import suppress

NAME, DISK = os.environ["PHASEWISE_TEST_FULL"], os.environ["PHASEWISE_TEST_DISK"]
FILLER = f"{DISK}/filler"
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def fill() -> None:
    """Leave not a block."""
    place = os.open(FILLER, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for size in (2**22, 2**16, 2**12):
        with suppress(OSError):
            while os.write(place, bytes(size)):
                pass
    os.close(place)


def look(event: str, arguments: tuple[object, ...]) -> None:
    """An audit hook (PEP 578)."""
    if event not in ("open", "os.mkdir", "sqlite3.connect"):
        return
    if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & WRITES):
        return
    path = str(arguments[0]).removeprefix("file:")
    if path.startswith(DISK) and not os.path.exists(FILLER) and fnmatch.fnmatch(path.removeprefix(DISK), NAME):
        fill()


sys.addaudithook(look)
