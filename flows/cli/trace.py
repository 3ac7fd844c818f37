"""`phasewise trace`."""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from phasewise.flows.recipes import split_target
from phasewise.flows.recipes.recipe import Scale, scale_in_words
from phasewise.flows.trace.document_search import FoundDocument, Search, find_by_file, find_by_id, find_by_text
from phasewise.flows.trace.trace_context import Traced, open_traced
from phasewise.flows.trace.trace_query import Trained, excerpts, predicted, tokens_trained, trained_at, trains_at
from phasewise.trainer.base.errors import ConfigError, DataError
from phasewise.trainer.base.wording import name_some

SHOWN_ROWS = 40
MAX_ROWS = 200_000
ID_SHOWN = 16
TRAINED_WORDS = {"as traced": "trained on this", "otherwise": "trained on OTHER data", "not here": "not trained here"}


class Question(NamedTuple):
    """What is asked, one of: a step and perhaps a row, a file with text, the beginning of a document's id, a source file."""

    step: int | None = None
    row: int | None = None
    text: str | None = None
    document: str | None = None
    source_file: str | None = None
    inside: bool = False


def trace(target: str, scale: Scale, home: str | None, question: Question) -> dict[str, Any]:
    """The answer, in the shape of `--json`. Nothing is made.

    Raises:
        ConfigError: the question is none, or cannot be asked of this phase.
        DataError: a cache is not there, or what is asked for is in none.
    """
    asked = [question.step, question.text, question.document, question.source_file]
    if sum(one is not None for one in asked) != 1:
        raise ConfigError("ask one thing: --step N (of RECIPE/PHASE), --text FILE, --document ID or --source-file PATH.")
    if question.step is not None and split_target(target)[1] is None:
        raise ConfigError(f"a step is one of a phase: `phasewise trace {target}/PHASE --step {question.step}`.")
    if question.row is not None and question.step is None:
        raise ConfigError("--row is a row of a step: give --step, too.")
    if question.inside and question.text is None:
        raise ConfigError("--inside looks for a text inside documents: give --text, too.")
    traced = open_traced(target, scale, home, only_phase=question.step is not None)
    if question.step is not None:
        found = trained_at(traced, traced.phases[0], question.step, question.row)
        return {**_about(traced), "rows": _rows(traced, found), "remarks": _remarks(traced, found)}
    if question.text is not None:
        search = find_by_text(traced, Path(question.text), inside=question.inside)
    else:
        if question.document is not None:
            search = find_by_id(traced, question.document)
        else:
            search = find_by_file(traced, question.source_file or "")
    places = _places(traced, search)
    found = sorted((one for of_document in places for one in of_document), key=_in_order(traced))
    return {
        **_about(traced),
        "documents": [_document(traced, one, place) for one, place in zip(search.found, places, strict=True)],
        "rows": _rows(traced, found),
        "searched": {"components": search.components, "documents": search.documents, "inside": search.inside},
        "remarks": [*_remarks(traced, found), *search.remarks],
    }


def is_as_trained(answer: dict[str, Any]) -> bool:
    """Whether no phase was trained on something else than the answer says."""
    return all(phase["trained"] != "otherwise" for phase in answer["phases"])


def print_answer(answer: dict[str, Any], *, most: int = SHOWN_ROWS) -> None:
    """Lines for people: documents first, where they were asked for, then row by row; `most` rows, 0 for all."""
    console = Console(highlight=False, soft_wrap=True)
    phases = ", ".join(f"{one['name']} ({TRAINED_WORDS[one['trained']]})" for one in answer["phases"])
    console.print(f"{answer['recipe']} {scale_in_words(answer['scale'])}: {phases}", markup=False)
    documents = answer.get("documents", [])
    for document in documents[: most or None]:
        line = f"document {document['document'][:ID_SHOWN]} of {document['component']}, {document['file']}: {document['told']}"
        console.print(_plain(line), markup=False)
    if most and len(documents) > most:
        times = Counter("held out" if one["split"] == "held_out" else "trained" if one["rows"] else "not drawn" for one in documents)
        line = ", ".join(f"{count:,} {word}" for word, count in times.items())
        console.print(f"… in all {len(documents):,} documents: {line}", markup=False)
    if "searched" in answer:
        searched = answer["searched"]
        inside = {True: ", also inside documents", False: ", as whole documents", None: ""}[searched["inside"]]
        console.print(f"searched: {searched['documents']:,} documents of {searched['components']} components{inside}", markup=False)
    groups = [list(group) for _, group in groupby(answer["rows"], key=lambda row: (row["phase"], row["step"], row["row"]))]
    for group in groups[: most or None]:
        first = group[0]
        of_cache = first["buffer_row"] is None
        row = f"row {first['cache_row']:,} of its cache" if of_cache else f"row {first['buffer_row']:,} from its document buffer"
        head = f"{first['phase']} step {first['step']:,} row {first['row']}: {first['component']}, {row}, pass {first['epoch'] + 1}"
        console.print(head, markup=False)
        for piece in group:
            last = piece["offset"] + piece["tokens"] - 1
            where = f"{piece['document'][:ID_SHOWN]} {piece['file']} tokens {piece['offset']:,}–{last:,} of {piece['document_tokens']:,}"
            if piece["predicted"] < piece["tokens"] - 1:  # all but a first one is as ever
                where += f", {piece['predicted']:,} of them predicted"
            console.print(f"  {_plain(where)}", markup=False)
            if piece["text"]:
                console.print(f"    {_plain(piece['text'])}", markup=False)
    if most and len(groups) > most:
        console.print(f"… and {len(groups) - most:,} rows more: --rows 0 shows all, --json has all", markup=False)


