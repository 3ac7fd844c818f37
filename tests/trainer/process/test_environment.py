import ctypes
import importlib.util
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import pytest

from phasewise.trainer.base.errors import ConfigError, HostMissing
from phasewise.trainer.base.run_folder import ROLL_CALL_NAME, read_events
from phasewise.trainer.base.storage import write_json
from phasewise.trainer.process import accelerator, environment, rendezvous
from phasewise.trainer.process.environment import Conditions, check_environment, check_nothing_left_over, check_usual, conditions_of
from phasewise.trainer.process.rendezvous import Presence, check_alike, meet, present
from tests.trainer.conftest import MakeRun

LAUNCHED = {"PHASEWISE_LAUNCH": "a", "JAX_COORDINATOR_ADDRESS": "host:1", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "1"}
TWO_SLICES = {"PHASEWISE_SLICES": "2", "MEGASCALE_COORDINATOR_ADDRESS": "host", "MEGASCALE_NUM_SLICES": "2", "MEGASCALE_SLICE_ID": "1"}
BY_HAND = {"MEGASCALE_COORDINATOR_ADDRESS": "host"}  # on a multislice that jax asks for the rest


def test_what_is_left_over_or_missing_is_refused_by_name():
    for variables in ({"JAX_NUM_PROCESSES": "1"}, {**LAUNCHED, "MEGASCALE_NUM_SLICES": "1", "MEGASCALE_SLICE_ID": "0"}, {}, BY_HAND):
        check_environment(variables)
    check_environment({**LAUNCHED, **TWO_SLICES})
    for variables, named in (
        ({"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0"}, "JAX_NUM_PROCESSES=2 needs the address of process 0"),
        ({**LAUNCHED, "MEGASCALE_PORT": "8081"}, "one slice, found MEGASCALE_PORT=8081"),
        ({**LAUNCHED, **TWO_SLICES, "MEGASCALE_NUM_SLICES": "4"}, "has 2 slices .* MEGASCALE_NUM_SLICES=4"),
        ({**LAUNCHED, **TWO_SLICES, "MEGASCALE_SLICE_ID": "2"}, "has 2 slices .* MEGASCALE_SLICE_ID=2"),
        ({**LAUNCHED, "PHASEWISE_SLICES": "2"}, "has 2 slices .* found none of them"),
    ):
        with pytest.raises(ConfigError, match=named):
            check_environment(variables)


@pytest.mark.parametrize(
    ("given", "file", "platforms"),
    [
        ({}, "sys/bus/pci/devices/0000:00:04.0/vendor", "cpu"),
        ({"JAX_PLATFORMS": "tpu,cpu"}, "", "tpu,cpu"),
        *(({}, device, None) for device in ("dev/accel0", "dev/vfio/0", "dev/nvidia0", "dev/dxg", "dev/kfd")),
    ],
)
def test_without_a_sign_of_an_accelerator_jax_is_asked_to_use_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], file: str, platforms: str | None
):
    monkeypatch.setattr(accelerator, "find_spec", lambda name: importlib.util.find_spec("json") if name == "libtpu" else None)
    (tmp_path / file / "..").resolve().mkdir(parents=True, exist_ok=True)
    if file:
        (tmp_path / file).write_text("0x1af4\n")
    found = dict(given)
    accelerator.spare_search(found, root=tmp_path)
    assert found.get("JAX_PLATFORMS") == platforms


def test_the_pages_of_a_freed_buffer_are_reused_in_every_thread():
    program = """import resource, threading
from phasewise.trainer.process.accelerator import keep_freed_memory
def fill():
    b"x" * 10**8
    first = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    b"x" * 10**8
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - first)
keep_freed_memory()
threading.Thread(target=fill).start()"""
    if hasattr(ctypes.CDLL(None), "mallopt"):
        assert int(subprocess.check_output([sys.executable, "-c", program])) < 1_000, "a new page is a fault: 24,414 in 10^8 bytes"


def test_what_would_make_another_run_or_a_launch_another_is_refused_by_name_and_not_what_jax_has_by_itself():
    for name in (*LAUNCHED, "MEGASCALE_SLICE_ID", "MEGASCALE_PORT"):
        with pytest.raises(ConfigError, match=f"found {name}=7 in the environment, from another launch: unset it"):
            check_nothing_left_over({"HOME": "/", name: "7"})
    other = {
        "JAX_ENABLE_X64": "true", "JAX_DEFAULT_PRNG_IMPL": "rbg", "JAX_THREEFRY_PARTITIONABLE": "0", "JAX_RANDOM_SEED_OFFSET": "7",
        "JAX_NUMPY_DTYPE_PROMOTION": "strict", "JAX_NUMPY_RANK_PROMOTION": "raise",
    }  # fmt: skip
    for name, value in other.items():
        for check in (check_usual, check_environment, check_nothing_left_over):
            with pytest.raises(ConfigError, match=f"{name}={value} would change the initial weights or the types"):
                check({name: value})
    check_usual({**environment.USUAL, "JAX_ENABLE_X64": "False", "JAX_THREEFRY_PARTITIONABLE": "on", "JAX_RANDOM_SEED_OFFSET": ""})
    values = {name: jax.config.values[name.lower()] for name in other}
    assert {name: str(int(value) if isinstance(value, bool) else value) for name, value in values.items()} == environment.USUAL


