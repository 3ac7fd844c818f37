from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lm_eval.api.instance import Instance
from lm_eval.api.model import CachingLM
from tokenizers import Tokenizer

from phasewise.tasks.data.tokenizer import SpecialTokens
from phasewise.tasks.evaluation.language_model import JaxLanguageModel, before_first
from phasewise.trainer.base.errors import ConfigError, DataError, EvaluationError
from phasewise.trainer.config import ModelConfig
from phasewise.trainer.model.params import Params

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


def test_generation_stops_before_any_of_the_tokens_that_end_a_text(
    model: JaxLanguageModel, log_softmax: LogSoftmax, config: ModelConfig, tokenizer: Tokenizer
) -> None:
    tokens = greedy_tokens(log_softmax, config, tokenizer, CONTEXTS[0], 8)
    stops_at = next(place for place in range(2, 8) if tokens[place] not in tokens[:place])
    model.ends = (max(tokens) + 1, tokens[stops_at])
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


def test_order_company_and_batches_change_no_answer(model: JaxLanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone, in another order, twice over, and in batches of other sizes."""
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


def test_samples_come_from_the_seed_and_the_text_alone(
    params: Params, config: ModelConfig, tokenizer: Tokenizer, special: SpecialTokens
) -> None:
    """Also of a text that is asked for twice: `repeats` of a benchmark wants different samples."""

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


def test_a_text_begins_with_one_begin_token_however_it_is_given(model: JaxLanguageModel, tokenizer: Tokenizer) -> None:
    """As lm-eval asks of a model: also where the text spells the token, or a begin token is not wanted."""
    ids = tokenizer.encode("bace dido").ids
    assert model.tok_encode("bace dido") == model.tok_encode("<|begin_of_text|>bace dido") == [0, *ids]
    assert model.tok_encode("bace dido", add_special_tokens=False) == ids
    assert model.tok_encode("") == [0]
    assert model.prefix_token_id == 0
    model.begins_texts = False
    assert model.tok_encode("bace dido") == ids
    assert model.tok_encode("bace dido", add_special_tokens=True) == [0, *ids]


def test_contexts_lose_their_beginning_and_leave_room_for_what_is_asked(
    model: JaxLanguageModel, log_softmax: LogSoftmax, config: ModelConfig, tokenizer: Tokenizer
) -> None:
    long = "ha ke li " * 40
    [answer] = model.generate_until(instances("generate_until", [(long, {"max_gen_toks": config.seq_len - 1})]))
    tokens = greedy_tokens(log_softmax, config, tokenizer, long, config.seq_len - 1)
    assert answer == tokenizer.decode(tokens[: tokens.index(1)] if 1 in tokens else tokens)
    with pytest.raises(ConfigError, match=r"room for a context in the model's seq_len of 48 tokens, found 256 in"):
        model.generate_until(instances("generate_until", [(long, {"until": ["\n"]})]))


def test_lm_evals_cache_is_refused_for_it_knows_no_model(model: JaxLanguageModel, tmp_path: Path) -> None:
    """Its keys are of the request alone: a second checkpoint would be given the first one's answers."""
    pytest.importorskip("sqlitedict", reason="lm-eval's cache needs sqlitedict")
    with pytest.raises(ConfigError, match="do not name the model"):
        CachingLM(model, str(tmp_path / "cache.db"))


def test_lm_eval_sees_one_process(model: JaxLanguageModel) -> None:
    """With more, it would import PyTorch; devices are shared out inside."""
    assert (model.world_size, model.rank) == (1, 0)


def test_a_request_without_a_continuation_is_refused(model: JaxLanguageModel) -> None:
    with pytest.raises(DataError, match=r"must have a token, found none in request 1 \('ba' → ''\)"):
        model.loglikelihood(instances("loglikelihood", [("ba", " ce"), ("ba", "")]))
