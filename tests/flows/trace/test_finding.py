import json
from pathlib import Path

import numpy as np
import pytest

from phasewise.flows.cli import trace as command
from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.trace import document_search
from phasewise.tasks.home import Home
from phasewise.trainer.base.identity import digest_of_bytes
from tests.flows.trace.world import World, prepare, traced_recipe, write_sources


def texts(world: World, component: str, part: str = "one") -> list[str]:
    lines = (world.recipe.parent / "text" / component / part / "text.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["text"] for line in lines]


@pytest.mark.parametrize("ending", ["", "\n", "\r\n", "  \n\n"])
def test_a_text_is_found_as_the_document_that_it_is(world: World, tmp_path: Path, ending: str):
    (tmp_path / "text").write_bytes((texts(world, "flan")[3] + ending).encode())
    answer = world.ask(text=str(tmp_path / "text"))
    (document,) = answer["documents"]
    assert document["is_whole"]
    assert answer["rows"] == world.ask(document=document["document"])["rows"]
    assert answer["searched"]["inside"] is True


def test_a_passage_is_found_inside_a_document_with_the_tokens_that_hold_it(world: World, tmp_path: Path):
    whole = next(text for text in texts(world, "medu_science_qa") if "Žluťoučký" in text and len(text) > 700)
    passage = whole[300:360]
    (tmp_path / "text").write_text(passage, encoding="utf-8")
    answer = world.ask(text=str(tmp_path / "text"))
    (document,) = answer["documents"]
    assert not document["is_whole"]
    tokens = {**world.documents("medu_science_qa"), **world.documents("medu_science_qa", "held_out")}[document["document"]]
    assert 2 < document["tokens_asked"] < len(passage.encode()) + 1 < len(tokens)
    rows = world.ask(document=document["document"])["rows"]
    span = range(document["offset"], document["offset"] + document["tokens_asked"])
    holding = [row for row in rows if range(max(span.start, row["offset"]), min(span.stop, row["offset"] + row["tokens"]))]
    assert [(row["step"], row["row"]) for row in answer["rows"]] == [(row["step"], row["row"]) for row in holding]
    assert all(row["text"].rstrip("…") in whole for row in answer["rows"])


def test_a_near_copy_names_the_document_that_is_kept(tmp_path: Path):
    write_sources(tmp_path / "text")
    original = " ".join(f"{word}{number}" for number in range(30) for word in ("lantern", "harbour", "orchard"))
    copy = original.replace("lantern7", "window")
    lines = "".join(json.dumps({"text": text}) + "\n" for text in (original, copy))
    (tmp_path / "text" / "flan" / "one" / "more.jsonl").write_text(lines, encoding="utf-8")
    raw = traced_recipe(tmp_path / "text").model_dump(mode="json")
    raw["sources"]["flan"]["deduplicate"] = "near"
    world = World(tmp_path / "near.json", Home.open(str(tmp_path / "home")))
    world.recipe.write_text(json.dumps(raw))
    prepare(Recipe.model_validate(raw), world.home)
    (tmp_path / "copy").write_text(copy)
    ids = [digest_of_bytes(text.encode())[:16] for text in (copy, original)]
    said = f"flan left out document {ids[0]} of one/more.jsonl as a near copy of document {ids[1]} of one/more.jsonl: they have 99%"
    for arguments in (["--text", str(tmp_path / "copy")], ["--document", ids[0]]):
        code, _, err = world.invoke("", *arguments)
        assert code == 1
        assert said in " ".join(err.split())
    (tmp_path / "copy").write_text(original)
    assert world.invoke("", "--text", str(tmp_path / "copy"))[0] == 0


def test_a_file_of_several_documents_says_that_it_was_looked_for_as_one(world: World, tmp_path: Path):
    some = texts(world, "flan")[:3]
    for name, content, advice in (
        ("lines.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in some), "its 3 lines are JSON. Put the text of one line"),
        ("several.txt", "\n\n".join(some), "if it has several documents, or other line ends, put a passage of one line"),
        ("ends.txt", some[0].replace(" ", "\r\n"), "or other line ends"),
    ):
        (tmp_path / name).write_bytes(content.encode())
        code, out, err = world.invoke("", "--text", str(tmp_path / name))
        assert (code, out) == (1, "")
        assert f"The search took {tmp_path / name} as one text: " in err
        assert advice in err


def test_what_is_held_out_or_drawn_by_no_phase_says_so_and_is_no_refusal(world: World, tmp_path: Path):
    one = next(iter(world.documents("dolmino_stackexchange", "held_out")))
    code, out, _ = world.invoke("", "--document", one)
    assert code == 0
    assert "held out, never trains" in out
    answer = world.ask(document=one)
    assert answer["rows"] == []
    assert [document["split"] for document in answer["documents"]] == ["held_out"]
    shown = {one: world.ask(document=one)["documents"][0] for one in world.documents("dolmino_stackexchange")}
    silent = [document for document in shown.values() if not document["rows"]]
    assert silent
    assert all("do not train: " in document["told"] for document in silent)
    partly = [document for document in shown.values() if 0 < document["tokens_trained"] < document["tokens"]]
    assert partly
    assert all("tokens never do" in document["told"] for document in partly)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--text", "{never}"], 1, "there is no text of"),
        (["--document", "0123456789abcdef"], 1, "no document 0123456789abcdef in the caches of kestrel, ocelot, third: searched were 200"),
        (["--source-file", "three/text.jsonl"], 1, "Did you mean dolmino_stackexchange: one/text.jsonl or"),
        (["--source-file", "nothing.parquet"], 1, "No component was read from such a file."),
        (["--document", "0123"], 2, "at least the first 8 characters"),
        (["--text", "{nowhere}"], 2, "cannot be read"),
        (["--text", "{empty}"], 2, "expected text, found none"),
        (["--text", "{bytes}"], 2, "expected text in UTF-8"),
        ([], 2, "ask one thing"),
        (["--step", "3", "--document", "0123456789"], 2, "ask one thing"),
        (["--step", "3"], 2, "a step is one of a phase"),
        (["--row", "3", "--document", "0123456789"], 2, "--row needs --step"),
        (["--inside", "--document", "0123456789"], 2, "--inside needs --text"),
    ],
)
def test_nothing_found_is_a_refusal_that_counts_what_was_searched(world: World, tmp_path: Path, arguments: list[str], code: int, said: str):
    (tmp_path / "never").write_text("Nobody wrote this.")
    (tmp_path / "empty").write_text(" \n")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    places = {name: str(tmp_path / name) for name in ("never", "nowhere", "empty", "bytes")}
    found = world.invoke("", *(argument.format(**places) for argument in arguments))
    assert (found[0], found[1]) == (code, "")
    assert said in found[2]


