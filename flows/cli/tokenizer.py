"""`phasewise tokenizer train`, `phasewise tokenizer truncate` and `phasewise tokenizer compare`."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

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
from phasewise.tasks.data import tokenizer_training as training
from phasewise.tasks.data.documents import split_texts
from phasewise.trainer.base.errors import ConfigError, DataError, VerdictError
from phasewise.trainer.base.identity import digest_of_bytes, digest_of_file, digest_of_json
from phasewise.trainer.base.storage import as_path
from phasewise.trainer.base.wording import decimal
from phasewise.trainer.data.manifest import read_manifest

TEXT_KEY = "text"
DECIDING = ("start", "caches", "verdict on its data")  # findings of a phase that decide whether its data are judged


@resolving_once()
def train_tokenizer(
    target: str,
    scale: Scale | None,
    home: str | None,
    out: str,
    *,
    vocab_size: int,
    split: training.SplitName,
    max_bytes: int,
    chat_tokens: bool = False,
) -> dict[str, Any]:
    """Train on the judged text of phases, or on a folder. Return the manifest as JSON. `chat_tokens`: add tokens of chat templates."""
    training.check_vocab_size(vocab_size)
    folder = Path(out).expanduser()
    training.check_target(folder)
    if Path(target).is_dir():
        if chat_tokens or scale is not None:
            raise ConfigError(f"--chat-tokens and --scale are for a recipe, and {target} is a folder of text: leave them out.")
        manifest, content = _trained_on_folder(Path(target), vocab_size, split, max_bytes)
        training.write_folder(folder, content, manifest)
        return {"folder": str(folder), **manifest.model_dump(mode="json")}
    resolved, phase = resolve(target, scale_of(target, scale), home)
    recipe = resolved.recipe
    special_tokens: tuple[str, ...] = ()
    if chat_tokens:
        special_tokens = tuple(token for token in special_tokens_of(recipe) if token not in training.SPECIAL_TOKENS)
        if not special_tokens:
            raise ConfigError(
                f"--chat-tokens needs conversations whose chat template writes special tokens, and no phase of {recipe.name} has any: "
                "leave it out."
            )
    training.check_vocab_size(vocab_size, special_tokens)
    resolved.home.make_ready()
    with resolved.home.held(f"`phasewise tokenizer train {target}`"):
        judged_in = _judged_components(resolved, [phase] if phase else recipe.phases)
        plans = {name: resolved.plan.components[name] for name in sorted(judged_in)}
        texts = {name: split_texts(plan.documents.folder, "train") for name, plan in plans.items()}
        trained = training.train(texts, vocab_size, split=split, max_bytes=max_bytes, special_tokens=special_tokens)
        trained_on: list[training.TrainedOn] = []
        for name, amount in trained.amounts.items():
            cache = read_manifest(plans[name].train.folder)
            is_whole = amount.documents == cache.documents
            if amount.documents > cache.documents or (is_whole and amount.text_bytes != cache.text_bytes):
                raise DataError(
                    f"the text of {name}: expected the judged {cache.documents:,} documents of {cache.text_bytes:,} bytes, found "
                    f"{amount.documents:,} of {amount.text_bytes:,}. Prepare the data again."
                )
            verdict_digest = digest_of_file(as_path(resolved.run(judged_in[name]).verdict))
            keys = {"documents_key": plans[name].documents.key, "cache_digest": cache.digest, "verdict_digest": verdict_digest}
            fields = {"component": name, "phase": judged_in[name].name, **keys, **amount._asdict(), "is_whole": is_whole}
            trained_on.append(training.TrainedOn.model_validate(fields))
        manifest = training.TokenizerManifest(
            tokenizer_digest=digest_of_bytes(trained.content.encode()),
            vocab_size=vocab_size,
            special_tokens=special_tokens,
            split=split,
            max_bytes_per_component=max_bytes,
            recipe=recipe.name,
            scale=recipe.scale,
            trained_on=tuple(trained_on),
            trained_by=training.TRAINED_BY,
        )
    training.write_folder(folder, trained.content, manifest)
    return {"folder": str(folder), **manifest.model_dump(mode="json")}


def _trained_on_folder(folder: Path, vocab_size: int, split: training.SplitName, max_bytes: int) -> tuple[training.TokenizerManifest, str]:
    """Train on the files of a folder, `max_bytes` of each. Return the manifest and the text of `tokenizer.json`."""
    from phasewise.tasks.evaluation.corpus_fit import Corpus

    texts, sizes, cut = dict[str, list[str]](), dict[str, int](), set[str]()
    for document in Corpus(folder, text_key=TEXT_KEY).documents():
        name, size = document.subset, sizes.get(document.subset, 0)
        if size >= max_bytes:
            cut.add(name)
            continue
        texts.setdefault(name, []).append(document.text)
        sizes[name] = size + len(document.text.encode())
    trained = training.train(texts, vocab_size, split=split, max_bytes=max_bytes)
    unjudged = {"cache_digest": None, "phase": None, "verdict_digest": None}
    trained_on = [
        training.TrainedOn(
            component=name, documents_key=digest_of_json(texts[name]), **unjudged, **amount._asdict(), is_whole=name not in cut
        )
        for name, amount in trained.amounts.items()
    ]
    manifest = training.TokenizerManifest(
        tokenizer_digest=digest_of_bytes(trained.content.encode()),
        vocab_size=vocab_size,
        split=split,
        max_bytes_per_component=max_bytes,
        recipe=None,
        scale=None,
        trained_on=tuple(trained_on),
        trained_by=training.TRAINED_BY,
    )
    return manifest, trained.content


def _judged_components(resolved: Resolved, phases: Iterable[Phase]) -> dict[str, Phase]:
    """Return component → first phase with it. Every phase needs a valid passing verdict on its data."""
    if not resolved.is_prepared:
        raise DataError(
            f"the data of {resolved.name} are not prepared as they would be now, so they have no verdict. "
            f"Run `phasewise run {resolved.name} {resolved.options}` first."
        )
    found: dict[str, Phase] = {}
    for phase in phases:
        record = read_record(resolved, phase)
        wrong = [finding.why for finding in record.findings if finding.what in DECIDING and finding.why]
        if wrong or not record.data_verdict:
            raise VerdictError(
                f"a tokenizer is trained on judged text, and phase {phase.name} has none: {wrong[0] if wrong else 'it was not judged'}. "
                f"Run `phasewise run {resolved.recipe_name}/{phase.name} {resolved.options}` first, or name a folder of text."
            )
        for name in phase.components:
            found.setdefault(name, phase)
    if pinned := [name for name in found if resolved.plan.components[name].train.pin]:
        raise ConfigError(f"a tokenizer is trained on text, and {', '.join(pinned)} has only tokens: take the pins out.")
    return found


def truncate_tokenizer(name: str, out: str, *, vocab_size: int) -> dict[str, Any]:
    """Write the first entries of a tokenizer as a new tokenizer. Return its manifest in the shape of `--json`."""
    training.check_vocab_size(vocab_size)
    folder = Path(out).expanduser()
    training.check_target(folder)
    file = training.checked_file(name)
    manifest = training.read_tokenizer_manifest(file.parent)
    if manifest is None:
        raise DataError(
            f"{file.parent} has no {training.MANIFEST_NAME}, which names the training text. Truncate a tokenizer of "
            "`phasewise tokenizer train`."
        )
    content = training.truncate(file.read_text(encoding="utf-8"), vocab_size, manifest.special_tokens)
    cut = manifest.but(
        tokenizer_digest=digest_of_bytes(content.encode()),
        vocab_size=vocab_size,
        truncated_from=manifest.truncated_from or manifest.vocab_size,
    )
    training.write_folder(folder, content, cut)
    return {"folder": str(folder), **cut.model_dump(mode="json")}


def print_manifest(written: dict[str, Any]) -> None:
    """Print the folder, the size, the special tokens and the training text."""
    console = Console(highlight=False, soft_wrap=True)
    cut = f", cut from {written['truncated_from']:,}" if written["truncated_from"] else ""
    console.print(f"{written['folder']}: {written['vocab_size']:,} entries, split as {written['split']}{cut}", markup=False)
    if written["special_tokens"]:
        console.print(f"  with the special tokens {', '.join(written['special_tokens'])}", markup=False)
    for one in written["trained_on"]:
        part = "all of it" if one["is_whole"] else "its beginning"
        amount = f"{one['documents']:,} documents, {one['text_bytes'] / 1e6:,.1f} MB, {part}"
        judged = f"judged in {one['phase']}" if one["phase"] else "not judged"
        console.print(f"  {one['component']}: {amount}; {judged}", markup=False)


@resolving_once()
def compare_tokenizers(
    names: Sequence[str], on: str, scale: Scale | None, home: str | None, *, max_bytes: int, text_key: str
) -> dict[str, Any]:
    """Measure each tokenizer on the same texts, in the shape of `--json`."""
    if twice := sorted({name for name in names if list(names).count(name) > 1}):
        raise ConfigError(f"each tokenizer is compared once, found {', '.join(twice)} more than once.")
    is_folder = Path(on).is_dir()
    if text_key != TEXT_KEY and not is_folder:
        raise ConfigError(f"--text-key is for a folder of text, and {on} is none: a recipe names its text field. Leave it out.")
    if scale is not None and is_folder:
        raise ConfigError(f"--scale is for a recipe, and {on} is a folder of text: leave it out.")
    files = {name: training.checked_file(name) for name in names}
    every: dict[str, Iterable[str]] = {}
    if is_folder:
        from phasewise.tasks.evaluation.corpus_fit import Corpus

        by_subset: dict[str, list[str]] = {}
        for document in Corpus(Path(on), text_key=text_key).documents():
            by_subset.setdefault(document.subset, []).append(document.text)
        every |= by_subset
    else:  # held-out documents: no tokenizer of the recipe was trained on them
        resolved, phase = resolve(on, scale_of(on, scale), home)
        if not resolved.is_prepared:
            raise DataError(
                f"the data of {on} are not prepared, so there is no held-out text to compare on. Run `phasewise data prepare {on} "
                f"{resolved.options}` first."
            )
        plans = {name: resolved.plan.components[name] for name in (phase.components if phase else resolved.recipe.components)}
        if unread := [name for name, plan in plans.items() if not plan.documents.is_built]:
            raise DataError(f"the documents of {', '.join(unread)} are not in this home: there is no text of them to compare on.")
        every = {name: split_texts(plan.documents.folder, "held_out") for name, plan in plans.items()}
    subsets: dict[str, list[str]] = {}
    is_whole = True
    for name, texts in every.items():
        taken = subsets[name] = []
        size = 0
        for text in texts:
            if size >= max_bytes:
                is_whole = False
                break
            taken.append(text)
            size += len(text.encode())
    tokenizers: list[dict[str, Any]] = []
    for name, file in files.items():
        tokenizer = training.open_tokenizer(file)
        manifest = training.read_tokenizer_manifest(file.parent)
        measured = training.measure(tokenizer, subsets)
        tokenizers.append(
            {
                "name": name,
                "file": str(file),
                "digest": digest_of_file(file),
                "vocab_size": tokenizer.get_vocab_size(),
                "trained_on": [one.component for one in manifest.trained_on] if manifest else None,
                "digit_groups": training.digit_groups(tokenizer),
                "digits": {text: training.pieces_of(tokenizer, text) for text in training.EXAMPLES},
                "white_space_tokens": training.white_space_tokens(tokenizer),
                "subsets": {subset: fit._asdict() for subset, fit in measured.subsets.items()},
                "scripts": {script: fit._asdict() for script, fit in measured.scripts.items()},
            }
        )
    return {
        "on": f"the text in {Path(on)}" if is_folder else f"held-out documents of {on}",
        "max_bytes_per_subset": max_bytes,
        "is_whole": is_whole,
        "text_digest": digest_of_json(subsets),
        "tokenizers": tokenizers,
    }


def print_comparison(found: dict[str, Any]) -> None:
    """Print tables with a column per tokenizer."""
    console = Console(highlight=False)
    tokenizers: list[dict[str, Any]] = found["tokenizers"]
    part = "all of it" if found["is_whole"] else f"the first {found['max_bytes_per_subset']:,} bytes of each, and the rest of that document"
    console.print(f"On {found['on']}, {part}:", soft_wrap=True, markup=False)
    names = [one["name"] for one in tokenizers]
    short = [Path(name).name for name in names]
    tables: dict[str, list[tuple[str, list[str]]]] = {}
    for title, group, figure in (
        ("bytes per token", "subsets", "bytes_per_token"),
        ("tokens per word", "subsets", "fertility"),
        ("bytes per token by script", "scripts", "bytes_per_token"),
    ):
        rows = dict.fromkeys(name for one in tokenizers for name in one[group])
        tables[title] = [(row, [decimal(one[group].get(row, {}).get(figure), places=3) for one in tokenizers]) for row in rows]
    spaces = tokenizers[0]["white_space_tokens"]
    tables["behaviour"] = [
        ("entries", [f"{one['vocab_size']:,}" for one in tokenizers]),
        ("documents that do not come back", [f"{sum(fit['not_back'] for fit in one['subsets'].values()):,}" for one in tokenizers]),
        ("digits", [one["digit_groups"] for one in tokenizers]),
        *((f"  {text}", ["|".join(one["digits"][text]) for one in tokenizers]) for text in training.EXAMPLES),
        *((f"tokens of {name} between words", [str(one["white_space_tokens"][name]) for one in tokenizers]) for name in spaces),
    ]
    for title, lines in tables.items():
        table = Table(box=rich.box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column("")
        for name in short if len(set(short)) == len(short) else names:
            table.add_column(name, justify="right", overflow="fold")
        for name, cells in lines:
            table.add_row(escape(name), *map(escape, cells))
        console.print(f"\n{title}", markup=False)
        print_table(console, table)
