"""Weights & Biases in a process of its own: rows handed over, and what its offline files hold, read by their description."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK_BYTES = 32768
FILE_HEADER = 7
RECORD_HEADER = struct.Struct("<IHB")
FULL, FIRST, LAST = 1, 2, 4


def deliver(run_file: str, steps: range) -> None:
    """One life of a run's process: these rows are written, or were before it."""
    import wandb

    from phasewise.trainer.recorder import open_sinks, send
    from phasewise.trainer.run import read_run

    sinks = open_sinks(read_run(Path(run_file)))
    send(sinks, [{"step": s, "loss": 1 / s, "grad_norm": None if s == 2 else float(s), "skipped": 0.0} for s in steps])
    for sink in sinks:
        sink.close()
    wandb.teardown()  # the service has written all of its file once it ends


def records(path: Path) -> Iterator[bytes]:
    """LevelDB's log format: blocks of 32 KiB, a record in one piece or from a first to a last one."""
    content = path.read_bytes()
    at = FILE_HEADER
    whole = b""
    while at + RECORD_HEADER.size <= len(content):
        if BLOCK_BYTES - at % BLOCK_BYTES < RECORD_HEADER.size:
            at += BLOCK_BYTES - at % BLOCK_BYTES
            continue
        _, length, kind = RECORD_HEADER.unpack_from(content, at)
        piece = content[at + RECORD_HEADER.size : at + RECORD_HEADER.size + length]
        whole = piece if kind in (FULL, FIRST) else whole + piece
        if kind in (FULL, LAST):
            yield whole
        at += RECORD_HEADER.size + length


def show(folder: str) -> None:
    """Print a line of JSON for every row of the history, in the order of the files."""
    from wandb.proto import wandb_internal_pb2

    record_type: Any = wandb_internal_pb2.Record  # pyright: ignore[reportAttributeAccessIssue]  # protobuf makes it at import
    for path in sorted(Path(folder).glob("wandb/offline-run-*/*.wandb")):
        for content in records(path):
            record = record_type.FromString(content)
            if record.WhichOneof("record_type") != "history":
                continue
            values = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            kept = {name: value for name, value in values.items() if not name.startswith("_")}
            print(json.dumps({"run": path.stem, "step": record.history.step.num or values.get("_step"), "values": kept}))
