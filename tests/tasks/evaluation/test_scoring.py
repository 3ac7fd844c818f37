from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.tasks.evaluation.scoring import Rows, Window, cut_windows, lay_out, score, score_windows
from phasewise.trainer.config import ModelConfig
from phasewise.trainer.model.params import Params, init_params
from tests.tasks.evaluation.conftest import LogSoftmax


def random_tokens(seed: int, count: int, config: ModelConfig) -> np.ndarray:
    return np.random.default_rng(seed).integers(2, config.vocab_size, count)


@pytest.mark.parametrize("count", [1, 47, 48, 49, 96, 131])
def test_windows_predict_every_token_once_given_the_one_before(count: int, config: ModelConfig):
    tokens = random_tokens(0, count, config)
    windows = cut_windows(tokens, config.seq_len, 0)
    assert np.concatenate([window.targets for window in windows]).tolist() == tokens.tolist()
    assert np.concatenate([window.inputs for window in windows]).tolist() == [0, *tokens[:-1]]
    assert max(len(window.inputs) for window in windows) <= config.seq_len


def test_windows_that_share_rows_score_as_they_do_alone(params: Params, config: ModelConfig, log_softmax: LogSoftmax):
    lengths = np.random.default_rng(1).integers(1, 150, 40)
    texts = [random_tokens(seed, length, config) for seed, length in enumerate(lengths)]
    windows = [window for text in texts for window in cut_windows(text, config.seq_len, 0)]
    found = score_windows(params, config, windows)
    assert any(window.inputs[0] != 0 for window in windows)
    for window, scored in zip(windows, found, strict=True):
        table = log_softmax(window.inputs)
        expected = table[np.arange(len(window.targets)), window.targets]
        np.testing.assert_allclose(scored.log_likelihoods, expected, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(scored.greedy, table.argmax(axis=-1) == window.targets)


def test_windows_stay_apart_also_where_training_does_not_keep_documents_apart(params: Params, config: ModelConfig):
    across = config.but(attend_within_documents=False)
    windows = [window for seed in range(5) for window in cut_windows(random_tokens(seed, 20, config), config.seq_len, 0)]
    for on, off in zip(score_windows(params, config, windows), score_windows(params, across, windows), strict=True):
        np.testing.assert_array_equal(on.log_likelihoods, off.log_likelihoods)


def test_another_checkpoint_of_the_same_config_is_not_compiled_again(params: Params, config: ModelConfig):
    windows = cut_windows(random_tokens(0, 30, config), config.seq_len, 0)
    score_windows(params, config, windows)
    compiled = score._cache_size()  # pyright: ignore[reportAttributeAccessIssue]  # jit's own count of what it compiled
    same = ModelConfig.model_validate(config.model_dump())
    before = score_windows(params, same, windows)[0]
    after = score_windows(init_params(7, config), same, windows)[0]
    assert score._cache_size() == compiled  # pyright: ignore[reportAttributeAccessIssue]  # jit's own count of what it compiled
    assert not np.allclose(before.log_likelihoods, after.log_likelihoods)


def test_nan_weights_give_nan_scores(broken_params: Params, config: ModelConfig):
    [scored] = score_windows(broken_params, config, cut_windows(random_tokens(0, 5, config), config.seq_len, 0))
    assert np.isnan(scored.log_likelihoods).all()


TEXTS = st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=40), st.integers(1, 40)), min_size=1, max_size=12)
"""Few different tokens: many texts have a beginning in common."""


def windows_of(drawn: Sequence[tuple[list[int], int]]) -> list[Window]:
    return [Window(np.array(text, np.int32), np.arange(min(count, len(text)), dtype=np.int32)) for text, count in drawn]


def text_at(rows: Rows, row: int, slot: int) -> list[int]:
    """The text that a slot sees, by the rule of `Branches`: what comes before and has not ended."""
    found = rows.arrays(slice(0, len(rows.rows)), len(rows.rows))
    seen = [before for before in range(slot + 1) if slot < found.ends[row, before]]
    assert found.positions[row, seen].tolist() == list(range(len(seen)))
    return found.tokens[row, seen].tolist()


@settings(max_examples=80, deadline=None)
@given(TEXTS)
def test_every_target_follows_exactly_its_own_text(drawn: list[tuple[list[int], int]]):
    windows = windows_of(drawn)
    rows = Rows(64)
    for number in sorted(range(len(windows)), key=lambda number: windows[number].inputs.tolist()):
        rows.put(number, windows[number])
    assert rows.places.keys() == set(range(len(windows)))
    found = rows.arrays(slice(0, len(rows.rows)), len(rows.rows))
    for number, (row, first) in rows.places.items():
        inputs, targets = windows[number]
        assert found.targets[row, first : first + len(targets)].tolist() == targets.tolist()
        for place in range(len(targets)):
            until = len(inputs) - len(targets) + place + 1
            assert text_at(rows, row, found.slots[row, first + place]) == inputs[:until].tolist()


@settings(max_examples=30, deadline=None)
@given(TEXTS, st.integers(0, 99))
def test_the_order_of_windows_changes_no_row(drawn: list[tuple[list[int], int]], seed: int):
    windows = windows_of(drawn)
    shuffled = Random(seed).sample(range(len(windows)), len(windows))
    before, after = (lay_out(some, 512) for some in (windows, [windows[number] for number in shuffled]))
    for one, other in zip(before, after, strict=True):
        stacked = [rows.arrays(slice(0, len(rows.rows)), len(rows.rows)) for rows in (one, other)]
        for left, right in zip(*stacked, strict=True):
            np.testing.assert_array_equal(left, right)


def test_what_is_shared_is_computed_once():
    """Two items behind the same examples, each with four choices: three tokens of examples, two of an item, one or two of a choice."""
    texts = [[1, 1, 1, item, item, *choice] for item in (2, 3) for choice in ([4, 4], [5], [6], [])]
    [rows] = lay_out(windows_of([(text, 1) for text in texts]), 512)
    assert sum(row.filled for row in rows.rows) == 3 + 2 * (2 + 4)


def test_rows_have_few_lengths():
    for seq_len, lengths in {48: [512], 512: [512], 2048: [512, 2048], 4096: [256, 1024, 4096], 32_768: [2048, 8192, 32_768]}.items():
        inputs = [*(length // 3 for length in lengths if length // 3 <= seq_len), seq_len]
        windows = [Window(np.zeros(size, np.int32), np.zeros(1, np.int32)) for size in inputs]
        assert [rows.length for rows in lay_out(windows, seq_len)] == lengths
