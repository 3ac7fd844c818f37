"""Gathers the evidence for a phase's data, scans under Dask, and has it judged."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

from tasks.data.cluster import run_all
from tasks.data.plan import ComponentPlan, DataPlan
from tasks.data.tokenizer import load_tokenizer
from tasks.evaluation.benchmark_folder import benchmark_items
from tasks.home import Home
from tasks.progress import say
from trainer.config import RunConfig
from trainer.data.cache import TokenCache
from trainer.data.manifest import read_manifest
from trainer.data.mixture import MixtureSchedule
from trainer.storage import read_json, write_json
from validations.evidence.caches import cache_evidence
from validations.evidence.leakage import CacheScan, held_out_items, leakage_evidence, leaked_items, scan_cache, scan_key
from validations.evidence.mixture import mixture_evidence
from validations.evidence.ngrams import Item, ItemIndex
from validations.limits import DataLimits, LeakageLimits
from validations.verdict import DataEvidence, Verdict, judge_data, write_verdict


def test_items(plan: DataPlan) -> list[Item]:
    """What must not be trained on: the items of the benchmarks, and every held-out document."""
    tokenizer = load_tokenizer(plan.tokenizer)
    items = [Item(item.benchmark, item.id, item.text) for item in benchmark_items(plan.benchmarks)]
    return items + [item for folder in plan.folders("held_out").values() for item in held_out_items(folder, tokenizer)]


@lru_cache(maxsize=1)
def read_index(items: Path, ngram_words: int) -> ItemIndex:
    """The index of a kept list of items; a worker builds it once."""
    return ItemIndex.build([Item(**item) for item in read_json(items)], ngram_words)


def scan_component(folder: Path, items: Path, tokenizer: Path, limits: LeakageLimits) -> CacheScan:
    """Scan one training cache for every item; runs in a Dask worker."""
    return scan_cache(folder, read_index(items, limits.ngram_words), load_tokenizer(tokenizer), limits.min_containment)


def scan_caches(plan: DataPlan, components: Sequence[str], limits: LeakageLimits, home: Home) -> tuple[ItemIndex, list[CacheScan]]:
    """Scan the training caches of these components; a scan of the same bytes for the same items is kept and used again."""
    items = home.evidence("items", plan.benchmarks.name) / "items.json"
    if not items.exists():
        write_json(items, [asdict(item) for item in test_items(plan)])
    index = read_index(items, limits.ngram_words)
    folders = {name: plan.components[name].train.folder for name in components}
    digests = {name: read_manifest(folder).digest for name, folder in folders.items()}
    kept = {name: home.evidence("leakage", scan_key(digests[name], index, limits.min_containment)) / "scan.json" for name in components}
    missing = [name for name in components if not kept[name].exists()]
    if missing:
        say(f"scanning {len(missing)} token caches for {len(index.items):,} test items")
    scans = run_all("leakage scan", scan_component, [(folders[name], items, plan.tokenizer, limits) for name in missing])
    for name, scan in zip(missing, scans, strict=True):
        write_json(kept[name], scan.model_dump(mode="json"))
    return index, [CacheScan.model_validate(read_json(kept[name])) for name in components]


def judge_phase_data(run: RunConfig, plan: DataPlan, limits: DataLimits, home: Home, evidence_folder: Path) -> Verdict:
    """Judge the caches, the mixture and the leakage of a phase, and write the verdict where the trainer will look for it."""
    components: list[ComponentPlan] = [plan.components[name] for name in sorted(run.caches)]
    index, scans = scan_caches(plan, [component.name for component in components], limits.leakage, home)
    schedule = MixtureSchedule(batch=run.batch, mixture=run.mixture, order=run.order)
    caches = {component.name: component.train.folder for component in components}
    opened = {name: TokenCache.open(folder) for name, folder in caches.items()}
    evidence = DataEvidence(
        caches=cache_evidence(caches, {component.name: component.files for component in components}),
        mixture=mixture_evidence(
            schedule,
            start_step=run.start_step,
            stop_step=run.stop_step,
            rows={name: cache.num_rows(run.model.seq_len) for name, cache in opened.items()},
            seq_len=run.model.seq_len,
        ),
        leakage=leakage_evidence(
            scans,
            index,
            manifest_digests={name: cache.manifest.digest for name, cache in opened.items()},
            min_containment=limits.leakage.min_containment,
        ),
        leaked_items=leaked_items(scans),
    )
    verdict = judge_data(f"{run.recipe}/{run.scale}/{run.phase} data", evidence, limits=limits, folder=evidence_folder)
    write_verdict(run.verdict, verdict)
    return verdict
