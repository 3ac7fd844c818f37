"""`phasewise evaluate --text` and `--held-out`: corpus fit of a phase's checkpoint, or of any checkpoint."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from phasewise.flows.cli.terminal import print_table
from phasewise.flows.recipes import NAMES, scale_of, split_target
from phasewise.flows.recipes.phase import Phase
from phasewise.flows.recipes.recipe import Scale
from phasewise.flows.resolved import Resolved, resolve
from phasewise.flows.status.phase_status import named_phase, trained_run
from phasewise.trainer.base.errors import CheckpointError, ConfigError
from phasewise.trainer.base.wording import decimal, plural
from phasewise.trainer.config import RunConfig

if TYPE_CHECKING:
    from phasewise.tasks.evaluation.corpus_fit import TokenizedText
    from phasewise.tasks.evaluation.model_loading import Opened

ODD = {
    "empty_documents": "{} without text, which {} not measured",
    "copies": "{} with the text of an earlier one, which {} measured again",
    "normalized": "{} that normalisation changed (line ends, composed characters), which {} measured as changed",
}
"""Count of unusual documents in a subset → note for readers."""


class Subject(NamedTuple):
    """A model to measure. `resolved`, `phase` and `run` are None for a folder."""

    opened: "Opened"
    params_digest: str
    resolved: Resolved | None = None
    phase: Phase | None = None
    run: RunConfig | None = None


class Texts(NamedTuple):
    """Texts to measure, their bytes by subset if the texts don't have them, fields on the text, and subset → counts."""

    texts: "Iterable[TokenizedText]"
    text_bytes: dict[str, int] | None
    about: dict[str, Any]
    counts_of: Callable[[str], dict[str, Any]]


def fit_target(
    target: str,
    scale: Scale | None,
    home: str | None,
    *,
    text: str | None = None,
    text_key: str = "text",
    tokenizer: str | None = None,
    against: str | None = None,
) -> dict[str, Any]:
    """Measure the corpus fit of the last weights and of their moving average, if the checkpoint has it.

    `target`: `RECIPE/PHASE`, or the folder of a checkpoint or of a Hugging Face model. `text`: a folder, a file or the name of a public
    text such as `paloma`. None measures the held-out documents of the phase. `tokenizer`: the `tokenizer.json` of a checkpoint outside its
    home. `against`: another target, whose last weights are compared token by token.
    """
    subject = _open(target, scale, home, tokenizer, needs_phase=text is None)
    opened, phase = subject.opened, subject.phase
    seq_len = opened.config.seq_len
    about: dict[str, Any] = {
        **({"phase": phase.name} if phase else {}),
        "checkpoint": str(opened.checkpoint),
        "params_digest": subject.params_digest,
        "weights": "last",
        "tokenizer_digest": opened.tokenizer_digest,
        "windows": {"kind": "rolling", "window_tokens": seq_len, "stride_tokens": seq_len, "begin": "given", "end": "not predicted"},
        "results": [],
    }
    from phasewise.tasks.evaluation.corpus_fit import measure_fit

    texts, text_bytes, of_text, counts_of = _texts(subject, text, text_key)
    about |= of_text
    if against is not None:
        from phasewise.tasks.evaluation.model_loading import Model, compare_tokens

        other = _open(against, scale, home, tokenizer).opened
        if other.tokenizer_digest != opened.tokenizer_digest:
            raise ConfigError(
                f"--against {against}: expected the tokenizer of {target}, found another. Compare tokens only between models with the same "
                "tokenizer."
            )
        models = Model(opened.weights["last"], opened.config), Model(other.weights["last"], other.config)
        found = compare_tokens(models, opened.tokenizer, opened.begin, texts, text_bytes=text_bytes)
        return {**about, "against": against, "against_checkpoint": str(other.checkpoint), **found}
    measured = measure_fit(opened.weights, opened.config, opened.begin, texts, text_bytes=text_bytes)
    subsets: list[dict[str, Any]] = [{"name": name, **counts_of(name), **found} for name, found in measured.subsets.items()]
    return {
        **about,
        "measured_weights": list(opened.weights),
        "bits_per_byte": {one["name"]: one["fit"]["last"]["bits_per_byte"] for one in subsets},
        "macro_bits_per_byte": measured.macro["last"]["bits_per_byte"],
        "micro_bits_per_byte": measured.micro["last"]["bits_per_byte"],
        "subsets": subsets,
        "macro": measured.macro,
        "micro": measured.micro,
    }


