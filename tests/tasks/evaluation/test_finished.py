from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from phasewise.flows.recipes import load_recipe
from phasewise.flows.recipes.words import adamw, constant, cosine, linear
from phasewise.tasks.data.plan import DataPlan
from phasewise.tasks.data.template import ChatTemplate
from phasewise.tasks.evaluation import phase_evaluation
from phasewise.tasks.evaluation.made_benchmarks import write_benchmarks
from phasewise.tasks.evaluation.phase_evaluation import evaluation_key, finished_evaluation, measured_components, measured_on
from phasewise.tasks.evaluation.settings import Measured
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.identity import write_sealed
from phasewise.trainer.base.storage import write_json
from phasewise.trainer.config import LearningRateSegment, ModelConfig, RunConfig, run

Key = Callable[..., str]
BOTH = ("word_order", "next_word")


def plan_of(benchmarks: Path, templates: Mapping[str, str] = {}, **held_out: Any) -> DataPlan:
    """Of a plan, what an evaluation asks: main-line components `law` and `web`, and a branch's `flan`; some have chat templates."""
    keys = {"law": "key of law", "web": "key of web", "flan": "key of flan"} | held_out
    caches = {name: SimpleNamespace(key=key, pin=None, folder=Path("elsewhere") / name) for name, key in keys.items()}
    components = {name: SimpleNamespace(held_out=cache) for name, cache in caches.items()}
    chats = {name: ChatTemplate(text, name) for name, text in templates.items()}
    of_plan = {"benchmarks": benchmarks, "benchmark_components": ("law", "web"), "components": components}
    return cast(DataPlan, SimpleNamespace(**of_plan, chats_of=lambda names: tuple(chats[name] for name in names if name in chats)))


def run_of(config: ModelConfig, output: Path, *components: str) -> RunConfig:
    fields: dict[str, Any] = {
        "output": str(output), "model": config, "keeps_average": False, "loss_on": "all", "start_step": 0, "stop_step": 10,
        "caches": dict.fromkeys(components or ("law",), "cache"), "learning_rate": (constant(0, 10, 1e-3),), "optimizer": adamw(),
    }  # fmt: skip
    return cast(RunConfig, SimpleNamespace(**fields))


@pytest.fixture
def key(config: ModelConfig, benchmarks: Path, tmp_path: Path) -> Key:
    def make(
        *components: str, params: Any = "weights", tokens: Any = 100, names: Any = BOTH, place: Any = tmp_path, **held_out: Any
    ) -> str:
        measured = Measured(benchmarks=names, held_out_tokens=tokens)
        return evaluation_key(run_of(config, place, *components), params, plan_of(benchmarks, **held_out), measured)

    return make


