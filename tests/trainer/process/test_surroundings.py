"""What the environment says of other hosts, and what of it is left over from another launch."""

import pytest

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.process.surroundings import check_nothing_left_over, check_surroundings

LAUNCHED = {"PHASEWISE_LAUNCH": "a", "JAX_COORDINATOR_ADDRESS": "host:1", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "1"}
TWO_SLICES = {"PHASEWISE_SLICES": "2", "MEGASCALE_COORDINATOR_ADDRESS": "host", "MEGASCALE_NUM_SLICES": "2", "MEGASCALE_SLICE_ID": "1"}


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"JAX_NUM_PROCESSES": "1"},
        LAUNCHED,
        {**LAUNCHED, **TWO_SLICES},
        {**LAUNCHED, "MEGASCALE_NUM_SLICES": "1", "MEGASCALE_SLICE_ID": "0"},
        {"MEGASCALE_COORDINATOR_ADDRESS": "host"},  # by hand, on a multislice that jax asks for the rest
    ],
)
def test_what_belongs_together_is_taken(environment: dict[str, str]):
    check_surroundings(environment)


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0"}, "JAX_NUM_PROCESSES=2 needs the address of process 0"),
        ({**LAUNCHED, "MEGASCALE_COORDINATOR_ADDRESS": "old"}, "one slice, found MEGASCALE_COORDINATOR_ADDRESS=old"),
        ({**LAUNCHED, "MEGASCALE_PORT": "8081"}, "one slice, found MEGASCALE_PORT=8081"),
        ({**LAUNCHED, **TWO_SLICES, "MEGASCALE_NUM_SLICES": "4"}, "has 2 slices .* MEGASCALE_NUM_SLICES=4"),
        ({**LAUNCHED, **TWO_SLICES, "MEGASCALE_SLICE_ID": "2"}, "has 2 slices .* MEGASCALE_SLICE_ID=2"),
        ({**LAUNCHED, "PHASEWISE_SLICES": "2"}, "has 2 slices .* found none of them"),
    ],
)
def test_what_is_left_over_or_missing_is_refused_by_name(environment: dict[str, str], named: str):
    with pytest.raises(ConfigError, match=named):
        check_surroundings(environment)


@pytest.mark.parametrize(
    "name", ["JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "MEGASCALE_SLICE_ID", "MEGASCALE_PORT", "PHASEWISE_LAUNCH"]
)
def test_a_launcher_of_this_machine_refuses_what_it_would_set_itself(name: str):
    with pytest.raises(ConfigError, match=f"found {name}=7 in the environment, from another launch: unset it"):
        check_nothing_left_over({"HOME": "/", name: "7"})


def test_one_tpu_host_is_not_left_over():
    check_nothing_left_over({"TPU_WORKER_HOSTNAMES": "localhost", "HOME": "/"})
    with pytest.raises(ConfigError, match="TPU_WORKER_HOSTNAMES=a,b"):
        check_nothing_left_over({"TPU_WORKER_HOSTNAMES": "a,b"})
