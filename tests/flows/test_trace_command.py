"""`phasewise trace` against the trainer's loader, both ways, over every row; and what must not be answered with a straight face."""

import json
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from flows import finding
from flows.cli import main
from flows.commands import trace as command
from flows.commands.trace import Question, trace
from flows.summary import what_trained_there
from tasks.data.plan import DataPlan
from tasks.home import Home
from tests.flows.trace_world import prepare, run_of, traced_recipe, write_sources, write_world
from trainer.base.storage import write_json
from trainer.config import RunConfig
from trainer.data.cache import TokenCache
from trainer.data.loader import Loader
from validations.expectations.reasons import Reason

PHASES = {"kestrel": (0, 40), "ocelot": (40, 52), "third": (52, 60)}
Piece = tuple[Any, ...]


@dataclass(frozen=True)
class World:
    """A recipe's file and a prepared home: to be read, not changed."""

    recipe: Path
    home: Home

    def ask(self, target: str = "", **question: Any) -> dict[str, Any]:
        return trace(f"{self.recipe}{target}", "proxy", str(self.home.root), Question(**question))

    def invoke(self, target: str, *arguments: str) -> tuple[int, str, str]:
        command_line = ["trace", f"{self.recipe}{target}", "--home", str(self.home.root), *arguments]
        result = CliRunner().invoke(main, command_line)
        return result.exit_code, result.stdout, result.stderr

    def documents(self, component: str, split: str = "train") -> dict[str, np.ndarray]:
        (folder,) = (self.home.root / "tokens" / component).glob(f"{split}-*")
        return {document.id: document.tokens for document in TokenCache.open(folder).documents()}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(*write_world(tmp_path_factory.mktemp("traced")))


@pytest.fixture
def copied(world: World, tmp_path: Path) -> World:
    """A copy that a test may change; the sources are those of the first."""
    return World(world.recipe, Home.open(str(shutil.copytree(world.home.root, tmp_path / "home"))))


def key(row: dict[str, Any]) -> Piece:
    return tuple(
        row[name] for name in ("phase", "step", "row", "component", "document", "file", "offset", "tokens", "at", "epoch", "cache_row")
    )


@pytest.fixture(scope="module")
def forward(world: World) -> Counter[Piece]:
    """Every piece of every row of three phases, in the order of training."""
    steps = ((name, step) for name, (start, stop) in PHASES.items() for step in range(start + 1, stop + 1))
    return Counter(key(row) for name, step in steps for row in world.ask(f"/{name}", step=step)["rows"])


def test_the_tokens_of_every_row_are_those_that_the_loader_gives(world: World, forward: Counter[Piece]):
    """Step s is made by the loader's batch s - 1. The tokens are put together from whole documents, by offset and count."""
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
    assert before & after  # an order that begins anew draws again what was drawn


def test_backward_finds_every_row_and_nothing_else(world: World, forward: Counter[Piece]):
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


def test_files_find_the_same_rows_as_documents(world: World, forward: Counter[Piece]):
    rows = [key(row) for row in world.ask(source_file="one/text.jsonl")["rows"]] + [
        key(row) for row in world.ask(source_file="two/text.jsonl")["rows"]
    ]
    assert Counter(rows) == forward
    (flan,) = [name for name in (world.recipe.parent / "text").iterdir() if name.name == "flan"]
    of_path = world.ask(source_file=str(flan / "one/text.jsonl"))
    assert {row["component"] for row in of_path["rows"]} == {"flan"}
    assert [key(row) for row in of_path["rows"]] == [row for row in forward if row[3] == "flan"]


def test_one_row_is_that_row_of_the_step(world: World):
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


def test_what_is_held_out_says_so_and_is_no_refusal(world: World, tmp_path: Path):
    one = next(iter(world.documents("dolmino_stackexchange", "held_out")))
    code, out, _ = world.invoke("", "--document", one)
    assert code == 0
    assert "held out, never trains" in out
    answer = world.ask(document=one)
    assert answer["rows"] == []
    assert [document["split"] for document in answer["documents"]] == ["held_out"]


