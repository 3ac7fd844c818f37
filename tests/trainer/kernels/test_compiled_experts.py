"""The compiler for TPUs itself, on the experts by the kernel that `auto` takes there."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from phasewise.trainer.kernels.experts import choose


@pytest.mark.skipif(find_spec("libtpu") is None, reason="libtpu, the compiler for TPUs, is not installed")
def test_no_expert_is_multiplied_with_the_rows_of_another():
    """`jax.lax.ragged_dot` gives 8 here, the number of experts: which is why it is not taken."""
    command = [sys.executable, "-m", "tests.trainer.kernels.compiled_experts", choose("auto", "tpu"), "v5e:2x2"]
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}  # those are for this machine's CPU
    environment |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert 0.9 < float(done.stdout.splitlines()[-1]) < 1.2
