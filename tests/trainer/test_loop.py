"""What the loop decides around the step: schedules, saving, stopping, summing up."""

from collections.abc import Callable, Iterator
from pathlib import Path

from phasewise.trainer.config import RunConfig, sequences_between
from phasewise.trainer.data.loader import Loader
from phasewise.trainer.loop import summarise, timed
from phasewise.trainer.metrics import MetricsFile
from phasewise.trainer.state import init_state, params_digest

MakeRun = Callable[..., RunConfig]


def test_only_the_wait_for_an_item_is_timed():
    now = 0.0

    def pass_by(seconds: float) -> None:
        nonlocal now
        now += seconds

    def slow() -> Iterator[str]:
        for item, seconds in {"a": 2.0, "b": 3.0}.items():
            pass_by(seconds)
            yield item

    waits: list[tuple[str, float]] = []
    for item, seconds in timed(slow(), lambda: now):
        waits.append((item, seconds))
        pass_by(100.0)  # the work between two items
    assert waits == [("a", 2.0), ("b", 3.0)]


def test_a_phase_s_tokens_are_those_of_its_batches(make_run: MakeRun):
    run = make_run(
        "tokens", start_step=4, learning_rate=[{"kind": "constant", "start_step": 4, "end_step": 24, "start": 1e-3, "end": 1e-3}]
    )
    tokens = sequences_between(run.batch, 4, 24) * 32
    assert tokens == sum(Loader(run).batch(step).tokens.size for step in range(4, 24)) == (6 * 4 + 14 * 8) * 32


def test_the_summary_says_what_was_trained(make_run: MakeRun):
    run = make_run("summary")
    metrics = MetricsFile(Path(run.output) / "metrics.jsonl", restored_step=0)
    for step in range(1, 25):
        metrics.append({"step": step, "loss": float(step)})
    metrics.close()
    state = init_state(run)
    assert summarise(run, state) == {
        "phase": "summary",
        "run_digest": run.digest,
        "start_step": 0,
        "stop_step": 24,
        "tokens": (10 * 4 + 14 * 8) * 32,
        "final_loss": 19.5,  # the mean of 15 … 24
        "params_digest": params_digest(state.params),
        "checkpoint": f"{run.output}/checkpoints/24",
    }
