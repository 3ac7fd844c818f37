from pathlib import Path
from typing import Any

import pytest

from phasewise.tasks.training.swarm import proxy_of, shortened, train_swarm
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.config import RunConfig, learning_rate_at
from tests.tasks.conftest import tiny_run
from tests.tasks.training.conftest import BuildRun


def test_a_shortened_run_keeps_its_start_and_the_ends_of_its_schedules():
    rates = [
        {"kind": "constant", "start_step": 10, "end_step": 80, "start": 1e-2, "end": 1e-2},
        {"kind": "linear", "start_step": 80, "end_step": 100, "start": 1e-2, "end": 1e-4},
    ]
    caches = dict.fromkeys(("code", "law", "web"), Path("cache"))
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


@pytest.mark.timeout(300)  # two processes start
def test_proxies_are_trained_once_and_leave_their_losses(build_run: BuildRun, prepared: Any, on_scheduler: None):
    held_out = {name: str(folder) for name, folder in prepared.plan().folders("held_out").items()}
    run = shortened(build_run("swarm"), 4)
    mixtures: tuple[dict[str, float], ...] = ({"code": 50, "law": 25, "web": 25}, {"law": 100})
    proxies: list[RunConfig] = [proxy_of(run, shares, held_out, Path(run.output) / str(n)) for n, shares in enumerate(mixtures)]
    losses = train_swarm("train proxies", proxies)
    assert losses.shape == (2, 3)
    assert (losses[0] != losses[1]).all()
    assert not any(RunFolder(one.output).checkpoints.exists() for one in proxies)
    written = [RunFolder(one.output).metrics.stat().st_mtime_ns for one in proxies]
    assert (train_swarm("train proxies", proxies) == losses).all()
    assert [RunFolder(one.output).metrics.stat().st_mtime_ns for one in proxies] == written
