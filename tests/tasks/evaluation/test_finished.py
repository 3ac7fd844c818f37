"""What an evaluation holds for, change by change."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from phasewise.flows.recipes.words import adamw, constant
from phasewise.tasks.data.plan import DataPlan
from phasewise.tasks.data.template import ChatTemplate
from phasewise.tasks.evaluation import phase_evaluation
from phasewise.tasks.evaluation.held_out import HeldOutDocument
from phasewise.tasks.evaluation.made_benchmarks import write_benchmarks
from phasewise.tasks.evaluation.phase_evaluation import evaluation_key, finished_evaluation, measured_components, measured_on
from phasewise.tasks.evaluation.settings import Measured
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.identity import write_sealed
from phasewise.trainer.base.storage import write_json
from phasewise.trainer.config import ModelConfig, RunConfig, run

Key = Callable[..., str]
BOTH = ("word_order", "next_word")


def plan_of(benchmarks: Path, templates: Mapping[str, str] = {}, **held_out: Any) -> DataPlan:
    """Of a plan, what an evaluation asks: main-line components `law` and `web`, and a branch's `flan`; some have chat templates."""
    keys = {"law": "key of law", "web": "key of web", "flan": "key of flan"} | held_out
    components = {
        name: SimpleNamespace(held_out=SimpleNamespace(key=key, pin=None, folder=Path("elsewhere") / name)) for name, key in keys.items()
    }
    chats = {name: ChatTemplate(text, name) for name, text in templates.items()}
    of_plan = {"benchmarks": benchmarks, "benchmark_components": ("law", "web"), "components": components}
    return cast(DataPlan, SimpleNamespace(**of_plan, chats_of=lambda names: tuple(chats[name] for name in names if name in chats)))


def run_of(config: ModelConfig, output: Path, *components: str) -> RunConfig:
    """Of a run, what an evaluation asks."""
    return cast(
        RunConfig,
        SimpleNamespace(
            output=str(output),
            model=config,
            keeps_average=False,
            loss_on="all",
            caches=dict.fromkeys(components or ("law",), "cache"),
            start_step=0,
            stop_step=10,
            learning_rate=(constant(0, 10, 1e-3),),
            optimizer=adamw(),
        ),
    )


@pytest.fixture
def key(config: ModelConfig, benchmarks: Path, tmp_path: Path) -> Key:
    def make(
        *components: str,
        params: str = "weights",
        tokens: int | None = 100,
        names: tuple[str, ...] = BOTH,
        place: Path = tmp_path,
        **held_out: Any,
    ) -> str:
        measured = Measured(benchmarks=names, held_out_tokens=tokens)
        return evaluation_key(run_of(config, place, *components), params, plan_of(benchmarks, **held_out), measured)

    return make


def test_what_decides_an_evaluation_moves_its_key_and_nothing_else_does(key: Key, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = key()
    same = [key(), key(place=tmp_path / "moved"), key(flan="another branch's text"), key(names=("next_word", "word_order"))]
    assert set(same) == {before}
    changed = [key(params="others"), key(tokens=200), key(tokens=None), key(web="other text"), key("law", "flan")]
    changed += [key(names=("next_word",)), key(names=("word_order",))]
    monkeypatch.setattr(phase_evaluation, "MEASURING", ("tasks/evaluation/task.py",))
    changed.append(key())
    assert len({before, *changed}) == 1 + len(changed)


def test_what_ends_an_answer_is_in_the_key_of_a_phase_of_conversations_alone(key: Key) -> None:
    def ending(token: str) -> dict[str, str]:
        return {"flan": f"{{% generation %}}{{{{ messages[0].content + '{token}' }}}}{{% endgeneration %}}"}

    assert key(templates=ending("<|end|>")) == key()
    assert len({key("flan", templates=given) for given in ({}, ending("<|end|>"), ending("<|stop|>"))}) == 3


def test_a_field_that_came_later_moves_the_key_with_a_new_value_only(
    config: ModelConfig, benchmarks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def key(model: ModelConfig) -> str:
        return evaluation_key(run_of(model, tmp_path), "weights", plan_of(benchmarks), Measured(benchmarks=BOTH, held_out_tokens=None))

    as_before = key(config)
    assert key(config.but(attend_within_documents=False)) != as_before
    monkeypatch.setattr(run, "ADDED_LATER", {})
    assert key(config) != as_before  # the table alone keeps it as it was


def test_other_benchmarks_move_the_key(
    key: Key, config: ModelConfig, tmp_path: Path, held_out_texts: Mapping[str, Sequence[HeldOutDocument]]
) -> None:
    write_benchmarks(tmp_path / "others", {"code": held_out_texts["code"]})
    measured = Measured(benchmarks=BOTH, held_out_tokens=100)
    assert evaluation_key(run_of(config, tmp_path), "weights", plan_of(tmp_path / "others"), measured) != key()
    (tmp_path / "others" / "next_word.jsonl").write_text("")
    with pytest.raises(DataError, match=r"next_word\.jsonl"):
        evaluation_key(run_of(config, tmp_path), "weights", plan_of(tmp_path / "others"), measured)


def test_a_phase_is_measured_on_the_main_line_and_what_is_its_own(config: ModelConfig, benchmarks: Path, tmp_path: Path) -> None:
    """So its parent's evaluation is the same whichever branch is planned beside it."""
    plan = plan_of(benchmarks)
    assert measured_components(run_of(config, tmp_path, "law"), plan) == ("law", "web")
    assert measured_components(run_of(config, tmp_path, "law", "flan"), plan) == ("flan", "law", "web")
    parent, child = (measured_on(run_of(config, tmp_path, *names), plan, 100) for names in (("law",), ("law", "flan")))
    assert {name: child[name] for name in parent} == parent
    assert measured_on(run_of(config, tmp_path), plan, 200) != parent


def test_only_an_evaluation_of_the_key_holds(config: ModelConfig, key: Key, tmp_path: Path) -> None:
    run = run_of(config, tmp_path)
    assert finished_evaluation(run, key()) is None
    write_json(tmp_path / "evaluation.json", {"params_digest": "weights"})  # from before keys
    assert finished_evaluation(run, key()) is None
    write_sealed(tmp_path / "evaluation.json", {"key": key(), "macro": 1.0})
    assert finished_evaluation(run, key()) == {"key": key(), "macro": 1.0}
    assert finished_evaluation(run, key(tokens=7)) is None
