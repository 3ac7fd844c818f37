"""The page over a large home: 200 phases, 10⁶ rows of metrics, most of them in one phase. Each request is the first of a new, idle server.

`python -m experiments.bench site`. A row of metrics is as long as a real one, 1.7 KB.
"""

import json
import math
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from experiments.bench.measure import Options, Row
from phasewise.tasks.home import Home
from phasewise.trainer.base.identity import write_sealed
from phasewise.validations.expectations.judging import Reason
from phasewise.validations.verdict import CheckOutcome, Verdict, write_verdict
from tests.chromium import CHROMIUM
from tests.ports import free_port

PHASES, ALL_ROWS, LONG_ROWS = 200, 1_000_000, 801_000
RUN_NAME = "large-own"
LONG = "phase-000"
MAX_SECONDS = 1.0
PAGES = {
    "the first page": "",
    "the recipe with its tree": "large/own",
    "the phase with 801,000 rows": f"large/own/{LONG}",
    "the data that is polled of it": f"live/large/own/{LONG}",
    "a phase with 1,000 rows": "large/own/phase-150",
    "a verdict": "large/own/phase-150/data",
    "search": "search?q=phase-15",
    "a comparison with the long phase": f"compare?left=large/own/{LONG}&right=large/own/phase-150",
}


def rows(options: Options) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="phasewise-site-") as folder:
        home = Home(Path(folder) / "home")
        write_home(home)
        for name, path in PAGES.items():
            with served(home) as (url, process):
                before = sum(process.cpu_times()[:2])
                took = seconds_of(url + path)
                worked = sum(process.cpu_times()[:2]) - before
            yield Row(f"{name}, seconds", took, at_most=MAX_SECONDS, note=f"{worked:.2f} s of CPU")
        with served(home) as (url, _):
            painted = painted_after(url + PAGES["the phase with 801,000 rows"])
            if painted is not None:
                yield Row("the long phase, first contentful paint, seconds", painted, at_most=MAX_SECONDS)
            yield Row("until every row of it is read, seconds", until_whole(url), note="in the background, while others are served")
            yield Row("the phase again, seconds", seconds_of(url + PAGES["the phase with 801,000 rows"]), at_most=MAX_SECONDS)


def write_home(home: Home) -> None:
    short = (ALL_ROWS - LONG_ROWS) // (PHASES - 1)
    for number in range(PHASES):
        name, before = f"phase-{number:03}", f"phase-{number - 1:03}"
        count = LONG_ROWS if name == LONG else short
        start = {"checkpoint": str(home.run(RUN_NAME, before) / "checkpoints" / "1")} if number else None
        run = {
            "recipe": "large",
            "scale": "own",
            "phase": name,
            "start_step": 0,
            "stop_step": count,
            "start": start,
            "caches": {"web": "a"},
        }
        folder = home.run(RUN_NAME, name)
        write_sealed(folder / "run.json", {**run, "mixture": [[0, {"web": 100.0}]]})
        write_metrics(folder / "metrics.jsonl", count)
        for gate in ("data", "health", "model"):
            write_verdict(home.verdict(RUN_NAME, name, gate), verdict(f"large/own/{name} {gate}"))


def write_metrics(path: Path, count: int) -> None:
    groups = ("embedding", "attention", "mlp", "norms", "lm_head")
    norms = ("grad_norm", "update_norm", "param_norm", "first_moment_norm", "second_moment_norm")
    rest = json.dumps({f"{norm}/{group}": 0.123456789012345 for norm in norms for group in groups})[1:]
    with path.open("w") as file:
        for step in range(1, count + 1):
            loss = 8 * math.exp(-step / count * 4) + 2 + (step * 2654435761 % 997) / 2000
            drawn = f'"loss":{loss},"learning_rate":0.001,"grad_norm":1.1,"update_norm":0.1,"param_norm":30.0,"tokens_per_second":1000.0'
            file.write(f'{{"step":{step},{drawn},"step_seconds":0.25,"tokens":256,"padding":"{"x" * 500}",{rest}\n')


def verdict(subject: str) -> Verdict:
    checks = [
        CheckOutcome(name=f"expect_{place}", table="caches", asks=f"Check {place} holds.", severity="warning", passes=place > 0,
                     outcome="passed" if place else "failed", observed="0 of 19 rows fail")
        for place in range(30)
    ]  # fmt: skip
    reason = Reason(
        expectation="expect_0", severity="warning", what=f"{subject} is large", found="2", limit="1", where="here", what_to_do="Look."
    )
    return Verdict(
        subject=subject, suite="data", suite_version="1", passes=True, judged={"web": "a" * 64}, thresholds={}, reasons=(reason,),
        checks=tuple(checks), evidence="none",
    )  # fmt: skip


@contextmanager
def served(home: Home) -> Iterator[tuple[str, psutil.Process]]:
    port = free_port()
    command = [sys.executable, "-m", "phasewise.deployments.site", "--home", str(home.root), "--port", str(port), "--with-parent"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        url = f"http://127.0.0.1:{port}/"
        while process.poll() is None:
            try:
                seconds_of(f"{url}-/static/style.css")
                break
            except OSError:
                time.sleep(0.1)
        started = psutil.Process(process.pid)
        wait_until_idle(started)
        yield url, started
        process.terminate()


def wait_until_idle(process: psutil.Process) -> None:
    before = -1.0
    while (worked := sum(process.cpu_times()[:2])) - before > 0.02:
        before = worked
        time.sleep(1)


def seconds_of(url: str) -> float:
    began = time.perf_counter()
    with urllib.request.urlopen(url, timeout=60) as answer:
        answer.read()
    return time.perf_counter() - began


def painted_after(url: str) -> float | None:
    if CHROMIUM is None:
        return None
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = opened.new_page()
        page.goto(url, wait_until="load")
        page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length > 0")
        found = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        opened.close()
    return float(found) / 1000


def until_whole(url: str) -> float:
    """Seconds until the page is drawn from every row."""
    began = time.perf_counter()
    while True:
        with urllib.request.urlopen(f"{url}live/large/own/{LONG}", timeout=60) as answer:
            if b"the rest is being read" not in answer.read():
                return time.perf_counter() - began
        time.sleep(0.5)
