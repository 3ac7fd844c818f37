import io
import logging
import re
from collections.abc import Iterator
from typing import Any

import click
import pytest
import rich.box
from click.shell_completion import ShellComplete
from rich.console import Console
from rich.progress import Progress as Bars
from rich.table import Table

from phasewise.flows.cli.main import main
from phasewise.flows.cli.options import verbose_option
from phasewise.flows.cli.terminal import TerminalHandler, bar_columns, print_summary, print_table, print_words, shown_on_terminal
from phasewise.tasks.progress import LOGGER, PROGRESS_LOGGER, Milestones, Progress, advance, explain, say

WORDS = "a verdict of several words that may be broken between them"


def shown(width: int, *, box: bool = True) -> str:
    table = Table(box=rich.box.SIMPLE_HEAD if box else None, padding=(0, 1, 0, 0), title="marin-8b")
    table.add_column("phase", no_wrap=True)
    for name in ("tokens", "learning rate", "loss"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", overflow="fold")
    table.add_row("deeper-starling", "12,700,000,000,000", "1.7e-3 → 1.7e-4", "4.568", WORDS)
    table.add_row("ocelot", "61,440", "0 → 1e-4", "–", "not started")
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


SUMMARY: dict[str, Any] = {
    "recipe": "marin-8b",
    "scale": "proxy",
    "baselines": {"byte 3-gram": 3.1234},
    "told": "3 of 3 verdicts passed, 1 of them with warnings: 28 of 30 checks passed, 2 warnings",
    "bits_per_byte_over": ["code", "web"],
    "unused": ["expect_order_to_mix where permutation = linear"],
    "phases": [
        {
            "name": "kestrel", "steps": 660, "tokens": 168_960, "learning_rate": (0.0, 1.7e-3, 1e-4), "final_loss": 4.5678,
            "bits_per_byte": 2.3456, "state": "done", "verdict": "passed", "standing": "passed with 2 warnings",
        },
        {
            "name": "ocelot", "steps": 80, "tokens": 61_440, "learning_rate": (1.7e-3, 1.7e-3), "final_loss": None,
            "bits_per_byte": None, "state": "not started", "verdict": None, "standing": None,
        },
    ],
}  # fmt: skip


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    out = io.StringIO()
    console = Console(file=out, force_terminal=False, width=80)
    handler = TerminalHandler(console, Bars(console=console))
    for logger in (LOGGER, PROGRESS_LOGGER):
        logger.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    yield out
    for logger in (LOGGER, PROGRESS_LOGGER):
        logger.removeHandler(handler)


def test_without_a_terminal_a_line_is_shown_as_it_is_and_a_bar_every_quarter(lines: io.StringIO):
    text = "a [bold]line[/bold] of more than eighty characters, with 1,234 tokens, " + "x" * 50
    say(text)
    for done in range(1, 201):
        advance("train kestrel", done, 200, "loss 4.5")
    shown = lines.getvalue().splitlines()
    assert shown == [text, *(f"train kestrel: {done} of 200 loss 4.5" for done in (1, 50, 100, 150, 200))]
    advance("token caches", 1, 2)
    assert lines.getvalue().splitlines()[-1].strip() == "token caches: 1 of 2"


def test_everything_goes_to_standard_error_and_nothing_stays_behind(capsys: pytest.CaptureFixture[str]):
    before = [list(logger.handlers) for logger in (LOGGER, PROGRESS_LOGGER)]

    def work() -> None:
        say("one line")
        raise RuntimeError

    with pytest.raises(RuntimeError), shown_on_terminal():
        work()
    out, err = capsys.readouterr()
    assert (out, "one line" in err) == ("", True)
    assert [logger.handlers for logger in (LOGGER, PROGRESS_LOGGER)] == before
    assert LOGGER.propagate


def test_the_table_fits_a_terminal_of_eighty_columns_whatever_the_verdict():
    out = io.StringIO()
    kestrel, ocelot = SUMMARY["phases"]
    rate = (0.0, 1e-3, 1e-4)
    print_summary(
        Console(file=out, width=80), {**SUMMARY, "phases": [{**kestrel, "name": "deeper-starling", "learning_rate": rate}, ocelot]}
    )
    text = out.getvalue()
    table = text[: text.index(SUMMARY["told"])]
    assert max(map(len, table.splitlines())) <= 80
    assert "…" not in table
    assert all(map(str.strip, table.rstrip().splitlines()))
    assert re.search(r"deeper-starling .* passed with *\n +2 warnings *\n", table)
    assert "Accepted by the recipe, and not found: expect_order_to_mix where permutation = linear." in text
    assert "Bits per byte: of the 2 components on which all phases were measured." in text


def test_a_line_breaks_between_words_at_the_width_of_a_terminal_and_nowhere_else() -> None:
    out = io.StringIO()
    path = "/a/path/that/is/longer/than/the/terminal/" + "x" * 60
    print_words(Console(file=out, width=60, force_terminal=True, no_color=True), f"  ocelot failed: {'12,345 words ' * 12}and {path}\nnext")
    lines = out.getvalue().splitlines()
    assert [line for line in lines if len(line) > 60] == [f"    {path}"]
    assert (lines[0][:17], lines[1][:5], lines[-1]) == ("  ocelot failed: ", "    1", "next")
    assert " ".join(" ".join(lines).split()) == f"ocelot failed: {'12,345 words ' * 12}and {path} next"


def test_a_bar_says_how_much_time_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 10.0, 20.0, 100.0])
    milestones = Milestones(lambda: next(now))
    said = [milestones.line(Progress("train", done, 100, "loss 4")) for done in (10, 30, 60, 100)]
    assert said == [
        "train: 10 of 100 loss 4",
        "train: 30 of 100 loss 4, about 35 s left",
        "train: 60 of 100 loss 4, about 16 s left",
        "train: 100 of 100 loss 4",
    ]


@pytest.mark.parametrize("width", [80, 200])
def test_a_bar_is_one_line_with_every_number_of_it(width: int) -> None:
    now = iter(range(0, 100_000, 4))
    with Bars(*bar_columns(), console=Console(file=io.StringIO(), width=width), get_time=lambda: next(now)) as bars:
        task = bars.add_task("train deeper-starling", total=660, note="loss 4.684  4,431 tokens/s")
        for _ in range(5):
            bars.advance(task, 71)
        out = io.StringIO()
        Console(file=out, width=width).print(bars.make_tasks_table(bars.tasks))
    (line,) = out.getvalue().splitlines()
    assert re.search(r"train deeper-starling \S+ +355/660 \d+:\d\d, \d+ \w+ left loss 4\.684  4,431 tokens/s", line)


def test_details_are_lines_of_verbose_commands(capsys: pytest.CaptureFixture[str]):
    @click.command()
    @verbose_option
    def command() -> None:
        with shown_on_terminal():
            say("a verdict")
            explain("its power")

    for arguments, is_explained in (([], False), (["-v"], True), ([], False)):
        command.main(arguments, standalone_mode=False)
        assert ("a verdict" in (err := capsys.readouterr().err), "its power" in err) == (True, is_explained)


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("show mar", "marin-8b marin-32b"),
        ("run marin-8b/kes", "marin-8b/kestrel marin-8b/kestrel-as-reported"),
        ("status --fu", "--full"),
        ("evaluate x/", ""),
    ],
)
def test_the_shell_completes_recipes_phases_and_options(words: str, completed: str):
    *before, last = words.split()
    found = ShellComplete(main, {}, "phasewise", "_PHASEWISE_COMPLETE").get_completions(before, last)
    assert [item.value for item in found if item.type == "plain"] == completed.split()
