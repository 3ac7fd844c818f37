import json
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from phasewise.trainer.base.errors import CheckpointError, StorageError
from phasewise.trainer.checkpoints.checkpointer import Checkpoints
from phasewise.trainer.checkpoints.files import digests_here, saved_steps
from phasewise.trainer.checkpoints.shards import build_writer, united
from phasewise.trainer.checkpoints.state import average_of_last, leaves_of, read_params, saved_params_digest, state_to_start_from
from phasewise.trainer.config import RunConfig
from phasewise.trainer.step import TrainState, init_state, params_digest
from tests.trainer.checkpoints.conftest import WINDOWS, Build, Parent, assert_equal, random_state
from tests.trainer.conftest import MakeRun

CONTRACT = {"seed": 1, "components": {}, "mixture": [[0, {"books": 100.0}]]}


@pytest.fixture(scope="module")
def run(make_run: MakeRun) -> RunConfig:
    plain = make_run("checkpoint")
    return make_run("checkpoint", stability={**plain.stability.model_dump(mode="json"), **WINDOWS})


@pytest.fixture(scope="module")
def state(run: RunConfig) -> TrainState:
    return random_state(run)


Open = Callable[..., Checkpoints]


@pytest.fixture
def open_all(tmp_path: Path, run: RunConfig) -> Open:
    def build(clock: Callable[[], float] = lambda: 0.0, **policy: Any) -> Checkpoints:
        return Checkpoints(tmp_path, run.but(checkpoints=run.checkpoints.but(**policy)), clock=clock)

    return build


def save(checkpoints: Checkpoints, state: TrainState, *steps: int) -> None:
    with checkpoints:
        for step in steps:
            checkpoints.save(step, state, CONTRACT)


def test_a_state_comes_back_bit_for_bit_and_its_weights_apart(open_all: Open, tmp_path: Path, run: RunConfig, state: TrainState):
    save(open_all(), state, 3)
    with open_all() as checkpoints:
        assert checkpoints.latest_step() == 3
        assert_equal(checkpoints.restore(3, CONTRACT), state)
        with pytest.raises(CheckpointError, match=r"3 was trained on another data order: extra, seed changed since\. Restore the earlier"):
            checkpoints.restore(3, {**CONTRACT, "seed": 2, "extra": 1})
    assert_equal(read_params(tmp_path / "3", run.model), state.params)
    assert_equal(read_params(tmp_path / "3", run.model, ema=True), state.ema)
    assert saved_params_digest(tmp_path / "3") == params_digest(state.params)
    save(open_all(), state._replace(ema=None), 6)
    with pytest.raises(CheckpointError, match=r"6 has no moving average"):
        read_params(tmp_path / "6", run.model, ema=True)


def test_what_is_saved_is_not_what_the_next_update_makes_of_it(open_all: Open, state: TrainState, monkeypatch: pytest.MonkeyPatch):
    add = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf + 1, tree), donate_argnums=0)
    training, updated, write = jax.tree.map(jnp.copy, state), threading.Event(), ocp.AsyncCheckpointer.save

    def write_later(*arguments: Any, **named: Any) -> None:
        updated.wait(20)
        write(*arguments, **named)

    monkeypatch.setattr(ocp.AsyncCheckpointer, "save", write_later)
    with open_all() as checkpoints:
        checkpoints.save(12, training, CONTRACT)
        training = jax.block_until_ready(add(training))  # it takes the state's memory before a line of it is written
        updated.set()
        checkpoints.wait()
        assert_equal(checkpoints.restore(12, CONTRACT), state)
        assert not np.array_equal(training.params["head"], state.params["head"])


def test_they_are_due_by_steps_and_by_minutes_since_the_last_save(open_all: Open, state: TrainState):
    now = 0.0
    with open_all(lambda: now, every_steps=5, every_minutes=2.0) as checkpoints:
        assert [step for step in range(1, 12) if checkpoints.due(step)] == [5, 10]
        now = 120.0
        assert checkpoints.due(6)
        checkpoints.save(6, state, CONTRACT)
        assert not checkpoints.due(7)
        checkpoints.wait()
        for now, is_due in ((239.9, False), (240.0, True)):  # noqa: B007  # the clock reads it
            assert checkpoints.due(8) == is_due
    with open_all(lambda: now, every_steps=5) as checkpoints:
        now = 1e9
        assert not checkpoints.due(6)