def test_what_no_phase_draws_says_so(world: World):
    """Documents of a component that was not drawn to its end, and those in the rest that fills no row."""
    told = {one: world.ask(document=one)["documents"][0] for one in world.documents("dolmino_stackexchange")}
    silent = [document for document in told.values() if not document["rows"]]
    assert silent
    assert all("do not train: " in document["told"] for document in silent)
    partly = [document for document in told.values() if 0 < document["tokens_trained"] < document["tokens"]]
    assert partly
    assert all("tokens never do" in document["told"] for document in partly)


def test_the_rest_that_fills_no_row_is_said_to_train_nowhere(world: World):
    """`flan` is drawn to its end, so that nothing else is left."""
    flan = world.documents("flan")
    told = [world.ask(document=one)["documents"][0] for one in flan]
    assert sum(document["tokens"] - document["tokens_trained"] for document in told) == sum(map(len, flan.values())) % 128
    assert told[-1]["rows"] == 0
    assert told[-1]["told"].endswith("do not train: they are in the rest of the cache that fills no row")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--text", "{never}"], 1, "there is no text of"),
        (
            ["--document", "0123456789abcdef"],
            1,
            "there is no document 0123456789abcdef in the caches of kestrel, ocelot, third: searched were 200",
        ),
        (["--source-file", "three/text.jsonl"], 1, "Was dolmino_stackexchange: one/text.jsonl or"),
        (["--source-file", "nothing.parquet"], 1, "No component was read from such a file."),
        (["--document", "0123"], 2, "at least the first 8 characters"),
        (["--text", "{nowhere}"], 2, "cannot be read"),
        (["--text", "{empty}"], 2, "has no text to look for"),
        (["--text", "{bytes}"], 2, "must be text in UTF-8"),
        ([], 2, "ask one thing"),
        (["--step", "3", "--document", "0123456789"], 2, "ask one thing"),
        (["--step", "3"], 2, "a step is one of a phase"),
        (["--row", "3", "--document", "0123456789"], 2, "--row is a row of a step"),
        (["--inside", "--document", "0123456789"], 2, "--inside looks for a text"),
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


def test_a_file_whose_documents_are_all_copies_says_so(world: World):
    code, out, err = world.invoke("", "--source-file", str(world.recipe.parent / "text/flan/two/text.jsonl"))
    assert (code, out) == (1, "")
    assert "flan read the file, and left all of it out; of the whole component were left out: 10 copy" in err


@pytest.mark.parametrize(
    ("phase", "step", "said"),
    [
        ("ocelot", 40, "ocelot trains steps 41 to 52 at proxy scale, found step 40; kestrel has step 40."),
        ("kestrel", 0, "kestrel trains steps 1 to 40 at proxy scale, found step 0."),
        ("third", 61, "third trains steps 53 to 60 at proxy scale, found step 61."),
    ],
)
def test_a_step_of_another_phase_says_which_has_it(world: World, phase: str, step: int, said: str):
    assert world.invoke(f"/{phase}", "--step", str(step))[::2] == (2, f"phasewise: {said}\n")


def test_an_unknown_phase_or_recipe_is_refused(world: World):
    assert "tiny has no phase 'nowhere'; it has kestrel" in world.invoke("/nowhere", "--step", "1")[2]
    assert world.invoke("x", "--step", "1")[0] == 2


def test_a_row_beyond_the_batch_is_refused(world: World):
    assert "step 41 of ocelot has a batch of 6 rows, 0 to 5; found row 6." in world.invoke("/ocelot", "--step", "41", "--row", "6")[2]


def test_without_caches_it_says_how_to_make_them(world: World, tmp_path: Path, copied: World):
    nowhere = World(world.recipe, Home(tmp_path / "nowhere"))
    for question in (["--step", "41"], ["--document", "0123456789"]):
        code, out, err = nowhere.invoke("/ocelot", *question)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert f"`phasewise data prepare {world.recipe}/ocelot --scale proxy --home {tmp_path}/nowhere` builds them." in err
    assert not (tmp_path / "nowhere").exists()
    (manifest,) = (copied.home.root / "tokens/flan").glob("held_out-*/manifest.json")
    manifest.unlink()
    assert "has none of flan" in copied.invoke("/ocelot", "--step", "41")[2]


def test_to_ask_makes_nothing(copied: World):
    before = {path: path.lstat().st_mtime_ns for path in copied.home.root.rglob("*")}
    copied.ask("/third", step=55)
    copied.ask(document=next(iter(copied.documents("flan"))))
    assert {path: path.lstat().st_mtime_ns for path in copied.home.root.rglob("*")} == before


