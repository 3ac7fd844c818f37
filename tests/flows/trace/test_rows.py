import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phasewise.flows.cli import trace as command
from phasewise.flows.cli.preflight import utilisation_of
from phasewise.flows.recipes import at_scale
from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.trace import document_search
from phasewise.tasks.home import Home
from phasewise.trainer.base.identity import digest_of_bytes
from phasewise.trainer.data.cache import TokenCache
from phasewise.trainer.data.loader import Loader
from phasewise.trainer.data.packing import ComponentRows, RowRule
from tests.flows.trace.world import PHASES, Piece, World, key, prepare, run_of, traced_recipe, write_sources


def test_the_tokens_of_every_row_are_those_that_the_loader_gives(world: World, forward: Counter[Piece]):
    documents = {name: world.documents(name) for name in ("medu_science_qa", "dolmino_stackexchange", "flan")}
    rows: dict[tuple[str, int, int], list[np.ndarray]] = {}
    for phase, step, row, component, document, _, offset, tokens, *_ in forward:
        rows.setdefault((phase, step, row), []).append(documents[component][document][offset : offset + tokens])
    for name, (start, stop) in PHASES.items():
        loader = Loader(run_of(world.recipe, world.home, name))
        for step in range(start + 1, stop + 1):
            batch = loader.batch(step - 1).tokens
            for row, expected in enumerate(batch):
                np.testing.assert_array_equal(np.concatenate(rows.pop((name, step, row))), expected)
    assert not rows


def test_three_phases_have_every_hard_case(forward: Counter[Piece]):
    assert {piece[9] for piece in forward if piece[3] == "flan"} >= {0, 1}  # an epoch ends
    sizes = Counter(piece[1] for piece in {piece[:3] for piece in forward})
    assert [sizes[step] for step in (40, 41, 52, 53, 56, 57)] == [2, 6, 6, 3, 3, 5]  # the batch changes at hand-offs and within a phase
    assert {piece[3] for piece in forward if piece[1] > 49 and piece[0] == "ocelot"} == {"medu_science_qa", "flan"}  # the mixture switches
    before, after = (
        {piece[10] for piece in forward if piece[3] == "flan" and piece[0] == name and piece[9] == 0} for name in ("kestrel", "third")
    )
    assert before & after  # an order that begins again draws again what was drawn


def test_backward_finds_every_row_and_nothing_else_and_one_row_is_that_row_of_the_step(world: World, forward: Counter[Piece]):
    documents = {
        name: [*world.documents(name), *world.documents(name, "held_out")] for name in ("medu_science_qa", "dolmino_stackexchange", "flan")
    }
    backward: Counter[Piece] = Counter()
    for component, ids in documents.items():
        for one in ids:
            answer = world.ask(document=one)
            assert {found["component"] for found in answer["documents"]} == {component}
            backward.update(key(row) for row in answer["rows"])
    assert backward == forward
    whole = world.ask("/ocelot", step=50)["rows"]
    assert [row for number in range(6) for row in world.ask("/ocelot", step=50, row=number)["rows"]] == whole


def test_a_branch_is_asked_with_its_lineage_up_to_where_it_leaves_it(world: World, forward: Counter[Piece]):
    ids = list(world.documents("flan"))
    rows = [row for one in ids for row in world.ask("/side", document=one)["rows"]]
    assert {row["phase"] for row in rows} == {"kestrel", "ocelot", "side"}
    assert {row["step"] for row in rows if row["phase"] == "ocelot"} <= set(range(41, 46))
    expected = Counter(
        piece for piece in forward if piece[3] == "flan" and (piece[0] == "kestrel" or (piece[0] == "ocelot" and piece[1] <= 45))
    )
    assert Counter(key(row) for row in rows if row["phase"] != "side") == expected


# ── rows that are filled from document buffers ──

STEPS = range(53, 61)


@pytest.mark.parametrize("phase", ["buffered", "mixed"])
def test_a_row_names_every_document_that_it_has_tokens_of_and_each_document_finds_its_rows(world: World, phase: str):
    found = [row for step in STEPS for row in world.ask(f"/{phase}", step=step)["rows"]]
    documents = {name: world.documents(name) for name in ("medu_science_qa", "dolmino_stackexchange", "flan")}
    rows: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in found:
        rows.setdefault((row["step"], row["row"]), []).append(row)
    loader = Loader(run_of(world.recipe, world.home, phase))
    for step in STEPS:
        for number, expected in enumerate(loader.batch(step - 1).tokens):
            pieces = rows.pop((step, number))
            assert len({piece["component"] for piece in pieces}) <= (3 if phase == "mixed" else 1)
            assert [piece["at"] for piece in pieces] == np.cumsum([0, *(piece["tokens"] for piece in pieces)])[:-1].tolist()
            tokens = [documents[p["component"]][p["document"]][p["offset"] : p["offset"] + p["tokens"]] for p in pieces]
            np.testing.assert_array_equal(np.concatenate(tokens), expected)
    assert not rows
    assert any(row["offset"] and row["at"] for row in found), "a document goes on in the middle of a row"
    assert {row["cache_row"] for row in found} == {None}
    files = ("one/text.jsonl", "two/text.jsonl")
    backward = [row for name in files for row in world.ask(f"/{phase}", source_file=name)["rows"] if row["phase"] == phase]
    assert Counter(map(key, backward)) == Counter(map(key, found))


