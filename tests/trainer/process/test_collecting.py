"""Commands start quickly; the trainer gives memory back at once."""

import subprocess
import sys

import pytest

from phasewise.trainer.process.collecting import NEW_OBJECTS, OLDER, OLDEST

SAYS = "import atexit, gc, sys; atexit.register(lambda: print(*gc.get_threshold(), file=sys.stderr)); "


@pytest.mark.parametrize(
    ("code", "rarely"),
    [("from phasewise.flows.cli import main; main(['schema'])", True), ("from phasewise.trainer.run import main; main([])", False)],
    ids=["a command", "the trainer"],
)
def test_a_command_looks_rarely_and_the_trainer_as_python_does(code: str, rarely: bool):
    done = subprocess.run([sys.executable, "-c", SAYS + code], capture_output=True, text=True, check=True)
    found = tuple(map(int, done.stderr.splitlines()[-1].split()))
    assert (found == (NEW_OBJECTS, OLDER, OLDEST)) is rarely
