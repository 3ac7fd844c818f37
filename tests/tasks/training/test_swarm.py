from pathlib import Path
from typing import Any

import pytest

from phasewise.tasks.training.swarm import proxy_of, shortened, train_proxy
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.config import learning_rate_at
from tests.tasks.conftest import tiny_run
from tests.tasks.training.conftest import BuildRun


def test_a_shortened_run_keeps_its_start_and_the_ends_of_its_schedules():
    rates = [
        {"kind": "constant", "start_step": 10, "end_step": 80, "start": 1e-2, "end": 1e-2},
        {"kind": "linear", "start_step": 80, "end_step": 100, "start": 1e-2, "end": 1e-4},
    ]
    caches: dict[str, Path] = dict.fromkeys(("code", "law", "web"), Path("cache"))
    batch = [[0, 4], [20, 2], [70, 6]]
    run = tiny_run("a", 100, caches, Path("v"), Path("o"), learning_rate=rates, start_step=40, batch=batch)
    short = shortened(run, 15)
    assert (short.start_step, short.stop_step) == (40, 55)
    assert short.batch.root == ((0, 4), (20, 2), (40, 2), (48, 6))
    assert [(one.start_step, one.end_step) for one in short.learning_rate] == [(32, 50), (50, 55)]
    assert learning_rate_at(short.learning_rate, 41) == 1e-2
    assert short.learning_rate[-1].end == 1e-4
    proxy = proxy_of(short, {"code": 100}, {"code": "held"}, Path("out"), seed=7)
    assert proxy.mixture.root == (*run.mixture.root, (40, {"code": 100.0}))
    assert (proxy.seed, proxy.order.seed) == (7, 7)


@pytest.mark.long
def test_a_proxy_is_trained_once_and_leaves_its_losses(build_run: BuildRun, prepared: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    held_out = {name: str(folder) for name, folder in prepared.plan().folders("held_out").items()}
    run = build_run("swarm")
    proxy = proxy_of(shortened(run, 4), {"law": 100}, held_out, Path(run.output) / "proxy-0")
    losses = train_proxy(proxy.model_dump(mode="json"))
    assert losses is not None
    assert (sorted(losses), all(4 < loss < 8 for loss in losses.values())) == (["code", "law", "web"], True)
    assert not RunFolder(proxy.output).checkpoints.exists()
    written = RunFolder(proxy.output).metrics.stat().st_mtime_ns
    assert train_proxy(proxy.model_dump(mode="json")) == losses
    assert RunFolder(proxy.output).metrics.stat().st_mtime_ns == written
