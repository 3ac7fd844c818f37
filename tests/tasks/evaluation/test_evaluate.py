import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from lm_eval.api.instance import Instance
from tokenizers import Tokenizer

from phasewise.tasks.data.tokenizer import special_tokens
from phasewise.tasks.evaluation.checkpoint import evaluate_model
from phasewise.tasks.evaluation.held_out import read_held_out_tokens
from phasewise.tasks.evaluation.language_model import JaxLanguageModel
from phasewise.tasks.evaluation.made_benchmarks import read_benchmark_folder
from phasewise.trainer.base.errors import DataError, EvaluationError
from phasewise.trainer.config import ModelConfig
from phasewise.trainer.model.params import Params
from phasewise.validations.evidence.floor import measure_floor
from tests.tasks.evaluation.conftest import HeldOut, WriteCache

Evaluate = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def evaluate(params: Params, config: ModelConfig, tokenizer: Tokenizer, benchmarks: Path, held_out_tokens: Any) -> Evaluate:
    values: dict[str, Any] = {"params": params, "config": config, "benchmarks": benchmarks, "names": ("word_order", "next_word")}
    values |= {"tokenizer": tokenizer, "held_out": held_out_tokens}
    return lambda **changes: evaluate_model(**(values | changes))


@pytest.fixture(scope="module")
def found(evaluate: Evaluate) -> dict[str, Any]:
    return evaluate()


def test_an_evaluation_says_all_it_measured_and_prints_nothing(
    evaluate: Evaluate, found: Any, benchmarks: Path, held_out_tokens: Any, capfd: Any
):
    assert evaluate() == found
    assert capfd.readouterr().out == ""
    assert found["finite"] is True
    assert found["benchmarks_digest"] == read_benchmark_folder(benchmarks).digest
    assert {result["benchmark"]: result["metric"] for result in found["results"]} == {"word_order": "acc", "next_word": "exact_match"}
    for result, described in zip(found["results"], read_benchmark_folder(benchmarks).benchmarks, strict=True):
        assert (result["items"], result["baseline"]) == (described.items, described.baseline.value)
        assert 0 <= result["value"] <= 1
        answers = result["answers"]
        assert len({answer["id"] for answer in answers}) == described.items
        assert (result["setting"]["items"], result["setting"]["asked"], result["setting"]["shots"]) == (described.items, described.items, 0)
        assert result["setting"]["precision"] == "float32"
        assert result["value"] == pytest.approx(sum(answer["right"] for answer in answers) / described.items)
    value, items = found["results"][0]["value"], found["results"][0]["items"]
    assert found["results"][0]["stderr"] == pytest.approx((value * (1 - value) / (items - 1)) ** 0.5)
    assert found["bits_per_byte"].keys() == held_out_tokens.keys()
    assert found["macro_bits_per_byte"] == pytest.approx(sum(found["bits_per_byte"].values()) / len(held_out_tokens))
    assert json.loads(json.dumps(found)) == found


def test_only_what_is_named_is_measured(evaluate: Evaluate, found: dict[str, Any]):
    one = evaluate(names=("next_word",))
    assert (found["benchmarks"], one["benchmarks"]) == (["next_word", "word_order"], ["next_word"])
    assert one["results"] == found["results"][1:]
    assert one["bits_per_byte"] == found["bits_per_byte"]
    assert one["benchmarks_digest"] != found["benchmarks_digest"]


def test_what_cannot_be_measured_is_an_error(evaluate: Evaluate, broken_params: Params, tmp_path: Path):
    with pytest.raises(DataError, match="bananas are not made here: a folder with their items must be given, found none"):
        evaluate(names=("bananas",))
    with pytest.raises(EvaluationError, match="found nan for request 0"):
        evaluate(params=broken_params)
    with pytest.raises(DataError, match="holds no benchmarks"):
        evaluate(benchmarks=tmp_path)


def test_a_choice_is_scored_as_one_word_after_the_opening(found: dict[str, Any], model: JaxLanguageModel, benchmarks: Path):
    for result in found["results"]:
        lines = (benchmarks / f"{result['benchmark']}.jsonl").read_text(encoding="utf-8").splitlines()
        for item, answer in list(zip(map(json.loads, lines), result["answers"], strict=True))[::7]:
            pairs = [(item["opening"], f" {choice}") for choice in item["choices"]]
            scores = model.loglikelihood([Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(pairs)])
            assert (answer["id"], answer["group"], answer["gold"]) == (item["id"], item.get("group"), item["gold"])
            assert answer["log_likelihoods"] == pytest.approx([score for score, _ in scores], rel=1e-4)
    said = [answer["baseline_right"] for answer in found["results"][1]["answers"]]
    assert sum(map(bool, said)) / len(said) == found["results"][1]["baseline"]
    assert {answer["baseline_right"] for answer in found["results"][0]["answers"]} == {None}