def test_a_file_of_copies_and_one_with_too_many_rows_are_refused(world: World, monkeypatch: pytest.MonkeyPatch):
    code, out, err = world.invoke("", "--source-file", str(world.recipe.parent / "text/flan/two/text.jsonl"))
    assert (code, out) == (1, "")
    assert "flan read the file, and left all of it out. The component left out: 10 copy" in err
    monkeypatch.setattr(command, "MAX_ROWS", 20)
    code, out, err = world.invoke("", "--source-file", "one/text.jsonl")
    assert (code, out) == (1, "")
    assert "at most 20 rows of caches are listed" in err
    assert world.ask(document=err.rpartition("--document ")[2].rstrip(".\n"))["documents"]


def test_of_more_documents_than_are_read_the_digests_name_the_shards(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    one = [*world.documents("flan")][2]
    before = world.ask(document=one)
    (tmp_path / "text").write_text(texts(world, "medu_science_qa")[7])
    as_text = world.ask(text=str(tmp_path / "text"))
    monkeypatch.setattr(document_search, "MAX_SEARCHED_DOCUMENTS", 0)
    monkeypatch.setattr(document_search, "MAX_TOKENS_INSIDE", 0)
    assert world.ask(document=one) == before == world.ask(document=one[:9])
    answer = world.ask(text=str(tmp_path / "text"))
    assert (answer["rows"], answer["searched"]["inside"]) == (as_text["rows"], False)
    assert "--inside reads all of them" in answer["remarks"][-1]
    assert world.ask(text=str(tmp_path / "text"), inside=True) == as_text
    assert world.ask(source_file="two/text.jsonl")["rows"]
    passage = texts(world, "medu_science_qa")[7][20:40]
    (tmp_path / "text").write_text(passage)
    code, out, err = world.invoke("", "--text", str(tmp_path / "text"))
    assert (code, out) == (1, "")
    assert "Longer documents with " in err
    assert world.ask(text=str(tmp_path / "text"), inside=True)["documents"]
    assert "there is no document 00000000ffff" in world.invoke("", "--document", "00000000ffff")[2]


def test_damaged_digests_and_tokens_that_are_not_those_of_the_index_are_refused(copied: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(document_search, "MAX_SEARCHED_DOCUMENTS", 0)
    path = next((copied.home.root / "documents/flan").glob("*/*.digests"))
    path.write_bytes(path.read_bytes()[:-36])
    assert "prepare the data again" in copied.invoke("", "--document", "00000000ffff")[2]
    for path in (copied.home.root / "tokens").glob("*/train-*/*.bin"):
        np.zeros_like(np.fromfile(path, "<u2")).tofile(path)  # a document's first token at every place
    code, out, err = copied.invoke("/ocelot", "--step", "41")
    assert (code, out) == (1, "")
    assert "index and tokens don't match" in err
