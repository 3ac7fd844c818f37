from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest

from phasewise.flows.recipes import load_recipe
from phasewise.trainer.config import DataOrder, LearningRateSegment, RunConfig, Steps
from phasewise.trainer.data.loader import Loader
from phasewise.trainer.data.manifest import SourceFile, read_manifest, write_manifest
from phasewise.trainer.data.permutation import Kind, Permutation, derive_key
from phasewise.validations.evidence.order.evidence import ORDER_COLUMNS, SHIFT_COLUMNS, find_shift, order_evidence
from phasewise.validations.expectations.judging import judge_tables, reasons_for
from phasewise.validations.limits import OrderLimits
from tests.trainer.token_caches import write_token_cache
from tests.validations.conftest import order_checks

LIMITS = OrderLimits(false_alarm_rate=1e-6, max_shift_deviations=0.5)
PHASE = load_recipe("marin-8b", "proxy").phases[0]
SEQ_LEN = PHASE.model.seq_len
FILES, ROWS, STEPS = 8, 960, 100


def write_cache(folder: Path, rows: int) -> Path:
    """A cache in two shards whose documents are sorted by file; each file has a language, that is, tokens of its own."""
    rng = np.random.default_rng(1)
    shards: list[list[np.ndarray]] = [[], []]
    names: list[list[str]] = [[], []]
    for file in range(FILES):
        left, half = rows * SEQ_LEN // FILES, 2 * file // FILES
        while left:
            length = min(left, int(rng.integers(4, 3 * SEQ_LEN)))
            shards[half].append(np.concatenate([[0], 2 + file * 40 + rng.integers(0, 40, length - 1)]))
            names[half].append(f"file-{file}.jsonl")
            left -= length
    write_token_cache(folder, shards, source_files=names)
    sources = tuple(SourceFile(name=f"file-{number}.jsonl", size_bytes=1, digest="") for number in range(FILES))
    write_manifest(folder, read_manifest(folder).but(sources=sources))
    return folder


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("sorted")
    return {name: str(write_cache(root / name, rows)) for name, rows in (("code", ROWS), ("few", 8))}


def make_run(caches: dict[str, str], kind: Kind, seed: int) -> RunConfig:
    """The phase draws 300 sequences before a larger batch and another mixture, and 800 after it; `few` is passed many times."""
    return RunConfig(
        recipe="sorted", scale="proxy", phase="bison", start_step=10, stop_step=STEPS, seed=0, model=PHASE.model,
        optimizer=PHASE.optimizer, stability=PHASE.stability, checkpoints=PHASE.checkpoints, start=None, caches=caches, verdict="",
        learning_rate=(LearningRateSegment(kind="constant", start_step=10, end_step=STEPS, start=1e-3, end=1e-3),), output="",
        batch=Steps(((0, 8), (50, 16))), mixture=Steps(((0, {"code": 75.0, "few": 25.0}), (50, {"code": 87.5, "few": 12.5}))),
        order=DataOrder(seed=seed, permutation=kind, block_sequences=8),
    )  # fmt: skip


def unlucky_seed() -> int:
    """The first seed under which the record's rule gives neighbours in the order to neighbours in the cache."""
    for seed in range(100_000):
        permutation = Permutation("linear", length=ROWS, key=derive_key("component", seed, "code", 0))
        if np.diff(permutation(np.arange(2)))[0] in (1, -1):
            return seed
    raise AssertionError("no unlucky seed")


def failing(run: RunConfig, limits: OrderLimits = LIMITS) -> tuple[dict[str, pd.DataFrame], dict[str, str]]:
    order, shifts = order_evidence(run, limits)
    tables = {"order": order, "shifts": shifts}
    results = judge_tables(tables, order_checks(limits, tables))
    assert all(result.outcome != "broken" for result in results)
    return tables, {r.name: " ".join(reason.sentence for reason in reasons_for(r, tables)) for r in results if r.outcome == "failed"}


def check_drawn(run: RunConfig, shifts: pd.DataFrame):
    shift: Any = shifts.set_index(["component", "signal"]).loc[("code", "source file")]
    change = int(shift["change_at_step"])
    assert np.mean(files_drawn(run, 10, change)) == pytest.approx(shift["before"], abs=0.3)
    assert np.mean(files_drawn(run, change, STEPS)) == pytest.approx(shift["after"], abs=0.3)