def test_only_a_model_that_reads_is_above_the_floor(
    evaluate: Evaluate, found: Any, reading_params: Params, blind_params: Params, reading_config: ModelConfig
):
    evaluations = [evaluate(params=weights, config=reading_config) for weights in (reading_params, blind_params)]
    read, blind, fresh = ([measure_floor(result) for result in one["results"]] for one in (*evaluations, found))
    assert max(floor.likelihood_p_value for floor in read) < 1e-4
    assert [floor.likelihood_p_value for floor in blind] == [1, 1]
    assert [floor.mean_margin_nats for floor in blind] == pytest.approx([0, 0], abs=1e-4)
    assert min(floor.p_value for floor in blind) > 0.2
    assert min(floor.p_value for floor in fresh) > 0.02


BOTH = ("word_order", "next_word")
SHIFT = 7  # token number i becomes i + 7, round the end


@pytest.fixture(scope="module")
def shifted(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer with other numbers: begin-of-text is 7, end-of-text 8, and 0 is a piece of a word."""
    written: dict[str, Any] = json.loads(tokenizer.to_str())
    size = tokenizer.get_vocab_size()
    written["model"]["vocab"] = {token: (id + SHIFT) % size for token, id in written["model"]["vocab"].items()}
    for added in written["added_tokens"]:
        added["id"] = (added["id"] + SHIFT) % size
    found = Tokenizer.from_str(json.dumps(written))
    assert special_tokens(found) == (SHIFT, SHIFT + 1)
    assert found.encode("bace").ids == [(id + SHIFT) % size for id in tokenizer.encode("bace").ids]
    return found


def of_shifted(params: Params) -> Params:
    return params | {"embedding": jnp.roll(params["embedding"], SHIFT, axis=0), "head": jnp.roll(params["head"], SHIFT, axis=1)}


def as_floats(evaluation: dict[str, Any]) -> np.ndarray:
    answers = [score for result in evaluation["results"] for answer in result["answers"] for score in answer["log_likelihoods"]]
    return np.array([*evaluation["bits_per_byte"].values(), evaluation["macro_bits_per_byte"], *answers])


def test_an_evaluation_is_the_same(
    reading_params: Params, reading_config: ModelConfig, tokenizer: Tokenizer, shifted: Tokenizer, benchmarks: Path,
    held_out_texts: HeldOut, write_cache: WriteCache, tmp_path: Path,
):  # fmt: skip
    def evaluated(by: Tokenizer, params: Params) -> dict[str, Any]:
        home = tmp_path / str(special_tokens(by).begin)
        caches = {name: write_cache(home / name, documents, by=by) for name, documents in held_out_texts.items()}
        held_out = read_held_out_tokens(caches, by, max_tokens=400)
        return evaluate_model(params=params, config=reading_config, tokenizer=by, benchmarks=benchmarks, names=BOTH, held_out=held_out)

    expected = evaluated(tokenizer, reading_params)
    found = evaluated(shifted, of_shifted(reading_params))
    assert [result["value"] for result in found["results"]] == [result["value"] for result in expected["results"]]
    assert max(result["value"] for result in expected["results"]) > 0
    np.testing.assert_allclose(as_floats(found), as_floats(expected), rtol=1e-5)


def test_a_model_that_looks_back_answers_the_same(model: JaxLanguageModel, shifted: Tokenizer):
    params = of_shifted(model.params)
    after = JaxLanguageModel(params=params, config=model.config, tokenizer=shifted, special=special_tokens(shifted))
    pairs = [(context, " bace") for context in ("mo", "", "ha ke li " * 40, "pare si\ntovu bace")]

    def ask(model: JaxLanguageModel) -> tuple[list[float], list[float], list[str]]:
        likelihoods = model.loglikelihood([Instance("loglikelihood", {}, pair, 0) for pair in pairs])
        rolling = model.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, (text,), 0) for text, _ in pairs])
        asked = [Instance("generate_until", {}, (text, {"until": ["\n"], "max_gen_toks": 6}), 0) for text, _ in pairs]
        return [value for value, _ in likelihoods], rolling, model.generate_until(asked)

    expected, found = ask(model), ask(after)
    np.testing.assert_allclose(found[:2], expected[:2], rtol=1e-5)
    assert found[2] == expected[2]
