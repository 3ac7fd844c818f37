"""`phasewise tokenizer compare`."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import rich.box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from phasewise.flows.recipes import scale_of
from phasewise.flows.recipes.recipe import Scale
from phasewise.flows.resolved import resolve, resolving_once
from phasewise.flows.tables import print_table
from phasewise.tasks.data.documents import split_texts
from phasewise.tasks.data.tokenizer import tokenizer_digest
from phasewise.tasks.data.tokenizer_measure import (
    EXAMPLES,
    Fit,
    Measured,
    ScriptFit,
    digit_examples,
    digit_groups,
    measure,
    white_space_tokens,
)
from phasewise.tasks.data.tokenizer_training import checked_file, open_tokenizer, read_tokenizer_manifest
from phasewise.trainer.base.errors import ConfigError, DataError
from phasewise.trainer.base.identity import digest_of_json
from phasewise.trainer.base.wording import decimal

MAX_BYTES = 1_000_000
TEXT_KEY = "text"
PLACES = 3


class Texts(NamedTuple):
    """What the tokenizers are compared on.

    Attributes:
        what: where it is from, in words.
        subsets: component, or file or folder of the folder → its texts, from the first one on.
        is_whole: whether all text of every subset is in it.
    """

    what: str
    subsets: dict[str, list[str]]
    is_whole: bool


@resolving_once()
def compare_tokenizers(
    names: Sequence[str], on: str, scale: Scale | None, home: str | None, *, max_bytes: int, text_key: str
) -> dict[str, Any]:
    """Every tokenizer on the same texts, in the shape of `--json`.

    Raises:
        ConfigError: a tokenizer is not there, or is named twice; or an option would not be read.
        DataError: a tokenizer does not read or was changed, or there is no text.
    """
    if twice := sorted({name for name in names if list(names).count(name) > 1}):
        raise ConfigError(f"each tokenizer is compared once, found {', '.join(twice)} more than once.")
    if text_key != TEXT_KEY and not Path(on).is_dir():
        raise ConfigError(f"--text-key is for a folder of text, and {on} is none: a recipe says itself where its text is. Leave it out.")
    if scale is not None and Path(on).is_dir():
        raise ConfigError(f"--scale is for a recipe, and {on} is a folder of text: leave it out.")
    files = {name: checked_file(name) for name in names}
    texts = _of_folder(Path(on), max_bytes, text_key) if Path(on).is_dir() else _of_recipe(on, scale, home, max_bytes)
    return {
        "on": texts.what,
        "max_bytes_per_subset": max_bytes,
        "is_whole": texts.is_whole,
        "text_digest": digest_of_json(texts.subsets),
        "tokenizers": [_described(name, file, texts) for name, file in files.items()],
    }


def print_comparison(found: dict[str, Any]) -> None:
    """Tables with a column a tokenizer."""
    console = Console(highlight=False)
    tokenizers: list[dict[str, Any]] = found["tokenizers"]
    part = "all of it" if found["is_whole"] else f"the first {found['max_bytes_per_subset']:,} bytes of each, and the rest of that document"
    console.print(f"On {found['on']}, {part}:", soft_wrap=True, markup=False)
    subsets, scripts = list(tokenizers[0]["subsets"]), _in_all(tokenizers, "scripts")
    _print(console, "bytes per token", tokenizers, [(name, _column(tokenizers, "subsets", name, "bytes_per_token")) for name in subsets])
    _print(console, "tokens per word", tokenizers, [(name, _column(tokenizers, "subsets", name, "fertility")) for name in subsets])
    _print(
        console, "bytes per token by script", tokenizers, [(one, _column(tokenizers, "scripts", one, "bytes_per_token")) for one in scripts]
    )
    _print(console, "behaviour", tokenizers, _behaviour(tokenizers))


def _described(name: str, file: Path, texts: Texts) -> dict[str, Any]:
    tokenizer = open_tokenizer(file)
    manifest = read_tokenizer_manifest(file.parent)
    measured = measure(tokenizer, texts.subsets)
    return {
        "name": name,
        "file": str(file),
        "digest": tokenizer_digest(file),
        "vocab_size": tokenizer.get_vocab_size(),
        "trained_on": [one.component for one in manifest.trained_on] if manifest else None,
        "digit_groups": digit_groups(tokenizer),
        "digits": digit_examples(tokenizer),
        "white_space_tokens": white_space_tokens(tokenizer),
        **_figures(measured),
    }


def _figures(measured: Measured) -> dict[str, Any]:
    return {
        "subsets": {name: _fit(fit) for name, fit in measured.subsets.items()},
        "scripts": {name: _script(fit) for name, fit in measured.scripts.items()},
    }


def _fit(fit: Fit) -> dict[str, Any]:
    ratios = {name: getattr(fit, name) for name in ("bytes_per_token", "characters_per_token", "fertility")}
    return {**fit._asdict(), **ratios}


def _script(fit: ScriptFit) -> dict[str, Any]:
    return {**fit._asdict(), "bytes_per_token": fit.bytes_per_token}


def _of_folder(folder: Path, max_bytes: int, text_key: str) -> Texts:
    from phasewise.tasks.evaluation.corpus import Corpus

    corpus = Corpus(folder, text_key=text_key)
    subsets: dict[str, list[str]] = {}
    for document in corpus.documents():
        subsets.setdefault(document.subset, []).append(document.text)
    return _first_bytes(f"the text in {folder}", subsets, max_bytes)


def _of_recipe(target: str, scale: Scale | None, home: str | None, max_bytes: int) -> Texts:
    """Held-out documents: no tokenizer of the recipe was trained on them."""
    resolved, phase = resolve(target, scale_of(target, scale), home)
    if not resolved.is_prepared:
        raise DataError(
            f"the data of {target} are not prepared, so there is no held-out text to compare on. Run `phasewise data prepare {target} "
            f"{resolved.options}` first."
        )
    names = phase.components if phase else resolved.recipe.components
    plans = {name: resolved.plan.components[name] for name in names}
    if unread := [name for name, plan in plans.items() if not plan.documents.is_built]:
        raise DataError(f"the documents of {', '.join(unread)} are not in this home: there is no text of them to compare on.")
    subsets = {name: split_texts(plan.documents.folder, "held_out") for name, plan in plans.items()}
    return _first_bytes(f"held-out documents of {target}", subsets, max_bytes)


def _first_bytes(what: str, subsets: dict[str, Any], max_bytes: int) -> Texts:
    kept: dict[str, list[str]] = {}
    is_whole = True
    for name, texts in subsets.items():
        kept[name], whole = _taken(texts, max_bytes)
        is_whole = is_whole and whole
    return Texts(what, kept, is_whole)


def _taken(texts: Iterable[str], max_bytes: int) -> tuple[list[str], bool]:
    taken: list[str] = []
    size = 0
    for text in texts:
        if size >= max_bytes:
            return taken, False
        taken.append(text)
        size += len(text.encode())
    return taken, True


def _in_all(tokenizers: Sequence[dict[str, Any]], table: str) -> list[str]:
    """Row names in the order in which they come up."""
    return list(dict.fromkeys(name for one in tokenizers for name in one[table]))


def _column(tokenizers: Sequence[dict[str, Any]], table: str, row: str, figure: str) -> list[str]:
    """The figure of each tokenizer; a dash where it has none."""
    return [decimal(one[table].get(row, {}).get(figure), places=PLACES) for one in tokenizers]


def _behaviour(tokenizers: Sequence[dict[str, Any]]) -> list[tuple[str, list[str]]]:
    rows = [
        ("entries", [f"{one['vocab_size']:,}" for one in tokenizers]),
        ("documents that do not come back", [f"{sum(fit['not_back'] for fit in one['subsets'].values()):,}" for one in tokenizers]),
        ("digits", [one["digit_groups"] for one in tokenizers]),
    ]
    rows += [(f"  {text}", ["|".join(one["digits"][text]) for one in tokenizers]) for text in EXAMPLES]
    spaces = tokenizers[0]["white_space_tokens"]
    return rows + [(f"tokens of {name} between words", [str(one["white_space_tokens"][name]) for one in tokenizers]) for name in spaces]


def _print(console: Console, title: str, tokenizers: Sequence[dict[str, Any]], rows: Sequence[tuple[str, list[str]]]) -> None:
    table = Table(box=rich.box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("")
    for name in _short([one["name"] for one in tokenizers]):
        table.add_column(name, justify="right", overflow="fold")
    for name, cells in rows:
        table.add_row(escape(name), *map(escape, cells))
    console.print(f"\n{title}", markup=False)
    print_table(console, table)


def _short(names: Sequence[str]) -> list[str]:
    """The last parts of paths, where they tell all apart."""
    last = [Path(name).name for name in names]
    return last if len(set(last)) == len(last) else list(names)
