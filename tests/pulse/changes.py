"""What can change about a finished home, and what of its phases must be done again for it: a row each."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from flows.commands.status import describe
from trainer.storage import read_json, write_json

Raw = dict[str, Any]
Again = dict[str, list[tuple[str, str]]]
DATA, TRAINING, MODEL = "verdict on its data", "verdict on its training", "verdict on its model"
NOTHING: Again = {"kestrel": [], "ocelot": []}
NEW_DATA = [("caches", "prepare"), (DATA, "judge"), ("training", "train")]


class Change(NamedTuple):
    """A name, what is done to the recipe (`edit`) or around it (`around`), and what must be done again."""

    name: str
    again: Again
    edit: Callable[[Raw], Any] = lambda _raw: None
    around: Callable[[Path, pytest.MonkeyPatch], Any] = lambda _home, _patch: None


def in_phase(number: int, *path: str, **values: Any) -> Callable[[Raw], None]:
    """Set fields of a phase."""

    def edit(raw: Raw) -> None:
        place = raw["phases"][number]
        for name in path:
            place = place[name]
        place.update(values)

    return edit


def in_both(*path: str, **values: Any) -> Callable[[Raw], None]:
    def edit(raw: Raw) -> None:
        in_phase(0, *path, **values)(raw)
        in_phase(1, *path, **values)(raw)

    return edit


def in_ocelot(what: str, again: str) -> Again:
    """One thing, of the second phase."""
    return {"kestrel": [], "ocelot": [(what, again)]}


def add_a_document(home: Path, _patch: pytest.MonkeyPatch) -> None:
    with open(next((home / "sources" / "flan").glob("*.jsonl")), "a") as source:
        source.write('{"text": "One document more."}\n')


def put_other_weights_there(home: Path, _patch: pytest.MonkeyPatch) -> None:
    path = home / "runs" / "tiny-proxy" / "ocelot" / "result.json"
    write_json(path, {**read_json(path), "params_digest": "0" * 64})


def remove(pattern: str) -> Callable[[Path, pytest.MonkeyPatch], None]:
    def around(home: Path, _patch: pytest.MonkeyPatch) -> None:
        for path in home.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return around


def patched(name: str, value: Any) -> Callable[[Path, pytest.MonkeyPatch], None]:
    """Code of ours that does something else."""
    return lambda _home, patch: patch.setattr(name, value)


EVALUATED: Again = {"kestrel": [("evaluation", "evaluate")], "ocelot": [("evaluation", "evaluate")]}
TRAINED: Again = {"kestrel": [("training", "train")], "ocelot": [("training", "train")]}
JUDGED: Again = {name: [(DATA, "judge"), (TRAINING, "judge"), (MODEL, "judge")] for name in ("kestrel", "ocelot")}
PREPARED: Again = {name: [("caches", "prepare"), (DATA, "judge")] for name in ("kestrel", "ocelot")}
RETRAINED: Again = {"kestrel": NEW_DATA, "ocelot": NEW_DATA}
CHANGES = [
    Change("nothing", NOTHING),
    Change("how training is watched", NOTHING, in_both("instrumentation", layer_norms_every=5)),
    Change("the limit of a gate", in_ocelot(MODEL, "judge"), in_phase(1, "gates", "model", max_increase_bits_per_byte=-9)),
    Change("a limit of the data", in_ocelot(DATA, "judge"), in_phase(1, "gates", "data", max_epochs=49)),
    Change("a limit of the training", in_ocelot(TRAINING, "judge"), in_phase(1, "gates", "health", spike_window=99)),
    Change("the checks", JUDGED, around=patched("flows.record.version_of", lambda suite: "another")),
    Change("the bound of held-out text", EVALUATED, in_both("evaluation", held_out_tokens=777)),
    Change("the code of the evaluation", EVALUATED, around=patched("tasks.evaluation.finished.measuring_code", lambda: "other")),
    Change("the benchmarks", EVALUATED, around=patched("tasks.data.plan.BENCHMARKS_VERSION", "other")),
    Change("weights under an old name", in_ocelot("evaluation", "evaluate"), around=put_other_weights_there),
    Change("a setting of one phase", in_ocelot("training", "train"), in_phase(1, "checkpoints", every_steps=6)),
    Change("a setting of both", TRAINED, in_both("stability", max_grad_norm=[[0, 0.5]])),
    Change("the tokenizer", RETRAINED, lambda raw: raw["tokenizer"].update(vocab_size=1000)),
    Change("the format of caches", RETRAINED, around=patched("tasks.data.caches.FORMAT_VERSION", 99)),
    Change("a source", RETRAINED, around=add_a_document),
    Change("a cache that is gone", PREPARED, around=remove("tokens/flan/train-*")),
    Change("a verdict that is gone", in_ocelot(DATA, "judge"), around=remove("verdicts/tiny-proxy/ocelot/data.json")),
]


@contextmanager
def changed(change: Change, home: Path, recipe: Path, place: Path) -> Iterator[tuple[Path, Path]]:
    """A copy of the home, and the recipe, both with the change."""
    not_read = shutil.ignore_patterns("prefect", "checkpoints", "compilation-cache", "reports")
    copied = Path(shutil.copytree(home, place / "home", ignore=not_read))
    raw = read_json(recipe)
    change.edit(raw)
    write_json(place / "recipe.json", raw)
    with pytest.MonkeyPatch.context() as patch:
        change.around(copied, patch)
        yield copied, place / "recipe.json"


def what_must_be_done_again(home: Path, recipe: Path) -> Again:
    """As `phasewise status` says it."""
    description = describe(str(recipe), "proxy", str(home))
    return {
        phase["name"]: [(found["what"], found["again"]) for found in phase["results"] if not found["holds"]]
        for phase in description["phases"]
    }
