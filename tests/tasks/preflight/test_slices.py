from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.flows.recipes import load_recipe
from phasewise.tasks.preflight import slices
from phasewise.tasks.preflight.launcher import check_region, reads_between, region_of
from phasewise.tasks.preflight.plan import Setup, step_shape
from phasewise.tasks.preflight.slices import PLACE, TABLE, find_slice, read_table
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.config import Mesh
from phasewise.trainer.flops import PEAKS
from tests.stores.emulator import the_emulator
from tests.stores.fixtures import FaultyStore

SLICES_OF_THE_RECORD = {
    "2x v5e-256": (512, 128, 2, "v5e:16x16"), "v4-2048": (1024, 256, 1, "v4:8x8x16"), "4x v4-128": (256, 64, 4, "v4:4x4x4"),
    "2x v4-128": (128, 32, 2, "v4:4x4x4"), "v4-128": (64, 16, 1, "v4:4x4x4"), "4x v5p-512": (1024, 256, 4, "v5p:8x8x4"),
    "3x v5p-512": (768, 192, 3, "v5p:8x8x4"), "v5e-128": (128, 32, 1, "v5e:8x16"), "v6e-128": (128, 32, 1, "v6e:8x16"),
}  # fmt: skip
MANTIS = step_shape(load_recipe("marin-32b", "full").phase("mantis"), 4096)
SETUP = Setup(phase="mantis", slice="v6e-8", stretches=((0, 100), (200, 300)), step=MANTIS)


@pytest.mark.parametrize(("name", "expected"), SLICES_OF_THE_RECORD.items())
def test_the_slices_of_the_record(name: str, expected: tuple[int, int, int, str]):
    found = find_slice(name)
    assert (found.chips, found.hosts, found.topology.num_slices, found.topology.name) == expected
    assert found.mesh == Mesh(replica=expected[2], fsdp=found.chips // expected[2])


def test_every_slice_has_the_chips_that_its_name_says_and_a_chip_with_sources():
    """v4, v5p and tpu7x count TensorCores, two a chip."""
    table = read_table()
    for name, torus in table.slices.items():
        found = find_slice(name)
        said = int(name.partition("-")[2])
        assert found.chips == said // (2 if torus.chip in ("v4", "v5p", "tpu7x") else 1), name
        assert name.startswith(torus.chip)
        assert found.chip.speeds.flops > (1e11 if torus.chip == "cpu" else 1e14)
        assert found.chip.source
    kinds = {peak.device_kind for peak in PEAKS}
    assert {chip.device_kind for chip in table.chips.values() if chip.peak_flops is None} <= kinds
    assert [name for name, chip in table.chips.items() if chip.peak_flops] == ["cpu"]
    topology = find_slice("v4-2048").topology
    assert (topology.chip_config, topology.chips_per_host) == ("megacore", (2, 2, 1)), "one program for both cores"


@given(count=st.integers(1, 64), name=st.sampled_from(sorted(read_table().slices)))
def test_several_of_any_slice(count: int, name: str):
    one = find_slice(name)
    several = find_slice(f"{count}x {name}")
    assert (several.chips, several.mesh) == (count * one.chips, Mesh(replica=count, fsdp=one.devices))


def test_other_names_are_refused_and_a_chip_of_two_devices_counts_once():
    for name in ("v9-8", "0x v4-128", "2xv4-128", "x v4-128", "", "v4-2048 v4-2048", "-1x v4-128"):
        with pytest.raises(ConfigError, match=r"no slice is called|at least one"):
            find_slice(name)
    # Ironwood: 64 chips are 128 places of a mesh. What two devices do together is what the maker says of the chip.
    found = find_slice("2x tpu7x-128")
    assert (found.chips, found.devices, found.hosts, found.mesh) == (128, 256, 32, Mesh(replica=2, fsdp=128))
    assert (found.topology.name, found.topology.num_slices) == ("tpu7x:4x4x4", 2)
    speeds = found.chip.speeds
    assert (2 * speeds.flops, 2 * speeds.hbm_bytes, 2 * speeds.ici_bytes) == (2307e12, 7380e9, 600e9)
    assert (2 * speeds.dcn_bytes, 2 * speeds.host_bytes, 2 * found.chip.device_gib) == (12.5e9, 16e9, 192)
    assert all(find_slice(name).devices == find_slice(name).chips for name in read_table().slices if not name.startswith("tpu7x"))


@pytest.mark.parametrize(("found", "instead", "words"), [
    ('"v6e", torus = [2, 4]', '"v6f", torus = [2, 4]', "v6e-8 of 'v6f'"),
    ('"v6e", torus = [2, 4]', '"v6e", torus = []', r"v6e-8\.torus"), ("hbm_gbps = 1638", "hbm_gbps = 0", r"v6e\.hbm_gbps"),
    ('"v6e", torus = [2, 4]', '"v6e", torus = [2, 0]', r"slices\.v6e-8\.torus\.1"),
    ('device_kind = "TPU v6e"', 'device_kind = "TPU v99"', r"v6e must have peak_flops"),
    ('topology = "v6e"', "", r"chips\.v6e must have a topology"),
])  # fmt: skip
def test_a_table_with_wrong_numbers_is_refused(found: str, instead: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    text = files(PLACE).joinpath(TABLE).read_text(encoding="utf-8")
    assert found in text
    (tmp_path / TABLE).write_text(text.replace(found, instead))
    monkeypatch.setattr(slices, "files", lambda place: tmp_path)
    with pytest.raises(ConfigError, match=words):
        read_table.__wrapped__()


def test_a_phase_reads_each_token_once_at_a_price_between_regions_and_other_names_are_refused():
    for vocab_size, width in ((2**16, 2), (2**16 + 1, 4)):
        step = SETUP.step.but(model=SETUP.step.model.but(vocab_size=vocab_size))
        found = reads_between(SETUP.but(step=step), "us-central1", "europe-west4")
        assert found is not None
        assert (found.read_bytes, found.usd_per_gib, found.usd) == (200 * step.batch_sequences * step.model.seq_len * width, None, None)
    assert reads_between(SETUP, "us-east5", "us-east5") is None
    for bucket, reader in (("us", "us-east5"), ("nam4", "us-central1"), ("us-east5", "africa-south1")):
        found = reads_between(SETUP, bucket, reader, 1.5)
        assert found is not None
        assert (found.usd_per_gib, found.usd) == (1.5, pytest.approx(1.5 * found.read_bytes / 2**30))
    for name in ("", "us", "US-EAST5", "us-east5-b", "nam4", "us east5"):
        with pytest.raises(ConfigError, match="must be the region of the slice, such as us-east5"):
            check_region(name)
    check_region("northamerica-northeast2")


def test_a_bucket_says_where_it_is_and_one_that_may_not_be_asked_is_named(faulty_store: FaultyStore, tmp_path: Path):
    assert region_of(faulty_store.root) == "us"  # the emulator's
    assert region_of(tmp_path) is None
    the_emulator().faults.refuse(method="GET", status=403)
    with pytest.raises(ConfigError, match=r"storage\.buckets\.get"):
        region_of(faulty_store.root)
