"""Byte n-gram models on the same split: what any model worth training must beat."""

from pathlib import Path

from phasewise.tasks.data.documents import split_texts
from phasewise.tasks.data.plan import ComponentPlan, DataPlan
from phasewise.tasks.data.tokenizer import load_tokenizer
from phasewise.tasks.evaluation.byte_ngram import ngram_bits_per_byte
from phasewise.tasks.evaluation.held_out import read_held_out_tokens
from phasewise.tasks.home import Home
from phasewise.trainer.base.identity import NotAsWritten, code_digest, digest_of_json, read_sealed, write_sealed

ORDERS = (3, 5)
MEASURING = ("tasks/evaluation/byte_ngram.py", "tasks/evaluation/held_out.py")
"""The files that decide what is measured, beside this one's own function."""


def baselines_path(plan: DataPlan, home: Home, held_out_tokens: int | None) -> Path:
    """Where the baselines of this data are kept: under the digest of text, split, tokenizer, bound and code."""
    components = _main_components(plan)
    key = digest_of_json(
        {
            "code": code_digest(*MEASURING),
            "orders": ORDERS,
            "held_out_tokens": held_out_tokens,
            "documents": {component.name: component.documents.key for component in components},
            "held_out": {component.name: component.held_out.key for component in components},
        }
    )
    return home.evidence("byte-ngram", key) / "baselines.json"


def measure_baselines(plan: DataPlan, home: Home, held_out_tokens: int | None) -> dict[str, float]:
    """Macro bits per byte of each n-gram model, fitted on the main line's whole training split, on the text that models are measured on.

    What a branch draws from beside that changes nothing: its phases are read beside those of the main line.
    """
    path = baselines_path(plan, home, held_out_tokens)
    found = read_baselines(path)
    if found is None:
        components = _main_components(plan)
        tokenizer = load_tokenizer(plan.tokenizer)
        folders = {component.name: component.held_out.folder for component in components}
        held_out = read_held_out_tokens(folders, tokenizer, max_tokens=held_out_tokens)
        tokens = {name: [document.tolist() for document in found.documents] for name, found in held_out.items()}
        texts = {name: tokenizer.decode_batch(ids, skip_special_tokens=False) for name, ids in tokens.items()}
        training = (text for component in components for text in split_texts(component.documents.folder, "train"))
        measured = ngram_bits_per_byte(training, texts, ORDERS)
        found = {f"byte {order}-gram": measured[order].macro for order in ORDERS}
        write_sealed(path, {"key": path.parent.name, "bits_per_byte": found})
    return found


def read_baselines(path: Path) -> dict[str, float] | None:
    """The macro bits per byte in a file; None if the file is missing or was changed after it was written."""
    try:
        kept = read_sealed(path)
    except (FileNotFoundError, NotAsWritten):
        return None
    return kept["bits_per_byte"] if kept.get("key") == path.parent.name else None


def _main_components(plan: DataPlan) -> list[ComponentPlan]:
    return [plan.components[name] for name in plan.benchmark_components]
