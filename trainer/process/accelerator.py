"""Preparation of a process for JAX, before its import: platform and allocator."""

import ctypes
import os
from collections.abc import Mapping, MutableMapping
from importlib.util import find_spec
from pathlib import Path

GOOGLE = "0x1ae0"  # the vendor of TPUs on the PCI bus
DEVICES = ("dev/accel*", "dev/vfio/*", "dev/nvidia*", "dev/dxg", "dev/kfd")
TPU_VARIABLES = ("TPU_WORKER_HOSTNAMES", "TPU_ACCELERATOR_TYPE", "MEGASCALE_COORDINATOR_ADDRESS", "JAX_FORCE_TPU_INIT")


def keep_freed_memory() -> None:
    """Reuse freed buffers under glibc: otherwise each update has new pages, which the system clears. Call it before other threads start."""
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        for option, value in ((-8, 1), (-4, 0), (-1, -1)):  # one heap for all threads, no mapped buffers, no return of free memory
            mallopt(option, value)


def spare_search(environment: MutableMapping[str, str] = os.environ, *, root: Path = Path("/")) -> None:
    """Set JAX's platform to the CPU on a machine without TPU and GPU, before the import of JAX: libtpu's search prints a page of errors."""
    if "JAX_PLATFORMS" not in environment and find_spec("libtpu") is not None and not has_accelerator(environment, root):
        environment["JAX_PLATFORMS"] = "cpu"


def has_accelerator(environment: Mapping[str, str], root: Path) -> bool:
    """Return whether the machine may have a TPU or a GPU."""
    vendors = (path.read_text().strip() for path in root.glob("sys/bus/pci/devices/*/vendor"))
    has_device = any(next(root.glob(pattern), None) is not None for pattern in DEVICES)
    return any(name in environment for name in TPU_VARIABLES) or has_device or GOOGLE in vendors
