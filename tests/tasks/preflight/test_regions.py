"""Reads from another region: which bytes, and what they cost."""

from pathlib import Path

import pytest

from phasewise.flows.recipes import load_recipe
from phasewise.tasks.preflight.plan import Setup, step_shape
from phasewise.tasks.preflight.report import check_region, reads_between, region_of
from phasewise.trainer.base.errors import ConfigError
from tests.stores.emulator import the_emulator
from tests.stores.fixtures import FaultyStore

SETUP = Setup(
    phase="mantis",
    slice="v6e-8",
    stretches=((0, 100), (200, 300)),
    step=step_shape(load_recipe("marin-32b", "full").phase("mantis"), 4096),
)


@pytest.mark.parametrize(("vocab_size", "width"), [(2**16, 2), (2**16 + 1, 4)])
def test_a_phase_reads_each_token_of_its_steps_once(vocab_size: int, width: int):
    step = SETUP.step.but(model=SETUP.step.model.but(vocab_size=vocab_size))
    found = reads_between(SETUP.but(step=step), "us-central1", "europe-west4")
    assert found is not None
    assert found.read_bytes == 200 * step.batch_sequences * step.model.seq_len * width
    assert (found.usd_per_gib, found.usd) == (None, None)


def test_within_a_region_nothing_is_named():
    assert reads_between(SETUP, "us-east5", "us-east5") is None


@pytest.mark.parametrize(("bucket", "reader"), [("us", "us-east5"), ("nam4", "us-central1"), ("us-east5", "africa-south1")])
def test_they_have_a_price_where_one_is_given(bucket: str, reader: str):
    found = reads_between(SETUP, bucket, reader, 1.5)
    assert found is not None
    assert (found.usd_per_gib, found.usd) == (1.5, pytest.approx(1.5 * found.read_bytes / 2**30))


@pytest.mark.parametrize("name", ["", "us", "US-EAST5", "us-east5-b", "nam4", "us east5"])
def test_what_is_no_region_is_refused(name: str):
    with pytest.raises(ConfigError, match="must be the region of the slice, such as us-east5"):
        check_region(name)
    check_region("northamerica-northeast2")


def test_a_bucket_says_where_it_is(gcs: Path, tmp_path: Path):
    assert region_of(gcs) == "us"  # the emulator's
    assert region_of(tmp_path) is None


def test_a_bucket_that_may_not_be_asked_is_named(faulty_store: FaultyStore):
    the_emulator().faults.refuse(method="GET", status=403)
    with pytest.raises(ConfigError, match=r"storage\.buckets\.get"):
        region_of(faulty_store.root)
