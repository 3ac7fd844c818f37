"""Marin 32B, typed from the record's tables: phases, rates, batches, tokens, mixtures, optimizers, and the timeline of mitigations."""

import math
from typing import Any

import pytest

from phasewise.flows.recipes import load_record
from phasewise.flows.recipes.phase import Phase
from phasewise.flows.show.describe import describe
from tests.flows.recipes.test_record_8b import (
    BLOCK,
    MIXTURES,
    Described,
    assert_rates,
    delivered,
    off_the_print,
    printed,
    rate_at,
    throughout,
)


@pytest.fixture(scope="module")
def phases() -> dict[str, Described]:
    return {phase["name"]: phase for phase in describe("marin-32b", "full", None)["phases"]}


# parent, start, stop, tokens and tokens of the lineage in 10^12
MAIN_LINE: dict[str, tuple[str | None, int, int, str, str]] = {
    "phase-1": (None, 0, 80_000, "2.679", "2.679"),
    "qk-norm": ("phase-1", 80_000, 160_000, "2.684", "5.363"),
    "bison": ("qk-norm", 160_000, 192_000, "1.074", "6.437"),
    "mantis": ("qk-norm", 160_000, 192_000, "1.074", "6.437"),
}

EVERY = tuple(MIXTURES["marin-32b"])
CLIP = {"window": 128, "min_samples": 64, "sigmas": 2.0}
ADAM = {"beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.05}


def nadamw_rate(step: int) -> float:
    return 7e-5 + 0.5 * 6.3e-4 * (1 + math.cos(math.pi * (step - 10_000) / 990_000))


# 1 % of the nominal 1,000,000 steps is the warm-up; their last 40 % are never reached.
RATES: dict[str, list[tuple[int, float]]] = {
    "phase-1": [(0, 0.0), (1, 7e-8), (5_000, 3.5e-4), (9_999, 7e-4 - 7e-8), (10_000, 7e-4), (56_400, 7e-4), (79_999, 7e-4)],
    "necromancy": [(80_000, 7e-4), (80_500, 7e-4)],
    "muon": [(77_096, 2e-3), (79_000, 2e-3)],
    "nadamw": [(77_096, nadamw_rate(77_096)), (79_000, nadamw_rate(79_000))],
    "qk-norm": [(80_000, 7e-5), (80_250, 2.275e-4), (80_500, 3.85e-4), (81_000, 7e-4), (120_000, 7e-4), (159_999, 7e-4)],
    "bison": [(160_000, 7e-4), (168_000, 5.425e-4), (176_000, 3.85e-4), (190_000, 1.09375e-4), (191_999, 7e-5 + 6.3e-4 / 32_000)],
    "mantis": [(160_000, 7e-4), (174_000, 4.24375e-4), (176_000, 3.85e-4), (191_999, 7e-5 + 6.3e-4 / 32_000)],
    "bison-flat": [(190_000, 1.09375e-4), (191_000, 1.09375e-4)],
}


@pytest.mark.parametrize("name", MAIN_LINE)
def test_steps_and_tokens(phases: dict[str, Described], name: str):
    phase, (parent, start, stop, tokens, lineage_tokens) = phases[name], MAIN_LINE[name]
    assert (phase["start"]["parent"], phase["start"]["step"]) == (parent, start)
    assert (phase["start_step"], phase["stop_step"]) == (start, stop)
    assert phase["tokens"] == printed(tokens, 1e12)
    assert phase["lineage_tokens"] == printed(lineage_tokens, 1e12)


@pytest.mark.parametrize("name", EVERY)
def test_batches(phases: dict[str, Described], name: str):
    start = phases[name]["start_step"]
    of_phase_1 = [[0, 8192], [18_500, 7680], [21_010, 8192]]
    assert phases[name]["batch"] == (of_phase_1 if name == "phase-1" else [[start, 8192]])


@pytest.mark.parametrize("name", RATES)
def test_learning_rates_by_hand(phases: dict[str, Described], name: str):
    assert_rates(f"marin-32b/{name}", [(step, rate) for step, rate in RATES[name] if step < phases[name]["stop_step"]])


def test_optimizers(phases: dict[str, Described]):
    kinds: dict[str, dict[str, Any]] = {name: phases[name]["optimizer"] for name in phases}
    for name in ("phase-1", "necromancy", "qk-norm"):
        assert kinds[name] == {"kind": "adamw", **ADAM}
    for name in ("bison", "mantis", "bison-flat"):
        assert kinds[name] == {"kind": "adamc", **ADAM, "peak_learning_rate": 7e-4}
    nadamw = kinds["nadamw"]
    assert (nadamw["kind"], nadamw["beta1"], nadamw["weight_decay"]) == ("nadamw", 0.95, 0.05)
    muon = kinds["muon"]
    expected = {
        "kind": "muon",
        "momentum": 0.98,
        "weight_decay": 0.1,
        "nesterov": True,
        "newton_schulz_steps": 5,
        "max_adam_grad_norm": 1.0,
    }
    assert {name: muon[name] for name in expected} == expected
    assert (muon["adam"]["weight_decay"], muon["max_adam_grad_norm"], throughout(phases["muon"], "max_grad_norm")) == (0.1, 1.0, None)
    assert muon["adam_learning_rate_scale"] * rate_at("marin-32b/muon", 77_096) == pytest.approx(7e-4)


def test_the_timeline_of_mitigations(phases: dict[str, Described]):
    stability = phases["phase-1"]["stability"]
    assert stability["max_grad_norm"] == [[0, 1.0], [56_400, 0.2]]
    assert stability["max_update_rms"] == [[0, None], [67_522, 1.0], [72_233, None]]
    assert stability["max_update_norm"] == [[0, None], [72_233, CLIP], [74_000, None]]


@pytest.mark.parametrize("name", EVERY)
def test_the_model(phases: dict[str, Described], name: str):
    phase, model = phases[name], phases[name]["model"]
    assert phase["parameters"] == printed("32.52", 1e9)
    dims = ("d_model", "d_ff", "num_query_heads", "num_kv_heads", "num_layers", "head_dim", "seq_len", "vocab_size")
    assert tuple(model[dim] for dim in dims) == (5120, 27_648, 40, 8, 64, 128, 4096, 128_256)
    assert model["rope"]["theta"] == 500_000
    with_qk_norm = name in ("qk-norm", "bison", "mantis", "bison-flat")
    assert model["qk_norm"] is with_qk_norm
    assert phase["parameters"] - phases["phase-1"]["parameters"] == (64 * 2 * 128 if with_qk_norm else 0)


def test_what_a_block_delivered_of_bison_and_mantis(phases: dict[str, Described]):
    (_, bison), (_, mantis), (_, later) = phases["bison"]["mixture"][0], *phases["mantis"]["mixture"]
    assert (bison["dolmino_wiki"], delivered(bison)["dolmino_wiki"]) == (printed("0.465"), printed("0.439"))
    assert delivered(bison)["wikipedia_markdown"] == printed("0.439")
    found = delivered(mantis)
    expected = {"medu_science_qa": "0.049", "dolmino_wiki": "0.244", "wikipedia_markdown": "0.244"}
    assert not off_the_print({name: found[name] for name in expected}, expected)
    assert found["medu_science_qa"] * BLOCK / 100 == 1
    lost = [round(100 * (1 - delivered(later)[name] / later[name])) for name in ("megamath_qa", "megamath_translated_code")]
    assert lost == [6, 8]


# ── the branches of this project that ask what Bison's order does to sorted data ──

FULL = load_record("marin-32b", "full")


def settings(phase: Phase, *without: str) -> dict[str, object]:
    dumped = phase.model_dump(mode="json", exclude={"name", "branch", "notes", "discrepancies", "start", *without})
    return {name: value for name, value in dumped.items() if value is not None}


def test_all_but_mixture_and_beginning_of_the_order_is_bison_s():
    bison, linear, feistel = (FULL.phase(name) for name in ("bison", "bison-clean", "bison-clean-feistel"))
    assert settings(linear, "order") == settings(feistel, "order")
    assert feistel.order == linear.order.but(permutation="feistel")
    assert settings(linear, "mixture", "order") == settings(bison, "mixture", "order")
    assert linear.order == bison.order.but(first_step=160_000)
    start, was = linear.start.model_dump(), bison.start.model_dump()
    assert linear.start == feistel.start
    assert (start["parent"], start["step"]) == (was["parent"], was["step"])
    assert set(start["declares"]) - set(was["declares"]) == {"order", "coverage"}


def test_the_leaked_bundle_is_gone_and_the_rest_keeps_its_ratios():
    was, now = (FULL.phase(name).mixture.at(160_000) for name in ("bison", "bison-clean"))
    assert set(now) == (set(was) - {"all_math_9d507c"}) | {"megamath_web_by_folder"}
    assert now["megamath_web_by_folder"] == pytest.approx(30)
    ratios = {now[name] / was[name] for name in set(was) - {"all_math_9d507c"}}
    assert max(ratios) == pytest.approx(min(ratios))
