"""Secrets in addresses."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from experiments.survival.runs import tiny_recipe
from phasewise.flows.recipes import load_written
from phasewise.tasks.data.source import Pin, Source
from phasewise.trainer.base.errors import RecipeError
from phasewise.trainer.base.storage import has_secret, without_secrets

SECRET = "hunter2"
CARRYING = [
    f"https://user:{SECRET}@host.org/data",
    f"https://{SECRET}@host.org/data",
    f"simplecache::https://user:{SECRET}@host.org/data",
    f"s3://key:{SECRET}@bucket/data",
    f"https://host.org/data?token={SECRET}",
    f"https://host.org/data?X-Amz-Signature={SECRET}&x=1",
    f"https://host.org/data?x=1&sig={SECRET}",
]


@pytest.mark.parametrize("url", CARRYING)
def test_a_secret_in_an_address_is_found_and_hidden(url: str):
    assert has_secret(url)
    assert SECRET not in without_secrets(f"read {url} twice")
    assert without_secrets("https://host.org/data") == "https://host.org/data"


@pytest.mark.parametrize(
    "url",
    [
        "hf://datasets/owner/name@main/x",
        "gs://bucket/folder",
        "abfs://container@account/x",
        "sftp://user@host/x",
        "/data/a:b@c/d",
        "https://a.org/x?page=2",
    ],
)
def test_an_address_without_one_is_taken_as_it_is(url: str):
    assert not has_secret(url)


@pytest.mark.parametrize("url", CARRYING)
def test_no_recipe_carries_one_into_manifests_and_reports(url: str, tmp_path: Path):
    for refused in (
        lambda: Source(url=url, include=("*",), format="jsonl"),
        lambda: Source(url="gs://a", listing=url, include=("*",), format="jsonl"),
        lambda: Pin(component="x", split="train", url=url, digest="0" * 64),
    ):
        with pytest.raises(ValidationError, match="must not carry a password or a token"):
            refused()
    raw = tiny_recipe().model_dump(mode="json")
    raw["sources"] = {"flan": {"url": url, "include": ["*"], "format": "jsonl"}}
    (tmp_path / "r.json").write_text(json.dumps(raw))
    with pytest.raises(RecipeError, match="must not carry a password or a token") as refused_recipe:
        load_written(str(tmp_path / "r.json"))
    assert SECRET not in str(refused_recipe.value)