def test_bison_s_stride_shifts_sorted_data_where_the_batches_do(caches: dict[str, str]):
    run = make_run(caches, "linear", unlucky_seed())
    tables, reasons = failing(run)
    assert set(reasons) == {"expect_order_to_mix", "expect_no_predicted_phase_shift"}
    assert 'the Marin 32B retrospective, "Shuffling: Linear vs. Feistel"' in reasons["expect_order_to_mix"]
    assert "a phase shift is predicted in component code" in reasons["expect_no_predicted_phase_shift"]
    sure = tables["shifts"][tables["shifts"]["sure_deviations"] > 0.5]
    assert sorted(zip(sure["component"], sure["signal"], strict=True)) == [("code", "source file"), ("code", "token mix")]
    check_drawn(run, tables["shifts"])


def test_of_a_document_buffer_it_says_where_each_token_is_drawn(caches: dict[str, str]):
    plain = make_run(caches, "linear", unlucky_seed())
    run = plain.but(order=plain.order.but(buffer_documents=2))
    tables, reasons = failing(run)
    check_drawn(run, tables["shifts"])
    assert reasons != {}
    assert failing(run.but(order=run.order.but(permutation="feistel")))[1] == {}
    mixed = run.but(order=run.order.but(buffer_over="mixture"))
    (of_component, of_mixture), names = (tables["shifts"].iloc[0], failing(mixed)[0]["shifts"].iloc[0]), ["before", "after"]
    assert of_mixture["change_at_step"] == of_component["change_at_step"] > 10
    assert of_mixture[names].to_list() == pytest.approx(of_component[names].to_list(), abs=0.05)
    assert failing(mixed.but(order=mixed.order.but(permutation="feistel")))[1] == {}


def files_drawn(run: RunConfig, start: int, stop: int) -> list[int]:
    """The file of each sequence of the larger component that the loader gives, by the tokens at its middle."""
    loader = Loader(run)
    schedule = loader._schedule  # pyright: ignore[reportPrivateUsage]  # which component a sequence is of
    drawn: list[int] = []
    for step in range(start, stop):
        middle = loader.batch(step).tokens[:, SEQ_LEN // 2 : SEQ_LEN // 2 + 2].max(axis=1)
        drawn += ((middle - 2) // 40)[schedule.draw(schedule.sequences_before(step), schedule.sequences_before(step + 1))[0] == 0].tolist()
    return drawn


@pytest.mark.parametrize("seed", range(5))
def test_the_same_data_in_random_order_passes(caches: dict[str, str], seed: int):
    tables, reasons = failing(make_run(caches, "feistel", seed))
    assert reasons == {}
    assert (list(tables["order"]), list(tables["shifts"])) == (list(ORDER_COLUMNS), list(SHIFT_COLUMNS))
    assert tables["order"].groupby("component").size().to_dict() == {"code": 15, "few": 1}
    assert len(tables["shifts"]) == 6


def test_levanter_s_order_and_a_stride_without_a_limit_of_shifts_are_recognised_but_predict_none(caches: dict[str, str]):
    limits = OrderLimits(false_alarm_rate=1e-6, max_shift_deviations=None)
    tables, reasons = failing(make_run(caches, "linear", unlucky_seed()), limits)
    assert tables["shifts"].empty
    assert set(reasons) == set(failing(make_run(caches, "feistel_levanter", 1))[1]) == {"expect_order_to_mix"}


def test_without_a_whole_row_nothing_is_judged_and_that_fails(tmp_path: Path):
    caches = {name: str(write_token_cache(tmp_path / name, [])) for name in ("code", "few")}
    _, reasons = failing(make_run(caches, "feistel", 0))
    assert "expect_table_row_count_to_be_between" in reasons


@pytest.mark.parametrize("at", [500, 1000, 1800])
def test_a_step_is_found_where_it_is(at: int):
    signal = np.random.default_rng(1).normal(size=2000)
    signal[at:] += 1.5
    shift = find_shift(signal)
    assert shift.p_value < 1e-9
    assert abs(shift.at - at) < 40
    assert shift.after - shift.before == pytest.approx(1.5, abs=0.25)
    assert shift.deviations == pytest.approx((shift.after - shift.before) / signal.std())


@pytest.mark.parametrize("values", [
    np.arange(300.0), np.repeat([0.0, 1.0], [290, 10]), np.random.default_rng(0).pareto(0.5, 300), np.repeat([0.0, 1.0, 5.0], 3),
], ids=["even", "rare", "heavy tail", "few"])  # fmt: skip
def test_chance_is_seldom_taken_for_a_change(values: np.ndarray):
    rng, count = np.random.default_rng(7), 2000
    found = np.array([find_shift(rng.permutation(values)).p_value for _ in range(count)])
    for rate in (0.05, 0.005):
        assert binomtest(int((found <= rate).sum()), count, rate, alternative="greater").pvalue > 1e-6


def test_what_does_not_vary_does_not_change():
    for signal in (np.empty(0), np.ones(1), np.full(50, 3.0)):
        assert (find_shift(signal).p_value, find_shift(signal).deviations) == (1.0, 0.0)