def test_lines_for_people(world: World):
    code, out, err = world.invoke("/ocelot", "--step", "41", "--rows", "2")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "tiny at proxy scale: ocelot (not trained here)"
    assert lines[1].startswith("ocelot step 41 row 0: ")
    assert lines[-1] == "… and 4 rows more: --rows 0 shows all, --json has all"
    assert world.invoke("/ocelot", "--step", "41", "--rows", "0")[1].count("ocelot step 41 row") == 6


def test_what_a_terminal_would_obey_is_not_printed(capsys: pytest.CaptureFixture[str], world: World):
    answer = world.ask("/ocelot", step=41)
    answer["rows"][0]["text"] = "\x1b[2Jgone\u202e [red]markup[/red]"
    command.print_answer(answer)
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "�[2Jgone� [red]markup[/red]" in shown


class TestTrained:
    """A run in the home is compared with what the recipe gives now."""

    @pytest.fixture
    def trained(self, copied: World) -> RunConfig:
        """`ocelot` as it would be written down when it begins."""
        run = run_of(copied.recipe, copied.home, "ocelot")
        write_json(Path(run.output) / "run.json", run.model_dump(mode="json"))
        contents = {name: cache["content"] for name, cache in Loader(run).contract()["components"].items()}
        write_json(Path(run.output) / "caches.json", {"run_digest": run.digest, "contents": contents})
        return run

    def write_checkpoint(self, run: RunConfig, **changes: Any) -> None:
        folder = Path(run.output) / "checkpoints" / "45"
        write_json(folder / "about" / "metadata", {"contract": {**Loader(run).contract(), **changes}})
        write_json(folder / "digests.json", {})

    def test_the_same_order_is_said_to_be_that_of_the_run(self, copied: World, trained: RunConfig):
        assert copied.ask("/ocelot", step=41)["phases"][0]["trained"] == "as traced"
        self.write_checkpoint(trained)
        code, out, err = copied.invoke("/ocelot", "--step", "41")
        assert (code, err) == (0, "")
        assert "ocelot (trained on this)" in out

    @pytest.mark.parametrize(
        ("changes", "differs"),
        [
            ({"seed": 5}, ["seed"]),
            ({"batch": [[0, 2], [40, 4]]}, ["batch"]),
            ({"permutation": {"kind": "linear", "version": 99}}, ["permutation"]),
            ({"block_sequences": 40, "first_step": 40}, ["block sequences", "first step"]),
        ],
    )
    def test_another_order_is_named_and_ends_with_1(self, copied: World, trained: RunConfig, changes: dict[str, Any], differs: list[str]):
        self.write_checkpoint(trained, **changes)
        code, out, err = copied.invoke("/ocelot", "--step", "41")
        assert code == 1
        assert "trained on OTHER data" in out
        assert err.startswith(f"phasewise: ocelot was trained on other data than these: {', '.join(differs)}.")

    def test_before_the_first_checkpoint_its_settings_are_compared(self, copied: World, trained: RunConfig):
        changed = {**trained.model_dump(mode="json"), "order": {**trained.order.model_dump(), "seed": 77}}
        write_json(Path(trained.output) / "run.json", changed)
        assert copied.ask("/ocelot", step=41)["phases"][0]["differs"] == ["seed"]
        write_json(Path(trained.output) / "run.json", {"no": "run"})
        assert copied.ask("/ocelot", step=41)["phases"][0]["differs"] == ["the run that is written there does not read"]

    def test_a_cache_with_other_tokens_is_named(self, copied: World, trained: RunConfig, tmp_path: Path):
        self.write_checkpoint(trained)
        (tmp_path / "other").mkdir()
        write_sources(tmp_path / "other/text")
        path = tmp_path / "other/text/flan/one/text.jsonl"
        path.write_text(path.read_text(encoding="utf-8") + json.dumps({"text": "One document more. " * 20}) + "\n", encoding="utf-8")
        recipe = traced_recipe(tmp_path / "other/text")
        (tmp_path / "other.json").write_text(recipe.model_dump_json())
        shutil.rmtree(copied.home.root / "tokens")
        plan: DataPlan = prepare(recipe, copied.home)
        assert plan.components["flan"].train.is_built
        changed = World(tmp_path / "other.json", copied.home)
        assert changed.ask("/ocelot", step=41)["phases"][0]["differs"][-2:] == ["the cache of flan", "the cache of medu_science_qa"]

    def test_a_run_of_the_other_scale_is_pointed_at(self, copied: World):
        write_json(copied.home.run("tiny-full", "ocelot") / "run.json", {})
        answer = copied.ask("/ocelot", step=41)
        assert answer["remarks"] == ["This home has ocelot trained at full scale, and this is proxy scale: --scale full traces that run."]

    def test_what_trained_is_answered_when_the_sources_are_gone(self, copied: World, trained: RunConfig, tmp_path: Path):
        """By the only caches of the home, with a line that says so; another cache beside them, and nobody knows which is meant."""
        moved = copied.recipe.read_text().replace((copied.recipe.parent / "text").as_uri(), (tmp_path / "gone").as_uri())
        (tmp_path / "moved.json").write_text(moved)
        gone = World(tmp_path / "moved.json", copied.home)
        answer = gone.ask("/ocelot", step=41)
        assert answer["rows"] == copied.ask("/ocelot", step=41)["rows"]
        assert (
            "are the only ones in this home, and nobody can say that they are those of now: the sources cannot be read"
            in answer["remarks"][0]
        )
        (flan,) = (copied.home.root / "tokens/flan").glob("train-*")
        shutil.copytree(flan, flan.with_name("train-0123456789abcdef"))
        assert "has none of flan" in gone.invoke("/ocelot", "--step", "41")[2]