def _texts(subject: Subject, text: str | None, text_key: str) -> Texts:
    """The text of a folder, with a subset for each file and folder. None is the held-out documents of the phase, by component."""
    from phasewise.tasks.evaluation.corpus_fit import Corpus, TokenizedText, tokenize

    if text is not None:
        corpus = Corpus(Path(text).expanduser(), text_key=text_key)
        fields = ("files", "documents", *ODD, "text_digest")
        about: dict[str, Any] = {"text": text, "hidden_files": corpus.hidden}
        texts = tokenize(corpus.documents(), subject.opened.tokenizer)
        return Texts(texts, None, about, lambda name: {field: getattr(corpus.subsets[name], field) for field in fields})
    from phasewise.tasks.evaluation.held_out import read_held_out_tokens
    from phasewise.tasks.evaluation.phase_evaluation import measured_components, measured_on

    resolved, phase, run = subject.resolved, subject.phase, subject.run
    assert resolved is not None
    assert phase is not None
    assert run is not None
    max_tokens = phase.evaluation.held_out_tokens
    folders = {name: resolved.plan.components[name].held_out.folder for name in measured_components(run, resolved.plan)}
    held_out = read_held_out_tokens(folders, subject.opened.tokenizer, max_tokens=max_tokens)
    digests = measured_on(run, resolved.plan, max_tokens)
    of_documents = (
        TokenizedText(name, f"held-out document {number} of {name}", tokens)
        for name, held in held_out.items()
        for number, tokens in enumerate(held.documents)
    )
    text_bytes = {name: held.text_bytes for name, held in held_out.items()}
    about = {"text": "held out", "held_out_tokens": max_tokens}
    return Texts(of_documents, text_bytes, about, lambda name: {"documents": len(held_out[name].documents), "text_digest": digests[name]})


def _open(target: str, scale: Scale | None, home: str | None, tokenizer: str | None, *, needs_phase: bool = False) -> Subject:
    """Open the last checkpoint of a phase, or a folder. Raises CheckpointError if the weights are not those of the phase's result."""
    name, named = split_target(target)
    if named is None and name not in NAMES and Path(target).is_dir():
        if needs_phase:
            raise ConfigError(f"--held-out needs RECIPE/PHASE, whose held-out documents it measures, found the folder {target}.")
        from phasewise.tasks.evaluation.model_loading import open_folder
        from phasewise.trainer.step import params_digest

        opened = open_folder(Path(target), Path(tokenizer) if tokenizer else None)
        return Subject(opened, params_digest(opened.weights["last"]))
    if tokenizer is not None:
        raise ConfigError(f"--tokenizer is for the folder of a checkpoint: {target} has its own tokenizer. Leave it out.")
    resolved, found = resolve(target, scale_of(target, scale), home, reads_only=True, has_weights=True)
    phase = named_phase(resolved, found, "evaluate")
    run, result = trained_run(resolved, phase)
    from phasewise.tasks.evaluation.model_loading import open_weights
    from phasewise.trainer.step import params_digest

    opened = open_weights(Path(result["checkpoint"]), run.model, resolved.plan.tokenizer, has_average=run.keeps_average)
    expected, digest = result["params_digest"], params_digest(opened.weights["last"])
    if digest != expected:
        raise CheckpointError(
            f"{opened.checkpoint} holds other weights than the phase's result names: expected {expected[:12]}, found {digest[:12]}. "
            "Train the phase again."
        )
    return Subject(opened, digest, resolved, phase, run)


