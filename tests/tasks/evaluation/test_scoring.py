from collections.abc import Callable, Sequence

import numpy as np
import pytest

from phasewise.tasks.evaluation.scoring import cut_windows, score, score_windows
from phasewise.trainer.config import ModelConfig
from phasewise.trainer.model.params import Params, init_params

LogSoftmax = Callable[[Sequence[int] | np.ndarray], np.ndarray]


def random_tokens(seed: int, count: int, config: ModelConfig) -> np.ndarray:
    return np.random.default_rng(seed).integers(2, config.vocab_size, count)


@pytest.mark.parametrize("count", [1, 47, 48, 49, 96, 131])
def test_windows_predict_every_token_once_given_the_one_before(count: int, config: ModelConfig) -> None:
    tokens = random_tokens(0, count, config)
    windows = cut_windows(tokens, config.seq_len, 0)
    assert np.concatenate([window.targets for window in windows]).tolist() == tokens.tolist()
    assert np.concatenate([window.inputs for window in windows]).tolist() == [0, *tokens[:-1]]
    assert max(len(window.inputs) for window in windows) <= config.seq_len


def test_windows_that_share_rows_score_as_they_do_alone(params: Params, config: ModelConfig, log_softmax: LogSoftmax) -> None:
    lengths = np.random.default_rng(1).integers(1, 150, 40)
    windows = [
        window for seed, length in enumerate(lengths) for window in cut_windows(random_tokens(seed, length, config), config.seq_len, 0)
    ]
    found = score_windows(params, config, windows)
    assert any(window.inputs[0] != 0 for window in windows)
    for window, scored in zip(windows, found, strict=True):
        table = log_softmax(window.inputs)
        expected = table[np.arange(len(window.targets)), window.targets]
        np.testing.assert_allclose(scored.log_likelihoods, expected, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(scored.greedy, table.argmax(axis=-1) == window.targets)


def test_windows_stay_apart_also_where_training_does_not_keep_documents_apart(params: Params, config: ModelConfig) -> None:
    """Each is a text of its own, whatever the rows of training were."""
    across = config.but(attend_within_documents=False)
    windows = [window for seed in range(5) for window in cut_windows(random_tokens(seed, 20, config), config.seq_len, 0)]
    for on, off in zip(score_windows(params, config, windows), score_windows(params, across, windows), strict=True):
        np.testing.assert_array_equal(on.log_likelihoods, off.log_likelihoods)


def test_another_checkpoint_of_the_same_config_is_not_compiled_again(params: Params, config: ModelConfig) -> None:
    windows = cut_windows(random_tokens(0, 30, config), config.seq_len, 0)
    score_windows(params, config, windows)
    compiled = score._cache_size()  # pyright: ignore[reportAttributeAccessIssue]  # jit's own count of what it compiled
    same = ModelConfig.model_validate(config.model_dump())
    before = score_windows(params, same, windows)[0]
    after = score_windows(init_params(7, config), same, windows)[0]
    assert score._cache_size() == compiled  # pyright: ignore[reportAttributeAccessIssue]  # jit's own count of what it compiled
    assert not np.allclose(before.log_likelihoods, after.log_likelihoods)


def test_nan_weights_give_nan_scores(broken_params: Params, config: ModelConfig) -> None:
    [scored] = score_windows(broken_params, config, cut_windows(random_tokens(0, 5, config), config.seq_len, 0))
    assert np.isnan(scored.log_likelihoods).all()
