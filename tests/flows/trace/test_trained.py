import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from phasewise.tasks.data.plan import DataPlan
from phasewise.trainer.base.identity import write_sealed
from phasewise.trainer.base.storage import write_json
from phasewise.trainer.config import RunConfig
from phasewise.trainer.data.loader import Loader
from phasewise.trainer.skipped_steps import SkippedSteps, Window, write_skipped_steps
from tests.flows.trace.world import World, prepare, run_of, traced_recipe, write_sources


class TestTrained:
    @pytest.fixture
    def trained(self, copied: World) -> RunConfig:
        run = run_of(copied.recipe, copied.home, "ocelot")
        write_sealed(Path(run.output) / "run.json", run.model_dump(mode="json"))
        contents = {name: cache["content"] for name, cache in Loader(run).contract()["components"].items()}
        write_sealed(Path(run.output) / "caches.json", {"run_digest": run.digest, "contents": contents})
        return run

    def write_checkpoint(self, run: RunConfig, **changes: Any) -> None:
        folder = Path(run.output) / "checkpoints" / "45"
        write_json(folder / "about" / "metadata", {"contract": {**Loader(run).contract(), **changes}})
        write_sealed(folder / "digests.json", {})

    def test_the_same_order_is_said_to_be_that_of_the_run(self, copied: World, trained: RunConfig):
        assert copied.ask("/ocelot", step=41)["phases"][0]["trained"] == "as traced"
        self.write_checkpoint(trained)
        code, out, err = copied.invoke("/ocelot", "--step", "41")
        assert (code, err) == (0, "")
        assert "ocelot (trained on this)" in out

    def test_what_was_passed_over_is_not_said_to_have_trained(self, copied: World, trained: RunConfig):
        before = {step: copied.ask("/ocelot", step=step)["rows"] for step in (41, 42, 43)}
        document = before[42][0]["document"]
        trained_at = {(row["phase"], row["step"]) for row in copied.ask("", document=document)["rows"]}
        assert ("ocelot", 42) in trained_at
        write_skipped_steps(Path(trained.output), SkippedSteps((Window(41, 42),)), ["a spike"])
        after = {step: copied.ask("/ocelot", step=step) for step in (41, 42, 43)}
        assert after[42]["rows"] == []
        assert [after[step]["rows"] for step in (41, 43)] == [before[41], before[43]]
        assert after[42]["phases"][0]["passed_over"] == [[42, 42]]
        assert after[42]["remarks"] == ["ocelot rolled back, and passed over step 42 with their data: these steps are not listed."]
        assert {(row["phase"], row["step"]) for row in copied.ask("", document=document)["rows"]} == trained_at - {("ocelot", 42)}

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
        assert err.startswith(f"phasewise: ocelot was trained on other data: {', '.join(differs)}.")

    def test_before_the_first_checkpoint_its_settings_are_compared(self, copied: World, trained: RunConfig):
        changed = {**trained.model_dump(mode="json"), "order": {**trained.order.model_dump(), "seed": 77}}
        write_sealed(Path(trained.output) / "run.json", changed)
        assert copied.ask("/ocelot", step=41)["phases"][0]["differs"][-1:] == ["seed"], "its caches are of another run, too"
        write_sealed(Path(trained.output) / "run.json", {"no": "run"})
        assert copied.ask("/ocelot", step=41)["phases"][0]["differs"] == ["the run file in its folder is invalid"]

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
        write_sealed(copied.home.run("tiny-full", "ocelot") / "run.json", {})
        answer = copied.ask("/ocelot", step=41)
        assert answer["remarks"] == ["This home has ocelot trained at full scale, and this is proxy scale: --scale full traces that run."]

    def test_what_trained_is_answered_when_the_sources_are_gone(self, copied: World, trained: RunConfig, tmp_path: Path):
        moved = copied.recipe.read_text().replace((copied.recipe.parent / "text").as_uri(), (tmp_path / "gone").as_uri())
        (tmp_path / "moved.json").write_text(moved)
        gone = World(tmp_path / "moved.json", copied.home)
        answer = gone.ask("/ocelot", step=41)
        assert answer["rows"] == copied.ask("/ocelot", step=41)["rows"]
        assert "are the only ones in this home, and may be out of date: the sources cannot be read" in answer["remarks"][0]
        (flan,) = (copied.home.root / "tokens/flan").glob("train-*")
        shutil.copytree(flan, flan.with_name("train-0123456789abcdef"))
        assert "has no cache of flan" in gone.invoke("/ocelot", "--step", "41")[2]
