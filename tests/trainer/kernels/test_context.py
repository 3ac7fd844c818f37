from pathlib import Path
from typing import Any

import pytest

from phasewise.trainer.base.storage import read_json, write_json
from tests.trainer.eight_devices import run_on_eight_devices

WORKER = Path(__file__).with_name("context_on_eight_devices.py")
pytestmark = pytest.mark.timeout(600)  # a process compiles small programs; a busy machine may need minutes

XLA = {"kernel": "xla", "length": 64, "mesh": {"context": 4, "tensor": 2}, "max_fused_blocks": None}
SPLASH = XLA | {"kernel": "splash", "length": 1024}
CASES: dict[str, dict[str, Any]] = {
    "all keys, documents": XLA | {"window": None, "documents": True},
    "a window within a part": XLA | {"window": 16, "documents": False},
    "a window within a part, documents": XLA | {"window": 17, "documents": True, "mesh": {"context": 2, "fsdp": 2, "tensor": 2}},
    "a window over parts": XLA | {"window": 18, "documents": False},
    "a row that the mesh does not divide": XLA | {"window": None, "documents": True, "length": 68},
    "splash, all keys": SPLASH | {"window": None, "documents": True},
    "splash, two backward kernels": SPLASH | {"window": None, "documents": False, "max_fused_blocks": 1},
    "splash, a window within a part": SPLASH | {"window": 100, "documents": False},
    "splash, a window over parts": SPLASH | {"window": 300, "documents": True},
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    """Case → the largest differences to one device, as shares of the largest number."""
    folder = tmp_path_factory.mktemp("attention")
    write_json(folder / "cases.json", list(CASES.values()))
    run_on_eight_devices(WORKER, folder / "cases.json", folder / "found.json")
    return dict(zip(CASES, read_json(folder / "found.json"), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_result_and_gradients_are_those_of_one_device(name: str, found: dict[str, dict[str, float]]):
    assert set(found[name]) == {"result", "query", "key", "value"}
    assert max(found[name].values()) < 2e-6