def test_what_decides_an_evaluation_moves_its_key_and_nothing_else_does(key: Key, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    before = key()
    same = [key(), key(place=tmp_path / "moved"), key(flan="another branch's text"), key(names=("next_word", "word_order"))]
    assert set(same) == {before}
    changed = [key(params="others"), key(tokens=200), key(tokens=None), key(web="other text"), key("law", "flan")]
    changed += [key(names=("next_word",)), key(names=("word_order",))]
    monkeypatch.setattr(phase_evaluation, "MEASURING", ("tasks/evaluation/task.py",))
    changed.append(key())
    assert len({before, *changed}) == 1 + len(changed)

    def ending(token: str) -> dict[str, str]:
        return {"flan": f"{{% generation %}}{{{{ messages[0].content + '{token}' }}}}{{% endgeneration %}}"}

    assert key(templates=ending("<|end|>")) == key()
    assert len({key("flan", templates=given) for given in ({}, ending("<|end|>"), ending("<|stop|>"))}) == 3


def test_a_later_field_moves_the_key_with_a_new_value_only(
    config: ModelConfig, benchmarks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def key(model: ModelConfig) -> str:
        return evaluation_key(run_of(model, tmp_path), "weights", plan_of(benchmarks), Measured(benchmarks=BOTH, held_out_tokens=None))

    as_before = key(config)
    assert key(config.but(attend_within_documents=False)) != as_before
    monkeypatch.setattr(run, "ADDED_LATER", {})
    assert key(config) != as_before  # the table alone keeps it as it was


def test_other_benchmarks_move_the_key(key: Key, config: ModelConfig, tmp_path: Path, held_out_texts: Mapping[str, Any]):
    write_benchmarks(tmp_path / "others", {"code": held_out_texts["code"]})
    measured = Measured(benchmarks=BOTH, held_out_tokens=100)
    assert evaluation_key(run_of(config, tmp_path), "weights", plan_of(tmp_path / "others"), measured) != key()
    (tmp_path / "others" / "next_word.jsonl").write_text("")
    with pytest.raises(DataError, match=r"next_word\.jsonl"):
        evaluation_key(run_of(config, tmp_path), "weights", plan_of(tmp_path / "others"), measured)


def test_a_phase_is_measured_on_the_main_line_and_what_is_its_own(config: ModelConfig, benchmarks: Path, tmp_path: Path):
    plan = plan_of(benchmarks)
    assert measured_components(run_of(config, tmp_path, "law"), plan) == ("law", "web")
    assert measured_components(run_of(config, tmp_path, "law", "flan"), plan) == ("flan", "law", "web")
    parent, child = (measured_on(run_of(config, tmp_path, *names), plan, 100) for names in (("law",), ("law", "flan")))
    assert {name: child[name] for name in parent} == parent
    assert measured_on(run_of(config, tmp_path), plan, 200) != parent


def test_only_an_evaluation_of_the_key_holds(config: ModelConfig, key: Key, tmp_path: Path):
    run = run_of(config, tmp_path)
    assert finished_evaluation(run, key()) is None
    write_json(tmp_path / "evaluation.json", {"params_digest": "weights"})  # from before keys
    assert finished_evaluation(run, key()) is None
    write_sealed(tmp_path / "evaluation.json", {"key": key(), "macro": 1.0})
    assert finished_evaluation(run, key()) == {"key": key(), "macro": 1.0}
    assert finished_evaluation(run, key(tokens=7)) is None


def point(*segments: LearningRateSegment, start_step: int = 0, stop_step: int = 100) -> dict[str, Any]:
    run = SimpleNamespace(learning_rate=segments, start_step=start_step, stop_step=stop_step, optimizer=adamw())
    return phase_evaluation.read_schedule_point(cast(RunConfig, run))


@pytest.mark.parametrize(("segments", "end", "peak"), [
    ((linear(0, 10, 0.0, 1e-3), constant(10, 100, 1e-3)), 1e-3, 1e-3),
    ((linear(0, 10, 0.0, 1e-3), linear(10, 100, 1e-3, 1e-5)), 1e-5, 1e-3),
    ((linear(0, 10, 0.0, 1e-3), cosine(10, 190, 1e-3, 0.0)), 5e-4, 1e-3),  # stopped in the middle of its decay
    ((constant(0, 50, 2e-3), constant(50, 100, 1e-3), constant(100, 200, 9e-3)), 1e-3, 2e-3),  # what follows is not this phase's
])  # fmt: skip
def test_the_end_and_the_peak_are_those_of_the_phase(segments: tuple[LearningRateSegment, ...], end: float, peak: float):
    found = point(*segments)
    assert (found["end"], found["peak"]) == (pytest.approx(end), pytest.approx(peak))
    assert found["optimizer"] == "adamw"
    assert point(constant(0, 50, 9e-3), constant(50, 100, 1e-3), start_step=50)["peak"] == 1e-3


def test_of_the_record():
    shares = {"kestrel": 0.1, "ocelot": 1.0, "jellyfish": 0.1, "phoenix": 1.0, "starling": 0.01, "deeper-starling": 1.0}
    recipe = load_recipe("marin-8b", "proxy")
    for phase, share in shares.items():
        one = recipe.phase(phase)
        found = point(*one.learning_rate, start_step=one.start_step, stop_step=one.stop_step)
        assert found["end"] / found["peak"] == pytest.approx(share), phase
