"""Says which variables of the environment look like settings of Phasewise, and nothing reads them."""

import os
import re
from collections.abc import Mapping
from difflib import get_close_matches

import click

from phasewise.trainer.base.code_digest import HOUSE, ROOMS
from phasewise.trainer.process.child_process import collect_rarely
from phasewise.trainer.process.environment import spare_search

BEGINNING = "PHASEWISE_"
OF_TESTS = "PHASEWISE_TEST_"
NEAR = 0.85
NAMED = re.compile(rb"\bPHASEWISE_[A-Z]+(?:_[A-Z]+)*\b")


def begin(environment: Mapping[str, str]) -> None:
    """Before any command: say what nothing reads, and settle what must be before jax is imported."""
    for words in words_of_unread(environment):
        click.echo(words, err=True)
    os.environ["PYTHONSAFEPATH"] = "1"  # Dask's workers and the processes of pools are started by libraries, without -P
    spare_search()
    collect_rarely()


def words_of_unread(environment: Mapping[str, str]) -> list[str]:
    """A line for each variable that no code names, with the one that may be meant.

    The names are those in the code, which is read only where the environment has such a variable.
    """
    given = sorted(name for name in environment if name.startswith(BEGINNING) and not name.startswith(OF_TESTS))
    if not given:
        return []
    known = sorted(names_in_code())
    return [_words(name, known) for name in given if name not in known]


def names_in_code() -> set[str]:
    """All variables that the code of the house names."""
    files = (path for room in ROOMS for path in (HOUSE / room).rglob("*.py"))
    return {name.decode() for path in files for name in NAMED.findall(path.read_bytes())}


def _words(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, n=1, cutoff=NEAR)
    meant = f": do you mean {near[0]}?" if near else "."
    return f"{name} is no setting of Phasewise, and nothing reads it{meant}"