# ── packed rows ──


@pytest.fixture(scope="module")
def packed(world: World, tmp_path_factory: pytest.TempPathFactory) -> World:
    raw = json.loads(world.recipe.read_text())
    third = raw["phases"][2]
    third["packing"] = "greedy"
    third["start"]["declares"].append("packing")
    path = tmp_path_factory.mktemp("packed") / world.recipe.name
    path.write_text(json.dumps(raw))
    return World(path, world.home)


@pytest.fixture(scope="module")
def forward_packed(packed: World) -> Counter[Piece]:
    return Counter(key(row) for step in STEPS for row in packed.ask("/third", step=step)["rows"])


def test_the_tokens_and_utilisation_of_packed_rows_are_those_that_the_loader_gives(packed: World, forward_packed: Counter[Piece]):
    loader = Loader(run_of(packed.recipe, packed.home, "third"))
    documents = {name: packed.documents(name) for name in ("medu_science_qa", "flan", "dolmino_stackexchange")}
    batches = {step: loader.batch(step - 1) for step in STEPS}
    filled = {step: np.zeros(batch.tokens.shape, bool) for step, batch in batches.items()}
    for _, step, row, component, document, _, offset, tokens, at, *_ in forward_packed:
        expected = documents[component][document][offset : offset + tokens]
        assert offset == 0
        np.testing.assert_array_equal(batches[step].tokens[row, at : at + tokens], expected)
        filled[step][row, at : at + tokens] = True
    for step, batch in batches.items():
        np.testing.assert_array_equal(filled[step], batch.segment_ids != 0)
    assert not all(part.all() for part in filled.values())
    recipe = at_scale(Recipe.model_validate_json(Path(packed.recipe).read_text()), "proxy", str(packed.recipe))
    found = utilisation_of(recipe, recipe.phases, packed.home)
    assert list(found) == ["third"]
    run = run_of(packed.recipe, packed.home, "third")
    drawn = Counter(piece[3] for piece in {piece[:4] for piece in forward_packed})
    laid = {name: ComponentRows(TokenCache.open(run.caches[name]), RowRule("greedy"), run.model.seq_len) for name in drawn}
    used = {name: laid[name].used(np.arange(laid[name].num_rows)).mean() for name in drawn}
    targets = {name: laid[name].targets(np.arange(laid[name].num_rows)).sum(axis=1).mean() for name in drawn}
    for what, of_rows in (("tokens", used), ("counted", targets)):
        expected = sum(drawn[name] * of_rows[name] for name in drawn) / (run.model.seq_len * drawn.total())
        assert found["third"][what] == pytest.approx(expected)
    assert found["third"]["counted"] < found["third"]["tokens"] < 1


def test_of_each_row_it_says_how_many_tokens_are_predicted(packed: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    raw = json.loads(packed.recipe.read_text())
    raw["phases"][2] |= {"loss_on": "answers"}
    raw["phases"][2]["start"]["declares"].append("loss_on")
    path = tmp_path / packed.recipe.name
    path.write_text(json.dumps(raw))
    monkeypatch.setattr(TokenCache, "spans", lambda cache: np.arange(7, cache.manifest.tokens - 9, 31)[:, None] + np.array([0, 9]))
    monkeypatch.setattr("phasewise.flows.resolved.check_feasible", lambda *_: None)  # plain text has no answers: they are marked above
    answers = World(path, packed.home)
    counts = {name: _as_the_loader(asked) for name, asked in (("all", packed), ("answers", answers))}
    assert 0 < counts["answers"] < counts["all"] / 2
    said = "third only predicts the answers. The other listed text is read, and not predicted."
    assert said in answers.ask("/third", step=53, row=0)["remarks"]
    assert said not in packed.ask("/third", step=53, row=0)["remarks"]
    monkeypatch.setattr(TokenCache, "spans", lambda cache: np.empty((0, 2), np.int64))
    told = [one for name in ("one", "two") for one in answers.ask("/third", source_file=f"{name}/text.jsonl")["documents"]]
    silent = [one for one in told if one["told"].endswith("read, and never predicted")]
    assert silent == [one for one in told if one["rows"] and not one["predicted"]]
    assert silent


def _as_the_loader(asked: World) -> int:
    loader = Loader(run_of(asked.recipe, asked.home, "third"))
    total = 0
    for step in STEPS:
        targets = loader.batch(step - 1).targets
        assert targets is not None
        for row in asked.ask("/third", step=step)["rows"]:
            assert row["predicted"] == targets[row["row"], row["at"] : row["at"] + row["tokens"]].sum()
            total += row["predicted"]
    return total


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
