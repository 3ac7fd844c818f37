"""Reads from a home in another region than the slice's: how many bytes a phase reads, and what they cost."""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from tasks.preflight.setup import Setup
from trainer.base.errors import ConfigError
from trainer.base.frozen import Frozen
from trainer.base.storage import file_system_of

PLACE, TABLE = "deployments", "regions.toml"
REGION = re.compile(r"[a-z]+(-[a-z]+\d+)")
"""A region, such as us-east5. The name of a place of several has no dash."""
GIB = 2**30
TOKENS_OF_TWO_BYTES = 2**16


class Prices(Frozen):
    """The table.

    Attributes:
        as_of: the month of its figures.
        continents: beginning of a location's name → continent.
        usd_per_gib: continent of the bucket → that of the reader → price.
    """

    as_of: str
    continents: Mapping[str, str]
    usd_per_gib: Mapping[str, Mapping[str, float]]


class Reads(Frozen):
    """What a phase reads on one slice, from another region.

    Attributes:
        read_bytes: its tokens, once.
        usd_per_gib, usd: None where no price is known.
        as_of: the month of the price; empty where it was given.
    """

    phase: str
    slice: str
    bucket_region: str
    slice_region: str
    read_bytes: int
    usd_per_gib: float | None
    usd: float | None
    as_of: str


@cache
def read_prices() -> Prices:
    """What the file says."""
    return Prices.model_validate(tomllib.loads(files(PLACE).joinpath(TABLE).read_text(encoding="utf-8")))


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
        usd_per_gib: a price in the place of the table's.
    """
    if bucket_region == slice_region:
        return None
    step = setup.step
    width = 2 if step.model.vocab_size <= TOKENS_OF_TWO_BYTES else 4
    read_bytes = setup.steps * step.batch_sequences * step.model.seq_len * width
    prices = read_prices()
    price = price_between(prices, bucket_region, slice_region) if usd_per_gib is None else usd_per_gib
    return Reads(
        phase=setup.phase,
        slice=setup.slice,
        bucket_region=bucket_region,
        slice_region=slice_region,
        read_bytes=read_bytes,
        usd_per_gib=price,
        usd=None if price is None else price * read_bytes / GIB,
        as_of=prices.as_of if usd_per_gib is None else "",
    )


def price_between(prices: Prices, bucket_region: str, slice_region: str) -> float | None:
    """US dollars a GiB; None where the table has none."""
    bucket, reader = (_continent(prices, name) for name in (bucket_region, slice_region))
    return prices.usd_per_gib.get(bucket, {}).get(reader)


def _continent(prices: Prices, location: str) -> str:
    beginning = re.match(r"[a-z]*", location)
    return prices.continents.get(beginning[0] if beginning else "", "")
