"""Byte n-gram models on the same split: what any model worth training must beat."""

from pathlib import Path

from tasks.data.documents import split_texts
from tasks.data.plan import DataPlan
from tasks.data.tokenizer import load_tokenizer
from tasks.evaluation.byte_ngram import ngram_bits_per_byte
from tasks.evaluation.held_out import read_held_out_tokens
from tasks.home import Home
from trainer.storage import digest_of_json, read_json, write_json

ORDERS = (3, 5)
VERSION = "witten-bell-1"


def baselines_path(plan: DataPlan, home: Home, held_out_tokens: int | None) -> Path:
    """Where the baselines of this data are kept."""
    key = digest_of_json(
        {
            "version": VERSION,
            "orders": ORDERS,
            "held_out_tokens": held_out_tokens,
            "documents": {name: component.documents.key for name, component in plan.components.items()},
        }
    )
    return home.evidence("byte-ngram", key) / "baselines.json"


def measure_baselines(plan: DataPlan, home: Home, held_out_tokens: int | None) -> dict[str, float]:
    """Macro bits per byte of each n-gram model, fitted on the whole training split, on the text that models are measured on."""
    path = baselines_path(plan, home, held_out_tokens)
    if not path.exists():
        tokenizer = load_tokenizer(plan.tokenizer)
        held_out = read_held_out_tokens(plan.folders("held_out"), tokenizer, max_tokens=held_out_tokens)
        texts = {name: tokenizer.decode_batch([tokens.tolist() for tokens in found.documents]) for name, found in held_out.items()}
        training = (text for c in plan.components.values() for text in split_texts(c.documents.folder, "train"))
        measured = ngram_bits_per_byte(training, texts, ORDERS)
        write_json(path, {f"byte {order}-gram": measured[order].macro for order in ORDERS})
    return read_json(path)
