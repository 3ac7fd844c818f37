"""What the benchmarks of the scan count: the peers' documents and items read as they are, and findings counted as theirs are."""

from pathlib import Path

import orjson
import pytest

from experiments.bench import scan_process
from experiments.bench.judgement_process import Clock
from experiments.bench.memory import STATUS
from experiments.bench.real_text import write_json_lines
from experiments.bench.scan_peers import Corpus, read_peer_items
from experiments.bench.scan_process import LIMITS
from phasewise.validations.evidence.leakage.index import LeakageIndex
from phasewise.validations.evidence.leakage.items import BenchmarkItem
from phasewise.validations.evidence.leakage.scan import scan_documents

pytestmark = pytest.mark.timeout(240)  # a guard against hanging

QUESTION = "A potter fires 31 clay jugs on every rainy Thursday and sells four of them to a travelling juggler. How many are left?"
PLAIN = "Nothing that anybody would ever ask is in this document, which is about the weather on the coast."
ROWS = (
    ("planted", f"Before. {QUESTION} After.", "gsm8k-0"),
    ("again", f"Once more: {QUESTION}", "gsm8k-0"),
    ("plain", PLAIN, None),
    ("missed", PLAIN, "gsm8k-1"),
    ("copied", QUESTION, None),
)


@pytest.fixture
def corpus_file(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b"".join(orjson.dumps({"id": id, "text": text, "planted": planted}) + b"\n" for id, text, planted in ROWS))
    return path


def test_findings_are_counted_by_document_with_a_plant_and_without(corpus_file: Path):
    corpus = Corpus.read(corpus_file, 1)
    assert corpus.num_bytes == sum(len(text) for _, text, _ in ROWS)
    index = LeakageIndex.build([BenchmarkItem("gsm8k", "gsm8k", "0", QUESTION)])
    found = corpus.found(scan_documents(corpus.documents, index, LIMITS))
    assert found == {"planted": 3, "found": 2, "flagged_unplanted": 1, "unplanted": 2}


def test_no_more_of_the_corpus_is_read_than_the_peers_take(corpus_file: Path):
    assert len(Corpus.read(corpus_file, 0).documents) == 1


def test_a_label_is_choices_for_multiple_choice_and_a_solution_elsewhere(tmp_path: Path):
    rows = [{"id": f"{task}-0", "task": task, "query": "q", "label": "a b", "text": "q\na b"} for task in ("mmlu", "gsm8k")]
    (tmp_path / "items.jsonl").write_bytes(b"\n".join(map(orjson.dumps, rows)))
    mmlu, gsm8k = read_peer_items(tmp_path / "items.jsonl")
    assert (mmlu.choices, mmlu.solutions) == (("a b",), ())
    assert (gsm8k.choices, gsm8k.solutions) == ((), ("a b",))


@pytest.mark.skipif(not STATUS.exists(), reason="memory is read from Linux's /proc")
def test_a_process_builds_an_index_of_made_items_and_scans_files_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scan_process, "MADE_PER_BENCHMARK", 10)
    built = scan_process.build(tmp_path / "index", None)
    write_json_lines(tmp_path / "files", 200_000, num_files=2)
    scanned = scan_process.scan(tmp_path / "index", tmp_path / "files")
    assert (built.items_of, built.items) == ("made items", 40)
    assert scanned.bytes >= 200_000
    assert min(scanned.before_bytes, scanned.peak_bytes) > 0  # the kernel counts the two apart, and a little late


def test_a_clock_adds_up_the_calls_of_what_it_watches():
    class Owner:
        @staticmethod
        def double(value: int) -> int:
            return 2 * value

    clock = Clock()
    owner = Owner()
    clock.watch(owner, "double", "doubling")
    assert [owner.double(1), owner.double(2)] == [2, 4]
    assert list(clock.steps) == ["doubling"]
    assert clock.steps["doubling"] > 0