def print_remarks(answer: dict[str, Any]) -> None:
    """What a reader must know to believe the answer, on standard error."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    for remark in answer["remarks"]:
        console.print(f"phasewise: {remark}", markup=False)


def _places(traced: Traced, search: Search) -> list[list[Trained]]:
    places: list[list[Trained]] = [[] for _ in search.found]
    by_component: dict[str, list[int]] = {}
    for number, one in enumerate(search.found):
        if one.split == "train":
            by_component.setdefault(one.component, []).append(number)
    found = [search.found[number] for numbers in by_component.values() for number in numbers]
    seq_len = min(phase.seq_len for phase in traced.phases)
    rows = sum(1 + (one.asked.stop - one.asked.first) // seq_len for one in found)
    if rows > MAX_ROWS:
        example = found[0].document.id[:ID_SHOWN]
        raise DataError(
            f"at most {MAX_ROWS:,} rows of caches are listed, and these {len(found):,} documents have about {rows:,}: ask for one, such as "
            f"--document {example}."
        )
    for component, numbers in by_component.items():
        of_asked = {search.found[number].asked: number for number in numbers}
        for asked, trained in trains_at(traced, component, list(of_asked)):
            places[of_asked[asked]].append(trained)
    return places


def _about(traced: Traced) -> dict[str, Any]:
    recipe = traced.resolved.recipe
    return {
        "recipe": recipe.name,
        "scale": recipe.scale,
        "phases": [
            {
                "name": one.phase.name,
                "first_step": one.phase.start_step + 1,
                "last_step": one.stop_step,
                "trained": one.trained.trained,
                "differs": list(one.trained.differs),
                "passed_over": [[window.first + 1, window.stop] for window in one.trained.passed_over.merged()],
            }
            for one in traced.phases
        ],
    }


def _remarks(traced: Traced, found: Sequence[Trained]) -> list[str]:
    remarks = list(traced.remarks)
    for one in traced.phases:
        if one.trained.trained == "otherwise":
            differs = ", ".join(one.trained.differs)
            remarks.append(
                f"{one.phase.name} was trained on other data than these: {differs}. The rows are those that the recipe gives now."
            )
        if windows := one.trained.passed_over.merged():
            remarks.append(
                f"{one.phase.name} rolled back, and passed over {name_some(list(map(str, windows)), 5)} with their data: nothing of them "
                "was trained, and nothing of them is listed."
            )
    listed = {one.phase for one in found}
    if answers := [one.phase.name for one in traced.phases if one.phase.loss_on == "answers" and one.phase.name in listed]:
        remarks.append(f"Of {', '.join(answers)} the answers alone are predicted: all else that is listed is read, and not predicted.")
    if found and any(traced.text_of(component) is None for component in {one.component for one in found}):
        remarks.append("No text is shown: the tokenizer of these caches is not in this home.")
    return remarks


def _rows(traced: Traced, found: Sequence[Trained]) -> list[dict[str, Any]]:
    counts = predicted(traced, found)
    return [one.as_json(text, count) for one, text, count in zip(found, excerpts(traced, found), counts, strict=True)]


def _in_order(traced: Traced) -> Any:
    phases = {one.phase.name: number for number, one in enumerate(traced.phases)}
    return lambda one: (phases[one.phase], one.step, one.row, one.at)


def _document(traced: Traced, one: FoundDocument, trained: Sequence[Trained]) -> dict[str, Any]:
    asked = one.asked.stop - one.asked.first
    count = tokens_trained(trained)
    is_predicted = any(predicted(traced, trained))
    return {
        "document": one.document.id,
        "component": one.component,
        "split": one.split,
        "file": one.document.file,
        "tokens": one.document.length,
        "offset": one.asked.first - one.document.first,
        "tokens_asked": asked,
        "tokens_trained": count,
        "predicted": is_predicted,
        "is_whole": one.is_whole,
        "rows": len(trained),
        "told": _how_it_trains(traced, one, trained, count, asked) + ("" if is_predicted or not trained else "; read, and never predicted"),
    }


def _how_it_trains(traced: Traced, one: FoundDocument, trained: Sequence[Trained], count: int, asked: int) -> str:
    if one.split == "held_out":
        return "held out, never trains"
    what = f"{asked:,} tokens" if one.is_whole else f"{asked:,} of its {one.document.length:,} tokens hold the text, which"
    if not trained:
        return f"{what} do not train: {_why_not(traced, one)}"
    times = Counter(place.phase for place in trained)
    named = ", ".join(f"{phase} in {rows:,} {'row' if rows == 1 else 'rows'}" for phase, rows in times.items())
    some = "" if count == asked else f"; {asked - count:,} tokens never do"
    return f"{what} train in {named}{some}"


def _why_not(traced: Traced, one: FoundDocument) -> str:
    drawing = [phase for phase in traced.phases if phase.order.drawn.get(one.component)]
    if all(phase.order.from_caches and not phase.rows[one.component].between(one.asked.first, one.asked.stop) for phase in drawing):
        if any(phase.phase.packing != "chunk" for phase in drawing):
            return "they lie behind the first row's length of tokens of their document, where it is cut"
        return "they are in the rest of the cache that fills no row"
    return f"{', '.join(phase.phase.name for phase in drawing)} draw{'s' if len(drawing) == 1 else ''} other rows of {one.component}"


def _plain(text: str) -> str:
    return "".join(character if character.isprintable() else "�" for character in " ".join(text.split()))
