"""Run several commands in one process, so that slow imports happen once.

`python -m experiments.survival.in_turn [--another-reader]` reads one JSON list a line: the arguments of `phasewise`, or
`train_phase` with a recipe, a phase and a home. Each answer is one line: exit code, standard output, standard error. The
process serves tests that need no new process. A flow that is called without the command line also logs to standard error.
"""

import json
import logging
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, NamedTuple

TRAIN_PHASE = "train_phase"
ANOTHER_READER = "--another-reader"
"""The reader has another version, and makes the same bytes."""


class Ended(NamedTuple):
    returncode: int
    output: str
    errors: str

    def communicate(self) -> tuple[str, str]:
        return self.output, self.errors


class InTurn:
    def __init__(self, requests: IO[str], answers: IO[str]) -> None:
        self._requests, self._answers = requests, answers

    def __call__(self, *words: object) -> Ended:
        """`phasewise WORDS`."""
        print(json.dumps(list(map(str, words))), file=self._requests, flush=True)
        return Ended(*json.loads(self._answers.readline()))

    def train_phase(self, recipe: object, phase: str, home: object) -> Ended:
        return self(TRAIN_PHASE, recipe, phase, home)


@contextmanager
def in_turn_process(environment: Mapping[str, str], *options: str) -> Iterator[InTurn]:
    command = [sys.executable, "-m", "experiments.survival.in_turn", *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(environment)) as process:
        assert process.stdin
        assert process.stdout
        yield InTurn(process.stdin, process.stdout)


def main() -> None:
    if ANOTHER_READER in sys.argv:
        import phasewise.tasks.data.reading as reading

        reading.READER += "+another"  # before anything imports it from there
    with os.fdopen(os.dup(1), "w") as answers:
        for line in sys.stdin:
            print(json.dumps(run(json.loads(line))), file=answers, flush=True)


def run(words: list[str]) -> Ended:
    logging.getLogger().handlers.clear()  # remove handlers of an earlier command, as in a new process
    kept = [os.dup(number) for number in (1, 2)]
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        for number, file in enumerate((output, errors), start=1):
            os.dup2(file.fileno(), number)
        try:
            code = call(words)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, was in enumerate(kept, start=1):
                os.dup2(was, number)
                os.close(was)
        for file in (output, errors):
            file.seek(0)
        return Ended(code, output.read(), errors.read())


def call(words: list[str]) -> int:
    try:
        if words[0] == TRAIN_PHASE:
            from phasewise.flows.train_phase import train_phase

            recipe, phase, home = words[1:]
            train_phase(recipe, phase, home=home)
        else:
            from phasewise.flows.cli.main import main as phasewise

            phasewise(words, prog_name="phasewise")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except Exception:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    main()
