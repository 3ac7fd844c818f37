"""The pulse of a needle, tiny: its documents, its runs, and what it measures."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from experiments.incidents import needle_runs
from experiments.incidents.needle import ARMS, FAR, Found, answers, table
from experiments.incidents.needle_runs import (
    BATCH_TOKENS,
    FASTER,
    LONG,
    MARIN,
    NEEDLES,
    OPENING,
    PATTERNS,
    PEAK_RATE,
    SHORT,
    TOLD,
    TRINITY,
    Lengths,
    Pattern,
    documents,
    haystack,
    next_run,
    runs_before,
    tokenizer,
    train,
)
from phasewise.tasks.evaluation.needles import MAX_NEW_TOKENS, build_items
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.storage import write_json
from phasewise.trainer.config import Rope, RunConfig
from phasewise.trainer.data.loader import Loader
from phasewise.trainer.interventions import scheduled_at
from phasewise.trainer.model.decoder import frequencies

TINY = Lengths(first=6, extension=2)


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("length", [OPENING, SHORT, LONG])
def test_a_document_is_a_row_and_tells_each_key_before_it_asks(length: int, far: bool):
    first_key = 2 + needle_runs.WORDS
    often = set[int]()
    for document, spans in documents(length, 60, far):
        assert len(document) == length
        keys = np.flatnonzero((document >= first_key) & (document < first_key + needle_runs.KEYS))
        asked = [place - 1 for place, _ in spans]
        told = {int(document[place]): int(document[place + 1]) for place in keys if place not in asked}
        assert (len(told) <= len(asked) <= length // 4) if far else len(asked) == length // 4
        assert all(place < min(asked) for place in keys if place not in asked)
        assert all(told[int(document[place])] == document[place + 1] for place in asked)
        assert len(keys) == len(told) + len(asked)
        often.add(len(told))
    assert often == set(range(1, min(TOLD, length // 8) + 1))


def furthest(length: int, far: bool) -> int:
    """From an answer to where its key was before, the most tokens."""
    most = 0
    for document, spans in documents(length, 200, far):
        for place, _ in spans:
            before = np.flatnonzero(document[: place - 1] == document[place - 1])
            most = max(most, place - 1 - int(before[-1]))
    return most


@pytest.mark.parametrize("length", [OPENING, SHORT, LONG])
def test_answers_are_as_far_as_the_benchmark_asks_only_where_documents_are_far(length: int):
    assert furthest(length, far=False) <= length // 2 + 2 * TOLD
    assert furthest(length, far=True) >= 0.85 * length


def test_the_loss_is_on_the_answers_alone(tmp_path: Path):
    first = next(runs_before(tmp_path, 0, TRINITY, TINY))
    batch = Loader(first).batch(0)
    assert batch.targets is not None
    values = batch.tokens >= 2 + needle_runs.WORDS + needle_runs.KEYS
    assert set(batch.targets.sum(axis=1)) == {SHORT // 4}
    assert values[batch.targets].all()


def test_only_the_model_of_far_documents_has_rows_with_few_answers_and_not_where_it_opens(tmp_path: Path):
    for pattern in PATTERNS:
        for run in without_training(runs_before(tmp_path, 0, pattern, TINY)):
            length = run.model.seq_len
            targets = Loader(run).batch(run.start_step).targets
            assert targets is not None
            assert (targets.sum(axis=1).min() < length // 4) == (pattern is FASTER and length == SHORT)


def without_training(runs: Iterator[RunConfig]) -> Iterator[RunConfig]:
    """The runs, each with a made-up result, from which the next one starts."""
    for run in runs:
        write_json(RunFolder.at(run.output).result, {"params_digest": "0", "run_digest": run.digest})
        yield run


def test_a_kept_result_of_other_settings_is_refused(tmp_path: Path):
    kept, *_ = without_training(runs_before(tmp_path, 0, FASTER, TINY))
    assert train(kept) is kept
    with pytest.raises(ConfigError, match="found one of others"):
        train(kept.but(model=kept.model.but(rope=Rope(theta=FASTER.theta + 1, scaling=None))))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_each_change_of_rows_has_as_many_tokens_a_step_and_an_order_of_its_own(tmp_path: Path, pattern: Pattern):
    """Nothing is trained here, which takes a minute: the parents' results are made up."""
    runs = list(without_training(runs_before(tmp_path, 0, pattern, TINY)))
    assert [run.model.seq_len for run in runs] == ([SHORT] if pattern is TRINITY else [OPENING, SHORT])
    runs.append(next_run(tmp_path, runs[-1], pattern, LONG, TINY))
    assert [run.start_step for run in runs] == [0, *(run.stop_step for run in runs[:-1])]
    assert [run.order.first_step for run in runs] == [run.start_step for run in runs]
    assert {run.batch.at(run.stop_step - 1) * run.model.seq_len for run in runs} == {BATCH_TOKENS}
    assert Loader(runs[-1]).batch(runs[-1].start_step).tokens.shape == (BATCH_TOKENS // LONG, LONG)
    assert all(run.model.but(seq_len=LONG) == pattern.model(LONG) for run in runs)
    others = [
        next_run(tmp_path, runs[-2], pattern, length, TINY._replace(extension=extension)) for length, extension in ((LONG, 3), (SHORT, 2))
    ]
    assert len({run.output for run in [*runs, *others]}) == len(runs) + 2


def test_one_model_has_positions_in_both_layers_and_one_in_its_local_layer():
    assert (TRINITY.model(SHORT).sliding_window, TRINITY.model(SHORT).global_attention_every) == (TRINITY.window, 2)
    assert (MARIN.model(SHORT).sliding_window, MARIN.model(SHORT).global_attention_every) == (None, None)
    assert FASTER.model(SHORT) == MARIN.model(SHORT).but(rope=Rope(theta=FASTER.theta, scaling=None))


def test_one_theta_has_planes_that_turn_by_half_in_the_longer_rows_alone():
    """What such a plane has at 512 tokens is the opposite of what it had at a few, and no row of 128 shows that."""
    half_turns = {pattern.name: np.pi / frequencies(pattern.model(SHORT).rope, 32) for pattern in (MARIN, FASTER)}
    new = {name: int(((tokens > SHORT) & (tokens < LONG)).sum()) for name, tokens in half_turns.items()}
    slow = {name: int((tokens >= LONG).sum()) for name, tokens in half_turns.items()}
    assert new[FASTER.name] > new[MARIN.name]
    assert 0 < slow[FASTER.name] < slow[MARIN.name]


def test_the_rate_of_the_extension_is_held_and_falls_to_nothing(tmp_path: Path):
    *_, first = without_training(runs_before(tmp_path, 0, FASTER, TINY))
    run = next_run(tmp_path, first, FASTER, LONG, TINY._replace(extension=4, held=0.5))
    assert [scheduled_at(run, step).learning_rate for step in range(6, 10)] == [PEAK_RATE, PEAK_RATE, PEAK_RATE, PEAK_RATE / 2]


def test_the_benchmark_s_items_fit_and_are_read_word_by_word():
    names = tokenizer()
    for length in (SHORT, LONG):
        items = build_items(NEEDLES.but(length=length, items_per_depth=1), haystack(), lambda text: 1 + len(names.encode(text).ids))
        assert {item.tokens for item in items} == {length - MAX_NEW_TOKENS}
        assert all(f"{item.prompt.split()[-1]} {item.answer}" in item.prompt for item in items)


def found_of(seed: int, *chosen: float) -> list[Found]:
    """What each arm finds at both lengths."""
    places = [(arm, length) for arm in ARMS for length in (SHORT, LONG)]
    near = [Found(arm, seed, length, of, 0.25, 0.4, 80) for (arm, length), of in zip(places, chosen, strict=True)]
    return near + [Found(arm, seed, FAR, None, 0.1, None, 80) for arm in ARMS]


def test_the_table_has_a_line_a_model_with_the_interval_of_its_seeds():
    found = found_of(0, 1, 0.5, 1, 0.5, 1, 1) + found_of(1, 1, 0.6, 1, 0.7, 1, 1)
    assert table(found).splitlines()[3] == (
        f"| {ARMS[1]} | 1.00 ± 0.00 (1.00 to 1.00) | 0.25 ± 0.00 (0.25 to 0.25) | 0.60 ± 1.27 (0.50 to 0.70) | 0.25 ± 0.00 (0.25 to 0.25) "
        "| 0.10 ± 0.00 (0.10 to 0.10) | 0.40 and 0.40 |"
    )
    assert "nan" not in table(found_of(0, 1, 1, 1, 1, 1, 1))


def test_the_table_has_no_column_of_what_was_not_asked():
    near = [one for one in found_of(0, 1, 0.5, 1, 0.5, 1, 1) if one.length != FAR]
    heading, rule, *_ = table(near).splitlines()
    assert f"{FAR:,}" not in heading
    assert heading.count("|") == rule.count("|") == 7


def test_what_was_asked_for_is_counted_by_seeds():
    found = found_of(0, 0.96, 0.2, 1, 0.72, 1, 0.94) + found_of(1, 0.94, 0.2, 1, 0.68, 1, 0.96) + found_of(2, 1, 0.5, 1, 0.75, 1, 1)
    *counts, gains = answers(found)
    assert [line.partition(":")[0] for line in counts] == ["2 of 3 seeds", "2 of 3 seeds", "2 of 3 seeds"]
    assert "0.25 ± 0.07 (0.22 to 0.28)" in gains
