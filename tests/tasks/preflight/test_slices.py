from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.tasks.preflight import slices
from phasewise.tasks.preflight.slices import PLACE, TABLE, find_slice, read_table
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.config import Mesh
from phasewise.trainer.flops import PEAKS


@pytest.mark.parametrize(
    ("name", "chips", "hosts", "mesh", "topology"),
    [
        ("2x v5e-256", 512, 128, (2, 256), "v5e:16x16"),
        ("v4-2048", 1024, 256, (1, 1024), "v4:8x8x16"),
        ("4x v4-128", 256, 64, (4, 64), "v4:4x4x4"),
        ("2x v4-128", 128, 32, (2, 64), "v4:4x4x4"),
        ("v4-128", 64, 16, (1, 64), "v4:4x4x4"),
        ("4x v5p-512", 1024, 256, (4, 256), "v5p:8x8x4"),
        ("3x v5p-512", 768, 192, (3, 256), "v5p:8x8x4"),
        ("v5e-128", 128, 32, (1, 128), "v5e:8x16"),
        ("v6e-128", 128, 32, (1, 128), "v6e:8x16"),
    ],
)
def test_the_slices_of_the_record(name: str, chips: int, hosts: int, mesh: tuple[int, int], topology: str) -> None:
    found = find_slice(name)
    assert (found.chips, found.hosts, found.mesh) == (chips, hosts, Mesh(replica=mesh[0], fsdp=mesh[1]))
    assert (found.topology.name, found.topology.num_slices) == (topology, mesh[0])


def test_every_slice_has_the_chips_that_its_name_says_and_a_chip_with_sources() -> None:
    """v4, v5p and tpu7x count TensorCores, two a chip."""
    table = read_table()
    for name, torus in table.slices.items():
        found = find_slice(name)
        said = int(name.partition("-")[2])
        assert found.chips == said // (2 if torus.chip in ("v4", "v5p", "tpu7x") else 1), name
        assert name.startswith(torus.chip)
        assert found.chip.speeds.flops > (1e11 if torus.chip == "cpu" else 1e14)
        assert found.chip.source


def test_every_peak_of_a_tpu_is_that_of_its_chip() -> None:
    kinds = {peak.device_kind for peak in PEAKS}
    assert {chip.device_kind for chip in read_table().chips.values() if chip.peak_flops is None} <= kinds
    assert [name for name, chip in read_table().chips.items() if chip.peak_flops] == ["cpu"]


def test_v4_chips_have_one_program_for_both_cores() -> None:
    topology = find_slice("v4-2048").topology
    assert (topology.chip_config, topology.chips_per_host) == ("megacore", (2, 2, 1))


@given(count=st.integers(1, 64), name=st.sampled_from(sorted(read_table().slices)))
def test_several_of_any_slice(count: int, name: str) -> None:
    one = find_slice(name)
    several = find_slice(f"{count}x {name}")
    assert several.chips == count * one.chips
    assert several.mesh == Mesh(replica=count, fsdp=one.devices)


@pytest.mark.parametrize("name", ["v9-8", "0x v4-128", "2xv4-128", "x v4-128", "", "v4-2048 v4-2048", "-1x v4-128"])
def test_other_names_are_refused_with_those_that_there_are(name: str) -> None:
    with pytest.raises(ConfigError, match=r"no slice is called|at least one"):
        find_slice(name)


def test_a_chip_of_two_devices_has_its_memory_and_speeds_once() -> None:
    """Ironwood: 64 chips are 128 places of a mesh. What two devices do together is what the maker says of the chip."""
    found = find_slice("2x tpu7x-128")
    assert (found.chips, found.devices, found.hosts) == (128, 256, 32)
    assert found.mesh == Mesh(replica=2, fsdp=128)
    assert (found.topology.name, found.topology.num_slices) == ("tpu7x:4x4x4", 2)
    speeds = found.chip.speeds
    assert (2 * speeds.flops, 2 * speeds.hbm_bytes, 2 * speeds.ici_bytes) == (2307e12, 7380e9, 600e9)
    assert (2 * speeds.dcn_bytes, 2 * speeds.host_bytes, 2 * found.chip.device_gib) == (12.5e9, 16e9, 192)
    assert all(find_slice(name).devices == find_slice(name).chips for name in read_table().slices if not name.startswith("tpu7x"))


@pytest.mark.parametrize(
    ("found", "instead", "words"),
    [
        ('chip = "v6e", torus = [2, 4]', 'chip = "v6f", torus = [2, 4]', "v6e-8 of 'v6f'"),
        ('chip = "v6e", torus = [2, 4]', 'chip = "v6e", torus = [2, 0]', r"slices\.v6e-8\.torus\.1"),
        ('chip = "v6e", torus = [2, 4]', 'chip = "v6e", torus = []', r"slices\.v6e-8\.torus"),
        ('device_kind = "TPU v6e"', 'device_kind = "TPU v99"', r"chips\.v6e must have peak_flops"),
        ('topology = "v6e"', "", r"chips\.v6e must have a topology"),
        ("hbm_gbps = 1638", "hbm_gbps = 0", r"chips\.v6e\.hbm_gbps"),
    ],
)
def test_a_table_with_wrong_numbers_is_refused_by_its_entry(
    found: str, instead: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = files(PLACE).joinpath(TABLE).read_text(encoding="utf-8")
    assert found in text
    (tmp_path / TABLE).write_text(text.replace(found, instead))
    monkeypatch.setattr(slices, "files", lambda place: tmp_path)
    with pytest.raises(ConfigError, match=words):
        read_table.__wrapped__()
