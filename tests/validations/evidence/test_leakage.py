import pytest
from tokenizers import Tokenizer

from tests.validations.conftest import ITEMS, PROSE, CacheMaker
from trainer.errors import DataError
from validations.evidence.leakage import CacheScan, held_out_items, leakage_evidence, leaked_items, scan_cache, scan_key
from validations.evidence.ngrams import ItemIndex

PLANTED = f"SEEN IN A QUIZ:\n{ITEMS[0].text.upper()}\n(end of the quiz)"


def test_a_planted_item_is_found_in_the_cache(caches: CacheMaker, tokenizer: Tokenizer, index: ItemIndex):
    folder = caches.write("starcoderdata", [PROSE["starcoderdata"], PLANTED, PROSE["wikipedia"]], file="planted.jsonl")
    scan = scan_cache(folder, index, tokenizer, 0.5)
    assert scan.documents == 3
    (hit,) = scan.hits
    assert (hit.component, hit.benchmark, hit.item) == ("starcoderdata", "continuation", "mc-0012")
    assert (hit.source_file, hit.containment) == ("sources/starcoderdata/planted.jsonl", 1.0)
    assert hit.excerpt.startswith("WHICH OF THE FOLLOWING METALS")


def test_half_an_item_is_measured_as_half(caches: CacheMaker, tokenizer: Tokenizer, index: ItemIndex):
    words = ITEMS[2].text.split()
    folder = caches.write("wikipedia", [" ".join(words[:-3])])
    (hit,) = scan_cache(folder, index, tokenizer, 0.3).hits
    grams = len(words) - 12
    assert hit.containment == pytest.approx((grams - 3) / grams)
    assert scan_cache(folder, index, tokenizer, 0.9).hits == ()


def test_a_short_item_is_found_whole_or_not_at_all(caches: CacheMaker, tokenizer: Tokenizer, index: ItemIndex):
    folder = caches.write("wikipedia", ["So, how many legs does a spider have? Eight.", "How many legs does a spider need?"])
    assert [(hit.item, hit.containment) for hit in scan_cache(folder, index, tokenizer, 0.5).hits] == [("mc-0013", 1.0)]


def test_a_scan_is_kept_and_read_back(caches: CacheMaker, tokenizer: Tokenizer, index: ItemIndex):
    scan = scan_cache(caches.write("wikipedia", [PLANTED]), index, tokenizer, 0.5)
    assert CacheScan.model_validate_json(scan.model_dump_json()) == scan


def test_every_component_and_benchmark_has_a_row(caches: CacheMaker, tokenizer: Tokenizer, index: ItemIndex):
    texts = {"starcoderdata": [PLANTED, PLANTED + " Again."], "wikipedia": [PROSE["wikipedia"]]}
    scans = [scan_cache(caches.write(name, documents), index, tokenizer, 0.5) for name, documents in texts.items()]
    digests = {"starcoderdata": "d1", "wikipedia": "d2", "arxiv": "d3"}
    table = leakage_evidence(scans, index, manifest_digests=digests, min_containment=0.5)
    counted = table[["component", "benchmark", "items", "items_hit", "documents_hit", "documents_scanned"]].to_numpy().tolist()
    assert counted == [
        ["starcoderdata", "continuation", 2, 1, 2, 2],
        ["starcoderdata", "held-out wikipedia", 1, 0, 0, 2],
        ["wikipedia", "continuation", 2, 0, 0, 1],
        ["wikipedia", "held-out wikipedia", 1, 0, 0, 1],
        ["arxiv", "continuation", 2, 0, 0, 0],
        ["arxiv", "held-out wikipedia", 1, 0, 0, 0],
    ]
    (row,) = leaked_items(scans).to_dict("records")
    assert (row["item"], row["documents"], row["files"]) == ("mc-0012", 2, "sources/starcoderdata/part-0.jsonl")


def test_a_scan_of_other_bytes_items_or_rule_has_another_key(index: ItemIndex):
    keys = {
        scan_key("d1", index, 0.5),
        scan_key("d2", index, 0.5),
        scan_key("d1", index, 0.6),
        scan_key("d1", ItemIndex.build(ITEMS[:2], ngram_words=13), 0.5),
    }
    assert len(keys) == 4


def test_held_out_documents_become_items(caches: CacheMaker, tokenizer: Tokenizer):
    folder = caches.write("wikipedia", [PROSE["wikipedia"], "Too short."], split="held_out")
    (item,) = held_out_items(folder, tokenizer)
    assert (item.benchmark, item.text) == ("held-out wikipedia", PROSE["wikipedia"])


def test_a_damaged_cache_is_refused(caches: CacheMaker, tokenizer: Tokenizer, index: ItemIndex):
    folder = caches.write("wikipedia", [PROSE["wikipedia"]])
    (folder / "shard-00000.bin").write_bytes(b"")
    with pytest.raises(DataError, match="the manifest says"):
        scan_cache(folder, index, tokenizer, 0.5)
