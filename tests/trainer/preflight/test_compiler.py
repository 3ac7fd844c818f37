"""The compiler for TPUs itself, on a small model and four chips."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import jax
import pytest

from phasewise.tasks.preflight.estimate import muon_flops, state_bytes
from phasewise.trainer import loop
from phasewise.trainer.config import ATTENTION, BLOCK_INPUT, Execution, Kept, Mesh, ModelConfig, Muon, Remat
from phasewise.trainer.preflight import compiler
from phasewise.trainer.preflight.spec import Result, Spec, Topology, run_of
from phasewise.trainer.step import abstract_state, init_state
from tests.trainer.preflight.models import ADAMW, EXPERTS, SMALL, SPARSE, step_of
from tests.trainer.preflight.snippets import LOOP

needs_libtpu = pytest.mark.skipif(find_spec("libtpu") is None, reason="libtpu, the compiler for TPUs, is not installed")
COMPILER = {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
ROWS = 16
WIDTHS = 2 * 2 * 128 + 2 * 128 + 3 * SMALL.d_ff  # numbers of a block, d_model each


def small_spec(
    *, replica: int = 1, fsdp: int = 4, batch: int = ROWS, topology: str = "v5e:2x2", remat: Remat = "full", model: ModelConfig = SMALL
) -> Spec:
    execution = Execution(mesh=Mesh(replica=replica, fsdp=fsdp), remat=remat, attention="splash")
    return Spec(step=step_of(model, batch, window=128), execution=execution, topology=Topology(name=topology, num_slices=replica))


def run_preflight(folder: Path, spec: Spec) -> "subprocess.CompletedProcess[str]":
    (folder / "spec.json").write_text(spec.model_dump_json())
    command = [sys.executable, "-m", "phasewise.trainer.preflight", str(folder / "spec.json"), str(folder / "result.json")]
    others = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}  # those are for this machine's CPU
    return subprocess.run(command, capture_output=True, text=True, env={**others, **COMPILER}, check=False)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Spec], Result]:
    """Each specification is compiled once for all tests of this file."""
    results: dict[Spec, Result] = {}

    def compile_once(spec: Spec) -> Result:
        if spec not in results:
            folder = tmp_path_factory.mktemp("preflight")
            done = run_preflight(folder, spec)
            assert done.returncode == 0, done.stderr
            results[spec] = Result.model_validate(json.loads((folder / "result.json").read_text()))
        return results[spec]

    return compile_once


def test_the_step_is_built_by_the_function_that_trains() -> None:
    assert compiler.build_train_step is loop.build_train_step
    assert compiler.state_shardings is loop.state_shardings
    run = run_of(step_of(SMALL, ROWS, window=128), Execution())
    trained = jax.eval_shape(lambda: init_state(run))
    shapes = abstract_state(run, with_ema=run.keeps_average)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), shapes) == jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), trained)


def test_a_module_that_is_half_written_is_waited_for(tmp_path: Path) -> None:
    for kind in (compiler.LAST, f"{compiler.REPORT}.txt"):
        (tmp_path / f"module.{kind}").touch()
    module = tmp_path / f"module.{compiler.MODULE}.txt"
    for kept in range(0, len(LOOP), 97):
        module.write_text(LOOP[:kept])
        assert not compiler.is_assigned(tmp_path)
    module.write_text(LOOP)
    assert compiler.is_assigned(tmp_path)


@needs_libtpu
def test_what_a_small_step_needs(compiled: Callable[[Spec], Result]) -> None:
    """Its arguments are a quarter of weights, moments and average, and of the batch; nothing is said of time that was not compiled."""
    result = compiled(small_spec())
    assert result.refusal is None
    assert result.memory is not None
    run = run_of(step_of(SMALL, ROWS, window=128), Execution())
    state = jax.eval_shape(lambda: init_state(run))
    matrices = sum(leaf.size * 4 for leaf in jax.tree.leaves(state) if leaf.ndim > 1) // 4
    assert matrices < result.memory.arguments < 1.2 * matrices
    assert result.memory.peak == result.memory.arguments + result.memory.temporaries
    assert result.limit_bytes == round(15.75 * 2**30)
    assert 0.2e9 < result.host_bytes < 2e9


@needs_libtpu
def test_every_layers_weights_are_gathered_and_nothing_leaves_the_slice(compiled: Callable[[Spec], Result]) -> None:
    """Forward and again backward: at least 2 bytes for each weight of the blocks, twice, of which three quarters come from others."""
    result = compiled(small_spec())
    assert {(each.link, each.axis) for each in result.collectives} == {("ici", "fsdp")}
    assert sum(each.bytes for each in result.collectives) > 2 * 2 * SMALL.num_layers * SMALL.d_model * WIDTHS * 3 // 4


@pytest.mark.long
@needs_libtpu
def test_two_slices_exchange_gradients_over_the_network_and_carries_are_in_the_hosts_memory(compiled: Callable[[Spec], Result]) -> None:
    result = compiled(small_spec(replica=2, batch=2 * ROWS, remat="offload"))
    between = [each for each in result.collectives if each.link == "dcn"]
    assert [(each.kind, each.axis) for each in between] == [("all-reduce", "replica")]
    least = 2 * SMALL.num_layers * SMALL.d_model * WIDTHS // 4
    assert least < sum(each.bytes for each in between) < 4 * least
    assert result.memory is not None
    assert result.memory.host >= SMALL.num_layers * (ROWS // 4) * SMALL.seq_len * SMALL.d_model * 2
    assert result.host_traffic_bytes == 2 * result.memory.host


@pytest.mark.long
@needs_libtpu
def test_what_is_kept_by_name_is_kept_where_it_says(compiled: Callable[[Spec], Result]) -> None:
    """Beside the carries on the host, `up`; the step with attention, queries and `gate` on the device compiles."""
    tokens = SMALL.num_layers * (ROWS // 4) * SMALL.seq_len
    names = Kept(on_device=(ATTENTION, "query", "gate"), on_host=("up", BLOCK_INPUT))
    result = compiled(small_spec(remat=names))
    assert result.memory is not None
    assert result.memory.host == tokens * 2 * (SMALL.d_ff + SMALL.d_model)
    assert result.host_traffic_bytes == 2 * result.memory.host


@pytest.mark.long
@needs_libtpu
def test_a_chips_part_must_be_whole_tiles_to_be_gathered_and_scattered(compiled: Callable[[Spec], Result]) -> None:
    """64 rows of d_model a chip: gradients are scattered. 4 rows are no tile: the compiler sums them over all chips, and sends twice."""
    whole, torn = (compiled(small_spec(model=SMALL.but(d_model=size))) for size in (256, 16))
    gradients = 2 * SMALL.num_layers * WIDTHS * 3 // 4
    sent = [{each.kind: each.bytes for each in result.collectives} for result in (whole, torn)]
    assert sent[0]["reduce-scatter"] > 0.9 * 256 * gradients
    assert sent[0]["all-reduce"] < 0.1 * 256 * gradients
    assert "reduce-scatter" not in sent[1]
    assert sent[1]["all-reduce"] > 1.8 * 16 * gradients


@needs_libtpu
def test_a_step_that_no_chip_holds_is_refused_with_its_numbers(compiled: Callable[[Spec], Result]) -> None:
    result = compiled(small_spec(batch=2**17))
    assert result.refusal is not None
    assert "RESOURCE_EXHAUSTED" in result.refusal
    assert result.memory is not None
    assert result.memory.peak > result.limit_bytes


@needs_libtpu
@pytest.mark.parametrize(
    ("spec", "said"),
    [
        pytest.param(small_spec(fsdp=8), "execution.mesh must have as many places as there are devices", marks=pytest.mark.long),
        (small_spec(topology="v5e:3x7"), "does not know the topology v5e:3x7"),
    ],
)
def test_what_does_not_fit_together_is_refused_in_a_line(tmp_path: Path, spec: Spec, said: str) -> None:
    done = run_preflight(tmp_path, spec)
    lines = [line for line in done.stderr.splitlines() if line.startswith("preflight: ")]
    assert (done.returncode, len(lines)) == (2, 1)
    assert said in lines[0]


def test_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    from phasewise.trainer.preflight.__main__ import main

    assert main(["one.json"]) == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.long
@needs_libtpu
def test_rows_of_experts_go_along_their_axis_by_the_exchange_of_tpus(compiled: Callable[[Spec], Result]) -> None:
    """Half of a device's rows leave it five times: there and back, there again when the block is computed again, and both gradients.

    Gates go three times, each in a row of 128 numbers: here as wide as a token.
    """
    experts = EXPERTS.but(num_dense_layers=0)
    execution = Execution(mesh=Mesh(fsdp=2, expert=2), remat="full", attention="splash", expert_kernel="megablox")
    result = compiled(
        Spec(step=step_of(SMALL.but(experts=experts), ROWS), execution=execution, topology=Topology(name="v5e:2x2", num_slices=1))
    )
    assert result.refusal is None
    rows = ROWS // 4 * SMALL.seq_len * experts.num_active
    once = rows * SMALL.d_model * 2 // 2
    exchanged = sum(each.bytes for each in result.collectives if (each.kind, each.axis) == ("all-to-all", "expert"))
    gates = rows * 128 * 4 // 2
    assert exchanged == (5 * once + 3 * gates) * SMALL.num_layers


@pytest.mark.long
@needs_libtpu
def test_without_an_axis_for_experts_nothing_goes_along_it_and_muon_takes_each_by_itself(compiled: Callable[[Spec], Result]) -> None:
    """Their matrices are gathered over fsdp. State: two numbers a matrix of the layers, three of the others, a quarter on each chip.

    Muon's square products are whole on each of the four; the long ones may be shared.
    """
    muon = Muon(
        kind="muon", momentum=0.95, nesterov=True, newton_schulz_steps=5, epsilon=1e-7, weight_decay=0.1, adam=ADAMW,
        adam_learning_rate_scale=0.2,
    )  # fmt: skip
    step = step_of(SPARSE.but(num_layers=3), ROWS, keeps_average=False).but(optimizer=muon)
    execution = Execution(mesh=Mesh(fsdp=4), remat="full", attention="splash", expert_kernel="megablox")
    result = compiled(Spec(step=step, execution=execution, topology=Topology(name="v5e:2x2", num_slices=1)))
    assert result.memory is not None
    assert not [each for each in result.collectives if "expert" in each.axis]
    assert state_bytes(step) / 4 < result.memory.arguments < 1.2 * state_bytes(step) / 4
    whole, shared = (muon_flops(step, fsdp=fsdp, expert=1, tensor=1) for fsdp in (1, 4))
    assert 0.5 * shared < result.update_flops <= 1.01 * whole