@pytest.mark.parametrize(
    ("expectation", "where", "said"),
    [
        ("ExpectSpikesWithinLimit", "step 850", " What trained there: phasewise trace marin-8b/phoenix --step 850"),
        ("ExpectOnlyFiniteNumbers", "step 3", " What trained there: phasewise trace marin-8b/phoenix --step 3"),
        ("ExpectSpikesWithinLimit", "step -1", ""),
        ("ExpectSpikesWithinLimit", "table health", ""),
        ("ExpectEmaGapWithinLimit", "step 850", ""),
    ],
)
def test_a_spike_in_a_report_names_the_command_that_shows_its_batch(expectation: str, where: str, said: str):
    reason = Reason(expectation=expectation, severity="warning", what="", found="", limit="", where=where, what_to_do="")
    assert what_trained_there(reason, "phasewise trace marin-8b/phoenix") == said


def test_what_has_too_many_rows_is_refused_before_they_are_listed(world: World, monkeypatch: pytest.MonkeyPatch):
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
    monkeypatch.setattr(finding, "MAX_SEARCHED_DOCUMENTS", 0)
    monkeypatch.setattr(finding, "MAX_TOKENS_INSIDE", 0)
    assert world.ask(document=one) == before == world.ask(document=one[:9])
    answer = world.ask(text=str(tmp_path / "text"))
    assert (answer["rows"], answer["searched"]["inside"]) == (as_text["rows"], False)
    assert "--inside reads them all" in answer["remarks"][-1]
    assert world.ask(text=str(tmp_path / "text"), inside=True) == as_text
    assert world.ask(source_file="two/text.jsonl")["rows"]
    (tmp_path / "text").write_text("number")
    assert world.invoke("", "--text", str(tmp_path / "text"))[0] == 1
    assert "there is no document 00000000ffff" in world.invoke("", "--document", "00000000ffff")[2]


def test_damaged_digests_are_refused(copied: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(finding, "MAX_SEARCHED_DOCUMENTS", 0)
    path = next((copied.home.root / "documents/flan").glob("*/*.digests"))
    path.write_bytes(path.read_bytes()[:-36])
    assert "prepare the data again" in copied.invoke("", "--document", "00000000ffff")[2]


def test_tokens_that_are_not_those_of_the_index_are_refused(copied: World):
    for path in (copied.home.root / "tokens").glob("*/train-*/*.bin"):
        np.zeros_like(np.fromfile(path, "<u2")).tofile(path)  # a document's first token at every place
    code, out, err = copied.invoke("/ocelot", "--step", "41")
    assert (code, out) == (1, "")
    assert "index and tokens do not belong together" in err
