"""A checkpoint that several hosts write into folders of their own: each has a share of its files, and the union is the checkpoint.

Orbax writes such a checkpoint as zarr: a file for each piece of a leaf, written by the host that has the piece. Its usual format, OCDBT,
has one index over the files of all hosts, which a host can only make that sees all of them.
"""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import orbax.checkpoint as ocp

from phasewise.trainer.base.errors import StorageError
from phasewise.trainer.base.storage import read_json
from phasewise.trainer.base.wording import name_some
from phasewise.trainer.checkpoints.files import Digests

ARRAY_NAME = ".zarray"
"""Beside the pieces of a leaf: its shape, and that of a piece. The first host alone writes it."""
STATE = "state"
MAX_NAMED = 3


def build_writer(*, is_apart: bool) -> ocp.AsyncCheckpointer:
    """What writes checkpoints, in the background. Where hosts are apart each makes the folder, and none looks for another's files."""
    if not is_apart:
        return ocp.AsyncCheckpointer(ocp.CompositeCheckpointHandler(state=ocp.PyTreeCheckpointHandler(), about=ocp.JsonCheckpointHandler()))
    everyone = ocp.options.MultiprocessingOptions(primary_host=None)
    # Folders are made before anything is written: Orbax has one signal for all hosts that they are there, and the first host gives it
    at_once = ocp.options.AsyncOptions(create_directories_asynchronously=False)
    # Orbax's own registry is one for the whole process: whoever reads a checkpoint meanwhile says there again that host 0 makes folders
    arrays = ocp.type_handlers.create_type_handler_registry((jax.Array, ocp.type_handlers.ArrayHandler()))
    return ocp.AsyncCheckpointer(
        ocp.CompositeCheckpointHandler(
            composite_options=ocp.CompositeOptions(multiprocessing_options=everyone, async_options=at_once),
            state=ocp.PyTreeCheckpointHandler(use_ocdbt=False, multiprocessing_options=everyone, type_handler_registry=arrays),
            about=ocp.JsonCheckpointHandler(multiprocessing_options=everyone),
        ),
        async_options=at_once,
        multiprocessing_options=everyone,
    )


def united(checkpoint: Path, shares: Sequence[Digests]) -> Digests:
    """The files of the whole checkpoint: of what several hosts wrote the first one's counts, unless it is a piece of a leaf.

    Args:
        checkpoint: on this host.
        shares: of each host, in their order.

    Raises:
        StorageError: two hosts wrote different pieces under one name, or nobody wrote a piece.
    """
    files: dict[str, tuple[int, str]] = {}
    for number, share in enumerate(shares):
        for name, said in share.items():
            if files.setdefault(name, said) != said and _is_piece(name):
                raise StorageError(f"{checkpoint}/{name} was written by host {number}, too, with other bytes. Start the run again.")
    if missing := _missing_pieces(checkpoint, files):
        raise StorageError(
            f"{checkpoint} lacks pieces that no host wrote: {name_some(missing, MAX_NAMED)}. The checkpoint before it is kept. Start the "
            "run again."
        )
    return dict(sorted(files.items()))


def as_text(share: Digests) -> str:
    """A host's share, to be told to the others."""
    return json.dumps(share)


def from_text(text: str) -> Digests:
    """What another host told."""
    return {name: (int(size), str(digest)) for name, (size, digest) in json.loads(text).items()}


def _is_piece(name: str) -> bool:
    """Whether it is a piece of a leaf: `state/LEAF/0.1`."""
    parts = name.split("/")
    return len(parts) == 3 and parts[0] == STATE and all(part.isdecimal() for part in parts[2].split("."))


def _missing_pieces(checkpoint: Path, files: Mapping[str, object]) -> list[str]:
    """Of the leaves whose shape this host wrote. A piece that is not there would be read as zeros."""
    missing: list[str] = []
    for described in sorted((checkpoint / STATE).glob(f"*/{ARRAY_NAME}")):
        leaf = read_json(described)
        counts = [math.ceil(size / piece) for size, piece in zip(leaf["shape"], leaf["chunks"], strict=True)]
        places = [".".join(map(str, place)) for place in itertools.product(*map(range, counts))]
        names = [f"{STATE}/{described.parent.name}/{place or '0'}" for place in places]
        missing += [name for name in names if name not in files]
    return missing
