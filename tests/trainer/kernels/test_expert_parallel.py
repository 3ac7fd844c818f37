from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from phasewise.trainer.base.storage import read_json
from tests.trainer.eight_devices import run_on_eight_devices

WORKER = Path(__file__).with_name("experts_on_eight_devices.py")
pytestmark = pytest.mark.timeout(600)  # some small programs are compiled; a busy machine may need minutes

LOADS = ("even", "uneven", "all to the same", "from one device")
DENSE = ("fsdp 8", "expert 8", "expert 2 fsdp 2 replica 2", "expert 2 tensor 2 fsdp 2")
CASES = [f"dense: {mesh}" for mesh in DENSE] + ["ragged: expert 4 fsdp 2"]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """Way and mesh → load → what differs."""
    path = tmp_path_factory.mktemp("experts") / "found.json"
    run_on_eight_devices(WORKER, path)
    return read_json(path)


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("case", CASES)
def test_results_and_gradients_are_those_of_one_device(found: Mapping[str, Any], case: str, load: str):
    measured = found[case][load]
    of_x, of_gates, *of_matrices = measured["gradients"]
    assert max(of_matrices) < 5e-5
    assert len(set(measured["overflowed"])) == 1
    if "tensor" in case:
        assert (measured["results"] < 1e-5, max(of_x, of_gates) < 2e-5) == (True, True)
    else:
        assert (measured["same_bits"], of_x, of_gates) == (True, 0, 0)


@pytest.mark.parametrize("mesh", DENSE[:2])
def test_ties_are_broken_as_on_one_device(found: Mapping[str, Any], mesh: str):
    alone, together = found[f"ties: {mesh}"]["counts"]
    assert (together, found[f"ties: {mesh}"]["same_bits"]) == (alone, True)
    assert min(alone[:3]) >= 64
    assert sum(alone) == 3 * 128
