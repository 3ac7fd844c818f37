"""Marin 32B, typed from the record's tables: phases, rates, batches, tokens, mixtures, optimizers, and the timeline of mitigations."""

import json
import math
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from phasewise.flows.cli.show import describe
from tests.flows.recipes.test_record_8b import (
    BLOCK,
    Described,
    assert_rates,
    delivered,
    nemotron,
    off_the_print,
    printed,
    rate_at,
    segments_of,
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
BRANCHES: dict[str, tuple[str, int]] = {
    "necromancy": ("phase-1", 80_000),
    "muon": ("phase-1", 77_096),
    "nadamw": ("phase-1", 77_096),
    "bison-flat": ("bison", 190_000),
}
OWN = {"bison-clean", "bison-clean-feistel"}
"""Branches of this project, which `test_bison_clean.py` is about."""
EVERY = (*MAIN_LINE, *BRANCHES)
AFTER_PHASE_1 = [name for name in EVERY if name != "phase-1"]

COMMON_HIGH_QUALITY = ("arxiv_markdownified", "dolmino_pes2o", "finemath_3_plus", "flan", "dolmino_stackexchange", "stackexchange_custom")
PRETRAINING = {
    **nemotron("30.69", "24.70", "13.98", "8.30", "7.49", "6.37", "5.70"), "starcoderdata": "2.27", "proofpile_2": "0.50",
}  # fmt: skip
SEVENTY = {**nemotron("21.49", "17.29", "9.79", "5.81", "5.24", "4.46", "3.99"), "starcoderdata": "1.59", "proofpile_2": "0.35"}
BISON = {
    **SEVENTY,
    **dict(zip(COMMON_HIGH_QUALITY, ("7.41", "7.41", "4.33", "4.33", "2.18", "2.18"), strict=True)),
    "all_math_9d507c": "1.08", "dolmino_wiki": "0.47", "wikipedia_markdown": "0.47", "medu_science_qa": "0.15",
}  # fmt: skip
MANTIS = {
    **SEVENTY,
    **dict(zip(COMMON_HIGH_QUALITY, ("4.54", "4.54", "2.66", "2.66", "1.34", "1.34"), strict=True)),
    "megamath_web": "5.57", "megamath_text_code_block": "4.24", "megamath_web_pro": "1.27", "megamath_translated_code": "0.61",
    "megamath_qa": "0.59", "dolmino_wiki": "0.285", "wikipedia_markdown": "0.285", "medu_science_qa": "0.094",
}  # fmt: skip
MANTIS_WITH_PYTHON = {
    **SEVENTY,
    **dict(zip(COMMON_HIGH_QUALITY, ("4.37", "4.37", "2.56", "2.56", "1.29", "1.29"), strict=True)),
    "stackv2_edu_python": "1.10", "megamath_web": "5.36", "megamath_text_code_block": "4.09", "megamath_web_pro": "1.23",
    "megamath_translated_code": "0.585", "megamath_qa": "0.569", "dolmino_wiki": "0.275", "wikipedia_markdown": "0.275",
    "medu_science_qa": "0.090",
}  # fmt: skip
MIXTURES: dict[str, list[tuple[int, dict[str, str]]]] = {
    "phase-1": [(0, PRETRAINING)],
    "qk-norm": [(80_000, PRETRAINING)],
    "necromancy": [(80_000, PRETRAINING)],
    "muon": [(77_096, PRETRAINING)],
    "nadamw": [(77_096, PRETRAINING)],
    "bison": [(160_000, BISON)],
    "bison-flat": [(190_000, BISON)],
    "mantis": [(160_000, MANTIS), (174_000, MANTIS_WITH_PYTHON)],
}
CLIP = {"window": 128, "min_samples": 64, "sigmas": 2.0}
ADAM = {"beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.05}


def nadamw_rate(step: int) -> float:
    """A cosine from 7e-4 after 10,000 steps of warm-up to a tenth of it at 1,000,000."""
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


def test_the_main_line_and_what_branches_off(phases: dict[str, Described]):
    assert [name for name, phase in phases.items() if not phase["branch"]] == list(MAIN_LINE)
    assert {name for name, phase in phases.items() if phase["branch"]} == set(BRANCHES) | OWN
    abandoned = {name for name, phase in phases.items() if phase["abandoned"]}
    assert {"necromancy", "muon"} <= abandoned <= set(BRANCHES)


@pytest.mark.parametrize("name", MAIN_LINE)
def test_steps_and_tokens(phases: dict[str, Described], name: str):
    phase, (parent, start, stop, tokens, lineage_tokens) = phases[name], MAIN_LINE[name]
    assert (phase["start"]["parent"], phase["start"]["step"]) == (parent, start)
    assert (phase["start_step"], phase["stop_step"]) == (start, stop)
    assert phase["tokens"] == printed(tokens, 1e12)
    assert phase["lineage_tokens"] == printed(lineage_tokens, 1e12)


@pytest.mark.parametrize("name", BRANCHES)
def test_where_a_branch_starts(phases: dict[str, Described], name: str):
    start = phases[name]["start"]
    assert (start["parent"], start["step"]) == BRANCHES[name]
    assert phases[name]["start_step"] == BRANCHES[name][1]


def test_what_a_phase_starts_from_is_kept(phases: dict[str, Described]):
    needed = [(phase["start"]["parent"], phase["start"]["step"]) for phase in phases.values() if phase["start"]["parent"]]
    needed += [(graft["phase"], graft["step"]) for phase in phases.values() for graft in phase["start"]["graft"]]
    assert ("phase-1", 77_096) in needed
    for parent, step in needed:
        policy = phases[parent]["checkpoints"]
        assert (
            step == phases[parent]["stop_step"] or step in policy["at_steps"] or (policy["keep_all"] and step % policy["every_steps"] == 0)
        )


def test_hand_offs(phases: dict[str, Described]):
    """The weights' checkpoint lacks QK-norm's gains; necromancy takes the history of update norms from where it was still kept."""
    assert "qk_norm" in phases["qk-norm"]["start"]["fresh"]
    assert "optimizer" not in phases["qk-norm"]["start"]["fresh"]
    assert phases["necromancy"]["start"]["graft"] == [{"part": "rolling", "phase": "phase-1", "step": 77_096}]
    for name in ("bison", "mantis"):
        assert "optimizer" not in phases[name]["start"]["fresh"]
    for name in EVERY:
        assert phases[name]["order"]["first_step"] == 0
        assert (phases[name]["order"]["seed"], phases[name]["order"]["block_sequences"]) == (0, BLOCK)


@pytest.mark.parametrize("name", EVERY)
def test_permutations(phases: dict[str, Described], name: str):
    """The library's Feistel network of five rounds in Mantis, from step 0 of its order."""
    assert phases[name]["order"]["permutation"] == ("feistel_levanter" if name == "mantis" else "linear")


@pytest.mark.parametrize("name", EVERY)
def test_batches(phases: dict[str, Described], name: str):
    start = phases[name]["start_step"]
    of_phase_1 = [[0, 8192], [18_500, 7680], [21_010, 8192]]
    assert phases[name]["batch"] == (of_phase_1 if name == "phase-1" else [[start, 8192]])


def test_the_sequences_before_the_cooldowns_are_half_a_block_off():
    described = describe("marin-32b", "full", 160_000)
    assert Counter(phase["name"] for phase in described["phases"]) == Counter(["bison", "mantis"])
    for phase in described["phases"]:
        assert phase["phase_tokens_before"] == 0
        assert phase["lineage_tokens_before"] == 4096 * 1_309_434_880
    assert 1_309_434_880 % BLOCK == 1024


def test_slices(phases: dict[str, Described]):
    assert phases["phase-1"]["slice"] == [[0, "4x v5p-512"], [18_500, "3x v5p-512"], [21_010, "v4-2048"]]
    for name in AFTER_PHASE_1:
        assert phases[name]["slice"] == [[phases[name]["start_step"], "v4-2048"]]


@pytest.mark.parametrize("name", MIXTURES)
def test_mixtures(phases: dict[str, Described], name: str):
    found = phases[name]["mixture"]
    assert [step for step, _ in found] == [step for step, _ in MIXTURES[name]]
    for (step, shares), (_, expected) in zip(found, MIXTURES[name], strict=True):
        assert not off_the_print(shares, expected), step


@pytest.mark.parametrize("name", RATES)
def test_learning_rates_by_hand(phases: dict[str, Described], name: str):
    within = [(step, rate) for step, rate in RATES[name] if step < phases[name]["stop_step"]]
    assert len(within) >= (1 if name in BRANCHES else len(RATES[name]))
    assert_rates(f"marin-32b/{name}", within)


def test_learning_rate_segments(phases: dict[str, Described]):
    assert segments_of(phases["phase-1"]) == [("linear", 0, 10_000, 0.0, 7e-4), ("constant", 10_000, 80_000, 7e-4, 7e-4)]
    assert segments_of(phases["qk-norm"]) == [("linear", 80_000, 81_000, 7e-5, 7e-4), ("constant", 81_000, 160_000, 7e-4, 7e-4)]
    for name in ("bison", "mantis"):
        assert segments_of(phases[name]) == [("linear", 160_000, 192_000, 7e-4, 7e-5)]
    assert {(kind, start, end) for kind, _, _, start, end in segments_of(phases["bison-flat"])} == {("constant", 1.09375e-4, 1.09375e-4)}
    assert [segment[0] for segment in segments_of(phases["nadamw"])] == ["cosine"]


def test_bison_flat_keeps_the_rate_that_bison_had_reached():
    assert rate_at("marin-32b/bison-flat", 190_000) == pytest.approx(rate_at("marin-32b/bison", 190_000))


def test_optimizers(phases: dict[str, Described]):
    kinds: dict[str, dict[str, Any]] = {name: phases[name]["optimizer"] for name in phases}
    for name in ("phase-1", "necromancy", "qk-norm"):
        assert kinds[name] == {"kind": "adamw", **ADAM}
    for name in ("bison", "mantis", "bison-flat"):
        assert kinds[name] == {"kind": "adamc", **ADAM, "peak_learning_rate": 7e-4}
    nadamw = kinds["nadamw"]
    assert (nadamw["kind"], nadamw["beta1"], nadamw["weight_decay"]) == ("nadamw", 0.95, 0.05)
    muon = kinds["muon"]
    assert (muon["kind"], muon["momentum"], muon["weight_decay"], muon["nesterov"], muon["newton_schulz_steps"]) == (
        "muon",
        0.98,
        0.1,
        True,
        5,
    )
    assert (muon["adam"]["weight_decay"], muon["max_adam_grad_norm"], throughout(phases["muon"], "max_grad_norm")) == (0.1, 1.0, None)
    assert throughout(phases["nadamw"], "skip_step") is None
    assert muon["adam_learning_rate_scale"] * rate_at("marin-32b/muon", 77_096) == pytest.approx(7e-4)


def test_the_timeline_of_mitigations(phases: dict[str, Described]):
    """Update norms were clipped from 72,233 on, and by mistake no more from 74,000."""
    stability = phases["phase-1"]["stability"]
    assert stability["max_grad_norm"] == [[0, 1.0], [56_400, 0.2]]
    assert stability["max_update_rms"] == [[0, None], [67_522, 1.0], [72_233, None]]
    assert stability["max_update_norm"] == [[0, None], [72_233, CLIP], [74_000, None]]


@pytest.mark.parametrize(
    ("step", "grad", "rms", "clipped"),
    [
        (0, 1.0, None, False), (56_399, 1.0, None, False), (56_400, 0.2, None, False), (67_521, 0.2, None, False),
        (67_522, 0.2, 1.0, False), (72_232, 0.2, 1.0, False), (72_233, 0.2, None, True),
        (73_999, 0.2, None, True), (74_000, 0.2, None, False),
        (79_999, 0.2, None, False),
    ],
)  # fmt: skip
def test_what_held_at_a_step(step: int, grad: float, rms: float | None, clipped: bool):
    (phase,) = describe("marin-32b/phase-1", "full", step)["phases"]
    assert (phase["max_grad_norm"], phase["max_update_rms"]) == (grad, rms)
    assert phase["max_update_norm"] == (CLIP if clipped else None)


@pytest.mark.parametrize("name", ["necromancy", "qk-norm", "bison", "mantis", "bison-flat"])
def test_after_the_gap_updates_are_clipped_throughout(phases: dict[str, Described], name: str):
    assert throughout(phases[name], "max_grad_norm") == 0.2
    assert throughout(phases[name], "max_update_norm") == CLIP
    assert throughout(phases[name], "max_update_rms") is None


def test_bad_steps_are_skipped_as_the_code_had_it(phases: dict[str, Described]):
    """Six sigmas of the last 128 losses or gradient norms; the optimizers that were tried out had nothing of the kind."""
    for name in ("phase-1", "necromancy", "qk-norm", "bison", "mantis", "bison-flat"):
        limits = [limit for _, limit in phases[name]["stability"]["skip_step"] if limit]
        assert limits, name
        assert {(limit["sigmas"], limit["window"]) for limit in limits} == {(6.0, 128)}
        assert phases[name]["stability"]["skip_step"][-1][1] is not None
    assert throughout(phases["muon"], "skip_step") is None
    for name in ("muon", "nadamw"):
        assert throughout(phases[name], "max_update_norm") is None
    assert throughout(phases["nadamw"], "max_grad_norm") == 1.0


@pytest.mark.parametrize("name", EVERY)
def test_the_average_the_z_loss_and_the_checkpoints(phases: dict[str, Described], name: str):
    phase = phases[name]
    assert throughout(phase, "z_loss") == 1e-4
    assert throughout(phase, "ema_decay") == 0.995
    assert phase["evaluation"]["loss_every_steps"] == 1_000
    assert (phase["checkpoints"]["every_steps"], phase["checkpoints"]["every_minutes"], phase["checkpoints"]["keep_all"]) == (
        10_000,
        10,
        True,
    )


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


def test_the_command_prints_the_same():
    command = [str(Path(sys.executable).parent / "phasewise"), "show", "marin-32b", "--scale", "full", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    said = json.loads(done.stdout)
    assert said.pop("takes")["parameters"] == said["phases"][0]["parameters"]
    assert said == json.loads(json.dumps(describe("marin-32b", "full", None)))
