"""`phasewise evaluate --text` and `--held-out`: corpus fit of a phase's checkpoint, or of any checkpoint."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
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
    from phasewise.tasks.evaluation.corpus_fit import CorpusFit, SubsetText
    from phasewise.tasks.evaluation.model_loading import Opened

ODD = {
    "empty_documents": "{} without text, which {} not measured",
    "copies": "{} with the text of an earlier one, which {} measured again",
    "normalized": "{} that normalisation changed (line ends, composed characters), which {} measured as changed",
}
"""What a reader should know of a subset's documents."""


class FitOptions(NamedTuple):
    """What is measured.

    Attributes:
        text: a folder or a file; None is the held-out documents of the phase.
        text_key: the field with the text, of formats that have fields.
        tokenizer: the `tokenizer.json` of a checkpoint whose home is not here.
    """

    text: str | None = None
    text_key: str = "text"
    tokenizer: str | None = None


def fit_target(target: str, scale: Scale | None, home: str | None, options: FitOptions) -> dict[str, Any]:
    """Corpus fit of the last weights, and of their moving average where there is one, in the shape of `--json`.

    Args:
        target: `RECIPE/PHASE`, or the folder of a checkpoint of ours or of a Hugging Face model.

    Raises:
        ConfigError: no phase is named; or a folder is asked for held-out documents, or has no tokenizer.
        TrainingError: the phase is not trained.
        CheckpointError: the checkpoint is not whole, or holds other weights than the phase's result names.
        DataError: a text cannot be read.
    """
    if is_folder(target):
        if options.text is None:
            raise ConfigError(f"--held-out needs RECIPE/PHASE, whose held-out documents it measures, found the folder {target}.")
        from phasewise.tasks.evaluation.model_loading import open_folder

        return fit_text(open_folder(Path(target), Path(options.tokenizer) if options.tokenizer else None), options)
    if options.tokenizer is not None:
        raise ConfigError(f"--tokenizer is for the folder of a checkpoint: {target} has its own tokenizer. Leave it out.")
    resolved, found = resolve(target, scale_of(target, scale), home, reads_only=True, has_weights=True)
    phase = named_phase(resolved, found, "evaluate")
    run, result = trained_run(resolved, phase)
    from phasewise.tasks.evaluation.model_loading import open_weights

    opened = open_weights(Path(result["checkpoint"]), run.model, resolved.plan.tokenizer, has_average=run.keeps_average)
    check_weights(opened, result["params_digest"])
    fit = fit_held_out(opened, resolved, phase, run) if options.text is None else fit_text(opened, options)
    return {"phase": phase.name, **fit}


def check_weights(opened: "Opened", expected: str) -> None:
    """Refuse a checkpoint that holds other weights than its phase's result names.

    Raises:
        CheckpointError: see above.
    """
    from phasewise.trainer.state import params_digest

    if (found := params_digest(opened.weights["last"])) != expected:
        raise CheckpointError(
            f"{opened.checkpoint} holds other weights than the phase's result names: expected {expected[:12]}, found {found[:12]}. "
            "Train the phase again."
        )


def is_folder(target: str) -> bool:
    """Whether a target is a folder of this machine, and no recipe."""
    name, phase = split_target(target)
    return phase is None and name not in NAMES and Path(target).is_dir()


def fit_text(opened: "Opened", options: FitOptions) -> dict[str, Any]:
    """Corpus fit on a folder of text: each file in it is a subset, and each folder in it."""
    from phasewise.tasks.evaluation.corpus_fit import Corpus, measure_fit, tokenize

    corpus = Corpus(Path(str(options.text)).expanduser(), text_key=options.text_key)
    measured = measure_fit(opened.weights, opened.config, opened.begin, tokenize(corpus.documents(), opened.tokenizer))
    subsets = [{**_described(corpus.subsets[name]), **found} for name, found in measured.subsets.items()]
    return {**_shaped(opened, measured, subsets), "text": str(options.text), "hidden_files": corpus.hidden}