def test_the_newest_two_stay_and_where_all_are_kept_the_permanent_ones(tmp_path: Path, run: RunConfig, state: TrainState):
    for keep_all, kept in {False: [{3}, {3, 4}, {4, 6}, {6, 7}, {7, 9}], True: [{3}, {3, 4}, {3, 4, 6}, {3, 6, 7}, {3, 6, 7, 9}]}.items():
        folder, policy = tmp_path / str(keep_all), run.checkpoints.but(every_steps=3, keep_all=keep_all)
        with Checkpoints(folder, run.but(checkpoints=policy)) as checkpoints:
            for step, expected in zip((3, 4, 6, 7, 9), kept, strict=True):  # 4 and 7: by minutes, by SIGTERM or by the phase's end
                checkpoints.save(step, state, CONTRACT)
                checkpoints.wait()
                assert set(saved_steps(folder)) == expected


def test_nothing_is_pruned_before_the_next_one_is_committed(
    open_all: Open, tmp_path: Path, state: TrainState, monkeypatch: pytest.MonkeyPatch
):
    save(open_all(), state, 3, 6)

    def fail(*_: object) -> None:
        assert set(saved_steps(tmp_path)) == {3, 6, 9}
        raise OSError("no space left")

    monkeypatch.setattr("phasewise.trainer.checkpoints.checkpointer.write_digests", fail)
    checkpoints = open_all()
    checkpoints.save(9, state, CONTRACT)
    with pytest.raises(StorageError, match=r"checkpoint .*9 could not be written, the previous checkpoint is kept: .*no space left"):
        checkpoints.wait()
    assert set(saved_steps(tmp_path)) == {3, 6, 9}
    monkeypatch.undo()
    with open_all() as checkpoints:
        assert checkpoints.latest_step() == 6


def test_one_that_was_being_written_does_not_count_and_is_written_again(
    open_all: Open, tmp_path: Path, state: TrainState, capsys: pytest.CaptureFixture[str]
):
    save(open_all(), state, 3)
    shutil.copytree(tmp_path / "3", tmp_path / "6.orbax-checkpoint-tmp")
    (tmp_path / "6.orbax-checkpoint-tmp" / "left over").touch()
    with open_all() as checkpoints:
        assert checkpoints.latest_step() == 3
        checkpoints.save(6, state, CONTRACT)
    assert {path.name for path in tmp_path.iterdir()} == {"3", "6"}
    assert not (tmp_path / "6" / "left over").exists()
    shutil.rmtree(tmp_path / "6")
    (tmp_path / "3" / "digests.json").unlink()  # killed in its first save
    with open_all() as checkpoints:
        assert checkpoints.latest_step() is None
        assert "3 was never committed (it has no digests.json); there is none before it" in capsys.readouterr().err
        checkpoints.save(3, state, CONTRACT)
    with open_all() as checkpoints:
        assert checkpoints.latest_step() == 3


@pytest.mark.parametrize(
    ("section", "change", "message"),
    [
        ("model", {"d_ff": 64}, r"12 does not fit the run: params\.blocks\.down is float32\[2, 48, 32\], not float32\[2, 64, 32\]; "),
        ("model", {"qk_norm": True}, r"params\.blocks\.key_norm is nothing, not float32\[2, 8\]"),
        ("stability", {"ema_decay": [[0, None]]}, r"ema\.\S+ is float32\[.*\], not nothing"),
        ("stability", {"skip_step": [[0, None]]}, r"rolling\.losses\.values is float32\[6\], not nothing"),
    ],
)
def test_a_state_with_other_leaves_is_refused(tmp_path: Path, run: RunConfig, state: TrainState, section: str, change: Any, message: str):
    changed = run.but(**{section: getattr(run, section).but(**change)})
    save(Checkpoints(tmp_path, changed), state, 12)
    with Checkpoints(tmp_path, changed) as checkpoints, pytest.raises(CheckpointError, match=message):
        checkpoints.restore(12, CONTRACT)


