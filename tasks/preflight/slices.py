"""Slices that a recipe may name, from `deployments/slices.toml`."""

import math
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Annotated, Self

from pydantic import Field, ValidationError, model_validator

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.frozen import Frozen, in_one_line
from phasewise.trainer.base.wording import near
from phasewise.trainer.config import Mesh
from phasewise.trainer.flops import peak_flops
from phasewise.trainer.preflight.spec import Platform, Speeds, Topology

PACKAGE, PLACE, TABLE = "phasewise.deployments", "deployments", "slices.toml"
COUNTED = re.compile(r"(?:(\d+)x )?(\S+)")
GIGA = 1e9


class Chip(Frozen):
    """A kind of chip with `devices` equal devices of JAX. Bandwidths are GB/s per chip, in one direction for networks and host."""

    platform: Platform = "tpu"
    device_kind: str
    peak_flops: float | None = Field(default=None, gt=0)  # bfloat16. None takes the value of trainer/flops.py
    usable: float = Field(default=1.0, gt=0, le=1)  # share of the memory, if the compiler reports no limit
    is_switched: bool = False  # all chips of a slice are connected at full speed, instead of a torus
    devices: int = Field(default=1, gt=0)
    chips_per_host: int = Field(gt=0)
    memory_gib: float = Field(gt=0)
    hbm_gbps: float = Field(gt=0)
    ici_gbps: float = Field(gt=0)
    dcn_gbps: float = Field(gt=0)
    host_gbps: float = Field(gt=0)
    host_memory_gib: float = Field(gt=0)
    topology: str | None = None
    chip_config: str | None = None
    host_bounds: tuple[int, int, int] | None = None
    source: str

    @property
    def speeds(self) -> Speeds:
        """Speeds of a device for the roofline."""
        peak = self.peak_flops or peak_flops(self.device_kind, "bfloat16")
        assert peak is not None, f"trainer/flops.py names no peak of {self.device_kind}"
        return Speeds(
            flops=peak,
            hbm_bytes=self.hbm_gbps * GIGA / self.devices,
            ici_bytes=self.ici_gbps * GIGA / self.devices,
            dcn_bytes=self.dcn_gbps * GIGA / self.devices,
            host_bytes=self.host_gbps * GIGA / self.devices,
        )

    @property
    def device_gib(self) -> float:
        """Memory of a device by the maker."""
        return self.memory_gib / self.devices


class Torus(Frozen):
    """Chip of a slice, and number of chips along each axis."""

    chip: str
    torus: tuple[Annotated[int, Field(gt=0)], ...] = Field(min_length=1)


class Table(Frozen):
    """Content of the file."""

    chips: dict[str, Chip]
    slices: dict[str, Torus]

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        for name, chip in self.chips.items():
            if chip.peak_flops is None and peak_flops(chip.device_kind, "bfloat16") is None:
                raise ValueError(f"chips.{name} must have peak_flops, because trainer/flops.py names no peak of {chip.device_kind!r}")
            if chip.platform == "tpu" and chip.topology is None:
                raise ValueError(f"chips.{name} must have a topology, the compiler's name of the chip")
        if unknown := [f"{name} of {torus.chip!r}" for name, torus in self.slices.items() if torus.chip not in self.chips]:
            raise ValueError(f"the chip of a slice must be one of {', '.join(self.chips)}, found {', '.join(unknown)}")
        return self


@dataclass(frozen=True)
class Slice:
    """`count` equal slices. `mesh`: replicas over slices, weights over the devices of a slice. `topology`: in the compiler's names."""

    name: str
    count: int
    chip: Chip
    torus: tuple[int, ...]
    chips_of_each: int
    chips: int
    devices_of_each: int
    devices: int
    hosts: int
    mesh: Mesh
    topology: Topology


@cache
def read_table() -> Table:
    """Read the file, or raise a ConfigError if it is missing or invalid."""
    try:
        return Table.model_validate(tomllib.loads(files(PACKAGE).joinpath(TABLE).read_text(encoding="utf-8")))
    except (FileNotFoundError, ModuleNotFoundError):
        raise ConfigError(f"{PLACE}/{TABLE} is missing: install Phasewise from its repository with `pip install -e .`.") from None
    except (tomllib.TOMLDecodeError, ValidationError) as error:
        raise ConfigError(f"{PLACE}/{TABLE} is invalid: {in_one_line(error)}") from None


def find_slice(name: str) -> Slice:
    """Return the slice of a name such as `v4-2048` or `2x v5e-256`, or raise a ConfigError."""
    table = read_table()
    found = COUNTED.fullmatch(name.strip())
    torus = table.slices.get(found.group(2)) if found else None
    if found is None or torus is None:
        raise ConfigError(
            f"no slice is called {name!r}, {near(name, list(table.slices))} Several slices are '2x v5e-256'. Add it to {PLACE}/{TABLE}."
        )
    count = int(found.group(1) or 1)
    if count < 1:
        raise ConfigError(f"a slice is at least one, found {name!r}.")
    chip, chips = table.chips[torus.chip], math.prod(torus.torus)
    devices = chips * chip.devices
    compiled_for = f"{chip.topology or chip.platform}:{'x'.join(map(str, torus.torus))}"
    if chip.platform == "tpu":
        topology = Topology(name=compiled_for, num_slices=count, chip_config=chip.chip_config, chips_per_host=chip.host_bounds)
    else:
        topology = Topology(name=compiled_for, num_slices=count, platform=chip.platform, devices=count * devices)
    return Slice(
        name=name.strip(),
        count=count,
        chip=chip,
        torus=torus.torus,
        chips_of_each=chips,
        chips=count * chips,
        devices_of_each=devices,
        devices=count * devices,
        hosts=count * -(-chips // chip.chips_per_host),  # slices share no host
        mesh=Mesh(replica=count, fsdp=devices, tensor=1),
        topology=topology,
    )
