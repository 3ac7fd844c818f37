"""How a phase was computed: read from its run's folder, and never from the plan of now."""

from pathlib import Path

import pytest

from experiments.survival.runs import tiny_recipe
from phasewise.flows.plan import build_run
from phasewise.tasks.home import Home
from phasewise.tasks.training.computed import computed_words
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.storage import write_json
from phasewise.trainer.config import Execution, Mesh, RunConfig
from phasewise.trainer.events import append_event
from phasewise.trainer.process.conditions import conditions_of


@pytest.fixture
def run(tmp_path: Path) -> RunConfig:
    recipe = tiny_recipe()
    phase = recipe.phases[0]
    return build_run(recipe, phase, Home.open(str(tmp_path)), dict.fromkeys(phase.components, Path("nowhere")))


def written(run: RunConfig, **execution: object) -> Path:
    folder = Path(run.output)
    made = run.but(execution=Execution.model_validate({**run.execution.model_dump(), **execution}))
    write_json(RunFolder(folder).run_file, made.model_dump(mode="json"))
    return folder


def test_nothing_is_said_of_what_was_never_begun(run: RunConfig):
    assert computed_words(Path(run.output), "local") == ""


@pytest.mark.parametrize(
    ("execution", "words"),
    [
        ({}, "local: 1 device, float32, everything kept, the batch at once; from its start to its end"),
        ({"mesh": Mesh(fsdp=2, tensor=3)}, "local: 6 devices (fsdp 2, tensor 3), float32,"),
        ({"mesh": Mesh(replica=2, expert=4)}, "local: 8 devices (replica 2, expert 4), float32,"),
        ({"attention": "splash"}, "local: 1 device, float32, Splash attention, everything kept,"),
        ({"remat": "full"}, "local: 1 device, float32, blocks computed again,"),
        ({"microbatch_sequences": 4}, "everything kept, the batch in parts of 4 sequences;"),
    ],
)
def test_what_was_executed_is_said(run: RunConfig, execution: dict[str, object], words: str):
    assert words in computed_words(written(run, **execution), "local")


def test_a_run_that_went_on_says_from_where(run: RunConfig):
    folder = written(run)
    append_event(folder, "restart", None, "the trainer was ended by SIGKILL; going on from its beginning")
    append_event(folder, "stalled", 7, "it stalled")
    append_event(folder, "resumed", 1200, "going on")
    assert computed_words(folder, "local").endswith("; it went on from the beginning, step 1,200")


def test_variables_that_may_change_bits_are_named(run: RunConfig):
    folder = written(run)
    found = conditions_of({"XLA_FLAGS": "--xla_cpu_enable_fast_math=true"}, platform_name="cpu", device="cpu", processes=1)
    write_json(RunFolder(folder).conditions, found.model_dump(mode="json"))
    assert "the batch at once, XLA_FLAGS=--xla_cpu_enable_fast_math=true; from its start" in computed_words(folder, "local")


def test_what_was_computed_otherwise_before_is_named(run: RunConfig):
    folder = written(run, mesh=Mesh(fsdp=2))
    append_event(folder, "resumed", 1060, "going on from step 1,060 of 2,000")
    text = "going on from step 1,060 by another plan, on the same batches, and no longer bit for bit: execution.mesh.fsdp: 1 → 2"
    append_event(folder, "replanned", 1060, text)
    words = computed_words(folder, "local")
    assert words.startswith("local: 2 devices (fsdp 2)")
    assert words.endswith("; it went on from step 1,060; to step 1,060 otherwise (execution.mesh.fsdp: 1 → 2)")
