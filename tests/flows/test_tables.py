"""Tables on narrow and wide terminals."""

import io
import re

import pytest
import rich.box
from rich.console import Console
from rich.table import Table

from phasewise.flows.cli.terminal import print_table

WORDS = "a verdict of several words that may be broken between them"


def shown(width: int, *, box: bool = True) -> str:
    table = Table(box=rich.box.SIMPLE_HEAD if box else None, padding=(0, 1, 0, 0), title="marin-8b")
    table.add_column("phase", no_wrap=True)
    for name in ("tokens", "learning rate", "loss"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", overflow="fold")
    table.add_row("deeper-starling", "12,700,000,000,000", "1.7e-3 → 1.7e-4", "4.568", WORDS)
    table.add_row("ocelot", "61,440", "0 → 1e-4", "–", "not reached")
    out = io.StringIO()
    print_table(Console(file=out, width=width, highlight=False), table)
    return out.getvalue()


@pytest.mark.parametrize("box", [True, False])
@pytest.mark.parametrize("width", [28, 40, 60, 72, 80, 100, 200])
def test_nothing_is_cut_and_no_word_broken(width: int, box: bool) -> None:
    text = shown(width, box=box)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for word in ("deeper-starling", "12,700,000,000,000", "1.7e-3", "4.568", "61,440", *WORDS.split()):
        assert re.search(rf"(?<!\S){re.escape(word)}(?!\S)", text), word


def test_a_wide_terminal_has_a_line_a_row_and_a_narrow_one_a_line_a_cell() -> None:
    assert [line for line in shown(200).splitlines() if "deeper-starling" in line and WORDS in line]
    lines = [line.rstrip() for line in shown(40).splitlines()[:4]]
    assert lines == ["marin-8b", "deeper-starling", "  tokens: 12,700,000,000,000", "  learning rate: 1.7e-3 → 1.7e-4"]
