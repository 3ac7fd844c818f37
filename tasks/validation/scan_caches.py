"""The scan of a phase's token caches, which are the trainer's input, for benchmark items and held-out documents."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from phasewise.tasks.data.plan import DataPlan
from phasewise.tasks.data.stand_ins import BENCHMARK, word_problems
from phasewise.tasks.evaluation.made_benchmarks import benchmark_items
from phasewise.tasks.evaluation.settings import OwnBenchmark, real_benchmarks
from phasewise.tasks.home import Home
from phasewise.tasks.progress import say
from phasewise.tasks.validation.evidence_keys import MIN_HELD_OUT_WORDS, index_store, items_key, scan_key
from phasewise.tasks.validation.index_store import keep_index, open_index
from phasewise.tasks.validation.scan_pieces import CachePiece, find_tokenizer, open_detokenizer
from phasewise.trainer.base.identity import NotAsWritten, check_file, read_sealed, write_sealed
from phasewise.trainer.base.storage import as_path
from phasewise.trainer.data.manifest import read_manifest
from phasewise.validations.evidence.leakage.index import LeakageIndex
from phasewise.validations.evidence.leakage.item_files import read_benchmarks
from phasewise.validations.evidence.leakage.items import HELD_OUT, BenchmarkItem, merge_equal
from phasewise.validations.evidence.leakage.scan import Scan, cache_documents, merge_scans, scan_documents
from phasewise.validations.evidence.leakage.words import split_words
from phasewise.validations.limits import OWN_TEXT, LeakageLimits

STAGE = "leakage scan"
MIN_CLUSTER_BYTES = 64 * 2**20


class KeptItems(NamedTuple):
    """A stored list of items with its key, and the folder of this machine's indexes."""

    path: Path
    key: str
    store: Path

    def open(self) -> LeakageIndex:
        """Return the memory-mapped index of these items."""

        def read() -> list[BenchmarkItem]:
            rows: list[dict[str, Any]] = read_sealed(self.path)["items"]
            return [BenchmarkItem(**row)._replace(choices=tuple(row["choices"]), solutions=tuple(row["solutions"])) for row in rows]

        return open_index(keep_index(self.key, read, self.store))


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
    index = items.open()
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

        made = iter(run_all(STAGE, scan_shard, calls))
    for name, of_cache in missing.items():
        scans[name] = merge_scans([next(made) for _ in of_cache])
        write_sealed(kept[name], {"component": name, "key": keys[name], "scan": scans[name].model_dump(mode="json")})
    return CacheScans(index, {name: scans[name] for name in caches}, keys)


def scan_shard(shard: CachePiece, items: KeptItems, limits: LeakageLimits) -> Scan:
    """Scan one shard, in a Dask worker."""
    for name, expected in read_manifest(shard.folder).shards[shard.shard].files.items():  # the scan is kept under the digest of the shard
        check_file(shard.folder / name, expected, f"Delete {shard.folder} and prepare the data again.")
    documents = cache_documents(shard.folder, open_detokenizer(shard.tokenizer), shard.shard)
    return scan_documents(documents, items.open(), limits)


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
