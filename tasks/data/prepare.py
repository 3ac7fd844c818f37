"""The stages of data preparation. Each does what is missing, and nothing where nothing is."""

from collections.abc import Mapping
from pathlib import Path

from tasks.data.caches import build_cache
from tasks.data.cluster import run_all
from tasks.data.documents import read_split_texts, write_documents
from tasks.data.plan import ComponentPlan, DataPlan
from tasks.data.standins import StandIn, collect, missing_stand_ins, write_stand_ins
from tasks.data.tokenizer import fetch_tokenizer, load_tokenizer, train_tokenizer
from tasks.progress import say
from trainer.data.manifest import MANIFEST_NAME, Split

SPLITS: tuple[Split, ...] = ("train", "held_out")


def collect_stand_ins(stand_ins: Mapping[str, StandIn], sources: Path) -> int:
    """Build the stand-ins that were never finished; how many components that were."""
    missing = missing_stand_ins(stand_ins, sources)
    if not missing:
        return 0
    say(f"collecting text from this Python installation for {len(missing)} components")
    found = run_all("stand-ins", collect, [(stand_ins[name],) for name in missing])
    written = write_stand_ins(dict(zip(missing, found, strict=True)), sources)
    say(f"wrote {sum(written.values()):,} documents under {sources}")
    return len(missing)


def write_missing_documents(plan: DataPlan) -> int:
    """Read every component whose documents are not there; how many that were."""
    missing = [component for component in plan.components.values() if not component.documents.is_built]
    manifests = run_all("documents", write_documents, [(c.name, c.source, c.files, c.documents.folder) for c in missing])
    if missing:
        train, held_out = sum(m.train for m in manifests), sum(m.held_out for m in manifests)
        say(f"{len(missing)} components: {train:,} documents to train on, {held_out:,} held out")
    return len(missing)


def make_missing_tokenizer(plan: DataPlan, vocab_size: int, name: str | None) -> bool:
    """Fetch the tokenizer by its name, or train it, unless it is there; whether anything was done."""
    if plan.tokenizer.exists():
        return False
    if name is not None:
        say(f"fetching the tokenizer {name}")
        fetch_tokenizer(name, plan.tokenizer)
        return True
    say(f"training a byte-level BPE tokenizer with {vocab_size:,} entries")
    train_tokenizer([component.documents.folder for component in plan.components.values()], vocab_size, plan.tokenizer)
    return True


def build_missing_caches(plan: DataPlan) -> int:
    """Tokenize what is not cached; how many caches that were."""
    missing: list[tuple[ComponentPlan, Split]] = [
        (c, split) for c in plan.components.values() for split in SPLITS if not c.cache(split).is_built
    ]
    calls = [
        (c.name, c.source, split, c.documents.folder, plan.tokenizer, c.cache(split).key, c.cache(split).folder) for c, split in missing
    ]
    manifests = run_all("token caches", build_cache, calls)
    if missing:
        say(f"{len(missing)} token caches with {sum(manifest.tokens for manifest in manifests):,} tokens")
    return len(missing)


def write_missing_benchmarks(plan: DataPlan) -> bool:
    """Make the benchmarks from held-out documents unless they are there; whether they were made."""
    if (plan.benchmarks / MANIFEST_NAME).exists():
        return False
    from tasks.evaluation.benchmark_folder import write_benchmarks
    from tasks.evaluation.benchmarks import commonest_word
    from tasks.evaluation.held_out import read_held_out_texts

    held_out = read_held_out_texts(plan.folders("held_out"), load_tokenizer(plan.tokenizer))
    training = (text for c in plan.components.values() for text in read_split_texts(c.documents.folder, "train"))
    write_benchmarks(plan.benchmarks, held_out, commonest_word=commonest_word(training))
    say("made the benchmarks from held-out documents")
    return True
