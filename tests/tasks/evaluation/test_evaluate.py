import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from lm_eval.api.instance import Instance
from lm_eval.api.model import CachingLM
from tokenizers import Tokenizer

from phasewise.tasks.data.tokenizer import SpecialTokens, special_tokens
from phasewise.tasks.evaluation import language_model as module
from phasewise.tasks.evaluation.checkpoint import evaluate_model
from phasewise.tasks.evaluation.held_out import read_held_out_tokens
from phasewise.tasks.evaluation.language_model import Generation, JaxLanguageModel, before_first, read_generation
from phasewise.tasks.evaluation.made_benchmarks import read_benchmark_folder
from phasewise.trainer.base.errors import ConfigError, DataError, EvaluationError
from phasewise.trainer.config import ModelConfig
from phasewise.trainer.model.params import Params
from phasewise.validations.evidence.floor import measure_floor
from tests.tasks.evaluation.conftest import HeldOut, LogSoftmax, WriteCache

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


Greedy = Callable[[str, int], list[int]]

CONTEXTS = ("bace dido", "mo", "", "ha ke li " * 40, "pare si\ntovu bace", "fo gu nure " * 30)


def instances(kind: Any, arguments: Sequence[tuple[Any, ...]]) -> list[Instance]:
    return [Instance(kind, {}, argument, index) for index, argument in enumerate(arguments)]


def test_loglikelihood_is_the_sum_of_log_softmax_in_the_order_asked(model: JaxLanguageModel, log_softmax: LogSoftmax):
    pairs = [(context, continuation) for context in CONTEXTS for continuation in (" bace", " tovupare fo", " x")]
    found = model.loglikelihood(instances("loglikelihood", pairs))
    assert len(found) == len(pairs)
    for (context, continuation), (value, is_greedy) in zip(pairs, found, strict=True):
        stripped = context.rstrip()
        sequence = [0, *model.tokenizer.encode(context + continuation).ids]
        scored = len(sequence) - (1 + len(model.tokenizer.encode(stripped).ids))
        sequence = sequence[-model.config.seq_len - 1 :]
        table = log_softmax(sequence[:-1])[-scored:]
        targets = sequence[-scored:]
        assert value == pytest.approx(table[np.arange(scored), targets].sum(), rel=1e-4)
        assert is_greedy == (table.argmax(axis=-1) == targets).all()


def test_the_likeliest_continuation_is_greedy_and_one_too_long_or_empty_is_refused(model: JaxLanguageModel, log_softmax: LogSoftmax):
    context = model.tok_encode("bace")
    best, worst = int(log_softmax(context)[-1].argmax()), int(log_softmax(context)[-1].argmin())
    found = model._loglikelihood_tokens([(("", ""), context, [best]), (("", ""), context, [worst]), (("", ""), [], [best])])  # pyright: ignore[reportPrivateUsage]  # the interface that lm-eval calls
    assert [is_greedy for _, is_greedy in found[:2]] == [True, False]
    assert found[2][0] == pytest.approx(log_softmax([0])[-1, best], rel=1e-4)
    assert (model.world_size, model.rank) == (1, 0)  # with more, lm-eval would import PyTorch
    with pytest.raises(DataError, match=r"must have a token, found none in request 1 \('ba' → ''\)"):
        model.loglikelihood(instances("loglikelihood", [("ba", " ce"), ("ba", "")]))
    with pytest.raises(DataError, match="fit in the model's seq_len of 48 tokens, found 160 tokens in request 0"):
        model.loglikelihood(instances("loglikelihood", [("ba", " zxq" * 40)]))


def test_rolling_predicts_each_token_once_and_the_last_window_sees_all_it_can(model: JaxLanguageModel, log_softmax: LogSoftmax):
    texts = ["bace " * 60, "mo", "", "tovu\n" * 17]
    found = model.loglikelihood_rolling(instances("loglikelihood_rolling", [(text,) for text in texts]))
    for text, value in zip(texts, found, strict=True):
        ids = model.tokenizer.encode(text).ids
        expected = 0.0
        for start in range(0, len(ids), model.config.seq_len):
            targets = ids[start : start + model.config.seq_len]
            end = 1 + start + len(targets)
            inputs = [0, *ids][max(0, end - 1 - model.config.seq_len) : end - 1]
            expected += log_softmax(inputs)[np.arange(len(inputs) - len(targets), len(inputs)), targets].sum()
        assert value == pytest.approx(expected, rel=1e-4)


