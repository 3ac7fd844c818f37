"""Corpus fit against lm-eval's rolling log-likelihood, against a slow sum, and over all subsets."""

import math
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np
import pytest
from lm_eval.api.instance import Instance
from tokenizers import Tokenizer, models, pre_tokenizers

from phasewise.tasks.data.tokenizer import SpecialTokens
from phasewise.tasks.evaluation import corpus_fit
from phasewise.tasks.evaluation.corpus_fit import Corpus, Document, TokenizedText, measure_fit, rolling_windows, tokenize
from phasewise.tasks.evaluation.held_out import HeldOutDocument, HeldOutTokens
from phasewise.tasks.evaluation.language_model import JaxLanguageModel
from phasewise.tasks.evaluation.scoring import bits_per_byte
from phasewise.trainer.base.errors import DataError, EvaluationError
from phasewise.trainer.config import ModelConfig
from phasewise.trainer.model.params import Params
from tests.shared_data import shared_folder

LogSoftmax = Callable[[Sequence[int] | np.ndarray], np.ndarray]

TOLERANCE_NATS_PER_TOKEN = 1e-5
"""Two computations in float32 whose rows are laid out otherwise."""


@pytest.fixture(scope="module")
def documents(held_out_texts: Mapping[str, Sequence[HeldOutDocument]]) -> list[Document]:
    """Longer and shorter than a window, of 48 tokens; bytes that are no letters; one of a single token."""
    texts = [Document(name, each.id[:6], each.text) for name, of_name in held_out_texts.items() for each in of_name[:3]]
    return [*texts, Document("law", "short", "ba ce"), Document("law", "foreign", "é — 漢字 🙂\n\n\tba"), Document("one", "token", "b")]


def test_it_is_lm_eval_s_rolling_log_likelihood(
    documents: list[Document], params: Params, config: ModelConfig, tokenizer: Tokenizer, special: SpecialTokens
) -> None:
    model = JaxLanguageModel(params=params, config=config, tokenizer=tokenizer, special=special)
    requests = [Instance("loglikelihood_rolling", {}, (document.text,), number) for number, document in enumerate(documents)]
    theirs = model.loglikelihood_rolling(requests)
    for document, expected in zip(documents, theirs, strict=True):
        found = measure_fit({"last": params}, config, special.begin, tokenize([document], tokenizer))
        fit = found.subsets[document.subset]
        nats = fit["fit"]["last"]["bits_per_byte"] * fit["text_bytes"] * math.log(2)
        assert nats == pytest.approx(-expected, abs=TOLERANCE_NATS_PER_TOKEN * fit["tokens"])
        assert fit["text_bytes"] == len(document.text.encode())


def test_windows_predict_each_token_once_from_as_much_as_a_window_holds(
    documents: list[Document], config: ModelConfig, tokenizer: Tokenizer
) -> None:
    for text in tokenize(documents, tokenizer):
        windows = rolling_windows(text.tokens, config.seq_len, 0)
        assert np.concatenate([window.targets for window in windows]).tolist() == text.tokens.tolist()
        assert all(len(window.inputs) == min(config.seq_len, len(text.tokens)) for window in windows)
        assert windows[0].inputs[0] == 0


def test_disjoint_windows_of_the_gate_are_the_same_but_for_the_last(
    params: Params, config: ModelConfig, held_out_tokens: Mapping[str, HeldOutTokens], special: SpecialTokens
) -> None:
    """Of texts that end with a full window, or have one, both say the same; else the rolling ones see more, and their value is another."""

    def both(length: int) -> tuple[float, float]:
        held = {name: HeldOutTokens([one.documents[-1][:length]], 100, special) for name, one in held_out_tokens.items()}
        texts = [TokenizedText(name, name, one.documents[0], 100) for name, one in held.items()]
        rolling = measure_fit({"last": params}, config, special.begin, texts).macro["last"]["bits_per_byte"]
        return rolling, bits_per_byte(params, config, held).macro

    for length in (config.seq_len - 5, config.seq_len, 2 * config.seq_len):
        rolling, disjoint = both(length)
        assert rolling == pytest.approx(disjoint, rel=1e-5)
    rolling, disjoint = both(2 * config.seq_len - 20)
    assert rolling != pytest.approx(disjoint, rel=1e-4)


