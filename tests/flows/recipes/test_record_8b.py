"""Marin 8B's main line, typed from the record's tables: steps, rates, batches, tokens, mixtures, and what a block delivers of them.

A printed number stands for all that rounds to it: "92.57" is anything within 0.005 of it.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from phasewise.flows.show.describe import describe
from phasewise.trainer.config import DataOrder, MixtureShares
from phasewise.trainer.data.mixture import block_counts

Described = dict[str, Any]
BLOCK = 2048
FLOORED = DataOrder(seed=0, permutation="linear", block_sequences=BLOCK, rounding="floor")


def printed(text: str, scale: float = 1.0) -> Any:
    decimals = len(text.partition(".")[2])
    return pytest.approx(float(text) * scale, rel=0, abs=scale * (0.5 * 10**-decimals + 1e-9))


def off_the_print(found: Mapping[str, float], expected: Mapping[str, str]) -> dict[str, tuple[float | None, str | None]]:
    names = sorted({*found, *expected})
    return {
        name: (found.get(name), expected.get(name))
        for name in names
        if name not in found or name not in expected or found[name] != printed(expected[name])
    }


def rate_at(target: str, step: int) -> float:
    (phase,) = describe(target, "full", step)["phases"]
    return phase["learning_rate"]


def delivered(shares: MixtureShares) -> dict[str, float]:
    return {name: 100 * count / BLOCK for name, count in block_counts(shares, FLOORED).items()}


def throughout(phase: Described, name: str) -> Any:
    ((step, value),) = phase["stability"][name]
    assert step == phase["start_step"]
    return value


@pytest.fixture(scope="module")
def phases() -> dict[str, Described]:
    return {phase["name"]: phase for phase in describe("marin-8b", "full", None)["phases"]}


# start, stop, tokens and tokens of the lineage in 10^12, EMA, z-loss, slice, held-out loss every so many steps
MAIN_LINE: dict[str, tuple[int, int, str, str, float | None, float | None, str, int]] = {
    "kestrel": (0, 660_000, "2.768", "2.768", None, None, "2x v5e-256", 10_000),
    "ocelot": (660_000, 740_500, "1.013", "3.781", 0.995, None, "v4-2048", 1_000),
    "jellyfish": (740_500, 820_000, "1.000", "4.781", 0.995, None, "v4-2048", 1_000),
    "phoenix": (820_000, 1_320_000, "6.291", "11.073", 0.995, None, "v4-2048", 1_000),
    "starling": (1_320_000, 1_400_000, "1.342", "12.415", 0.995, 1e-4, "v4-2048", 1_000),
    "deeper-starling": (1_400_000, 1_420_000, "0.336", "12.751", 0.995, 1e-4, "v4-2048", 1_000),
}
RECORD = Path(__file__).parent / "record"
MIXTURES: dict[str, dict[str, list[tuple[int, dict[str, str]]]]] = json.loads((RECORD / "mixtures.json").read_text())
"""Recipe → phase → step and shares, as printed. The record's table rounds three shares twice, and so prints them one unit higher than its
own weights make them: arXiv in Jellyfish (5.18 for 30 × 27.9 / 161.75 = 5.1747), DCLM in Phoenix's bridge (25.66 for 25.6546) and
Nemotron's medium_low after it (14.06 for 154 / 10.957 = 14.0547). The weights decide."""
# The larger batch begins one step after the phase.
BATCHES = {
    "kestrel": [[0, 1024]],
    "ocelot": [[660_000, 1024], [660_001, 3072]],
    "jellyfish": [[740_500, 3072]],
    "phoenix": [[820_000, 3072]],
    "starling": [[1_320_000, 3072], [1_320_001, 4096]],
    "deeper-starling": [[1_400_000, 4096]],
}
# Inverse decay: 1 / rate goes in a straight line from 1,000 to 10,000 over 1,000 steps.
RATES: dict[str, list[tuple[int, float]]] = {
    "kestrel": [
        (0, 0.0), (500, 5e-4), (1_000, 1e-3), (8_999, 1e-3), (9_000, 1e-3), (9_250, 1 / 3_250), (9_500, 1 / 5_500), (9_750, 1 / 7_750),
        (9_999, 1 / 9_991), (10_000, 1e-3), (19_500, 1 / 5_500), (20_000, 1e-3), (199_500, 1 / 5_500), (210_000, 1e-3),
        (219_500, 1 / 5_500), (389_750, 1 / 7_750), (390_000, 1e-3), (659_000, 1e-3), (659_999, 1 / 9_991),
    ],
    "ocelot": [(660_000, 1.7e-3), (660_001, 1.7e-3), (700_000, 1.7e-3), (740_499, 1.7e-3)],
    "jellyfish": [(740_500, 1.7e-3), (740_501, 1.7e-3 - 1.53e-3 / 79_500), (780_250, 9.35e-4), (819_999, 1.7e-4 + 1.53e-3 / 79_500)],
    "phoenix": [(820_000, 1.7e-4), (820_500, 5.525e-4), (821_000, 9.35e-4), (822_000, 1.7e-3), (1_000_000, 1.7e-3), (1_319_999, 1.7e-3)],
    "starling": [(1_320_000, 1.7e-3), (1_340_000, 1.27925e-3), (1_360_000, 8.585e-4), (1_399_999, 1.7e-5 + 1.683e-3 / 80_000)],
    "deeper-starling": [(1_400_000, 1.7e-5), (1_410_000, 1.7e-5), (1_419_999, 1.7e-5)],
}  # fmt: skip