def biggest(checkpoint: Path) -> Path:
    return max((path for path in checkpoint.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def flip_a_bit(checkpoint: Path) -> None:
    content = bytearray(biggest(checkpoint).read_bytes())
    content[len(content) // 2] ^= 1
    biggest(checkpoint).write_bytes(content)


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a bit": (flip_a_bit, "is damaged: state/.* has other bytes than were written"),
    "cut": (lambda path: biggest(path).write_bytes(biggest(path).read_bytes()[:-1]), r"is damaged: state/.* has \d+ bytes, not \d+"),
    "a file": (lambda path: biggest(path).unlink(), "is damaged: state/.* is missing"),
    "no digests": (lambda path: (path / "digests.json").unlink(), r"was never committed \(it has no digests.json\)"),
    "torn digests": (lambda path: (path / "digests.json").write_text("{"), r"is damaged: its digests\.json does not read"),
}


@pytest.mark.parametrize(("spoil", "message"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_found_and_the_one_before_is_used_and_named(
    open_all: Open, tmp_path: Path, run: RunConfig, state: TrainState, capsys: Any, spoil: Callable[[Path], Any], message: str
):
    save(open_all(), state, 3, 6)
    spoil(tmp_path / "6")
    with pytest.raises(CheckpointError, match=rf"6 {message}"):
        read_params(tmp_path / "6", run.model)
    with open_all() as checkpoints:
        assert checkpoints.latest_step() == 3
        said = capsys.readouterr().err
        assert said.startswith(f"trainer: checkpoint {tmp_path / '6'} ")
        assert said.endswith("; the one before it is used\n")
        assert_equal(checkpoints.restore(3, CONTRACT), state)
        checkpoints.save(6, state, CONTRACT)  # trained again, and written again
        checkpoints.wait()
        assert checkpoints.latest_step() == 6
        assert capsys.readouterr().err == ""
        assert set(saved_steps(tmp_path)) == {3, 6}


def test_each_of_the_last_counts_alike_and_none_of_another_run(make_run: MakeRun, tmp_path: Path):
    run = make_run("averaged", checkpoints={"every_steps": 6, "every_minutes": None, "keep_all": True})
    states = {step: random_state(run, step) for step in (6, 12, 18, 24)}
    with Checkpoints(tmp_path, run) as checkpoints:
        for step, state in states.items():
            checkpoints.save(step, state, {})
    for count in (1, 3):
        params, steps = average_of_last(tmp_path, run, count)
        assert steps == tuple(states)[-count:]
        wide = (jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), states[step].params) for step in steps)
        assert_equal(params, jax.tree.map(lambda *leaves: np.mean(leaves, axis=0).astype(np.float32), *wide))
    shutil.rmtree(tmp_path / "18")
    with Checkpoints(tmp_path, run.but(seed=9)) as checkpoints:
        checkpoints.save(18, states[18], {})
    for other, count, message in (
        (run, 5, r"has 4 of this phase \(6, 12, 18, 24\)"), (run.but(phase="ocelot"), 2, "or of another model"),
        (run, 2, "only checkpoints of one run belong together"),
    ):  # fmt: skip
        with pytest.raises(CheckpointError, match=message):
            average_of_last(tmp_path, other, count)


FIRST: Mapping[str, tuple[int, str]] = {"about/metadata": (1, "a"), "state/w/.zarray": (1, "z"), "state/w/0.0": (9, "p")}
SECOND: Mapping[str, tuple[int, str]] = {"about/metadata": (2, "b"), "state/w/1.0": (9, "q")}


def test_the_union_of_shards_is_whole_or_refused(tmp_path: Path):
    (tmp_path / "state" / "w").mkdir(parents=True)
    (tmp_path / "state" / "w" / ".zarray").write_text(json.dumps({"shape": [4, 6], "chunks": [2, 6]}))
    assert united(tmp_path, [FIRST, SECOND]) == {**SECOND, **FIRST}
    for second, message in (
        ({"about/metadata": (2, "b")}, r"lacks shards that no host wrote: state/w/1\.0\."),
        ({**SECOND, "state/w/0.0": (9, "other")}, r"state/w/0\.0 was written by host 1, too, with other bytes"),
    ):
        with pytest.raises(StorageError, match=message):
            united(tmp_path, [FIRST, second])


def test_what_is_written_apart_has_a_file_for_each_leaf_and_is_read_as_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # Orbax would make folders in the background, and tell all hosts that they are there when the first of them has its own
    monkeypatch.setattr("orbax.checkpoint._src.path.atomicity.create_all_async", lambda *_, **__: pytest.fail("made in the background"))
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


@pytest.mark.parametrize(
    ("fresh", "kind", "message"),
    [
        ([], {"qk_norm": True}, r"params\.blocks\.\w+_norm is nothing in .*, not float32\[2, 8\]: declare 'qk_norm' in the hand-off's "),
        (["optimizer", "ema"], {"qk_norm": True}, "declare 'qk_norm'"),
        (["optimizer", "ema"], {"d_ff": 64}, r"blocks\.down is float32\[2, 48, 32\] in .*, not float32\[2, 64, 32\]: the model must have"),
        (["optimizer", "ema"], {"tied_head": True}, r"params\.head of .*24 would be dropped: a phase cannot leave out weights"),
        (["ema"], {"ema_decay": None}, "'ema' is declared, and the phase's state has no such part: take it out"),
        (["rolling"], {"windows": False}, "'rolling' is declared, and"),
        (["qk_norm"], {}, "'qk_norm' is declared, and"),
        (["ema", "ema"], {}, "'ema' is declared twice"),
    ],
)
def test_undeclared_changes_and_idle_declarations_are_refused(
    build: Build, llama: Parent, fresh: list[str], kind: dict[str, Any], message: str
):
    with pytest.raises(CheckpointError, match=message):
        state_to_start_from(build(start=llama.start(*fresh), **kind))


def test_a_leaf_of_the_parent_that_nothing_takes_is_refused(build: Build, llama: Parent, tmp_path: Path):
    richer = llama.state._replace(optimizer={**llama.state.optimizer._asdict(), "third": jnp.ones(3)})  # pyright: ignore
    with Checkpoints(tmp_path, build()) as checkpoints:
        checkpoints.save(24, richer, {})
    parent = Parent(tmp_path / "24", llama.state)
    with pytest.raises(CheckpointError, match=r"optimizer\.third of .*24 would be dropped: declare 'optimizer' in the hand-off's `fresh`"):
        state_to_start_from(build(start=parent.start()))
    assert_equal(state_to_start_from(build(start=parent.start("optimizer"))).params, llama.state.params)


def test_other_weights_than_planned_and_a_missing_or_damaged_parent_are_refused(build: Build, leave: Callable[..., Parent], tmp_path: Path):
    parent = leave()
    found = params_digest(parent.state.params)[:12]
    for change, message in (
        ({"params_digest": "0" * 64}, rf"expected {'0' * 12}, found {found}\. Run the recipe again"),
        ({"checkpoint": str(tmp_path / "24")}, r"no checkpoint at .*24\. Train the phase that ends there first"),
        ({}, r"24 was never committed .*Restore it from a copy, or start its phase again"),
    ):
        if not change:
            (parent.checkpoint / "digests.json").unlink()
        with pytest.raises(CheckpointError, match=message):
            state_to_start_from(build(start={**parent.start(), **change}))


@pytest.mark.parametrize("kind", ["adamw", "adamc", "nadamw"])
def test_a_hand_off_carries_everything_also_to_a_relative_of_its_optimizer(build: Build, llama: Parent, kind: str):
    assert_equal(state_to_start_from(build(kind, start=llama.start())), llama.state)


def experts(**balancing: Any) -> dict[str, Any]:
    shape = {"num_experts": 4, "num_active": 2, "num_shared": 1, "d_expert": 8, "route_scale": 1.0, "num_dense_layers": 1}
    return {"experts": {**shape, "balancing": balancing, "sequence_loss": 0.0}}


SMEBU, SIGN = experts(kind="smebu", rate=5e-4, sharpness=2.0, momentum=0.5), experts(kind="sign", rate=1e-3)
"""Models with experts: SMEBU keeps momentum, sign updates keep none."""


def test_momentum_of_balancing_is_carried_let_go_or_declared_fresh(build: Build, leave: Callable[..., Parent]):
    smebu, sign = leave(2, **SMEBU), leave(3, **SIGN)
    assert jax.tree.leaves(smebu.state.balancing)
    assert_equal(state_to_start_from(build(start=smebu.start(), **SMEBU)), smebu.state)
    without = state_to_start_from(build(start=smebu.start(), **SIGN))
    assert_equal((without.params, without.balancing), (smebu.state.params, None))
    with pytest.raises(CheckpointError, match=r"declare 'balancing' in the hand-off's `fresh`"):
        state_to_start_from(build(start=sign.start(), **SMEBU))
    begun = state_to_start_from(build(start=sign.start("balancing"), **SMEBU))
    assert_equal(begun.params, sign.state.params)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(begun.balancing))


def assert_owned(state: TrainState) -> None:
    """No two leaves share memory: the step takes that of each."""
    assert len({leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state)}) == len(jax.tree.leaves(state))


