"""What of the environment decides what is computed: some of it is refused, the rest is written down and said."""

from collections.abc import Callable

import jax
import pytest

from phasewise.tasks.training import other_conditions
from phasewise.tasks.training.other_conditions import OtherConditions
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.config import RunConfig
from phasewise.trainer.events import read_events
from phasewise.trainer.process.conditions import USUAL, Conditions, check_usual, conditions_of, deciding_variables, versions
from phasewise.trainer.process.going_on import note_conditions, read_conditions
from phasewise.trainer.process.surroundings import check_nothing_left_over, check_surroundings

MakeRun = Callable[..., RunConfig]
OTHER = {
    "JAX_ENABLE_X64": "true",
    "JAX_DEFAULT_PRNG_IMPL": "rbg",
    "JAX_THREEFRY_PARTITIONABLE": "0",
    "JAX_RANDOM_SEED_OFFSET": "7",
    "JAX_NUMPY_DTYPE_PROMOTION": "strict",
    "JAX_NUMPY_RANK_PROMOTION": "raise",
}


@pytest.mark.parametrize(("name", "value"), OTHER.items())
def test_what_would_make_another_run_is_refused_by_name(name: str, value: str):
    for check in (check_usual, check_surroundings, check_nothing_left_over):
        with pytest.raises(ConfigError, match=f"{name}={value} would change what a run begins with"):
            check({name: value})


def test_what_jax_has_by_itself_is_not_refused():
    check_usual({**USUAL, "JAX_ENABLE_X64": "False", "JAX_THREEFRY_PARTITIONABLE": "on", "JAX_RANDOM_SEED_OFFSET": ""})
    assert set(OTHER) == set(USUAL)
    values = {name: jax.config.values[name.lower()] for name in USUAL}
    assert {name: str(int(value) if isinstance(value, bool) else value) for name, value in values.items()} == USUAL


def test_variables_that_may_change_bits():
    flags = "--xla_cpu_enable_fast_math=true --xla_force_host_platform_device_count=2 --xla_dump_to=/x"
    given = {"JAX_DEFAULT_MATMUL_PRECISION": "high", "NVIDIA_TF32_OVERRIDE": "1", "XLA_FLAGS": flags, "HOME": "/", "JAX_PLATFORMS": "cpu"}
    assert deciding_variables(given | {"JAX_COORDINATOR_ADDRESS": "here:1", "JAX_NUM_PROCESSES": "2"}) == {
        "JAX_DEFAULT_MATMUL_PRECISION": "high",
        "NVIDIA_TF32_OVERRIDE": "1",
        "XLA_FLAGS": "--xla_cpu_enable_fast_math=true",
    }
    assert deciding_variables({"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}) == {}


def test_every_field_of_conditions_is_compared():
    def here(platform: str = "gpu", device: str = "H100", processes: int = 1, **variables: str) -> Conditions:
        return conditions_of(variables, platform_name=platform, device=device, processes=processes)

    others = [here("tpu"), here(device="H200"), here(processes=2), here(XLA_FLAGS="--x"), here().but(versions={**versions(), "jax": "0"})]
    assert len(others) == len(Conditions.model_fields)
    assert [len(here().differences(other)) for other in others] == [1] * len(others)
    assert here().differences(here(XLA_FLAGS="--x")) == ["XLA_FLAGS: not set → --x"]
    assert here("cpu", device="a").device == here("cpu", device="b").device, "jax calls every CPU the same; its processor is meant"


def test_a_run_that_goes_on_under_other_conditions_says_so(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch):
    run, said = make_run("conditions"), list[str]()
    monkeypatch.setattr(other_conditions, "say", said.append)
    assert note_conditions(run, None) is None
    assert note_conditions(run, 30) is None, "all is as it was"
    monkeypatch.setenv("JAX_DEFAULT_MATMUL_PRECISION", "highest")
    assert note_conditions(run, None) is None, "it begins again"
    monkeypatch.delenv("JAX_DEFAULT_MATMUL_PRECISION")
    watch = OtherConditions(run)
    text = note_conditions(run, 30)
    assert text is not None
    assert "going on from step 30 under other conditions" in text
    assert text.endswith("JAX_DEFAULT_MATMUL_PRECISION: highest → not set")
    assert [(event["kind"], event["step"], event["text"]) for event in read_events(run.output)] == [("replanned", 30, text)]
    watch.look()
    watch.look()
    assert said == [f"{run.phase}: {text}"]
    found = read_conditions(watch._path.parent)  # pyright: ignore[reportPrivateUsage]
    assert found is not None
    assert "JAX_DEFAULT_MATMUL_PRECISION" not in found.variables
