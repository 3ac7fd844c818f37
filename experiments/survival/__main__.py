"""`python -m experiments.survival --steps 10000 [--seed N]`: run the state machine and print its outcomes as JSON."""

import argparse
import json
import logging
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"

STEPS_AN_EXAMPLE = 25


def main(words: list[str]) -> int:
    """Return exit code 1 if a rule had a wrong outcome. Hypothesis then prints the steps."""
    parser = argparse.ArgumentParser(prog="python -m experiments.survival")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no further example after SECONDS")
    parser.add_argument("--shrink", action="store_true", help="look for the shortest way to a failure, which may take long")
    given = parser.parse_args(words)
    from hypothesis import HealthCheck, Phase, seed, settings
    from hypothesis.stateful import run_state_machine_as_test

    from experiments.survival.one_process import Expected, set_up_jax, write_caches
    from experiments.survival.state_machine import Survival

    set_up_jax()
    logging.disable(logging.CRITICAL)
    started = time.monotonic()
    code, number = 0, 0
    with tempfile.TemporaryDirectory(prefix="phasewise-survival-") as folder:
        Survival.originals = write_caches(Path(folder) / "originals")
        Survival.expected = Expected(Path(folder) / "expected", Survival.originals)
        Survival.place = Path(folder) / "world"
        settled = settings(
            max_examples=max(2, min(40, given.steps // STEPS_AN_EXAMPLE)),  # the first example of a run is trivial
            stateful_step_count=STEPS_AN_EXAMPLE,
            deadline=None,
            database=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
            phases=[Phase.generate, Phase.shrink] if given.shrink else [Phase.generate],
            print_blob=False,
        )
        while Survival.counts.total() < given.steps and time.monotonic() - started < given.seconds:
            number += 1
            try:
                print(f"{Survival.counts.total()} steps, {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
                run_state_machine_as_test(seed(given.seed * 100_000 + number)(Survival), settings=settled)
            except BaseException as error:
                import traceback

                traceback.print_exception(error)
                code = 1
                break
    about = {"steps": Survival.counts.total(), "seconds": round(time.monotonic() - started), "failed": bool(code)}
    print(json.dumps({**about, "counts": dict(sorted(Survival.counts.items()))}, indent=2))
    return code


if __name__ == "__main__":
    ended = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(ended)  # killed trainers left waiting threads
