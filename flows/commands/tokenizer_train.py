"""`phasewise tokenizer train` and `phasewise tokenizer truncate`."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console

from phasewise.flows.recipes.phase import Phase
from phasewise.flows.recipes.recipe import Scale
from phasewise.flows.recipes.scales import special_tokens_of
from phasewise.flows.record import read_record
from phasewise.flows.resolved import Resolved, resolve, resolving_once
from phasewise.tasks.data.documents import split_texts
from phasewise.tasks.data.tokenizer_training import (
    MANIFEST_NAME,
    SPECIAL_TOKENS,
    TRAINED_BY,
    Amount,
    SplitName,
    TokenizerManifest,
    TrainedOn,
    check_target,
    check_vocab_size,
    checked_file,
    folder_at,
    read_tokenizer_manifest,
    train,
    truncate,
    write_folder,
)
from phasewise.trainer.base.errors import ConfigError, DataError, VerdictError
from phasewise.trainer.base.identity import digest_of_bytes, digest_of_file
from phasewise.trainer.base.storage import as_path
from phasewise.trainer.base.wording import megabytes
from phasewise.trainer.data.manifest import Manifest, read_manifest

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
    """The special tokens of the recipe's chat templates, sorted, but for those that every tokenizer has.

    Raises:
        ConfigError: there are none.
    """
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
        _check_judged(resolved, phase)
        for name in phase.components:
            found.setdefault(name, phase)
    if pinned := [name for name in found if resolved.plan.components[name].train.pin]:
        raise ConfigError(f"a tokenizer is trained on text, and of {', '.join(pinned)} there are tokens alone: take the pins out.")
    return found


def _check_judged(resolved: Resolved, phase: Phase) -> None:
    record = read_record(resolved, phase)
    wrong = [finding.why for finding in record.findings if finding.what in ("start", "caches", VERDICT) and finding.why]
    if wrong or not record.data_verdict:
        why = wrong[0] if wrong else "it was not judged"
        raise VerdictError(f"a tokenizer is trained on judged text, and phase {phase.name} has none: {why}. {_first(resolved, phase)}")


def _first(resolved: Resolved, phase: Phase | None = None) -> str:
    named = f"{resolved.recipe_name}/{phase.name}" if phase else resolved.name
    return f"Run `phasewise run {named} {resolved.options}` first."


def _trained_on(resolved: Resolved, name: str, phase: Phase, amount: Amount) -> TrainedOn:
    """What was read of a component, once it is certain that it is what was judged.

    Raises:
        DataError: it is not.
    """
    plan = resolved.plan.components[name]
    cache = read_manifest(plan.train.folder)
    is_whole = amount.documents == cache.documents
    _check_same(name, cache, amount, is_whole=is_whole)
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


def _check_same(name: str, cache: Manifest, amount: Amount, *, is_whole: bool) -> None:
    is_more = amount.documents > cache.documents
    if is_more or (is_whole and amount.text_bytes != cache.text_bytes):
        raise DataError(
            f"the text of {name} must be what was judged, {cache.documents:,} documents of {cache.text_bytes:,} bytes, found "
            f"{amount.documents:,} of {amount.text_bytes:,}. Prepare the data again."
        )
