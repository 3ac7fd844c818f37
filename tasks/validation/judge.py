"""Evidence and verdicts on a phase's data and on its training.

The scan for benchmark items and held-out documents reads the token caches, which are the trainer's input.
"""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pandas as pd
from pydantic import ValidationError

from phasewise.tasks.data.near_copies import read_near_copies
from phasewise.tasks.data.plan import DataPlan
from phasewise.tasks.data.stand_ins import BENCHMARK, word_problems
from phasewise.tasks.data.verify import check_caches, verify_component
from phasewise.tasks.evaluation.made_benchmarks import benchmark_items
from phasewise.tasks.evaluation.settings import OwnBenchmark, real_benchmarks
from phasewise.tasks.home import Home
from phasewise.tasks.progress import say
from phasewise.tasks.validation.evidence_keys import MIN_HELD_OUT_WORDS, index_store, items_key, scan_key
from phasewise.tasks.validation.scan_pieces import KEPT, CachePiece, find_tokenizer, keep_index, open_detokenizer, open_index, scan_piece
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.identity import NotAsWritten, check_file, digest_of_file, read_sealed, write_sealed
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.storage import as_path
from phasewise.trainer.config import RunConfig
from phasewise.trainer.data.cache import TokenCache
from phasewise.trainer.data.manifest import Manifest, read_manifest
from phasewise.trainer.data.mixture import MixtureSchedule
from phasewise.trainer.data.packing import ComponentRows, DrawnRows, RowRule
from phasewise.trainer.metrics import read_metrics
from phasewise.validations.evidence.caches import NearCount, cache_evidence, differences_evidence
from phasewise.validations.evidence.health.evidence import health_evidence
from phasewise.validations.evidence.leakage.index import LeakageIndex
from phasewise.validations.evidence.leakage.item_files import read_benchmarks
from phasewise.validations.evidence.leakage.items import HELD_OUT, BenchmarkItem, merge_equal
from phasewise.validations.evidence.leakage.scan import Scan, cache_documents, leakage_evidence, leaked_items, merge_scans
from phasewise.validations.evidence.leakage.words import split_words
from phasewise.validations.evidence.mixture import mixture_evidence, packing_evidence
from phasewise.validations.evidence.order.evidence import order_evidence
from phasewise.validations.expectations.suites import HEALTH_SUITE
from phasewise.validations.limits import NOBODY, OWN_TEXT, AcceptedWarning, AsksPeople, DataLimits, HealthLimits, LeakageLimits
from phasewise.validations.verdict import DataEvidence, Verdict, judge_data, judge_suite, write_verdict

STAGE = "leakage scan"
MIN_CLUSTER_BYTES = 64 * 2**20


class KeptItems(NamedTuple):
    """A stored list of items with its key, and the folder of this machine's indexes."""

    path: Path
    key: str
    store: Path

    def folder(self) -> Path:
        """Return the folder of this machine's index of these items."""

        def read() -> list[BenchmarkItem]:
            rows: list[dict[str, Any]] = read_sealed(self.path)["items"]
            return [BenchmarkItem(**row)._replace(choices=tuple(row["choices"]), solutions=tuple(row["solutions"])) for row in rows]

        return keep_index(self.key, read, self.store)


class CacheScans(NamedTuple):
    """The scans of caches by component, the keys of the scans, and the index of the items."""

    items: LeakageIndex
    scans: dict[str, Scan]
    keys: dict[str, str]


