"""A tokenizer whose begin token is not id 0, as Llama 3's: everything comes out as with the same tokens numbered from 0."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from lm_eval.api.instance import Instance
from tokenizers import Tokenizer

from phasewise.tasks.data.tokenizer import SpecialTokens, special_tokens
from phasewise.tasks.evaluation.checkpoint import evaluate_model
from phasewise.tasks.evaluation.held_out import HeldOutDocument, read_held_out_tokens
from phasewise.tasks.evaluation.language_model import JaxLanguageModel
from phasewise.trainer.config import ModelConfig
from phasewise.trainer.model.params import Params
from tests.tasks.evaluation.conftest import WriteCache

BOTH = ("word_order", "next_word")
SHIFT = 7
"""Token number i becomes i + 7, round the end."""


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
    """The same model for it: the rows of the embedding and the columns of the head with their tokens."""
    return params | {"embedding": jnp.roll(params["embedding"], SHIFT, axis=0), "head": jnp.roll(params["head"], SHIFT, axis=1)}


def as_floats(evaluation: dict[str, Any]) -> np.ndarray:
    """All that was measured, in order."""
    answers = [score for result in evaluation["results"] for answer in result["answers"] for score in answer["log_likelihoods"]]
    return np.array([*evaluation["bits_per_byte"].values(), evaluation["macro_bits_per_byte"], *answers])


def test_an_evaluation_is_the_same(
    reading_params: Params,
    reading_config: ModelConfig,
    tokenizer: Tokenizer,
    shifted: Tokenizer,
    benchmarks: Path,
    held_out_texts: Mapping[str, Sequence[HeldOutDocument]],
    write_cache: WriteCache,
    tmp_path: Path,
) -> None:
    """Up to the order in which a row of logits is summed. A model that was made by hand, and is right about something."""

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


def test_a_model_that_looks_back_answers_the_same(
    params: Params, config: ModelConfig, tokenizer: Tokenizer, shifted: Tokenizer, special: SpecialTokens
) -> None:
    """Every kind of request, with contexts that fill a row and more."""
    before = JaxLanguageModel(params=params, config=config, tokenizer=tokenizer, special=special)
    after = JaxLanguageModel(params=of_shifted(params), config=config, tokenizer=shifted, special=special_tokens(shifted))
    pairs = [(context, " bace") for context in ("mo", "", "ha ke li " * 40, "pare si\ntovu bace")]

    def ask(model: JaxLanguageModel) -> tuple[list[float], list[float], list[str]]:
        likelihoods = model.loglikelihood([Instance("loglikelihood", {}, pair, 0) for pair in pairs])
        rolling = model.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, (text,), 0) for text, _ in pairs])
        asked = [Instance("generate_until", {}, (text, {"until": ["\n"], "max_gen_toks": 6}), 0) for text, _ in pairs]
        return [value for value, _ in likelihoods], rolling, model.generate_until(asked)

    expected = ask(before)
    found = ask(after)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5)
    assert found[2] == expected[2]
