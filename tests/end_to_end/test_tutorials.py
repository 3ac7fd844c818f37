"""The three tutorials, typed from their pages: titled blocks are files, and lines after `$` are commands.

A random Qwen3 stands in the cache of the Hub for the model that the pages name: nothing is downloaded here.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from phasewise.flows.recipes.words import qwen
from phasewise.trainer.base.storage import read_json
from phasewise.trainer.model.hugging_face import write_folder
from phasewise.trainer.model.params import init_params
from tests.tasks.conftest import write_prose
from tests.tasks.data.tokenizer_kinds import write_kind

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r'^```(\w+)(?: title="([\w.]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
MODEL, COMMIT = "Qwen/Qwen3-0.6B-Base", "0" * 40
pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a reader, with a small model in the cache of the Hub."""
    folder = tmp_path_factory.mktemp("reader")
    snapshot = folder / "hub" / f"models--{MODEL.replace('/', '--')}" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text(COMMIT)
    texts = [write_prose(number, 60) for number in range(200)]
    tokenizer = write_kind("qwen", texts, folder / "files")
    model = qwen(num_layers=2, d_model=128, num_query_heads=4, seq_len=256, vocab_size=tokenizer.get_vocab_size(), tied_head=True)
    write_folder(snapshot, init_params(0, model), model)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (snapshot / name).write_bytes((folder / "files" / name).read_bytes())
    return folder


@pytest.fixture(scope="module")
def read(folder: Path) -> Callable[[str], dict[str, str]]:
    """Follow a page. Returns command → printed text."""
    ours = ("PHASEWISE_HOME", "PREFECT_API_URL", "XLA_FLAGS", "PYTHONDONTWRITEBYTECODE")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    environment |= {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
    }
    environment["HF_HUB_CACHE"] = str(folder / "hub")

    def follow(page: str) -> dict[str, str]:
        printed: dict[str, str] = {}
        for language, title, content in BLOCK.findall((ROOT / "docs" / "tutorials" / page).read_text()):
            if title:
                (folder / title).write_text(content)
            for command in re.findall(r"^\$ (.*)$", content, re.MULTILINE) if language == "console" else []:
                started = time.monotonic()
                done = subprocess.run(command, shell=True, cwd=folder, env=environment, capture_output=True, text=True)
                print(f"{time.monotonic() - started:6.1f} s  {command}")
                assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
                printed[command] = done.stdout
        return printed

    return follow


def test_a_first_model(read: Callable[[str], dict[str, str]], folder: Path):
    printed = read("first-model.md")
    assert "cooldown" in printed["phasewise run my_recipe.py"]
    assert read_json(folder / ".phasewise" / "runs" / "my-recipe-own" / "cooldown" / "result.json")["stop_step"] == 150


def test_a_model_of_the_hub_is_continued(read: Callable[[str], dict[str, str]], folder: Path):
    printed = read("existing-model.md")
    assert "passed" in printed["phasewise run more.py"]
    assert printed['phasewise sample more.py/better "The statement" --tokens 40'].startswith("The statement")


def test_it_learns_to_answer_and_is_exported(read: Callable[[str], dict[str, str]], folder: Path):
    read("chat.md")
    assert len((folder / "more.py").read_text().splitlines()) <= 45
    assert "<|im_start|>assistant" in read_json(folder / "my_model" / "tokenizer_config.json")["chat_template"]
