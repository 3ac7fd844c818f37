import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from phasewise.flows.cli import main
from phasewise.flows.resolved import resolve_phase
from phasewise.flows.status.verdict_inputs import decided_by
from phasewise.tasks.data.tokenizer import train_tokenizer
from phasewise.tasks.data.tokenizer_training import MANIFEST_NAME, open_tokenizer
from phasewise.tasks.evaluation.made_benchmarks import write_missing_benchmarks
from phasewise.tasks.home import Home
from phasewise.trainer.base.identity import digest_of_file, read_sealed, write_sealed
from phasewise.trainer.base.storage import read_json, write_json
from phasewise.trainer.data.manifest import read_manifest
from phasewise.validations.expectations.suites import DATA_SUITE, SUITES, version_of
from phasewise.validations.limits import accepted_in
from phasewise.validations.verdict import Verdict, accepted_by, write_verdict
from tests.flows.trace.world import World, prepare, traced_recipe
from tests.tasks.conftest import write_lines, write_prose

VOCAB_SIZE, DOCUMENTS, TURN_END = 290, 64, "<|eot_id|>"
COMPONENTS = {"medu_science_qa", "dolmino_stackexchange", "flan"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A prepared home, and a verdict on the data of its first phase, as the judge would give it of this text; its checks are left out."""
    root = tmp_path_factory.mktemp("judged")
    for place, name in enumerate(sorted(COMPONENTS)):
        write_lines(
            root / "text" / name / "text.jsonl", [write_prose(1000 * place + number, 4 + number % 6) for number in range(DOCUMENTS)]
        )
    plain = traced_recipe(root / "text")
    recipe = plain.but(tokenizer=plain.tokenizer.but(special_tokens=(TURN_END,)))
    world = World(root / "recipe.json", Home.open(str(root / "home")))
    world.recipe.write_text(recipe.model_dump_json())
    prepare(recipe, world.home)
    resolved, phase = resolve_phase(str(world.recipe), "kestrel", "proxy", str(world.home.root))
    write_missing_benchmarks(resolved.plan)
    run = resolved.run(phase)
    verdict = Verdict(
        subject="tiny/proxy/kestrel data", suite=DATA_SUITE, suite_version=version_of(SUITES[DATA_SUITE]), passes=True,
        judged={name: read_manifest(folder).digest for name, folder in run.caches.items()}, decided_by=decided_by(resolved, phase, run),
        thresholds=phase.gates.data.model_dump(mode="json"), reasons=(), checks=(), evidence="",
        accepts=accepted_by(DATA_SUITE, accepted_in(phase.name, resolved.recipe.accepts)),
    )  # fmt: skip
    write_verdict(run.verdict, verdict)
    return world


@pytest.fixture
def copied(world: World, tmp_path: Path) -> World:
    return World(world.recipe, Home.open(str(shutil.copytree(world.home.root, tmp_path / "home"))))


def train(world: World, out: Path, *arguments: object, target: str = "/kestrel", vocab_size: int = VOCAB_SIZE) -> Result:
    words = ["tokenizer", "train", f"{world.recipe}{target}", out, "--vocab-size", vocab_size, "--home", world.home.root, *arguments]
    return CliRunner().invoke(main.main, list(map(str, words)))


def call(*arguments: object) -> Result:
    return CliRunner().invoke(main.main, ["tokenizer", *map(str, arguments)])


def refusal(result: Result) -> str:
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in (1, 2), result.output
    assert result.stdout == ""
    return " ".join(result.stderr.split())


@pytest.fixture(scope="module")
def trained(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "out"
    result = train(world, out)
    assert result.exit_code == 0, result.output
    return out


def test_it_says_what_it_was_trained_on_and_reads_no_held_out_text_and_no_more_than_is_asked_for(
    world: World, trained: Path, tmp_path: Path
):
    manifest = read_json(trained / MANIFEST_NAME)
    assert manifest["tokenizer_digest"] == digest_of_file(trained / "tokenizer.json")
    assert (manifest["vocab_size"], manifest["split"], manifest["recipe"]) == (VOCAB_SIZE, "trinity", "tiny")
    assert {one["component"] for one in manifest["trained_on"]} == COMPONENTS
    verdict = world.home.verdict("tiny-proxy", "kestrel", "data")
    for one in manifest["trained_on"]:
        (folder,) = (world.home.root / "tokens" / one["component"]).glob("train-*")
        cache = read_manifest(folder)
        assert (one["cache_digest"], one["documents"], one["text_bytes"]) == (cache.digest, cache.documents, cache.text_bytes)
        assert (one["phase"], one["verdict_digest"], one["is_whole"]) == ("kestrel", digest_of_file(verdict), True)
    assert sum(one["documents"] for one in read_json(trained / MANIFEST_NAME)["trained_on"]) < 3 * DOCUMENTS
    found = json.loads(train(world, tmp_path / "out", "--max-bytes", 5000, "--json").stdout)
    assert found["max_bytes_per_component"] == 5000
    for one in found["trained_on"]:
        assert not one["is_whole"]
        assert 5000 <= one["text_bytes"] < 5000 + 1500


def test_special_tokens_of_the_recipe_are_an_option_and_in_the_manifest(world: World, trained: Path, tmp_path: Path):
    found = json.loads(train(world, tmp_path / "chat", "--chat-tokens", "--json").stdout)
    assert found["special_tokens"] == [TURN_END]
    assert read_json(tmp_path / "chat" / MANIFEST_NAME)["special_tokens"] == [TURN_END]
    assert read_json(trained / MANIFEST_NAME)["special_tokens"] == []
    assert call("truncate", tmp_path / "chat", tmp_path / "cut", "--vocab-size", 270).exit_code == 0
    for name in ("chat", "cut"):
        assert open_tokenizer(tmp_path / name / "tokenizer.json").token_to_id(TURN_END) == 2
    assert "must be at least 259" in refusal(train(world, tmp_path / "small", "--chat-tokens", vocab_size=258))
    plain = World(tmp_path / "plain.json", world.home)
    write_json(plain.recipe, read_json(world.recipe) | {"tokenizer": {"name": None, "vocab_size": VOCAB_SIZE}})
    assert "no phase of tiny has any: leave it out" in refusal(train(plain, tmp_path / "out", "--chat-tokens"))


def test_text_that_nobody_judged_or_prepared_is_refused(world: World, tmp_path: Path):
    for target in ("/third", ""):
        said = refusal(train(world, tmp_path / "out", target=target))
        assert "a tokenizer is trained on judged text" in said
        assert "`phasewise run " in said
    assert not (tmp_path / "out").exists()
    elsewhere = World(world.recipe, Home.open(str(tmp_path / "empty")))
    assert "are not prepared" in refusal(train(elsewhere, tmp_path / "out"))
    said = refusal(call("compare", tmp_path, "--on", world.recipe, "--home", elsewhere.home.root))
    assert "a tokenizer is a folder with a tokenizer.json" in said


def test_a_verdict_that_does_not_let_pass_and_text_that_changed_since_are_refused(copied: World, tmp_path: Path):
    path = copied.home.verdict("tiny-proxy", "kestrel", "data")
    verdict = read_sealed(path)
    for changed, why in (({"judged": {**verdict["judged"], "flan": "0" * 64}}, "out of date"), ({"passes": False}, "fails")):
        write_sealed(path, verdict | changed)
        assert why in refusal(train(copied, tmp_path / "out"))
    path.unlink()
    assert "there is no verdict on its data" in refusal(train(copied, tmp_path / "out"))
    write_sealed(path, verdict)
    part = next((copied.home.root / "documents" / "flan").rglob("part-*.parquet"))
    part.write_bytes(part.read_bytes()[:-1])
    assert "repare the data again" in refusal(train(copied, tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_vocabulary_that_cannot_be_and_a_folder_with_something_in_it_are_refused(world: World, tmp_path: Path):
    for vocab_size, said in ((257, "must be at least 258"), (-1, "must be at least 258"), (10**6, "found 1,")):
        assert said in refusal(train(world, tmp_path / "out", vocab_size=vocab_size))
    assert not (tmp_path / "out").exists()
    (tmp_path / "mine.txt").touch()
    assert "must be new or empty" in refusal(train(world, tmp_path))
    assert "must be new or empty" in refusal(call("truncate", tmp_path / "none", tmp_path, "--vocab-size", 300))


def test_a_smaller_one_is_the_one_that_training_gives_and_they_are_compared_on_held_out_text(world: World, trained: Path, tmp_path: Path):
    cut, smaller = tmp_path / "cut", tmp_path / "smaller"
    assert call("truncate", trained, cut, "--vocab-size", 270).exit_code == 0
    assert train(world, smaller, vocab_size=270).exit_code == 0
    assert (cut / "tokenizer.json").read_bytes() == (smaller / "tokenizer.json").read_bytes()
    manifests = [read_json(folder / MANIFEST_NAME) for folder in (cut, smaller)]
    assert [one["truncated_from"] for one in manifests] == [VOCAB_SIZE, None]
    assert manifests[0]["trained_on"] == manifests[1]["trained_on"]
    words = ["compare", trained, cut, "--on", f"{world.recipe}/kestrel", "--home", world.home.root]
    found = json.loads(call(*words, "--json").stdout)
    larger, smaller = found["tokenizers"]
    assert set(larger["subsets"]) == COMPONENTS
    for name, fit in larger["subsets"].items():
        (folder,) = (world.home.root / "tokens" / name).glob("held_out-*")
        held_out = read_manifest(folder)
        assert (fit["documents"], fit["text_bytes"], fit["not_back"]) == (held_out.documents, held_out.text_bytes, 0)
        assert fit["bytes_per_token"] > smaller["subsets"][name]["bytes_per_token"] > 1
    assert (larger["vocab_size"], smaller["vocab_size"]) == (VOCAB_SIZE, 270)
    shown = call(*words).stdout
    assert all(words in shown for words in ("bytes per token by script", "tokens per word", "1234567", "16 spaces"))


def test_they_are_compared_on_a_folder_of_text(trained: Path, tmp_path: Path):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("river mountain\n")
    (tmp_path / "text" / "b.jsonl").write_text(json.dumps({"body": "garden " * 50}) + "\n" + json.dumps({"body": "window"}) + "\n")
    words = ["compare", trained, "--on", tmp_path / "text", "--text-key", "body", "--json"]
    found = json.loads(call(*words).stdout)
    assert {name: fit["documents"] for name, fit in found["tokenizers"][0]["subsets"].items()} == {"a.txt": 1, "b.jsonl": 2}
    less = json.loads(call(*words, "--max-bytes", 100).stdout)
    assert less["tokenizers"][0]["subsets"]["b.jsonl"]["documents"] == 1
    assert (found["is_whole"], less["is_whole"]) == (True, False)
    assert found["text_digest"] != less["text_digest"]


@pytest.mark.parametrize("name", ["tokenizer.json", MANIFEST_NAME])
def test_what_was_changed_afterwards_is_refused(trained: Path, tmp_path: Path, name: str):
    copy = shutil.copytree(trained, tmp_path / "copy")
    text = (copy / name).read_text()
    changed = text.replace('"id": 1,', '"id": 2,', 1) if name == "tokenizer.json" else text.replace('"tiny"', '"another"')
    assert changed != text
    (copy / name).write_text(changed)
    for words in (("compare", copy, "--on", tmp_path), ("truncate", copy, tmp_path / "cut", "--vocab-size", 270)):
        assert "was changed after it was written" in refusal(call(*words))


def test_an_option_of_the_other_kind_of_text_is_refused(trained: Path, tmp_path: Path):
    assert "--text-key is for a folder of text, and tiny is none" in refusal(call("compare", trained, "--on", "tiny", "--text-key", "body"))
    assert "--scale is for a recipe" in refusal(call("compare", trained, "--on", tmp_path, "--scale", "proxy"))
    train_tokenizer([["river"]], 258, tmp_path / "own" / "tokenizer.json")
    assert f"has no {MANIFEST_NAME}" in refusal(call("truncate", tmp_path / "own", tmp_path / "cut", "--vocab-size", 258))


def test_text_that_no_recipe_has_read_trains_one_and_says_that_nobody_judged_it(tmp_path: Path):
    text = tmp_path / "text"
    for name in ("a", "b"):
        write_lines(text / f"{name}.jsonl", [write_prose(number, 40) for number in range(40)])
    out = tmp_path / "out"
    result = call("train", text, out, "--vocab-size", VOCAB_SIZE, "--max-bytes", 2000, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["recipe"], {(one["phase"], one["is_whole"]) for one in found["trained_on"]}) == (None, {(None, False)})
    assert {one["component"] for one in found["trained_on"]} == {"a.jsonl", "b.jsonl"}
    longest = max(len(write_prose(number, 40).encode()) for number in range(40))
    assert all(2000 <= one["text_bytes"] < 2000 + longest for one in found["trained_on"])
    assert open_tokenizer(out / "tokenizer.json").get_vocab_size() == VOCAB_SIZE
    shorter = call("truncate", out, tmp_path / "cut", "--vocab-size", 280)
    assert shorter.exit_code == 0, shorter.output
    assert "not judged" in shorter.stdout
    said = refusal(call("train", text, tmp_path / "other", "--vocab-size", VOCAB_SIZE, "--chat-tokens"))
    assert "are for a recipe" in said