def fit_held_out(opened: "Opened", resolved: Resolved, phase: Phase, run: RunConfig) -> dict[str, Any]:
    """Corpus fit on the held-out documents that the phase's gate measures, each component a subset."""
    from phasewise.tasks.evaluation.corpus_fit import TokenizedText, measure_fit
    from phasewise.tasks.evaluation.held_out import read_held_out_tokens
    from phasewise.tasks.evaluation.phase_evaluation import measured_components, measured_on

    bound = phase.evaluation.held_out_tokens
    folders = {name: resolved.plan.components[name].held_out.folder for name in measured_components(run, resolved.plan)}
    held_out = read_held_out_tokens(folders, opened.tokenizer, max_tokens=bound)
    digests = measured_on(run, resolved.plan, bound)
    texts = (
        TokenizedText(name, f"held-out document {number} of {name}", tokens)
        for name, held in held_out.items()
        for number, tokens in enumerate(held.documents)
    )
    measured = measure_fit(
        opened.weights, opened.config, opened.begin, texts, text_bytes={name: held.text_bytes for name, held in held_out.items()}
    )
    subsets = [
        {"name": name, "documents": len(held_out[name].documents), "text_digest": digests[name], **found}
        for name, found in measured.subsets.items()
    ]
    return {**_shaped(opened, measured, subsets), "text": "held out", "held_out_tokens": bound}


def _described(text: "SubsetText") -> dict[str, Any]:
    counts = {name: getattr(text, name) for name in ("name", "files", "documents", *ODD)}
    return {**counts, "text_digest": text.text_digest}


def _shaped(opened: "Opened", measured: "CorpusFit", subsets: list[dict[str, Any]]) -> dict[str, Any]:
    from phasewise.trainer.state import params_digest

    seq_len = opened.config.seq_len
    return {
        "checkpoint": str(opened.checkpoint),
        "params_digest": params_digest(opened.weights["last"]),
        "weights": "last",
        "measured_weights": list(opened.weights),
        "tokenizer_digest": opened.tokenizer_digest,
        "windows": {"kind": "rolling", "window_tokens": seq_len, "stride_tokens": seq_len, "begin": "given", "end": "not predicted"},
        "results": [],
        "bits_per_byte": {one["name"]: one["fit"]["last"]["bits_per_byte"] for one in subsets},
        "macro_bits_per_byte": measured.macro["last"]["bits_per_byte"],
        "micro_bits_per_byte": measured.micro["last"]["bits_per_byte"],
        "subsets": subsets,
        "macro": measured.macro,
        "micro": measured.micro,
    }


def print_fit(fit: dict[str, Any]) -> None:
    """The same for people."""
    console = Console(highlight=False)
    weights = fit["measured_weights"]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("subset", overflow="fold")
    averaged = ("averaged",) if "ema" in weights else ()
    for column in ("documents", "bytes", "bits/byte", *averaged, "ppl/byte", "ppl/token"):
        table.add_column(column, justify="right", no_wrap=True)
    for one in fit["subsets"]:
        table.add_row(one["name"], f"{one['documents']:,}", f"{one['text_bytes']:,}", *_cells(one["fit"], weights))
    total = sum(one["text_bytes"] for one in fit["subsets"])
    table.add_row("macro", "", "", *_cells(fit["macro"], weights), style="bold")
    table.add_row(
        "micro", f"{sum(one['documents'] for one in fit['subsets']):,}", f"{total:,}", *_cells(fit["micro"], weights), style="bold"
    )
    console.print(f"{fit.get('phase', 'checkpoint')}: {fit['checkpoint']}, on {fit['text']}", soft_wrap=True, markup=False)
    print_table(console, table)
    for line in _remarks(fit):
        console.print(line, soft_wrap=True, markup=False)


def _cells(fit: dict[str, Any], weights: list[str]) -> list[str]:
    last = fit["last"]
    return [
        *(decimal(fit[name]["bits_per_byte"], places=4) for name in weights),
        decimal(last["perplexity_per_byte"], places=3),
        decimal(last["perplexity_per_token"], places=1),
    ]


def _remarks(fit: dict[str, Any]) -> list[str]:
    windows = fit["windows"]
    lines = [
        f"Rolling windows of {windows['window_tokens']} tokens, {windows['stride_tokens']} apart; each text by itself, begin-of-text "
        "given, end-of-text not predicted. Bytes are those of the text.",
        "Perplexities (ppl) are of the last weights; per token they compare models of one tokenizer alone.",
    ]
    if "ema" in fit["measured_weights"]:
        lines.append("Averaged: bits per byte of the moving average of the weights.")
    if fit.get("held_out_tokens"):
        lines.append(f"Of each component the first {fit['held_out_tokens']:,} tokens, in whole documents, as the gate measures.")
    for name, words in ODD.items():
        counts = {one["name"]: one[name] for one in fit["subsets"] if one.get(name)}
        if counts:
            total = sum(counts.values())
            said = words.format(plural(total, "document"), "is" if total == 1 else "are")
            lines.append(f"Note: {said}: {', '.join(f'{subset} {count:,}' for subset, count in counts.items())}.")
    if fit.get("hidden_files"):
        lines.append(f"Note: {plural(fit['hidden_files'], 'hidden file')} (a name that begins with a dot) not read.")
    return lines