def scan_caches(
    caches: Mapping[str, Path], plan: DataPlan, limits: LeakageLimits, home: Home, *, own: Sequence[OwnBenchmark] = ()
) -> CacheScans:
    """Return the scan of each component's cache for all items. A stored scan of the same bytes and items is reused."""
    key, found = items_key(plan, caches, own), None
    path = home.keyed("evidence", key, "items") / "items.json"
    try:
        found = read_sealed(path).get("key")
    except FileNotFoundError:
        pass
    except NotAsWritten as error:
        say(f"{error}: it is made again")
    if found != key:
        write_sealed(path, {"key": key, "items": [item._asdict() for item in test_items(plan, caches, own)]})
    items = KeptItems(path, key, index_store(home))
    index = open_index(items.folder())
    keys = {name: scan_key(read_manifest(folder).digest, index.digest, limits) for name, folder in caches.items()}
    kept = {name: home.keyed("evidence", key, "leakage") / "scan.json" for name, key in keys.items()}
    scans: dict[str, Scan] = {}
    for name, path in kept.items():
        try:
            record = read_sealed(path)
            if record.get("key") != keys[name]:
                raise NotAsWritten(f"{path} is the scan of something else")
            scans[name] = Scan.model_validate(record["scan"])
        except FileNotFoundError:
            pass
        except (NotAsWritten, KeyError, ValidationError) as error:
            say(f"{error}: the cache is scanned again")
    missing: dict[str, list[CachePiece]] = {}
    for name, folder in caches.items():
        if name in scans:
            continue
        manifest = read_manifest(folder)
        tokenizer = find_tokenizer(folder, manifest, plan.tokenizer.parents[2:3])  # a pinned cache may have another tokenizer
        missing[name] = [CachePiece(folder, number, tokenizer, 2 * shard.tokens) for number, shard in enumerate(manifest.shards)]
    if missing:
        benchmarks = ", ".join(name for name in index.items_per_benchmark if not name.startswith(HELD_OUT))
        asked = sum(index.items_per_benchmark.values())
        say(f"scanning {len(missing)} token caches for {asked:,} test items: what is held out, {benchmarks}")
    calls = [(shard, items, limits) for of_cache in missing.values() for shard in of_cache]
    if sum(shard.size_bytes for shard, *_ in calls) < MIN_CLUSTER_BYTES:  # faster than starting a cluster
        made = iter([scan_shard(*call) for call in calls])
    else:
        from phasewise.tasks.data.cluster import run_all  # a slow import

        made = iter(run_all(STAGE, scan_shard, [(*call, True) for call in calls]))
    for name, of_cache in missing.items():
        scans[name] = merge_scans([next(made) for _ in of_cache])
        write_sealed(kept[name], {"component": name, "key": keys[name], "scan": scans[name].model_dump(mode="json")})
    if missing:
        shutil.rmtree(items.folder().with_suffix(KEPT), ignore_errors=True)
    return CacheScans(index, {name: scans[name] for name in caches}, keys)


def scan_shard(shard: CachePiece, items: KeptItems, limits: LeakageLimits, keeps: bool = False) -> Scan:
    """Scan one shard, in a Dask worker. `keeps`: as in `scan_piece`."""
    for name, expected in read_manifest(shard.folder).shards[shard.shard].files.items():  # the scan is kept under the digest of the shard
        check_file(shard.folder / name, expected, f"Delete {shard.folder} and prepare the data again.")
    return scan_piece(shard, items.folder(), limits, keeps).scan


def test_items(plan: DataPlan, components: Iterable[str], own: Sequence[OwnBenchmark]) -> list[BenchmarkItem]:
    """Return the items of benchmarks and of held-out documents, without short documents, which may occur anywhere."""
    items = [
        BenchmarkItem(item.benchmark, item.benchmark, item.id, item.text, is_excerpt=True) for item in benchmark_items(plan.benchmarks)
    ]
    items += [BenchmarkItem(BENCHMARK, BENCHMARK, one.id, one.question, (), str(one.answer), (one.solution,)) for one in word_problems()]
    real = real_benchmarks()
    items += read_benchmarks(real) if real else []
    if own:
        from phasewise.tasks.evaluation.corpus_fit import Corpus  # JAX and lm-eval are slow imports
        from phasewise.tasks.evaluation.leakage_items import own_items

        items = merge_equal([*items, *own_items(one for one in own if one[0] != OWN_TEXT)])
        for text in (Corpus(as_path(url).expanduser()) for label, url in own if label == OWN_TEXT):
            items += [
                BenchmarkItem(f"{HELD_OUT}{one.subset}", f"{HELD_OUT}{one.subset}", one.where, one.text, is_excerpt=True)
                for one in text.documents()
                if len(split_words(one.text.encode()).hashes) >= MIN_HELD_OUT_WORDS
            ]
    for component in sorted({*plan.benchmark_components, *components}):
        folder, benchmark = plan.components[component].held_out.folder, f"{HELD_OUT}{component}"
        manifest = read_manifest(folder)
        for name, expected in [file for shard in manifest.shards for file in shard.files.items()]:
            check_file(folder / name, expected, f"Delete {folder} and prepare the data again.")
        if not manifest.shards:
            continue
        tokenizer = find_tokenizer(folder, manifest, plan.tokenizer.parents[2:3])
        for document in cache_documents(folder, open_detokenizer(tokenizer)):
            if len(split_words(document.text).hashes) >= MIN_HELD_OUT_WORDS:
                items.append(BenchmarkItem(benchmark, benchmark, document.id, document.text.decode(), is_excerpt=True))
    return items


DAMAGED = "shard damaged"