def test_from_scratch_all_is_fresh_and_so_is_what_is_declared(build: Build, llama: Parent):
    initial = init_state(build())
    declared = TrainState(llama.state.params, initial.optimizer, llama.state.params, initial.rolling)
    for start, expected in ((None, initial), (llama.start("ema", "optimizer", "rolling"), declared)):
        found = state_to_start_from(build(start=start))
        assert_equal(found, expected)
        assert_owned(found)


def test_what_a_parent_lacks_may_be_made_again(build: Build, leave: Callable[..., Parent]):
    bare = leave(ema_decay=None, windows=False)
    run = build(start=bare.start("ema", "rolling"))
    expected = init_state(run)._replace(params=bare.state.params, optimizer=bare.state.optimizer, ema=bare.state.params)
    assert_equal(state_to_start_from(run), expected)
    message = r"phase child cannot start from .*24: ema\.\S+ is nothing in .*24, not float32\[.*\]: declare 'ema' in .*; .* and \d+ more\."
    for fresh, said in (("rolling", message), ("ema", r"rolling\.losses\.values is nothing in .*declare 'rolling'")):
        with pytest.raises(CheckpointError, match=said):
            state_to_start_from(build(start=bare.start(fresh)))


def test_gains_come_from_another_checkpoint_or_are_fresh_with_their_moments_and_averages(build: Build, llama: Parent, qwen: Parent):
    of_qwen, gains = leaves_of(qwen.state), ("query_norm", "key_norm")
    for name, leaf in leaves_of(state_to_start_from(build(qk_norm=True, start=llama.start(qk_norm=qwen)))).items():
        assert np.array_equal(leaf, (of_qwen if name.endswith(gains) else leaves_of(llama.state))[name]), name
    found = state_to_start_from(build(qk_norm=True, start=llama.start("qk_norm")))
    assert_owned(found)
    named, parent = leaves_of(found), leaves_of(llama.state)
    values = {"params": 1.0, "ema": 1.0, "optimizer.mu": 0.0, "optimizer.nu": 0.0}
    fresh = {f"{field}.blocks.{gain}": value for field, value in values.items() for gain in gains}
    assert named.keys() == parent.keys() | fresh.keys()
    for name, leaf in named.items():
        assert np.array_equal(leaf, np.full((2, 8), fresh[name]) if name in fresh else parent[name]), name
    assert named["optimizer.count"] == parent["optimizer.count"] != 0


def test_the_step_is_the_same_program_for_a_new_and_for_a_restored_state(build: Build, llama: Parent):
    with Checkpoints(llama.checkpoint.parent, build()) as checkpoints:
        restored = checkpoints.restore(24, {})
    starts = (None, llama.start("ema", "optimizer", "rolling"), llama.start())
    states = [restored, *(state_to_start_from(build(start=start)) for start in starts)]
    assert len({jax.jit(lambda state: state).lower(state).as_text() for state in states}) == 1, "else a restart compiles again"


def test_leaves_are_placed_where_the_shardings_say(build: Build, llama: Parent):
    there = jax.sharding.SingleDeviceSharding(jax.devices()[-1])
    for start in (None, llama.start("ema", "optimizer")):
        run = build(start=start)
        shardings = jax.tree.map(lambda _: there, jax.eval_shape(lambda run=run: init_state(run)))
        assert {leaf.sharding for leaf in jax.tree.leaves(state_to_start_from(run, shardings))} == {there}