def test_variables_that_may_change_bits():
    flags = "--xla_cpu_enable_fast_math=true --xla_force_host_platform_device_count=2 --xla_dump_to=/x"
    kept = {"JAX_DEFAULT_MATMUL_PRECISION": "high", "NVIDIA_TF32_OVERRIDE": "1"}
    given = {**kept, "XLA_FLAGS": flags, "HOME": "/", "JAX_PLATFORMS": "cpu", "JAX_COORDINATOR_ADDRESS": "here:1", "JAX_NUM_PROCESSES": "2"}
    assert environment.deciding_variables(given) == {**kept, "XLA_FLAGS": "--xla_cpu_enable_fast_math=true"}
    assert environment.deciding_variables({"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}) == {}


def test_every_field_of_conditions_is_compared():
    def here(platform: str = "gpu", device: str = "H100", processes: int = 1, **variables: str) -> Conditions:
        return conditions_of(variables, platform_name=platform, device=device, processes=processes)

    others = [here("tpu"), here(device="H200"), here(processes=2), here(XLA_FLAGS="--x")]
    others.append(here().but(versions={**environment.versions(), "jax": "0"}))
    assert len(others) == len(Conditions.model_fields)
    assert [len(here().differences(other)) for other in others] == [1] * len(others)
    assert here().differences(here(XLA_FLAGS="--x")) == ["XLA_FLAGS: not set → --x"]
    assert here("cpu", device="a").device == here("cpu", device="b").device, "jax calls every CPU the same; its processor is meant"


def test_a_run_that_goes_on_under_other_conditions_says_so(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch):
    run = make_run("conditions")
    assert environment.note_conditions(run, None) is None
    assert environment.note_conditions(run, 30) is None, "all is as it was"
    monkeypatch.setenv("JAX_DEFAULT_MATMUL_PRECISION", "highest")
    assert environment.note_conditions(run, None) is None, "it begins again"
    monkeypatch.delenv("JAX_DEFAULT_MATMUL_PRECISION")
    text = environment.note_conditions(run, 30) or ""
    assert "resuming from step 30 under other conditions" in text
    assert text.endswith("JAX_DEFAULT_MATMUL_PRECISION: highest → not set")
    assert [(event["kind"], event["step"], event["text"]) for event in read_events(run.output)] == [("replanned", 30, text)]
    found = environment.read_conditions(Path(run.output))
    assert found is not None
    assert "JAX_DEFAULT_MATMUL_PRECISION" not in found.variables


LAUNCH = {"PHASEWISE_LAUNCH": "first", "PHASEWISE_HOSTS": "alpha,beta,gamma"}


def test_hosts_that_are_alike_go_on(make_run: MakeRun):
    run = make_run("alike")
    present(run, 3, LAUNCH)  # Python 3.11 cannot parse files in several threads at once; each host has one
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda index: meet(run, index, 3, LAUNCH), range(3)))


def test_the_host_that_is_missing_is_named_within_a_minute(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rendezvous, "LOOK_SECONDS", 0.001)
    run, now = make_run("missing"), list[float]()

    def clock() -> float:
        now.append(5.0 * len(now))
        return now[-1]

    write_json(Path(run.output) / ROLL_CALL_NAME / "first" / "0.json", present(run, 3, LAUNCH).model_dump())
    with pytest.raises(HostMissing, match=r"3 hosts must join before training, found 2 after \d+ s: host 1 \(beta\) did not write"):
        meet(run, 2, 3, LAUNCH, clock=clock)
    assert now[-1] < 65.0
    assert HostMissing.exit_code == 5, "all are started again"


def host(**changes: Any) -> Presence:
    values: dict[str, Any] = {
        "host": "alpha", "pid": 1, "processes": 2, "code": "c0de", "run": "a" * 64, "execution": "b" * 64,
        "versions": {"jax": "0.10.2"}, "environment": {"XLA_FLAGS": "--one"},
    }  # fmt: skip
    return Presence.model_validate({**values, **changes})


def test_a_host_that_differs_is_refused_with_what_differs():
    check_alike([host(), host(pid=2, host="beta")], [])
    changes: list[tuple[dict[str, Any], str]] = [
        ({"code": "c0ffee"}, "code c0ffee, host 0 .alpha. c0de"), ({"run": "c" * 64}, "run cccccccccccc, host 0 .alpha. aaaaaaaaaaaa"),
        ({"execution": "c" * 64}, "execution cccccccccccc"), ({"processes": 4}, "processes 4, host 0 .alpha. 2"),
        ({"versions": {"jax": "0.10.1"}}, "jax 0.10.1, host 0 .alpha. 0.10.2"),
        ({"environment": {}}, "XLA_FLAGS not set, host 0 .alpha. --one"),
        ({"environment": {"XLA_FLAGS": "--one", "NCCL_DEBUG": "INFO"}}, "NCCL_DEBUG INFO, host 0 .alpha. not set"),
    ]  # fmt: skip
    for change, named in changes:
        with pytest.raises(ConfigError, match=rf"host 1 \(beta\) has {named}"):
            check_alike([host(), host(host="beta", **change)], [])
