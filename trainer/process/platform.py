"""Where jax computes on a machine without an accelerator. It must be asked before anything imports jax.

With the compiler for TPUs installed (`libtpu`, for preflight), jax looks for a TPU at every start, and libtpu writes a page to standard
error where it finds none.
"""

import os
from collections.abc import Mapping, MutableMapping
from importlib.util import find_spec
from pathlib import Path

GOOGLE = "0x1ae0"
"""The vendor of TPUs on the PCI bus."""
TPU_DEVICES, GPU_DEVICES = ("dev/accel*", "dev/vfio/*"), ("dev/nvidia*", "dev/dxg", "dev/kfd")
TPU_VARIABLES = ("TPU_WORKER_HOSTNAMES", "TPU_ACCELERATOR_TYPE", "MEGASCALE_COORDINATOR_ADDRESS", "JAX_FORCE_TPU_INIT")


def spare_search(environment: MutableMapping[str, str] = os.environ, *, root: Path = Path("/")) -> None:
    """Say that jax computes on the CPU, where libtpu is installed, nobody said otherwise, and there is no sign of a TPU or GPU.

    Without libtpu there is nothing to spare, and jax decides by itself.
    """
    if "JAX_PLATFORMS" in environment or find_spec("libtpu") is None or has_accelerator(environment, root):
        return
    environment["JAX_PLATFORMS"] = "cpu"


def has_accelerator(environment: Mapping[str, str], root: Path) -> bool:
    """Whether anything looks like a TPU or a GPU: better one search too many."""
    devices = (path for pattern in (*TPU_DEVICES, *GPU_DEVICES) for path in root.glob(pattern))
    vendors = (path.read_text().strip() for path in root.glob("sys/bus/pci/devices/*/vendor"))
    return any(name in environment for name in TPU_VARIABLES) or next(devices, None) is not None or GOOGLE in vendors
