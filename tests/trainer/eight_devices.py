"""Starts a module as a process that has eight devices, which are this machine's CPU."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_on_eight_devices(worker: Path, *arguments: Path) -> None:
    """Its last words are the error where it fails."""
    environment = {
        **os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    done = subprocess.run([sys.executable, str(worker), *map(str, arguments)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
