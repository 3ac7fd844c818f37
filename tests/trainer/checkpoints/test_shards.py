"""A checkpoint of which every host has shards: the union is whole, or it is refused."""

import json
from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from phasewise.trainer.base.errors import StorageError
from phasewise.trainer.checkpoints.files import digests_here
from phasewise.trainer.checkpoints.shards import build_writer, united

LEAF = {"shape": [4, 6], "chunks": [2, 6]}
FIRST: Mapping[str, tuple[int, str]] = {"about/metadata": (1, "a"), "state/w/.zarray": (1, "z"), "state/w/0.0": (9, "p")}
SECOND: Mapping[str, tuple[int, str]] = {"about/metadata": (2, "b"), "state/w/1.0": (9, "q")}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """The first host's, with one leaf of two shards."""
    (tmp_path / "state" / "w").mkdir(parents=True)
    (tmp_path / "state" / "w" / ".zarray").write_text(json.dumps(LEAF))
    return tmp_path


def test_the_union_has_what_each_wrote_and_of_the_rest_the_first_ones(checkpoint: Path):
    assert united(checkpoint, [FIRST, SECOND]) == {**SECOND, **FIRST}


def test_a_shard_that_no_host_wrote_is_named(checkpoint: Path):
    with pytest.raises(StorageError, match=r"lacks shards that no host wrote: state/w/1\.0\."):
        united(checkpoint, [FIRST, {"about/metadata": (2, "b")}])


def test_what_is_written_apart_is_read_as_any_other(tmp_path: Path):
    """Also zeros, and a leaf without axes: of each there is a file."""
    state = {"w": jnp.arange(12.0).reshape(3, 4), "zeros": jnp.zeros((2, 2)), "count": jnp.int32(7)}
    with build_writer(has_shared_folder=False) as writer:
        writer.save(tmp_path / "1", args=ocp.args.Composite(state=ocp.args.PyTreeSave(state), about=ocp.args.JsonSave({"a": 1})))
        writer.wait_until_finished()
    here = digests_here(tmp_path / "1")
    assert {"state/w/0.0", "state/zeros/0.0", "state/count/0"} <= here.keys()
    assert united(tmp_path / "1", [here]) == here
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
        as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), state)
        found = reader.restore(tmp_path / "1" / "state", args=ocp.args.PyTreeRestore(restore_args=as_numpy))
    jax.tree.map(np.testing.assert_array_equal, found, state)


def test_folders_are_there_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Orbax would make them in the background, and tell all hosts that they are there when the first of them has its own."""
    monkeypatch.setattr("orbax.checkpoint._src.path.atomicity.create_all_async", lambda *_, **__: pytest.fail("made in the background"))
    with build_writer(has_shared_folder=False) as writer:
        writer.save(tmp_path / "1", args=ocp.args.Composite(state=ocp.args.PyTreeSave({"w": jnp.ones(2)}), about=ocp.args.JsonSave({})))
