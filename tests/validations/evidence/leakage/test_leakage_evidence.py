from phasewise.validations.evidence.leakage.index import LeakageIndex
from phasewise.validations.evidence.leakage.items import BenchmarkItem
from phasewise.validations.evidence.leakage.scan import LEAKED_ITEM_COLUMNS, TABLE_COLUMNS, Hit, Scan, leakage_evidence, leaked_items
from phasewise.validations.limits import LeakageLimits

LIMITS = LeakageLimits(min_words=13, min_score=0.7, min_copy_share=0.5, max_items=0)
QUESTION = "Which {} keeper finally climbed outside while gales battered every shutter along that northern coast during stormy weeks?"
INDEX = LeakageIndex.build([
    *(BenchmarkItem("birds", "birds", name, QUESTION.format(name)) for name in ("wren", "owl", "finch", "robin")),
    BenchmarkItem("ponds", "ponds", "frog", QUESTION.format("frog").replace("coast", "pond")),
    BenchmarkItem("ponds", "ponds", "tiny", "Why?", answer="no"),
])  # fmt: skip
EXPECTED = {"web": "key-web", "books": "key-books", "code": "key-code"}


def hit(document: int, item: str, *, benchmark: str = "birds", part: str = "question", score: float = 0.9, file: str = "a.jsonl") -> Hit:
    return Hit(
        file=file, document=document, id=f"{file}-{document}", tokens=100 + document, benchmark=benchmark, item=item, part=part,
        score=score, start=3, end=40, excerpt=f"{item} in {document}",
    )  # fmt: skip


WEB = Scan(documents=50, bytes=5000, hits=(
    hit(1, "wren"), hit(1, "owl", part="item"), hit(1, "wren", part="choices", score=0.95), hit(4, "wren", file="b.jsonl"),
    hit(4, "wren"), hit(7, "frog", benchmark="ponds"),
))  # fmt: skip
SCANS = {"web": WEB, "books": Scan(documents=9, bytes=90, hits=())}


def table() -> dict[tuple[str, str], dict[str, object]]:
    found = leakage_evidence(SCANS, INDEX, LIMITS, scan_keys={"web": "key-web", "books": "old"}, expected_scan_keys=EXPECTED)
    assert tuple(found.columns) == TABLE_COLUMNS
    rows = [{str(name): value for name, value in row.items()} for row in found.to_dict("records")]
    by_name = {(str(row["component"]), str(row["benchmark"])): row for row in rows}
    assert list(by_name) == [(component, benchmark) for component in EXPECTED for benchmark in ("birds", "ponds")]
    return by_name


def test_a_component_that_was_hit_counts_items_documents_and_tokens_once() -> None:
    row = table()["web", "birds"]
    assert list(row.values()) == [
        "web", "birds", 4, 2, 50.0, 3, 101 + 104 + 104, "a.jsonl, b.jsonl", 50, 0, 2, 0.0, "key-web", "key-web",
    ]  # fmt: skip
    ponds = table()["web", "ponds"]
    assert (ponds["items"], ponds["items_hit"], ponds["tokens_hit"], ponds["files"]) == (2, 1, 107, "a.jsonl")
    assert ponds["items_out_of_reach"] == 1


def test_a_clean_component_and_one_that_was_not_scanned_have_rows_without_hits() -> None:
    row = table()["books", "birds"]
    assert (row["items_hit"], row["hit_percent"], row["documents_hit"], row["tokens_hit"], row["files"]) == (0, 0, 0, 0, "")
    assert (row["documents_scanned"], row["scan_key"], row["expected_scan_key"]) == (9, "old", "key-books")
    for benchmark in ("birds", "ponds"):
        row = table()["code", benchmark]
        assert (row["documents_scanned"], row["items_hit"], row["scan_key"], row["expected_scan_key"]) == (0, 0, "none", "key-code")


def test_each_leaked_item_has_one_row_with_its_clearest_hit() -> None:
    found = leaked_items(SCANS)
    assert tuple(found.columns) == LEAKED_ITEM_COLUMNS
    rows = {str(row["item"]): row for row in found.to_dict("records")}
    assert list(rows) == ["wren", "owl", "frog"]
    assert list(rows["wren"].values()) == ["web", "birds", "wren", "choices", 0.95, "1, 4", "a.jsonl, b.jsonl", 1, "wren in 1", 3, 40]
    assert rows["frog"]["benchmark"] == "ponds"
    found = leaked_items({"web": WEB, "code": Scan(documents=1, bytes=1, hits=(hit(0, "wren"),))})
    assert found[found["item"] == "wren"]["component"].tolist() == ["web", "code"]
    many = Scan(documents=9, bytes=9, hits=tuple(hit(number, "wren") for number in (*range(8), 3)))
    assert leaked_items({"web": many})["documents"].tolist() == ["0, 1, 2, 3, 4 and 3 more"]
    nothing = leaked_items({"books": SCANS["books"]})
    assert (len(nothing), tuple(nothing.columns)) == (0, LEAKED_ITEM_COLUMNS)


def test_the_share_of_held_out_text_is_apart_from_the_items_of_benchmarks() -> None:
    excerpt = BenchmarkItem("held-out web", "held-out web", "page", QUESTION.format("gull"), is_excerpt=True)
    index = LeakageIndex.build([excerpt, BenchmarkItem("birds", "birds", "wren", QUESTION.format("wren"))])
    scan = Scan(documents=2, bytes=9, hits=(hit(1, "page", benchmark="held-out web"), hit(1, "wren")))
    found = leakage_evidence({"web": scan}, index, LIMITS, scan_keys={"web": "key"}, expected_scan_keys={"web": "key"})
    assert found.set_index("benchmark")[["benchmark_items_hit", "held_out_percent"]].to_dict("index") == {
        "birds": {"benchmark_items_hit": 1, "held_out_percent": 0.0},
        "held-out web": {"benchmark_items_hit": 0, "held_out_percent": 100.0},
    }