@pytest.fixture
def greedy(log_softmax: LogSoftmax, config: ModelConfig, tokenizer: Tokenizer) -> Greedy:
    """The likeliest tokens behind a context, which loses its beginning if there is no room for the new ones."""

    def continue_(context: str, count: int) -> list[int]:
        ids = [0, *tokenizer.encode(context).ids][-(config.seq_len - count) :]
        for _ in range(count):
            ids.append(int(log_softmax(ids)[-1].argmax()))
        return ids[-count:]

    return continue_


def test_generation_is_greedy_in_the_order_asked_and_stops_before_an_end_token(model: JaxLanguageModel, greedy: Greedy):
    counts = [3, 5, 3, 5, 3, 5]
    requests = [(context, {"until": [], "max_gen_toks": count}) for context, count in zip(CONTEXTS, counts, strict=True)]
    expected = [model.tokenizer.decode(greedy(context, count)) for context, count in zip(CONTEXTS, counts, strict=True)]
    assert model.generate_until(instances("generate_until", requests)) == expected
    assert len(set(expected)) > 3
    tokens = greedy(CONTEXTS[0], 8)
    stops_at = next(place for place in range(2, 8) if tokens[place] not in tokens[:place])
    model.ends = (max(tokens) + 1, tokens[stops_at])
    [answer] = model.generate_until(instances("generate_until", [(CONTEXTS[0], {"max_gen_toks": 20})]))
    assert answer == model.tokenizer.decode(tokens[:stops_at])


def test_generation_stops_at_until(model: JaxLanguageModel, greedy: Greedy):
    stopped = 0
    for context in CONTEXTS:
        full = model.tokenizer.decode(greedy(context, 8))
        for stop in {character for character in full[1:] if character.isascii()}:
            [answer] = model.generate_until(instances("generate_until", [(context, {"until": ["\0\0", stop], "max_gen_toks": 8})]))
            [same] = model.generate_until(instances("generate_until", [(context, {"until": stop, "max_gen_toks": 8})]))
            assert answer == same == full.split(stop)[0]
            stopped += 1
    assert stopped > 3
    assert [before_first("one. two\n", ends) for ends in (("\n", "."), ())] == ["one", "one. two\n"]


@pytest.mark.parametrize(("kind", "arguments"), [
    ("loglikelihood", [("ba", " ce"), ("mo", " ce")]), ("loglikelihood_rolling", [("bace",)]),
    ("generate_until", [("ba", {"until": ["\n"], "max_gen_toks": 2})]),
])  # fmt: skip
def test_no_finite_answer_is_an_error_that_names_its_request(
    model: JaxLanguageModel, broken_params: Params, kind: str, arguments: list[Any]
):
    model.params = broken_params
    with pytest.raises(EvaluationError, match=r"found nan for request 0 \('ba"):
        getattr(model, kind)(instances(kind, arguments))


def test_order_company_and_batches_change_no_answer(model: JaxLanguageModel, monkeypatch: pytest.MonkeyPatch):
    pairs = [(context, continuation) for context in CONTEXTS for continuation in (" bace", " tovupare fo")]
    prompts = [(context, {"until": ["\n"], "max_gen_toks": 6}) for context in CONTEXTS]

    def ask(order: Sequence[int], prompt_order: Sequence[int]) -> tuple[list[tuple[float, bool]], list[str]]:
        scored = model.loglikelihood(instances("loglikelihood", [pairs[i] for i in order]))
        return scored, model.generate_until(instances("generate_until", [prompts[i] for i in prompt_order]))

    expected, texts = ask(range(len(pairs)), range(len(prompts)))
    order, prompt_order = [7, 3, 3, 0, 11, 4], [4, 1, 1, 0]
    found = [ask(order, prompt_order), ask([7], [4])]
    monkeypatch.setattr("phasewise.tasks.evaluation.language_model.MAX_ROWS", 2)
    monkeypatch.setattr("phasewise.tasks.evaluation.scoring.BATCH_TOKENS", 512)
    found.append(ask(order, prompt_order))
    for scored, grown in found:
        for number, (value, is_greedy) in zip(order, scored, strict=False):
            assert (value, is_greedy) == (pytest.approx(expected[number][0], rel=1e-5), expected[number][1])
        assert grown == [texts[i] for i in prompt_order[: len(grown)]]