def print_comparison(compared: dict[str, Any]) -> None:
    """Print bits per byte of both models by subset, the tokens with most of the difference, and the passages with the largest."""
    console = Console(highlight=False)
    console.print(
        f"{compared['checkpoint']}\nagainst {compared['against_checkpoint']}, on {compared['text']}", soft_wrap=True, markup=False
    )
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("subset", overflow="fold")
    for column in ("tokens", "bits/byte", "against", "difference"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in compared["subsets"]:
        ours, theirs = row["bits_per_byte"], row["against_bits_per_byte"]
        table.add_row(row["name"], f"{row['tokens']:,}", f"{ours:.4f}", f"{theirs:.4f}", f"{ours - theirs:+.4f}")
    print_table(console, table)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("token", "position"):
        table.add_column(column, overflow="fold")
    for column in ("count", "nats", "against", "share of the difference"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in compared["tokens"]:
        nats = f"{row['nats']:.3f}", f"{row['against_nats']:.3f}"
        position = "last of its text" if row["is_last"] else ""
        table.add_row(escape(repr(row["text"])), position, f"{row['count']:,}", *nats, f"{100 * row['share']:.1f} %")
    console.print()
    print_table(console, table)
    for row in compared["passages"]:
        passage = f"…{row['before']}[{row['token']}]{row['after']}…"
        nats = f"{row['nats']:.2f} nats against {row['against_nats']:.2f}"
        console.print(f"\n{row['where']}, {nats} at the token in brackets:\n  {passage!r}", soft_wrap=True, markup=False)


def print_fit(fit: dict[str, Any]) -> None:
    """Print a row per subset, the macro and micro averages, and notes on the measurement."""
    console = Console(highlight=False)
    weights, subsets = fit["measured_weights"], fit["subsets"]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("subset", overflow="fold")
    averaged = ("averaged",) if "ema" in weights else ()
    for column in ("documents", "bytes", "bits/byte", *averaged, "ppl/byte", "ppl/token"):
        table.add_column(column, justify="right", no_wrap=True)
    documents, text_bytes = sum(one["documents"] for one in subsets), sum(one["text_bytes"] for one in subsets)
    rows = [(one["name"], f"{one['documents']:,}", f"{one['text_bytes']:,}", one["fit"]) for one in subsets]
    rows += [("macro", "", "", fit["macro"]), ("micro", f"{documents:,}", f"{text_bytes:,}", fit["micro"])]
    for number, (*first, measured) in enumerate(rows):
        last = measured["last"]
        bits = [decimal(measured[name]["bits_per_byte"], places=4) for name in weights]
        perplexities = decimal(last["perplexity_per_byte"], places=3), decimal(last["perplexity_per_token"], places=1)
        table.add_row(*first, *bits, *perplexities, style="bold" if number >= len(subsets) else None)
    console.print(f"{fit.get('phase', 'checkpoint')}: {fit['checkpoint']}, on {fit['text']}", soft_wrap=True, markup=False)
    print_table(console, table)
    windows = fit["windows"]
    lines = [
        f"Rolling windows of {windows['window_tokens']} tokens, {windows['stride_tokens']} apart; each text by itself, begin-of-text "
        "given, end-of-text not predicted. Bytes are bytes of text.",
        "Perplexities (ppl) are of the last weights. Perplexities per token only compare models with the same tokenizer.",
    ]
    if "ema" in fit["measured_weights"]:
        lines.append("Averaged: bits per byte of the moving average of the weights.")
    if fit.get("held_out_tokens"):
        lines.append(f"Of each component the first {fit['held_out_tokens']:,} tokens, in whole documents, as the gate measures.")
    for name, note in ODD.items():
        counts = {one["name"]: one[name] for one in fit["subsets"] if one.get(name)}
        if counts:
            total = sum(counts.values())
            text = note.format(plural(total, "document"), "is" if total == 1 else "are")
            lines.append(f"Note: {text}: {', '.join(f'{subset} {count:,}' for subset, count in counts.items())}.")
    if fit.get("hidden_files"):
        lines.append(f"Note: {plural(fit['hidden_files'], 'hidden file')} (a name with a leading dot) not read.")
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)
