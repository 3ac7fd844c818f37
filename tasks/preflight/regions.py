"""Reads from a home in another region than the slice's: how many bytes a phase reads, and what they cost."""

import re
from pathlib import Path
from typing import Any

from phasewise.tasks.preflight.setup import Setup
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.storage import file_system_of

REGION = re.compile(r"[a-z]+(-[a-z]+\d+)")
"""A region, such as us-east5. The name of a place of several has no dash."""
GIB = 2**30
TOKENS_OF_TWO_BYTES = 2**16


class Reads(Frozen):
    """What a phase reads on one slice, from another region.

    Attributes:
        read_bytes: its tokens, once.
        usd_per_gib, usd: None where no price was given: stores change theirs, and none is kept here.
    """

    phase: str
    slice: str
    bucket_region: str
    slice_region: str
    read_bytes: int
    usd_per_gib: float | None
    usd: float | None


def region_of(home: Path) -> str | None:
    """Where the bucket of a home is, in small letters; None for a home on this machine.

    Raises:
        ConfigError: the store does not say.
    """
    store = file_system_of(home)
    if store is None:
        return None
    file_system: Any = store[0]
    name = store[1]
    bucket = name.split("/", 1)[0]
    try:
        return str(file_system.call("GET", "b/{}", bucket, json_out=True)["location"]).lower()
    except Exception as error:  # stores and credentials have error types of their own
        raise ConfigError(
            f"--region needs the location of the bucket {bucket}, and the store does not say it: {error}. Who asks needs the "
            "permission storage.buckets.get; or leave --region out."
        ) from error


def check_region(name: str) -> None:
    """Refuse what is no region's name.

    Raises:
        ConfigError: see above.
    """
    if not REGION.fullmatch(name):
        raise ConfigError(f"--region must be the region of the slice, such as us-east5, found {name!r}.")


def reads_between(setup: Setup, bucket_region: str, slice_region: str, usd_per_gib: float | None = None) -> Reads | None:
    """What a setup reads from another region; None where it is the same one.

    Args:
        usd_per_gib: the store's price of such reads.
    """
    if bucket_region == slice_region:
        return None
    step = setup.step
    width = 2 if step.model.vocab_size <= TOKENS_OF_TWO_BYTES else 4
    read_bytes = setup.steps * step.batch_sequences * step.model.seq_len * width
    return Reads(
        phase=setup.phase,
        slice=setup.slice,
        bucket_region=bucket_region,
        slice_region=slice_region,
        read_bytes=read_bytes,
        usd_per_gib=usd_per_gib,
        usd=None if usd_per_gib is None else usd_per_gib * read_bytes / GIB,
    )
