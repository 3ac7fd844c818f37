"""`phasewise tokenizer train` and `phasewise tokenizer truncate`."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import rich.box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from phasewise.flows.cli.terminal import print_table
from phasewise.flows.recipes import scale_of
from phasewise.flows.recipes.phase import Phase
from phasewise.flows.recipes.recipe import Scale
from phasewise.flows.recipes.scales import special_tokens_of
from phasewise.flows.resolved import Resolved, resolve, resolving_once
from phasewise.flows.status.phase_status import read_record
from phasewise.tasks.data.documents import split_texts
from phasewise.tasks.data.tokenizer import tokenizer_digest
from phasewise.tasks.data.tokenizer_training import (
    EXAMPLES,
    MANIFEST_NAME,
    SPECIAL_TOKENS,
    TRAINED_BY,
    Amount,
    Fit,
    SplitName,
    TokenizerManifest,
    TrainedOn,
    check_target,
    check_vocab_size,
    checked_file,
    digit_groups,
    folder_at,
    measure,
    open_tokenizer,
    pieces_of,
    read_tokenizer_manifest,
    train,
    truncate,
    white_space_tokens,
    write_folder,
)
from phasewise.trainer.base.errors import ConfigError, DataError, VerdictError
from phasewise.trainer.base.identity import digest_of_bytes, digest_of_file, digest_of_json
from phasewise.trainer.base.storage import as_path
from phasewise.trainer.base.wording import decimal, megabytes
from phasewise.trainer.data.manifest import read_manifest

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
    subsets, scripts = list(tokenizers[0]["subsets"]), list(dict.fromkeys(name for one in tokenizers for name in one["scripts"]))
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
        "digits": {text: pieces_of(tokenizer, text) for text in EXAMPLES},
        "white_space_tokens": white_space_tokens(tokenizer),
        "subsets": {name: _fit(fit) for name, fit in measured.subsets.items()},
        "scripts": {name: {**fit._asdict(), "bytes_per_token": fit.bytes_per_token} for name, fit in measured.scripts.items()},
    }


def _fit(fit: Fit) -> dict[str, Any]:
    ratios = {name: getattr(fit, name) for name in ("bytes_per_token", "characters_per_token", "fertility")}
    return {**fit._asdict(), **ratios}


def _of_folder(folder: Path, max_bytes: int, text_key: str) -> Texts:
    from phasewise.tasks.evaluation.corpus_fit import Corpus

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


def _column(tokenizers: Sequence[dict[str, Any]], table: str, row: str, figure: str) -> list[str]:
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
    names = [one["name"] for one in tokenizers]
    last = [Path(name).name for name in names]
    for name in last if len(set(last)) == len(last) else list(names):
        table.add_column(name, justify="right", overflow="fold")
    for name, cells in rows:
        table.add_row(escape(name), *map(escape, cells))
    console.print(f"\n{title}", markup=False)
    print_table(console, table)


VERDICT = "verdict on its data"


@resolving_once()
def train_tokenizer(
    target: str, scale: Scale, home: str | None, out: str, *, vocab_size: int, split: SplitName, max_bytes: int, chat_tokens: bool = False
) -> dict[str, Any]:
    """Train a tokenizer on the training text of a recipe's phases, all of it judged; its manifest, in the shape of `--json`.

    Args:
        chat_tokens: whether it has the special tokens that the chat templates of all phases write, branches too.

    Raises:
        ConfigError: the vocabulary is smaller than bytes, the folder has something in it, or no chat template writes special tokens.
        VerdictError: a phase has no verdict on its data, or one that does not let it train as it is now.
        DataError: the data are not prepared, or are not what was judged; or the text gives too few entries.
    """
    check_vocab_size(vocab_size)
    folder = folder_at(out)
    check_target(folder)
    resolved, phase = resolve(target, scale, home)
    special_tokens = _chat_tokens(resolved) if chat_tokens else ()
    check_vocab_size(vocab_size, special_tokens)
    resolved.home.make_ready()
    with resolved.home.held(f"`phasewise tokenizer train {target}`"):
        judged_in = judged_components(resolved, [phase] if phase else resolved.recipe.phases)
        plans = {name: resolved.plan.components[name] for name in sorted(judged_in)}
        texts = {name: split_texts(plan.documents.folder, "train") for name, plan in plans.items()}
        trained = train(texts, vocab_size, split=split, max_bytes=max_bytes, special_tokens=special_tokens)
        manifest = TokenizerManifest(
            tokenizer_digest=digest_of_bytes(trained.content.encode()),
            vocab_size=vocab_size,
            special_tokens=special_tokens,
            split=split,
            max_bytes_per_component=max_bytes,
            recipe=resolved.recipe.name,
            scale=resolved.recipe.scale,
            trained_on=tuple(_trained_on(resolved, name, judged_in[name], amount) for name, amount in trained.amounts.items()),
            trained_by=TRAINED_BY,
        )
    write_folder(folder, trained.content, manifest)
    return {"folder": str(folder), **manifest.model_dump(mode="json")}


def truncate_tokenizer(name: str, out: str, *, vocab_size: int) -> dict[str, Any]:
    """Write a tokenizer with the first entries of another one; its manifest, in the shape of `--json`.

    Raises:
        ConfigError: there is no such tokenizer, the size does not fit, or the folder has something in it.
        DataError: the tokenizer has no manifest, was changed, or cannot be cut.
    """
    check_vocab_size(vocab_size)
    folder = folder_at(out)
    check_target(folder)
    file = checked_file(name)
    manifest = read_tokenizer_manifest(file.parent)
    if manifest is None:
        raise DataError(
            f"{file.parent} has no {MANIFEST_NAME}, so nobody knows what it was trained on. Cut one that `phasewise tokenizer train` wrote."
        )
    content = truncate(file.read_text(encoding="utf-8"), vocab_size, manifest.special_tokens)
    cut = manifest.but(
        tokenizer_digest=digest_of_bytes(content.encode()),
        vocab_size=vocab_size,
        truncated_from=manifest.truncated_from or manifest.vocab_size,
    )
    write_folder(folder, content, cut)
    return {"folder": str(folder), **cut.model_dump(mode="json")}


def print_manifest(written: dict[str, Any]) -> None:
    """What is where, and what it was trained on."""
    console = Console(highlight=False)
    of_size = f"{written['vocab_size']:,} entries, split as {written['split']}"
    cut = f", cut from {written['truncated_from']:,}" if written["truncated_from"] else ""
    console.print(f"{written['folder']}: {of_size}{cut}", soft_wrap=True, markup=False)
    if written["special_tokens"]:
        console.print(f"  with the special tokens {', '.join(written['special_tokens'])}", soft_wrap=True, markup=False)
    for one in written["trained_on"]:
        part = "all of it" if one["is_whole"] else "its beginning"
        amount = f"{one['documents']:,} documents, {megabytes(one['text_bytes'])}, {part}"
        console.print(f"  {one['component']}: {amount}; judged in {one['phase']}", soft_wrap=True, markup=False)


def _chat_tokens(resolved: Resolved) -> tuple[str, ...]:
    found = tuple(token for token in special_tokens_of(resolved.recipe) if token not in SPECIAL_TOKENS)
    if not found:
        raise ConfigError(
            f"--chat-tokens needs conversations whose chat template writes special tokens, and no phase of {resolved.recipe.name} has any: "
            "leave it out."
        )
    return found


def judged_components(resolved: Resolved, phases: Iterable[Phase]) -> dict[str, Phase]:
    """The components of phases → the first phase whose verdict on its data lets it pass. Every phase must have one that holds now.

    Raises:
        ConfigError: a component is pinned: its text is not in this home.
        DataError: the data are not prepared.
        VerdictError: as `train_tokenizer`.
    """
    if not resolved.is_prepared:
        raise DataError(f"the data of {resolved.name} are not prepared as they would be now, so nobody judged them. {_first(resolved)}")
    found: dict[str, Phase] = {}
    for phase in phases:
        record = read_record(resolved, phase)
        wrong = [finding.why for finding in record.findings if finding.what in ("start", "caches", VERDICT) and finding.why]
        if wrong or not record.data_verdict:
            why = wrong[0] if wrong else "it was not judged"
            raise VerdictError(f"a tokenizer is trained on judged text, and phase {phase.name} has none: {why}. {_first(resolved, phase)}")
        for name in phase.components:
            found.setdefault(name, phase)
    if pinned := [name for name in found if resolved.plan.components[name].train.pin]:
        raise ConfigError(f"a tokenizer is trained on text, and of {', '.join(pinned)} there are tokens alone: take the pins out.")
    return found


def _first(resolved: Resolved, phase: Phase | None = None) -> str:
    named = f"{resolved.recipe_name}/{phase.name}" if phase else resolved.name
    return f"Run `phasewise run {named} {resolved.options}` first."


def _trained_on(resolved: Resolved, name: str, phase: Phase, amount: Amount) -> TrainedOn:
    plan = resolved.plan.components[name]
    cache = read_manifest(plan.train.folder)
    is_whole = amount.documents == cache.documents
    is_more = amount.documents > cache.documents
    if is_more or (is_whole and amount.text_bytes != cache.text_bytes):
        raise DataError(
            f"the text of {name} must be what was judged, {cache.documents:,} documents of {cache.text_bytes:,} bytes, found "
            f"{amount.documents:,} of {amount.text_bytes:,}. Prepare the data again."
        )
    return TrainedOn(
        component=name,
        documents_key=plan.documents.key,
        cache_digest=cache.digest,
        phase=phase.name,
        verdict_digest=digest_of_file(as_path(resolved.run(phase).verdict)),
        documents=amount.documents,
        text_bytes=amount.text_bytes,
        is_whole=is_whole,
    )
