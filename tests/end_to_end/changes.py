"""What can change about a finished home, and what of its phases must be done again for it: a row each."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from phasewise.flows.cli.status import describe
from phasewise.trainer.base.identity import write_sealed
from phasewise.trainer.base.storage import read_json, write_json

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


def in_phases(phases: slice, *path: str, **values: Any) -> Callable[[Raw], None]:
    def edit(raw: Raw) -> None:
        for place in raw["phases"][phases]:
            for name in path:
                place = place[name]
            place.update(values)

    return edit


in_second, in_both = partial(in_phases, slice(1, None)), partial(in_phases, slice(None))

EDITED = ("files", "judge")  # a file is named as changed


def in_ocelot(what: str, again: str, *others: tuple[str, str]) -> Again:
    return {"kestrel": [], "ocelot": [(what, again), *others]}


def add_a_document(home: Path, _patch: pytest.MonkeyPatch) -> None:
    with open(next((home / "sources" / "flan").glob("*.jsonl")), "a") as source:
        source.write('{"text": "One document more."}\n')


def put_other_weights_there(home: Path, _patch: pytest.MonkeyPatch) -> None:
    path = home / "runs" / "tiny-proxy" / "ocelot" / "result.json"
    before = {name: value for name, value in read_json(path).items() if name != "digest"}
    write_sealed(path, {**before, "params_digest": "0" * 64})


def edit_the_result(home: Path, _patch: pytest.MonkeyPatch) -> None:
    path = home / "runs" / "tiny-proxy" / "ocelot" / "result.json"
    write_json(path, {**read_json(path), "final_loss": 0.1})


def remove(pattern: str) -> Callable[[Path, pytest.MonkeyPatch], None]:
    def around(home: Path, _patch: pytest.MonkeyPatch) -> None:
        for path in home.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return around


def patched(name: str, value: Any) -> Callable[[Path, pytest.MonkeyPatch], None]:
    return lambda _home, patch: patch.setattr(name, value)


def name_real_benchmarks(home: Path, patch: pytest.MonkeyPatch) -> None:
    (folder := home.parent / "benchmarks" / "mine").mkdir(parents=True)
    (folder / "test.jsonl").write_text(
        '{"question": "Which of the three rivers of the plain is the longest one?", "answer": "The second."}\n'
    )
    patch.setenv("PHASEWISE_BENCHMARKS", str(folder.parent))


def read_by_other_code(_home: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("phasewise.tasks.data.documents.READER", "another")
    patch.setattr("phasewise.tasks.data.verify.read_by", lambda _: "another")


EVALUATED: Again = {"kestrel": [("evaluation", "evaluate")], "ocelot": [("evaluation", "evaluate")]}
LOOKED_FOR: Again = {"kestrel": [(DATA, "judge")], "ocelot": [(DATA, "judge")]}
BENCHMARKED: Again = {name: [(DATA, "judge"), ("evaluation", "evaluate")] for name in ("kestrel", "ocelot")}
ORDERED: Again = {name: [(DATA, "judge"), ("training", "train")] for name in ("kestrel", "ocelot")}
HANDED_OFF: Again = {**ORDERED, "kestrel": [("training", "train")]}
JUDGED: Again = {name: [(DATA, "judge"), (TRAINING, "judge"), (MODEL, "judge")] for name in ("kestrel", "ocelot")}
PREPARED: Again = {name: [("caches", "prepare"), (DATA, "judge")] for name in ("kestrel", "ocelot")}
PREPARED_BY_OTHER_CODE: Again = {name: [*NEW_DATA[:2], ("evaluation", "evaluate")] for name in ("kestrel", "ocelot")}
RETRAINED: Again = {"kestrel": NEW_DATA, "ocelot": NEW_DATA}
CHANGES = [
    Change("nothing", NOTHING),
    Change("how training is watched", NOTHING, in_both("instrumentation", layer_norms_every=5)),
    Change("the limit of a gate", in_ocelot(MODEL, "judge"), in_second("gates", "model", max_increase_bits_per_byte=-9)),
    Change("a limit of the data", in_ocelot(DATA, "judge"), in_second("gates", "data", max_epochs=49)),
    Change("a limit of the training", in_ocelot(TRAINING, "judge"), in_second("gates", "health", spike_window=99)),
    Change("the checks", JUDGED, around=patched("phasewise.flows.status.phase_status.version_of", lambda suite: "another")),
    Change("the bound of held-out text", EVALUATED, in_both("evaluation", held_out_tokens=777)),
    Change(
        "the code of the evaluation",
        EVALUATED,
        around=patched("phasewise.tasks.evaluation.phase_evaluation.MEASURING", ("tasks/evaluation/task.py",)),
    ),
    Change("the benchmarks", BENCHMARKED, around=patched("phasewise.tasks.data.plan.BENCHMARKS_VERSION", "other")),
    Change("the real benchmarks that are looked for", LOOKED_FOR, around=name_real_benchmarks),
    Change("weights under an old name", in_ocelot("evaluation", "evaluate", EDITED), around=put_other_weights_there),
    Change("a result that was edited", in_ocelot("training", "train", EDITED), around=edit_the_result),
    Change("a setting of one phase", in_ocelot("training", "train"), in_second("checkpoints", every_steps=6)),
    Change("a setting of both", HANDED_OFF, in_both("stability", max_grad_norm=[[0, 0.5]])),
    Change("the order of the rows", ORDERED, in_both("order", seed=1)),
    Change("the tokenizer", RETRAINED, lambda raw: raw["tokenizer"].update(vocab_size=1000)),
    Change("the format of caches", RETRAINED, around=patched("phasewise.tasks.data.caches.FORMAT_VERSION", 99)),
    Change("the code of the reader", PREPARED_BY_OTHER_CODE, around=read_by_other_code),
    Change("a source", RETRAINED, around=add_a_document),
    Change("a cache that is gone", PREPARED, around=remove("tokens/flan/train-*")),
    Change("a report that is gone", {**NOTHING, "tiny": [("report", "report")]}, around=remove("reports/*/report.html")),
    Change(
        "the code of the report",
        {**NOTHING, "tiny": [("report", "report")]},
        around=patched("phasewise.flows.status.recipe_status._code", list),
    ),
    Change("the baselines", {**NOTHING, "tiny": [("baselines", "evaluate")]}, around=remove("evidence/byte-ngram")),
    Change("a verdict that is gone", in_ocelot(DATA, "judge"), around=remove("verdicts/tiny-proxy/ocelot/data.json")),
]


@contextmanager
def changed(change: Change, home: Path, recipe: Path, place: Path) -> Iterator[tuple[Path, Path]]:
    not_read = shutil.ignore_patterns("prefect", "checkpoints", "compilation-cache")
    copied = Path(shutil.copytree(home, place / "home", ignore=not_read))
    raw = read_json(recipe)
    change.edit(raw)
    write_json(place / "recipe.json", raw)
    with pytest.MonkeyPatch.context() as patch:
        change.around(copied, patch)
        yield copied, place / "recipe.json"


def what_must_be_done_again(home: Path, recipe: Path) -> Again:
    description = describe(str(recipe), "proxy", str(home))
    lacking: Again = {}
    for name, results in (*((phase["name"], phase["results"]) for phase in description["phases"]), ("tiny", description["results"])):
        lacking[name] = [(found["what"], found["again"]) for found in results if not found["holds"]]
    of_recipe = lacking.pop("tiny")
    return {**lacking, "tiny": of_recipe} if of_recipe and not any(lacking.values()) else lacking