def segments_of(phase: Described) -> list[tuple[Any, ...]]:
    return [tuple(segment[key] for key in ("kind", "start_step", "end_step", "start", "end")) for segment in phase["learning_rate"]]


def assert_rates(target: str, expected: Sequence[tuple[int, float]]) -> None:
    assert {step: rate_at(target, step) for step, _ in expected} == pytest.approx(dict(expected), rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("name", MAIN_LINE)
def test_steps_and_tokens(phases: dict[str, Described], name: str):
    phase, (start, stop, tokens, lineage_tokens, *_) = phases[name], MAIN_LINE[name]
    assert (phase["start_step"], phase["stop_step"]) == (start, stop)
    assert phase["tokens"] == printed(tokens, 1e12)
    assert phase["lineage_tokens"] == printed(lineage_tokens, 1e12)
    (last,) = describe(f"marin-8b/{name}", "full", stop - 1)["phases"]
    assert last["phase_tokens_before"] + 4096 * last["batch"] == phase["tokens"]
    assert last["lineage_tokens_before"] + 4096 * last["batch"] == phase["lineage_tokens"]


@pytest.mark.parametrize("name", MAIN_LINE)
def test_each_goes_on_where_the_one_before_it_ended(phases: dict[str, Described], name: str):
    before = dict(zip(list(MAIN_LINE)[1:], MAIN_LINE, strict=False)).get(name)
    start = phases[name]["start"]
    assert (start["parent"], start["step"]) == (before, MAIN_LINE[name][0])
    assert not start["graft"]
    if before:
        assert start["fresh"] == (["ema"] if name == "ocelot" else [])
    order = phases[name]["order"]
    assert (order["seed"], order["permutation"], order["block_sequences"], order["first_step"]) == (0, "linear", BLOCK, 0)
    assert not order["cut_blocks"]  # every mixture of the main line starts on the grid


@pytest.mark.parametrize("name", BATCHES)
def test_batches(phases: dict[str, Described], name: str):
    assert phases[name]["batch"] == BATCHES[name]


@pytest.mark.parametrize(("recipe", "name"), [(recipe, name) for recipe, phases in MIXTURES.items() for name in phases])
def test_mixtures(recipe: str, name: str):
    ((phase,), expected) = describe(f"{recipe}/{name}", "full", None)["phases"], MIXTURES[recipe][name]
    assert [step for step, _ in phase["mixture"]] == [step for step, _ in expected]
    for (step, shares), (_, printed_shares) in zip(phase["mixture"], expected, strict=True):
        assert not off_the_print(shares, printed_shares), step
        (at_step,) = describe(f"{recipe}/{name}", "full", step)["phases"]
        assert at_step["mixture"] == shares
        assert sum(at_step["mixture_sequences"].values()) == BLOCK


@pytest.mark.parametrize("name", RATES)
def test_learning_rates_by_hand(name: str):
    assert_rates(f"marin-8b/{name}", RATES[name])


@pytest.mark.parametrize("name", MAIN_LINE)
def test_optimizer_stability_and_hardware(phases: dict[str, Described], name: str):
    phase, (start, *_, ema, z_loss, slice_name, loss_every_steps) = phases[name], MAIN_LINE[name]
    decay = 0.05 if name == "kestrel" else 0.1  # set in Kestrel's configuration, and the library's where none is set
    assert phase["optimizer"] == {"kind": "adamw", "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": decay}
    assert {setting: throughout(phase, setting) for setting in phase["stability"]} == {
        "max_grad_norm": 1.0, "max_update_rms": None, "max_update_norm": None, "skip_step": None, "z_loss": z_loss, "ema_decay": ema,
    }  # fmt: skip
    assert phase["slice"] == [[start, slice_name]]
    assert phase["evaluation"]["loss_every_steps"] == loss_every_steps
    checkpoints = phase["checkpoints"]
    assert (checkpoints["every_steps"], checkpoints["every_minutes"], checkpoints["keep_all"]) == (20_000, 10, True)


@pytest.mark.parametrize("name", MAIN_LINE)
def test_the_model(phases: dict[str, Described], name: str):
    assert phases[name]["parameters"] == printed("8.030", 1e9)
    model = phases[name]["model"]
    dims = ("d_model", "d_ff", "num_query_heads", "num_kv_heads", "num_layers", "head_dim", "seq_len", "vocab_size")
    assert tuple(model[dim] for dim in dims) == (4096, 14_336, 32, 8, 32, 128, 4096, 128_256)
    assert (model["rms_norm_epsilon"], model["initializer_std"], model["compute_dtype"]) == (1e-5, 0.02, "bfloat16")
    assert {model[switch] for switch in ("tied_head", "qk_norm", "float32_attention")} == {False}
    assert model["sliding_window"] is None
    scaling = {"factor": 8, "low_frequency_factor": 1, "high_frequency_factor": 4, "original_max_positions": 8192}
    old, llama3 = {"theta": 10_000, "scaling": None}, {"theta": 500_000, "scaling": scaling}
    assert model["rope"] == (old if name == "kestrel" else llama3)


def test_what_a_block_delivered_of_starling(phases: dict[str, Described]):
    ((_, shares),) = phases["starling"]["mixture"]
    found = delivered(shares)
    expected = {"dolmino_wiki": "0.293", "wikipedia_markdown": "0.293", "medu_science_qa": "0.098"}
    assert not off_the_print({name: found[name] for name in expected}, expected)
    assert max(shares, key=lambda name: found[name] - shares[name]) == "nemotron_medium"  # the largest takes the rest
