from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from lm_eval.api.instance import Instance
from tokenizers import Tokenizer

from tasks.data.special_tokens import SpecialTokens
from tasks.evaluation.language_model import JaxLanguageModel
from tasks.evaluation.requests import before_first
from trainer.base.errors import DataError, EvaluationError
from trainer.config import ModelConfig
from trainer.model.params import Params

LogSoftmax = Callable[[Sequence[int]], np.ndarray]

CONTEXTS = ("bace dido", "mo", "", "ha ke li " * 40, "pare si\ntovu bace", "fo gu nure " * 30)


@pytest.fixture
def model(params: Params, config: ModelConfig, tokenizer: Tokenizer, special: SpecialTokens) -> JaxLanguageModel:
    return JaxLanguageModel(params=params, config=config, tokenizer=tokenizer, special=special)


def instances(kind: Any, arguments: Sequence[tuple[Any, ...]]) -> list[Instance]:
    return [Instance(kind, {}, argument, index) for index, argument in enumerate(arguments)]


def test_loglikelihood_is_the_sum_of_log_softmax_in_the_order_asked(
    model: JaxLanguageModel, log_softmax: LogSoftmax, config: ModelConfig, tokenizer: Tokenizer
) -> None:
    pairs = [(context, continuation) for context in CONTEXTS for continuation in (" bace", " tovupare fo", " x")]
    found = model.loglikelihood(instances("loglikelihood", pairs))
    assert len(found) == len(pairs)
    for (context, continuation), (value, is_greedy) in zip(pairs, found, strict=True):
        stripped = context.rstrip()
        sequence = [0, *tokenizer.encode(context + continuation).ids]
        scored = len(sequence) - (1 + len(tokenizer.encode(stripped).ids))
        sequence = sequence[-config.seq_len - 1 :]
        table = log_softmax(sequence[:-1])[-scored:]
        targets = sequence[-scored:]
        assert value == pytest.approx(table[np.arange(scored), targets].sum(), rel=1e-4)
        assert is_greedy == (table.argmax(axis=-1) == targets).all()


def test_the_likeliest_continuation_is_greedy(model: JaxLanguageModel, log_softmax: LogSoftmax, config: ModelConfig) -> None:
    context = model.tok_encode("bace")
    best = int(log_softmax(context)[-1].argmax())
    worst = int(log_softmax(context)[-1].argmin())
    found = model._loglikelihood_tokens([(("", ""), context, [best]), (("", ""), context, [worst]), (("", ""), [], [best])])  # pyright: ignore[reportPrivateUsage]  # the interface that lm-eval calls
    assert [is_greedy for _, is_greedy in found[:2]] == [True, False]
    assert found[2][0] == pytest.approx(log_softmax([0])[-1, best], rel=1e-4)


def test_a_continuation_longer_than_the_model_sees_is_refused(model: JaxLanguageModel) -> None:
    with pytest.raises(DataError, match="fit in the model's seq_len of 48 tokens, found 160 tokens in request 0"):
        model.loglikelihood(instances("loglikelihood", [("ba", " zxq" * 40)]))


def test_rolling_predicts_each_token_once_and_the_last_window_sees_as_much_as_the_model_can(
    model: JaxLanguageModel, log_softmax: LogSoftmax, config: ModelConfig, tokenizer: Tokenizer
) -> None:
    texts = ["bace " * 60, "mo", "", "tovu\n" * 17]
    found = model.loglikelihood_rolling(instances("loglikelihood_rolling", [(text,) for text in texts]))
    for text, value in zip(texts, found, strict=True):
        ids = tokenizer.encode(text).ids
        expected = 0.0
        for start in range(0, len(ids), config.seq_len):
            targets = ids[start : start + config.seq_len]
            end = 1 + start + len(targets)
            inputs = [0, *ids][max(0, end - 1 - config.seq_len) : end - 1]
            expected += log_softmax(inputs)[np.arange(len(inputs) - len(targets), len(inputs)), targets].sum()
        assert value == pytest.approx(expected, rel=1e-4)


def greedy_tokens(
    log_softmax: LogSoftmax, config: ModelConfig, tokenizer: Tokenizer, context: str, count: int, room_for: int | None = None
) -> list[int]:
    """The context loses its beginning where there is no room for the new tokens behind it."""
    ids = [0, *tokenizer.encode(context).ids][-(config.seq_len - (room_for or count)) :]
    for _ in range(count):
        ids.append(int(log_softmax(ids)[-1].argmax()))
    return ids[-count:]


def greedy_text(log_softmax: LogSoftmax, config: ModelConfig, tokenizer: Tokenizer, context: str, count: int) -> str:
    return tokenizer.decode(greedy_tokens(log_softmax, config, tokenizer, context, count))


def test_generation_is_greedy_and_in_the_order_asked(
    model: JaxLanguageModel, log_softmax: LogSoftmax, config: ModelConfig, tokenizer: Tokenizer
) -> None:
    counts = [3, 5, 3, 5, 3, 5]
    requests = [(context, {"until": [], "max_gen_toks": count}) for context, count in zip(CONTEXTS, counts, strict=True)]
    expected = [greedy_text(log_softmax, config, tokenizer, context, count) for context, count in zip(CONTEXTS, counts, strict=True)]
    assert model.generate_until(instances("generate_until", requests)) == expected
    assert len(set(expected)) > 3


def test_generation_stops_at_until(model: JaxLanguageModel, log_softmax: LogSoftmax, config: ModelConfig, tokenizer: Tokenizer) -> None:
    stopped = 0
    for context in CONTEXTS:
        full = greedy_text(log_softmax, config, tokenizer, context, 8)
        for stop in {character for character in full[1:] if character.isascii()}:
            [answer] = model.generate_until(instances("generate_until", [(context, {"until": ["\0\0", stop], "max_gen_toks": 8})]))
            [same] = model.generate_until(instances("generate_until", [(context, {"until": stop, "max_gen_toks": 8})]))
            assert answer == same == full.split(stop)[0]
            stopped += 1
    assert stopped > 3


def test_the_first_of_several_stop_strings_counts() -> None:
    assert before_first("one. two\n", ("\n", ".")) == "one"
    assert before_first("one. two\n", ()) == "one. two\n"


def test_generation_stops_before_end_of_text(
    model: JaxLanguageModel, log_softmax: LogSoftmax, config: ModelConfig, tokenizer: Tokenizer
) -> None:
    tokens = greedy_tokens(log_softmax, config, tokenizer, CONTEXTS[0], 8)
    stops_at = next(place for place in range(2, 8) if tokens[place] not in tokens[:place])
    model.end_of_text = tokens[stops_at]
    [answer] = model.generate_until(instances("generate_until", [(CONTEXTS[0], {"max_gen_toks": 20})]))
    assert answer == tokenizer.decode(tokens[:stops_at])


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("loglikelihood", [("ba", " ce"), ("mo", " ce")]),
        ("loglikelihood_rolling", [("bace",)]),
        ("generate_until", [("ba", {"until": ["\n"], "max_gen_toks": 2})]),
    ],
)
def test_an_answer_that_is_not_finite_is_an_error_that_names_the_request(
    broken_params: Params, config: ModelConfig, tokenizer: Tokenizer, special: SpecialTokens, kind: str, arguments: list[tuple[Any, ...]]
) -> None:
    """lm-eval scores such a model without a word: of equal choices the first is the best."""
    model = JaxLanguageModel(params=broken_params, config=config, tokenizer=tokenizer, special=special)
    with pytest.raises(EvaluationError, match=r"found nan for request 0 \('ba"):
        getattr(model, kind)(instances(kind, arguments))