def test_samples_come_from_the_seed_and_the_text_alone(params: Params, config: ModelConfig, tokenizer: Tokenizer, special: SpecialTokens):
    def ask(seed: int, contexts: Sequence[str], **settings: Any) -> list[str]:
        sampling = {"until": [], "max_gen_toks": 6, "do_sample": True, "temperature": 1.0, **settings}
        model = JaxLanguageModel(params=params, config=config, tokenizer=tokenizer, special=special, seed=seed)
        return model.generate_until(instances("generate_until", [(context, sampling) for context in contexts]))

    one, two, again = ask(0, ["bace", "mo", "bace"])
    assert len({one, two, again}) == 3
    assert ask(0, ["mo", "bace", "pare", "bace"]) == [two, one, ask(0, ["pare"])[0], again]
    assert ask(1, ["bace"]) != [one]
    greedy = ask(0, ["bace"], do_sample=False, temperature=0.0)
    assert ask(0, ["bace"], top_k=1) == ask(0, ["bace"], top_p=1e-6) == ask(0, ["bace"], temperature=1e-4) == greedy != [one]


def test_contexts_begin_with_one_begin_token_and_lose_their_beginning_for_what_is_asked(model: JaxLanguageModel, greedy: Greedy):
    long = "ha ke li " * 40
    [answer] = model.generate_until(instances("generate_until", [(long, {"max_gen_toks": model.config.seq_len - 1})]))
    tokens = greedy(long, model.config.seq_len - 1)
    assert answer == model.tokenizer.decode(tokens[: tokens.index(1)] if 1 in tokens else tokens)
    with pytest.raises(ConfigError, match=r"room for a context in the model's seq_len of 48 tokens, found 256 in"):
        model.generate_until(instances("generate_until", [(long, {"until": ["\n"]})]))
    ids = model.tokenizer.encode("bace dido").ids
    assert model.tok_encode("bace dido") == model.tok_encode("<|begin_of_text|>bace dido") == [0, *ids]
    assert model.tok_encode("bace dido", add_special_tokens=False) == ids
    assert model.tok_encode("") == [0]
    assert model.prefix_token_id == 0
    model.begins_texts = False
    assert model.tok_encode("bace dido") == ids
    assert model.tok_encode("bace dido", add_special_tokens=True) == [0, *ids]


def test_lm_evals_cache_is_refused_for_it_knows_no_model(model: JaxLanguageModel, tmp_path: Path):
    pytest.importorskip("sqlitedict", reason="lm-eval's cache needs sqlitedict")
    with pytest.raises(ConfigError, match="do not name the model"):
        CachingLM(model, str(tmp_path / "cache.db"))


@pytest.mark.parametrize(("settings", "expected"), [
    ({}, Generation((), 256, module.Sampling())),
    ({"until": "\n", "max_gen_toks": 4, "do_sample": False, "temperature": 0.7}, Generation(("\n",), 4, module.Sampling())),
    ({"until": ["a", ""], "max_tokens": 9, "max_new_tokens": 3}, Generation(("a",), 3, module.Sampling())),
    ({"do_sample": True}, Generation((), 256, module.Sampling(1.0))),
    ({"temperature": 0.5, "top_k": 3, "top_p": 0.9}, Generation((), 256, module.Sampling(0.5, 3, 0.9))),
])  # fmt: skip
def test_what_a_benchmark_asks_for(settings: dict[str, Any], expected: Generation):
    assert read_generation(settings) == expected


def test_what_cannot_be_done_and_answers_that_are_no_numbers_are_refused():
    below: dict[str, Any] = {"temperature": -1.0, "do_sample": True}
    asked = ({"num_beams": 4}, {"max_gen_toks": 0}, below, {"top_p": 1.5})
    said = ("found num_beams", "one new token at least", "temperature of 0 or more", "top_p above 0")
    for settings, words in zip(asked, said, strict=True):
        with pytest.raises(ConfigError, match=words):
            read_generation(settings)
    assert module.check_finite(-3.0, 0, ["a"]) == -3.0
    for value in (float("nan"), float("-inf")):
        with pytest.raises(EvaluationError, match=r"request 7 \('a' → '…x+'\)"):
            module.check_finite(value, 7, ["a", "x" * 100])
    assert module.name_request(2, ["a\nb"]) == r"request 2 ('a\nb')"
