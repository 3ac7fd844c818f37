"""Public incidents of this field, each replayed small beside a sound twin: `python -m experiments.incidents [NAME…]`.

`incidents.yaml` names the incidents with their sources. The command prints which error or sentence of Phasewise catches each one and when,
and whether the sound twin passes. It fails if an incident is missed or a twin is refused. `--markdown` writes `docs/lab/incidents.md`.
"""

import argparse
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from phasewise.trainer.base.errors import PhasewiseError
from phasewise.trainer.base.frozen import in_one_line

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "lab" / "incidents.md"
MODULES = ("recipes", "data", "checkpoints", "judgements")
STAGES = ("recipe", "data", "start", "step", "gate")
MAX_CHARACTERS = 240
Incident = Mapping[str, Any]


@dataclass(frozen=True)
class Outcome:
    """The words of Phasewise to an incident and to its sound twin. `when` is the stage, with its step if a step was trained."""

    incident: Incident
    said: str | None
    is_in_time: bool
    when: str
    twin_said: str | None
    seconds: float

    @property
    def is_caught(self) -> bool:
        """Whether Phasewise refuses or names the incident before or at the stage where it happens."""
        return self.said is not None and self.is_in_time


def read_incidents() -> dict[str, Incident]:
    """Read the incidents by name, in the order of the file."""
    found = yaml.safe_load((HERE / "incidents.yaml").read_text(encoding="utf-8"))
    return {name: {"name": name, **entry} for name, entry in found.items()}


def replay_of(incident: Incident) -> Callable[..., str | None]:
    """Find the function with the name of an incident, or the function of `recipes` for its data."""
    modules = [import_module(f"experiments.incidents.{one}") for one in MODULES]
    for field, function in (("record", "phase_of_the_record"), ("own", "recipe_of_its_own")):
        if field in incident:
            return partial(getattr(modules[0], function), **incident[field])
    name = incident["name"].replace("-", "_")
    return next(getattr(module, name) for module in modules if hasattr(module, name))


def replay(incident: Incident, root: Path) -> Outcome:
    """Replay an incident and its twin in new folders. A crash is no refusal."""
    from experiments.incidents.case import Case

    began = time.monotonic()
    cases = [Case(root / f"{incident['name']}-{kind}", root / "shared", kind == "twin") for kind in ("incident", "twin")]
    said: list[str | None] = []
    for case in cases:
        case.folder.mkdir(parents=True)
        try:
            said.append(replay_of(incident)(case))
        except (ValidationError, PhasewiseError) as error:
            said.append(in_one_line(error))
        except Exception:
            traceback.print_exc()
            said.append("a crash" if case.sound else None)
    stage, step = cases[0].stage, cases[0].step
    when = f"{stage} {step}" if stage in ("step", "gate") and step is not None else stage
    in_time = STAGES.index(stage) <= STAGES.index(incident["happens"])
    words = said[0] and said[0].replace(f"{cases[0].folder}/", "").replace(f"{root}/", "").removeprefix("trainer: ")
    return Outcome(incident, words, in_time, when, said[1], time.monotonic() - began)


def cut(text: str | None) -> str:
    """Shorten a sentence."""
    text = text or "not caught"
    return text if len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS - 1]}…"


def source_of(incident: Incident) -> str:
    """Name the source of an incident in Markdown: issues of a repository, or a section of a report."""
    if "section" in incident:
        return f"{incident['report']}, {incident['section']}"
    repository = incident["repository"]
    return ", ".join(f"[{repository}#{number}](https://github.com/{repository}/issues/{number})" for number in incident["numbers"])


def counts_of(outcomes: Sequence[Outcome]) -> str:
    """Count the caught incidents and the refused twins."""
    caught, refused, total = (sum(one.is_caught for one in outcomes), sum(one.twin_said is not None for one in outcomes), len(outcomes))
    return f"{caught} of {total} caught before or at the step where they happen, {refused} of {total} twins refused."


def page_of(outcomes: Sequence[Outcome]) -> str:
    """Render the page of the documentation, a table for each room."""
    lines = [
        "# Incidents",
        "",
        "Public incidents of language model training, each replayed small beside a sound twin that differs only in the fault:",
        f"{counts_of(outcomes)} `python -m experiments.incidents --markdown`",
        f"wrote this page in about {time.process_time():.0f} s of processor time.",
        "",
        "*Happens* is the stage of the fault, and *caught* the stage of the error or sentence: Phasewise resolves the recipe, prepares and",
        "judges the data, starts the trainer, trains a step, or judges at a gate. [Marin's 535B run](marin-hero.md) is also a recipe.",
    ]
    for room in dict.fromkeys(one.incident["room"] for one in outcomes):
        lines += ["", f"## {room.capitalize()}", "", "| incident | source | happens | caught | Phasewise says |", "|---|---|---|---|---|"]
        for one in (one for one in outcomes if one.incident["room"] == room):
            said = cut(one.said).replace("|", "\\|").replace("<", "&lt;").replace("{%", "{ %")
            lines.append(f"| {one.incident['happened']} | {source_of(one.incident)} | {one.incident['happens']} | {one.when} | {said} |")
    return "\n".join([*lines, ""])


def main(arguments: list[str]) -> int:
    """Replay the named incidents, or all. Return 1 if an incident is missed or a twin is refused."""
    os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "TPU_SKIP_MDS_QUERY": "1"}
    import phasewise.trainer.loop
    from tests.trainer.conftest import build_train_step

    phasewise.trainer.loop.build_train_step = build_train_step  # runs of one model share the compiled update
    incidents = read_incidents()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[*incidents, []], help="names of incidents.yaml, default all")
    parser.add_argument("--markdown", action="store_true", help=f"write {PAGE.name}")
    asked = parser.parse_args(arguments)
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="phasewise-incidents-") as folder:
        for name in asked.names or incidents:
            one = replay(incidents[name], Path(folder).resolve())
            outcomes.append(one)
            twin = "passes" if one.twin_said is None else f"REFUSED: {one.twin_said}"
            late = "" if one.is_in_time else f" (TOO LATE: it happens at {one.incident['happens']})"
            print(f"{name} · {cut(one.said)} · {one.when}{late} · twin {twin} · {one.seconds:.1f} s", flush=True)
    print(counts_of(outcomes))
    if asked.markdown:
        PAGE.write_text(page_of(outcomes), encoding="utf-8")
    return int(any(not one.is_caught or one.twin_said for one in outcomes))


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # the threads of Dask's cluster have no end
