"""When a checkpoint's contract still holds: caches that were prepared again, and contracts of before."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from phasewise.trainer.config import RunConfig
from phasewise.trainer.data.loader import Loader, changed_since, compared_by, with_contents
from phasewise.trainer.data.manifest import Manifest, read_manifest, write_manifest
from tests.trainer.conftest import MakeRun


@pytest.fixture
def run(make_run: MakeRun, caches: Mapping[str, Path], tmp_path: Path) -> RunConfig:
    """A run whose caches lie as in a home: a folder a component."""
    folders = {name: shutil.copytree(folder, tmp_path / "tokens" / name / "train-first") for name, folder in caches.items()}
    return make_run("contract", caches={name: str(folder) for name, folder in folders.items()})


def prepared_again(run: RunConfig, **changes: Any) -> RunConfig:
    """The run with its caches in other folders, as another reader made them."""
    caches: dict[str, str] = {}
    for name, folder in run.caches.items():
        copy = shutil.copytree(folder, Path(folder).with_name("train-second"))
        fields = read_manifest(folder).model_dump(mode="json")
        write_manifest(copy, Manifest.model_validate({**fields, "reader": "another", **changes}))
        caches[name] = str(copy)
    return run.but(caches=caches)


def of_before(contract: Mapping[str, Any]) -> dict[str, Any]:
    """As contracts were once: of a cache, the manifest and the rows."""
    components = {name: {"manifest": cache["manifest"], "rows": cache["rows"]} for name, cache in contract["components"].items()}
    return {**contract, "components": components}


def test_the_same_bytes_by_other_code_are_no_change(run: RunConfig):
    was, again = Loader(run).contract(), prepared_again(run)
    now = Loader(again).contract()
    assert was != now
    assert changed_since(was, now, again) == []
    assert changed_since(was, {**now, "seed": 3}, again) == ["seed"]


def test_other_content_is_a_change(run: RunConfig):
    was, again = Loader(run).contract(), prepared_again(run, tokenizer_digest="another")
    assert changed_since(was, Loader(again).contract(), again) == ["components"]


def test_a_component_more_or_less_is_a_change(run: RunConfig):
    contract = Loader(run).contract()
    fewer = {**contract, "components": {name: cache for name, cache in contract["components"].items() if name != "web"}}
    assert changed_since(contract, fewer, run) == changed_since(fewer, contract, run) == ["components"]


def test_a_contract_of_before_is_known_by_the_manifest_it_names(run: RunConfig):
    was, again = of_before(Loader(run).contract()), prepared_again(run)
    now = Loader(again).contract()
    assert changed_since(was, Loader(run).contract(), run) == []
    assert with_contents(was, again)["components"]["web"]["content"] == now["components"]["web"]["content"]
    assert changed_since(was, now, again) == []
    shutil.rmtree(run.caches["web"])
    assert changed_since(was, now, again) == ["components"]
    assert compared_by(with_contents(was, again)["components"]["web"], now["components"]["web"]) == "manifest"


def test_a_contract_of_before_of_other_content_is_a_change(run: RunConfig):
    was, again = of_before(Loader(run).contract()), prepared_again(run, begin_of_text=1)
    assert changed_since(was, Loader(again).contract(), again) == ["components"]
