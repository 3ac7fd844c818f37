"""`phasewise order`: measure the mixing of a permutation."""

from typing import Any, cast, get_args

import rich.box
from rich.console import Console
from rich.table import Table

from phasewise.flows.cli.terminal import print_table
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.data.permutation import MAX_LENGTH, Kind, Permutation
from phasewise.validations.evidence.order.measures import measure_order, take_sample

FALSE_ALARM_RATE = 1e-6  # probability that the measures together reject a true random permutation


def judge_order(kind: str, length: int, seed: int) -> dict[str, Any]:
    """Compare a permutation, with the seed as its key, with random permutations, in the shape of `--json`."""
    kinds = get_args(Kind)
    if kind not in kinds:
        raise ConfigError(f"unknown permutation {kind!r}: choose one of {', '.join(kinds)}.")
    if not 1 <= length <= MAX_LENGTH:
        raise ConfigError(f"a permutation needs a length from 1 to {MAX_LENGTH}, found {length}.")
    if not 0 <= seed < 2**64:
        raise ConfigError(f"the seed of a permutation must be from 0 to 2^64 - 1, found {seed}.")
    permutation = Permutation(cast(Kind, kind), length=length, key=seed)
    measures = measure_order(take_sample(length, permutation, permutation.inverse))
    judged = [one.judged(FALSE_ALARM_RATE / len(measures)) for one in measures]
    return {
        "kind": kind,
        "length": length,
        "seed": seed,
        "passes": all(one["passes"] for one in judged),
        "false_alarm_rate": FALSE_ALARM_RATE,
        "measures": judged,
    }


def print_judgement(judgement: dict[str, Any]) -> None:
    """Print a table of the measures, failing measures first."""
    console = Console(highlight=False)
    word = "mixes" if judgement["passes"] else "does NOT mix"
    console.print(f"{judgement['kind']} over {judgement['length']:,} places, seed {judgement['seed']}: [bold]{word}[/bold]")
    table = Table(box=rich.box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("measure")
    for name in ("value", "limit"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    table.add_column("where")
    for one in sorted(judgement["measures"], key=lambda measure: measure["passes"]):
        sign = "≤" if one["bound"] == "max" else "≥"
        table.add_row(one["name"], f"{one['value']:.4g}", f"{sign} {one['limit']:.4g}", "ok" if one["passes"] else "FAILS", one["detail"])
    print_table(console, table)
    console.print(f"Limits: true random permutations go beyond one of them once in {1 / judgement['false_alarm_rate']:,.0f} times.")
