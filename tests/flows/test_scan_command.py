import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from experiments.leakage_recall.made_items import made_items
from experiments.leakage_recall.views import olmes
from phasewise.validations.evidence.leakage import jit_cache
from phasewise.validations.evidence.leakage.items import BenchmarkItem
from tests.flows.commands import Run
from tests.hostile_makers import zipped

pytestmark = pytest.mark.timeout(240)  # a guard against hanging

ROOT = Path(__file__).parents[2]
COMPILED = Path(jit_cache.config.CACHE_DIR)  # pyright: ignore[reportAttributeAccessIssue]  # the module has it at run time
HIT = {"file", "document", "id", "benchmark", "item", "part", "score", "start", "end", "excerpt"}


@pytest.fixture(scope="module")
def items() -> list[BenchmarkItem]:
    return [item for item in made_items(30, seed=5) if item.benchmark == "made-math"]


@pytest.fixture(scope="module")
def benchmarks(items: list[BenchmarkItem], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("benchmarks")
    (folder / "made-math").mkdir()
    rows = (json.dumps({"id": item.id, "question": item.question, "answer": item.solutions[0]}) + "\n" for item in items)
    (folder / "made-math" / "test.jsonl").write_text("".join(rows))
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder for the index, which is kept for all tests; what Numba compiled for other tests is there, too."""
    COMPILED.mkdir(parents=True, exist_ok=True)
    folder = tmp_path_factory.mktemp("cache")
    (folder / "phasewise").mkdir()
    (folder / "phasewise" / COMPILED.name).symlink_to(COMPILED)
    return folder


@pytest.fixture
def scan(phasewise: Run, monkeypatch: pytest.MonkeyPatch, benchmarks: Path, cache: Path) -> Run:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return lambda *arguments: phasewise("scan", *arguments, "--benchmarks", benchmarks)


@pytest.fixture
def leaky(items: list[BenchmarkItem], tmp_path: Path) -> Path:
    lines = [json.dumps({"text": olmes(item, Random(0))}) for item in items[:12]]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "test.json").write_text("\n".join(lines))
    (tmp_path / "data" / "train.jsonl").write_text('{"text": "Nothing of the kind stands here."}\n')
    return tmp_path / "data"


@pytest.mark.usefixtures("leaky")
def test_scripts_read_one_object(scan: Run, items: list[BenchmarkItem], benchmarks: Path):
    result = scan("data", "--json")
    report = json.loads(result.stdout)
    assert (result.exit_code, report["documents"], report["names_like_tests"]) == (1, 13, ["test.json"])
    assert report["bytes"] > 1000
    assert report["seconds"] >= 0
    assert report["benchmarks"] == {"made-math": 30}
    assert {hit["item"] for hit in report["hits"]} == {item.id for item in items[:12]}
    assert all(set(hit) >= HIT and hit["file"] == "data/test.json" and hit["benchmark"] == "made-math" for hit in report["hits"])
    first = next(hit for hit in report["hits"] if hit["document"] == 0 and hit["part"] == "question")
    text = json.loads((Path("data") / "test.json").read_text().splitlines()[0])["text"].encode()
    assert text[first["start"] : first["end"]].decode() in text.decode()
    assert first["excerpt"].split()[0] in text.decode()
    assert "names that say test, dev or validation: test.json" in result.stderr
    assert not (Path(".phasewise")).exists()


def test_clean_text_passes_and_the_score_that_counts_can_be_set(scan: Run, leaky: Path, items: list[BenchmarkItem], tmp_path: Path):
    words = items[0].question.split()
    (tmp_path / "half.txt").write_text(" ".join(words[: int(0.55 * len(words))]) + " and so on.")
    assert [scan("half.txt", "--min-score", score).exit_code for score in (0.95, 0.3)] == [0, 1]
    (leaky / "test.json").unlink()
    result = scan("data", "--workers", 1)
    assert (result.exit_code, result.stdout.splitlines()) == (0, [result.stdout.strip()])
    assert result.stdout.startswith("0 of 30 items of 1 benchmarks found in 1 documents")
    assert json.loads(scan("data/*.jsonl", "--json").stdout)["hits"] == []


def test_a_damaged_file_does_not_pass(scan: Run, leaky: Path):
    (leaky / "test.json").unlink()
    (leaky / "image.png").write_bytes(b"\x89PNG\0")
    assert scan("data").exit_code == 0
    (leaky / "broken.parquet").write_bytes(b"PAR1 and no more")
    result = scan("data")
    assert result.exit_code == 1
    assert "not scanned: data/broken.parquet: " in result.stderr
    assert "The scan fails: 1 file or member of an archive was not read" in result.stdout
    assert "not scanned: data/image.png: a PNG image holds no text" in result.stderr


def test_what_is_not_read_fails_until_it_is_excluded(scan: Run, leaky: Path, items: list[BenchmarkItem]):
    (leaky / "test.json").unlink()
    (leaky / "b10b").write_bytes(zipped({"paper.pdf": b"%PDF-1.4", "a.txt": b"words"}))
    result = scan("data", "--json")
    assert result.exit_code == 1
    assert [(found["file"], found["is_fault"]) for found in json.loads(result.stdout)["unread"]] == [("data/b10b!/paper.pdf", True)]
    result = scan("data", "--json", "--exclude", "*.pdf", "--exclude", "*.docx")
    report = json.loads(result.stdout)
    assert (result.exit_code, report["documents"], report["excluded"]) == (0, 2, {"*.pdf": 1, "*.docx": 0})
    assert "--exclude *.docx took nothing out" in result.stderr
    (leaky / "b10b").write_bytes(zipped({"paper.pdf": b"%PDF-1.4", "a": olmes(items[0], Random(0)).encode()}))
    result = scan("data", "--json", "--exclude", "*.pdf")
    assert {hit["file"] for hit in json.loads(result.stdout)["hits"]} == {"data/b10b!/a"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nowhere",), "nowhere has no files"), (("nothing.txt",), "holds no text"), ((), "Missing argument 'PATH"),
        (("data", "--min-score", "1.5"), "Invalid value for '--min-score'"),
        (("data", "--workers", "0"), "Invalid value for '--workers'"),
    ],
)  # fmt: skip
def test_wrong_usage(scan: Run, phasewise: Run, leaky: Path, arguments: tuple[str, ...], said: str):
    (leaky.parent / "nothing.txt").write_text("")
    result = scan(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    (leaky.parent / "none").mkdir()
    for place in ("none", "nowhere"):
        result = phasewise("scan data --benchmarks", place)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "--benchmarks needs" in result.stderr


@pytest.mark.usefixtures("leaky", "scan")
def test_a_small_scan_is_one_light_process(benchmarks: Path):
    heavy = {"jax", "prefect", "dask", "distributed", "great_expectations", "lm_eval"}
    ends = f"finally: print(*sorted({heavy} & set(sys.modules)), file=sys.stderr)"
    program = f"import sys; from phasewise.flows.cli.main import main\ntry: main()\n{ends}"
    command = [sys.executable, "-c", program, "scan", "data", "--benchmarks", str(benchmarks), "--json"]
    found = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert found.returncode == 1, found.stderr
    assert len(json.loads(found.stdout)["hits"]) >= 12
    assert found.stderr.splitlines()[-1] == ""


def test_the_first_scan_of_an_installed_package_compiles_nothing(leaky: Path, benchmarks: Path, tmp_path: Path):
    """As from a wheel, which has the code that `make setup` and `make test` compiled."""
    if not any(Path(jit_cache.__file__).parent.glob(f"compiled/*/{COMPILED.name}")):
        pytest.skip("the loops of the scan were changed after `make setup` compiled them")
    shutil.copytree(ROOT / "phasewise", tmp_path / "phasewise", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "phasewise", "scan", str(leaky), "--benchmarks", str(benchmarks)]
    changed = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(tmp_path), "NUMBA_DEBUG_CACHE": "1"}
    found = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **changed})
    assert found.returncode == 1, found.stderr
    assert "data loaded from" in found.stdout
    assert "data saved to" not in found.stdout