def test_the_sum_over_tokens_in_float64(log_softmax: LogSoftmax, params: Params, config: ModelConfig, tokenizer: Tokenizer) -> None:
    document = Document("a", "a", "tovu bace dido\n")
    [text] = tokenize([document], tokenizer)
    table = log_softmax([0, *text.tokens[:-1]])
    nats = -table[np.arange(len(text.tokens)), text.tokens].sum()
    fit = measure_fit({"last": params}, config, 0, [text]).subsets["a"]["fit"]["last"]
    assert fit["bits_per_byte"] == pytest.approx(nats / math.log(2) / 15, rel=1e-5)
    assert fit["perplexity_per_byte"] == pytest.approx(math.exp(nats / 15), rel=1e-5)
    assert fit["perplexity_per_token"] == pytest.approx(math.exp(nats / len(text.tokens)), rel=1e-5)


def test_macro_counts_subsets_alike_and_micro_bytes(
    documents: list[Document], params: Params, config: ModelConfig, tokenizer: Tokenizer
) -> None:
    average = jax.tree.map(lambda weight: 0.5 * weight, params)
    found = measure_fit({"last": params, "ema": average}, config, 0, tokenize(documents, tokenizer))
    for name in ("last", "ema"):
        bits = {subset: fit["fit"][name]["bits_per_byte"] for subset, fit in found.subsets.items()}
        sizes = {subset: fit["text_bytes"] for subset, fit in found.subsets.items()}
        assert found.macro[name]["bits_per_byte"] == pytest.approx(sum(bits.values()) / 4)
        assert found.macro[name]["perplexity_per_byte"] == pytest.approx(2 ** (sum(bits.values()) / 4))
        micro = sum(bits[subset] * size for subset, size in sizes.items()) / sum(sizes.values())
        assert found.micro[name]["bits_per_byte"] == pytest.approx(micro)
        assert found.micro[name] != found.macro[name]
        tokens = sum(fit["tokens"] for fit in found.subsets.values())
        nats = micro * sum(sizes.values()) * math.log(2)
        assert found.micro[name]["perplexity_per_token"] == pytest.approx(math.exp(nats / tokens))
    assert found.macro["last"] != found.macro["ema"]


def test_how_much_is_held_at_once_changes_nothing(
    documents: list[Document], params: Params, config: ModelConfig, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = measure_fit({"last": params}, config, 0, tokenize(documents, tokenizer))
    monkeypatch.setattr(corpus_fit, "BATCH_TOKENS", 1)
    one_by_one = measure_fit({"last": params}, config, 0, tokenize(documents, tokenizer))
    assert one_by_one.subsets.keys() == whole.subsets.keys()
    assert one_by_one.micro["last"]["bits_per_byte"] == pytest.approx(whole.micro["last"]["bits_per_byte"], rel=1e-5)


def test_weights_that_diverged_are_an_error_that_names_the_text(
    documents: list[Document], params: Params, broken_params: Params, config: ModelConfig, tokenizer: Tokenizer
) -> None:
    with pytest.raises(EvaluationError, match=rf"found nan for {documents[0].where} \(weights ema\)"):
        measure_fit({"last": params, "ema": broken_params}, config, 0, tokenize(documents, tokenizer))


def test_a_tokenizer_that_loses_text_is_refused() -> None:
    tokenizer = Tokenizer(models.WordLevel({"known": 0, "?": 1}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]  # a setter without a stub
    with pytest.raises(DataError, match=r"must spell it again, found others for a\.txt"):
        list(tokenize([Document("a", "a.txt", "known unknown")], tokenizer))


def test_no_text_is_refused(params: Params, config: ModelConfig) -> None:
    with pytest.raises(DataError, match="at least one text"):
        measure_fit({"last": params}, config, 0, [])


def test_real_text_is_read_whole(tokenizer: Tokenizer) -> None:
    path = shared_folder("corpora") / "SOURCES.md"
    corpus = Corpus(path)
    [text] = tokenize(corpus.documents(), tokenizer)
    assert corpus.subsets[path.name].text_bytes == text.text_bytes == path.stat().st_size
    assert 0 < len(text.tokens) < text.text_bytes
