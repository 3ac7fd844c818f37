"""A needle at four times the length of the rows, before and after an extension: `python -m tests.pulse.needle FOLDER [--seeds N]`.

A model of two layers as Trinity's learns on rows of 128 tokens to give the value that a key had. Then it goes on for a sixth as many
updates: on rows of 512 tokens, as a context extension does, or on short rows as before. MK-NIAH asks all three at both lengths.
`docs/trinity.md` has the table, and what it does not show.
"""

from tests.pulse.needle_runs import LONG, NEEDLES, SHORT, Lengths, first_run, haystack, next_run, tokenizer, train

# isort: split
import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tasks.evaluation.loading import model_of_checkpoint
from tasks.evaluation.suites.needle import needle_suite
from tasks.evaluation.suites.run import Options, run_suite
from trainer.checkpoints.path import checkpoint_path
from trainer.config import RunConfig

ARMS = ("short rows", "as many updates more on short rows", "extension to long rows")


class Found(NamedTuple):
    """What a model scores at a length.

    Attributes:
        chosen, written: share of the values that it finds likeliest, and that it writes.
        probability: mean probability of the right value among those of all keys.
        floor: what no model is needed for.
    """

    arm: str
    seed: int
    length: int
    chosen: float
    written: float
    probability: float
    floor: float
    items: int


def measure(arm: str, run: RunConfig, home: Path) -> list[Found]:
    """MK-NIAH at both lengths, on the weights at the run's end."""
    path = home / "tokenizer.json"
    tokenizer().save(str(path))
    checkpoint = checkpoint_path(Path(run.output), run.stop_step)
    model = model_of_checkpoint(checkpoint, path)
    if model.max_length < LONG:
        model.read_up_to(LONG)
    how = Options(None, haystack=haystack, needles=NEEDLES)
    rows = run_suite(needle_suite((SHORT, LONG), LONG), model, how, place=checkpoint, weights="last", about={}).results
    return [_found(arm, run.seed, length, *rows[2 * place : 2 * place + 2]) for place, length in enumerate((SHORT, LONG))]


def _found(arm: str, seed: int, length: int, chosen: object, written: object) -> Found:
    assert isinstance(chosen, dict)
    assert isinstance(written, dict)
    assert chosen["hole"] is None, chosen["hole"]
    assert written["hole"] is None, written["hole"]
    return Found(
        arm, seed, length, chosen["value"], written["value"], chosen["choice_probability"], chosen["baseline"], chosen["items"]
    )  # fmt: skip


def tell(home: Path, seeds: Sequence[int], lengths: Lengths) -> list[Found]:
    """Train and measure all, a line each."""
    found: list[Found] = []
    for seed in seeds:
        first = train(first_run(home, seed, lengths))
        runs = (first, train(next_run(home, first, SHORT, lengths)), train(next_run(home, first, LONG, lengths)))
        for arm, run in zip(ARMS, runs, strict=True):
            found += measure(arm, run, home)
            for one in found[-2:]:
                print(one, flush=True)
    return found


def table(found: Sequence[Found]) -> str:
    """A line a model: what it finds at each length, by seed."""
    seeds = sorted({one.seed for one in found})
    lines = [
        f"| trained on | {SHORT} tokens: chosen | written | {LONG} tokens: chosen | written "
        f"| probability of the right value, {SHORT} and {LONG} |",
        "|---|---|---|---|---|---|",
    ]
    for arm in dict.fromkeys(one.arm for one in found):
        of = {(one.length, one.seed): one for one in found if one.arm == arm}
        cells = [
            " · ".join(f"{getattr(of[length, seed], field):.2f}" for seed in seeds)
            for length in (SHORT, LONG)
            for field in ("chosen", "written")
        ]
        likely = [" · ".join(f"{of[length, seed].probability:.2f}" for seed in seeds) for length in (SHORT, LONG)]
        lines.append(f"| {arm} | {' | '.join(cells)} | {' and '.join(likely)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first", type=int, default=Lengths().first)
    parser.add_argument("--extension", type=int, default=Lengths().extension)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    text = table(tell(given.folder, range(given.seeds), Lengths(given.first, given.extension)))
    (given.folder / "needle.md").write_text(text + "\n")
    print(text)
