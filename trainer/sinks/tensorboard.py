"""TensorBoard's event files: an event a row, in a file for each life of the process."""

import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]  # protobuf makes it at import
from tensorboardX.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]  # the same
from tensorboardX.record_writer import RecordWriter

from phasewise.trainer.metrics import Row
from phasewise.trainer.sinks import values_to_send

PREFIX = "events.out.tfevents"
FILE_VERSION = "brain.Event:2"
HEADER = struct.Struct("<QI")
FOOTER_BYTES = 4


class TensorBoardSink:
    """Event files in `folder`. What is there already says which steps it has."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        found = sorted(folder.glob(f"{PREFIX}.*"))
        self._last_step = max((event.step for path in found for event in read_events(path)), default=0)
        # TensorBoard reads the files of a folder in the order of their names.
        path = folder / f"{PREFIX}.{int(time.time()):010d}.{len(found):05d}.{socket.gethostname()}.{os.getpid()}"
        self._writer = RecordWriter(str(path))
        self._append(Event(wall_time=time.time(), file_version=FILE_VERSION))

    @property
    def last_step(self) -> int:
        """The last step that is in one of the files."""
        return self._last_step

    def write(self, row: Row) -> None:
        """One event with a scalar for every number of the row; it is in the file when this returns."""
        values = [Summary.Value(tag=name, simple_value=value) for name, value in values_to_send(row).items()]
        self._append(Event(wall_time=time.time(), step=row["step"], summary=Summary(value=values)))
        self._last_step = row["step"]

    def close(self) -> None:
        """No more rows."""
        self._writer.close()

    def _append(self, event: Event) -> None:
        self._writer.write(event.SerializeToString())
        self._writer.flush()


def read_events(path: Path) -> Iterator[Event]:
    """The whole events of a file; one that a kill cut short ends it. (A record is length, checksum, bytes, checksum.)"""
    with open(path, "rb") as file:
        while len(header := file.read(HEADER.size)) == HEADER.size:
            length, _ = HEADER.unpack(header)
            content = file.read(length)
            if len(content) < length or len(file.read(FOOTER_BYTES)) < FOOTER_BYTES:
                return
            yield Event.FromString(content)