def judge_phase_data(
    run: RunConfig,
    plan: DataPlan,
    limits: DataLimits,
    home: Home,
    *,
    hand_off: pd.DataFrame,
    rows_before: Mapping[str, Sequence[DrawnRows]] = MappingProxyType({}),
    own: Sequence[OwnBenchmark] = (),
    decided_by: Mapping[str, str] = MappingProxyType({}),
    accepts: Sequence[AcceptedWarning] = (),
    asks_people: AsksPeople = NOBODY,
) -> Verdict:
    """Judge the caches, the mixture, the order, the leakage and the hand-off of a phase, and write the verdict for the trainer.

    `hand_off`: declared and found changes between parent and phase. `rows_before`: component → rows of earlier phases.
    `own`: own benchmarks of the recipe.
    `decided_by`: other inputs of the verdict, name → digest. Raises DataError if a cache is missing.
    """
    caches = {name: plan.components[name].train.folder for name in sorted(run.caches)}
    manifests: dict[str, Manifest] = {}
    for name, folder in caches.items():
        with suppress(DataError):
            manifests[name] = read_manifest(folder)
    check_caches([name for name in caches if name not in manifests], plan, home)
    differences = {name: verify_component(name, plan, home) for name in caches}
    damaged = {name for name, found in differences.items() if any(one.what == DAMAGED for one in found)}  # not scanned
    whole = {name: folder for name, folder in caches.items() if name not in damaged}
    scans = scan_caches(whole, plan, limits.leakage, home, own=own)
    order, shifts = order_evidence(run, limits.order)
    packed = packing_evidence(run)
    expected = {name: scan_key(manifest.digest, scans.items.digest, limits.leakage) for name, manifest in manifests.items()}
    near: dict[str, NearCount] = {}
    for name in caches:
        if (found := read_near_copies(plan.components[name])) is not None:
            near[name] = NearCount(found.near_copies, [sample.in_words for sample in found.samples])
    evidence = DataEvidence(
        caches=cache_evidence(caches, near),
        differences=differences_evidence({name: [one.as_json() for one in found] for name, found in differences.items()}, caches),
        mixture=mixture_evidence(
            MixtureSchedule.of_run(run),
            start_step=run.start_step,
            stop_step=run.stop_step,
            rows=dict(zip(packed["component"], packed["rows"], strict=True)),
            seq_len=run.model.seq_len,
            epochs_before={name: epochs_of(drawn, caches[name]) for name, drawn in rows_before.items() if name in caches},
        ),
        order=order,
        shifts=shifts,
        leakage=leakage_evidence(scans.scans, scans.items, limits.leakage, scan_keys=scans.keys, expected_scan_keys=expected),
        leaked_items=leaked_items(scans.scans),
        hand_off=hand_off,
        packing=packed,
    )
    subject, folder = f"{run.recipe}/{run.scale}/{run.phase} data", as_path(run.verdict).with_suffix("")
    verdict = judge_data(subject, evidence, limits=limits, folder=folder, decided_by=decided_by, accepts=accepts, asks_people=asks_people)
    write_verdict(run.verdict, verdict)
    return verdict


def judge_phase_health(
    run: RunConfig, limits: HealthLimits, home: Home, *, accepts: Sequence[AcceptedWarning] = (), asks_people: AsksPeople = NOBODY
) -> Verdict:
    """Judge the training of a phase by its metrics, and write the verdict."""
    from phasewise.trainer.step import groups  # it imports jax

    metrics = RunFolder(run.output).metrics
    path = home.verdict(f"{run.recipe}-{run.scale}", run.phase, "health")
    tables = {"health": health_evidence(read_metrics(metrics), limits, groups=groups(run.model))}
    subject, judged = f"{run.recipe}/{run.scale}/{run.phase} training", {str(metrics): digest_of_file(metrics)}
    verdict = judge_suite(HEALTH_SUITE, subject, tables, limits, accepts, asks_people, judged=judged, folder=path.with_suffix(""))
    write_verdict(path, verdict)
    return verdict


def epochs_of(drawn: Iterable[DrawnRows], folder: Path) -> float:
    """Return the epochs of a cache in these rows. They are counted in rows, because packed rows have padding and drop tokens."""
    cache = TokenCache.open(folder)
    epochs = 0.0
    for one in drawn:
        rows = cache.manifest.tokens / one.seq_len
        if one.packing != "chunk":
            rows = ComponentRows(cache, RowRule(one.packing), one.seq_len).num_rows
        epochs += one.sequences / rows if rows else 0.0
    return epochs
