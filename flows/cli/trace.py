"""`phasewise trace` and `phasewise why`."""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from phasewise.flows.recipes import split_target
from phasewise.flows.recipes.recipe import Scale, scale_in_words
from phasewise.flows.trace.causes import explain
from phasewise.flows.trace.document_search import FoundDocument, find_by_file, find_by_id, find_by_text
from phasewise.flows.trace.trace_context import Traced, open_traced
from phasewise.flows.trace.trace_query import Trained, excerpts, predicted, trained_at, trains_at
from phasewise.trainer.base.errors import ConfigError, DataError
from phasewise.trainer.base.wording import name_some

SHOWN_ROWS = 40
MAX_ROWS = 200_000
ID_SHOWN = 16
MAX_CAUSES, MAX_CAUSING_ROWS = 10, 5
TRAINED_WORDS = {"as traced": "trained on this", "otherwise": "trained on OTHER data", "not here": "not trained here"}


class Question(NamedTuple):
    """The options of the command line. Exactly one of step, text, document and source_file is set."""

    step: int | None = None
    row: int | None = None
    text: str | None = None
    document: str | None = None
    source_file: str | None = None
    inside: bool = False


def trace(target: str, scale: Scale, home: str | None, question: Question) -> dict[str, Any]:
    """Answer a question in the shape of `--json`. Read only."""
    asked = [question.step, question.text, question.document, question.source_file]
    if sum(one is not None for one in asked) != 1:
        raise ConfigError("ask one thing: --step N (of RECIPE/PHASE), --text FILE, --document ID or --source-file PATH.")
    if question.step is not None and split_target(target)[1] is None:
        raise ConfigError(f"a step is one of a phase: `phasewise trace {target}/PHASE --step {question.step}`.")
    if question.row is not None and question.step is None:
        raise ConfigError("--row needs --step: it is a row of a step.")
    if question.inside and question.text is None:
        raise ConfigError("--inside needs --text: it searches for a text inside documents.")
    traced = open_traced(target, scale, home, only_phase=question.step is not None)
    recipe = traced.resolved.recipe
    about: dict[str, Any] = {
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
    if question.step is not None:
        found = trained_at(traced, traced.phases[0], question.step, question.row)
        return {**about, "rows": _rows(traced, found), "remarks": _remarks(traced, found)}
    if question.text is not None:
        search = find_by_text(traced, Path(question.text), inside=question.inside)
    elif question.document is not None:
        search = find_by_id(traced, question.document)
    else:
        search = find_by_file(traced, question.source_file or "")
    by_document: list[list[Trained]] = [[] for _ in search.found]
    by_component: dict[str, list[int]] = {}
    for number, one in enumerate(search.found):
        if one.split == "train":
            by_component.setdefault(one.component, []).append(number)
    asked_for = [search.found[number] for numbers in by_component.values() for number in numbers]
    seq_len = min(phase.phase.model.seq_len for phase in traced.phases)
    estimate = sum(1 + (one.asked.stop - one.asked.first) // seq_len for one in asked_for)
    if estimate > MAX_ROWS:
        raise DataError(
            f"at most {MAX_ROWS:,} rows of caches are listed, and these {len(asked_for):,} documents have about {estimate:,}: ask for one, "
            f"such as --document {asked_for[0].asked.document.id[:ID_SHOWN]}."
        )
    for component, numbers in by_component.items():
        of_asked = {search.found[number].asked: number for number in numbers}
        for one, trained in trains_at(traced, component, list(of_asked)):
            by_document[of_asked[one]].append(trained)
    order = {one.phase.name: number for number, one in enumerate(traced.phases)}
    found = sorted((one for rows in by_document for one in rows), key=lambda one: (order[one.phase], one.step, one.row, one.at))
    return {
        **about,
        "documents": [_document(traced, one, rows) for one, rows in zip(search.found, by_document, strict=True)],
        "rows": _rows(traced, found),
        "searched": {"components": search.components, "documents": search.documents, "inside": search.inside},
        "remarks": [*_remarks(traced, found), *search.remarks],
    }


def print_answer(answer: dict[str, Any], *, most: int = SHOWN_ROWS) -> None:
    """Print documents, then rows, at most `most` of each. 0 prints all."""
    console = Console(highlight=False, soft_wrap=True, markup=False)
    phases = ", ".join(f"{one['name']} ({TRAINED_WORDS[one['trained']]})" for one in answer["phases"])
    console.print(f"{answer['recipe']} {scale_in_words(answer['scale'])}: {phases}")
    documents = answer.get("documents", [])
    for document in documents[: most or None]:
        line = f"document {document['document'][:ID_SHOWN]} of {document['component']}, {document['file']}: {document['told']}"
        console.print(plain(line))
    if most and len(documents) > most:
        times = Counter("held out" if one["split"] == "held_out" else "trained" if one["rows"] else "not drawn" for one in documents)
        line = ", ".join(f"{count:,} {word}" for word, count in times.items())
        console.print(f"… in all {len(documents):,} documents: {line}")
    if "searched" in answer:
        searched = answer["searched"]
        inside = {True: ", also inside documents", False: ", as whole documents", None: ""}[searched["inside"]]
        console.print(f"searched: {searched['documents']:,} documents of {searched['components']} components{inside}")
    groups = [list(group) for _, group in groupby(answer["rows"], key=lambda row: (row["phase"], row["step"], row["row"]))]
    for group in groups[: most or None]:
        first = group[0]
        of_cache = first["buffer_row"] is None
        row = f"row {first['cache_row']:,} of its cache" if of_cache else f"row {first['buffer_row']:,} from its document buffer"
        console.print(f"{first['phase']} step {first['step']:,} row {first['row']}: {first['component']}, {row}, pass {first['epoch'] + 1}")
        for piece in group:
            last = piece["offset"] + piece["tokens"] - 1
            where = f"{piece['document'][:ID_SHOWN]} {piece['file']} tokens {piece['offset']:,}–{last:,} of {piece['document_tokens']:,}"
            if piece["predicted"] < piece["tokens"] - 1:  # the first token of a document is never predicted
                where += f", {piece['predicted']:,} of them predicted"
            console.print(f"  {plain(where)}")
            if piece["text"]:
                console.print(f"    {plain(piece['text'])}")
    if most and len(groups) > most:
        console.print(f"… and {len(groups) - most:,} rows more: --rows 0 shows all, --json has all")


def _remarks(traced: Traced, found: Sequence[Trained]) -> list[str]:
    remarks = list(traced.remarks)
    for one in traced.phases:
        if one.trained.trained == "otherwise":
            differs = ", ".join(one.trained.differs)
            remarks.append(f"{one.phase.name} was trained on other data: {differs}. The rows are from the current recipe.")
        if windows := one.trained.passed_over.merged():
            skipped = name_some(list(map(str, windows)), 5)
            remarks.append(f"{one.phase.name} rolled back, and passed over {skipped} with their data: these steps are not listed.")
    listed = {one.phase for one in found}
    if answers := [one.phase.name for one in traced.phases if one.phase.loss_on == "answers" and one.phase.name in listed]:
        remarks.append(f"{', '.join(answers)} only predicts the answers. The other listed text is read, and not predicted.")
    if any(traced.text_of(component) is None for component in {one.component for one in found}):
        remarks.append("No text is shown: the tokenizer of these caches is not in this home.")
    return remarks


def _rows(traced: Traced, found: Sequence[Trained]) -> list[dict[str, Any]]:
    counts = predicted(traced, found)
    return [one.as_json(text, count) for one, text, count in zip(found, excerpts(traced, found), counts, strict=True)]


def _document(traced: Traced, one: FoundDocument, trained: Sequence[Trained]) -> dict[str, Any]:
    document, asked = one.asked.document, one.asked.stop - one.asked.first
    length = document.length
    is_trained = np.zeros(length, bool)
    for row in trained:
        is_trained[row.offset : row.offset + row.tokens] = True
    count = int(is_trained.sum())
    is_predicted = any(predicted(traced, trained))
    if one.split == "held_out":
        told = "held out, never trains"
    else:
        told = f"{asked:,} tokens" if asked == length else f"{asked:,} of its {length:,} tokens hold the text, which"
        if trained:
            times = Counter(row.phase for row in trained)
            named = ", ".join(f"{phase} in {rows:,} {'row' if rows == 1 else 'rows'}" for phase, rows in times.items())
            told += f" train in {named}" + ("" if count == asked else f"; {asked - count:,} tokens never do")
        else:
            drawing = [phase for phase in traced.phases if phase.order.drawn.get(one.component)]
            why = f"{', '.join(phase.phase.name for phase in drawing)} draw{'s' if len(drawing) == 1 else ''} other rows of {one.component}"
            if all(phase.order.from_caches and not phase.rows[one.component].between(one.asked.first, one.asked.stop) for phase in drawing):
                why = "they are in the rest of the cache that fills no row"
                if any(phase.phase.packing != "chunk" for phase in drawing):
                    why = "they lie behind the first row's length of tokens of their document, where it is cut"
            told += f" do not train: {why}"
    if trained and not is_predicted:
        told += "; read, and never predicted"
    return {
        "document": document.id, "component": one.component, "split": one.split, "file": document.file, "tokens": length,
        "offset": one.asked.first - document.first, "tokens_asked": asked, "tokens_trained": count, "predicted": is_predicted,
        "is_whole": asked == length, "rows": len(trained), "told": told,
    }  # fmt: skip


def plain(text: str) -> str:
    """Return a text on one line, without characters that control a terminal."""
    return "".join(character if character.isprintable() else "�" for character in " ".join(text.split()))


def why(target: str, scale: Scale, home: str | None, step: int, *, replays: bool) -> dict[str, Any]:
    """Explain the loss of a step in the shape of `--json`. Read only."""
    if split_target(target)[1] is None:
        raise ConfigError(f"a step is one of a phase: `phasewise why {target}/PHASE --step {step}`.")
    traced = open_traced(target, scale, home, only_phase=True)
    found, trained = explain(traced, step, replays=replays), traced.phases[0].trained
    if trained.trained == "otherwise":
        found["remarks"].append(f"{found['phase']} was trained on other data: {', '.join(trained.differs)}. The documents may be wrong.")
    return {**found, "trained": trained.trained}


def print_why(found: dict[str, Any]) -> None:
    """Print the loss, the ranked causes, the first rows with their documents, and the replay."""
    expected = "" if found["expected"] is None else f", {found['expected']:.4g} expected ({found['score']:+.1f} deviations)"
    lines = [
        f"{found['recipe']} {scale_in_words(found['scale'])} {found['phase']} step {found['step']:,}: {found['kind']}",
        f"loss {found['loss']:.4g}{expected}; all rows share {found['common']:+.1f} deviations",
        "causes, in standard deviations:",
        *(f"  {cause['score']:6.1f}  {cause['kind']:9}  {plain(cause['name'])}" for cause in found["causes"][:MAX_CAUSES]),
    ]
    for row in found["rows"][:MAX_CAUSING_ROWS]:
        loss = f"loss {row['loss']:.4g}, {row['expected']:.4g} expected ({row['score']:+.1f})"
        text = "" if row["rarity"] is None else f"; rarity of its tokens {row['rarity']:+.1f}, variety {row['variety']:+.1f}"
        lines.append(f"row {row['row']} of {row['component']}: {loss}{text}")
        for one in row["documents"]:
            tokens = f"{one['offset']:,}–{one['offset'] + one['tokens'] - 1:,}"
            loss = f", loss {one['loss']:.4g}" if "loss" in one else ""
            lines += [
                f"  {plain(one['document'][:ID_SHOWN])} {plain(one['file'])} tokens {tokens}{loss}",
                f"    {plain(one['text'] or '')}",
            ]
    if replayed := found["replay"]:
        before = f"{replayed['loss_before']:.4g} with the weights before the last update"
        lines.append(f"replay from step {replayed['from_step']:,}: loss {replayed['loss']:.4g}, {before}")
        each = (
            f"  {part['name']} frozen: loss {part['loss']:.4g}, removes {part['removes']:.0%} of the rise" for part in replayed["parts"]
        )
        lines += [*each, f"named by the replay: {replayed['named'] or 'no part, the last update did not cause the rise'}"]
    Console(highlight=False, soft_wrap=True, markup=False).print("\n".join(lines))
