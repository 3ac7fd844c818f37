"""Marin 8B's branches, typed from the record: microannealing, desserts, deeper cooldowns and supervised fine-tuning."""

import pytest

from phasewise.flows.commands.show import describe
from tests.flows.recipes.test_record_8b import (
    MIXTURES,
    Described,
    assert_rates,
    delivered,
    off_the_print,
    phases,
    printed,
    segments_of,
    throughout,
)

__all__ = ["phases"]

DCLM = {"dclm_baseline", "starcoderdata", "proofpile_2"}
JELLYFISH_WEB = {"dolmino_dclm", "starcoderdata"}
JELLYFISH_HIGH_QUALITY = {
    "dolma_pes2o", "finemath_3_plus", "dolma_arxiv", "dolma_stackexchange", "algebraic_stack", "open_web_math", "megawika", "dolma_wiki",
}  # fmt: skip
# Billions of tokens, as the record weights them.
SIZES = {
    "algebraic_stack": 11.5, "dolma_arxiv": 27.9, "megawika": 4.44, "open_web_math": 5.06, "dolma_pes2o": 58.1,
    "dolma_stackexchange": 17.1, "dolma_wiki": 3.65, "finemath_3_plus": 34.0,
}  # fmt: skip
MICROANNEALING = (
    "microannealing-control", "microannealing-70-30", "microannealing-flan", "microannealing-all-hq", "microannealing-all-hq-flan-5",
    "microannealing-flan-70-30",
)  # fmt: skip
PER_SOURCE = {
    "microannealing-flan-algebraic-stack": "algebraic_stack",
    "microannealing-flan-dolma-arxiv": "dolma_arxiv",
    "microannealing-flan-megawika": "megawika",
    "microannealing-flan-open-web-math": "open_web_math",
    "microannealing-flan-dolma-pes2o": "dolma_pes2o",
    "microannealing-flan-dolma-stackexchange": "dolma_stackexchange",
    "microannealing-flan-dolma-wiki": "dolma_wiki",
    "microannealing-flan-arxiv-markdownified": "arxiv_markdownified",
    "microannealing-flan-stackexchange-custom": "stackexchange_custom",
}
"""70 / 15 FLAN / 15 of one source, for each that the record compared; FineMath has the arm of no name."""
# parent, start, stop, slice; steps that the record's checkpoints were short of a phase's end are the end here
BRANCHES: dict[str, tuple[str, int, int, str]] = {
    **dict.fromkeys((*MICROANNEALING, *PER_SOURCE), ("kestrel", 660_000, 671_921, "2x v4-128")),
    "dessert-v1": ("jellyfish", 820_000, 837_000, "4x v4-128"),
    "dessert-v3": ("jellyfish", 820_000, 837_000, "4x v4-128"),
    "cooldown-take-2": ("ocelot", 740_500, 820_000, "v4-2048"),
    "soft-raccoon": ("jellyfish", 820_000, 830_000, "4x v4-128"),
    "softer-raccoon": ("soft-raccoon", 830_000, 840_000, "4x v4-128"),
    "softer-raccoon-no-decay": ("soft-raccoon", 830_000, 840_000, "4x v4-128"),
    "softer-raccoon-fresh-moments": ("soft-raccoon", 830_000, 840_000, "4x v4-128"),
    "hypnotic-spoonbill": ("jellyfish", 820_000, 830_000, "4x v4-128"),
    "spoonbill-norms": ("jellyfish", 820_000, 830_000, "4x v4-128"),
    "spoonbill-float32": ("spoonbill-norms", 824_524, 830_000, "4x v4-128"),
    "spoonbill-z-loss": ("spoonbill-norms", 824_524, 830_000, "4x v4-128"),
    "deeper-spoonbill": ("spoonbill-z-loss", 830_000, 840_000, "4x v4-128"),
    "sft": ("deeper-starling", 1_420_000, 1_430_228, "v4-128"),
}
SOFTER = [(830_000, 1.7e-5), (835_000, 9e-6), (839_999, 1e-6 + 1.6e-9)]
SPOONBILL = [(820_000, 1.7e-4), (825_000, 9.875e-5), (829_999, 2.75e-5 + 1.425e-8)]
FOCUSED = [(824_524, 1.7e-4 - 0.4524 * 1.425e-4), (825_000, 9.875e-5), (829_999, 2.75e-5 + 1.425e-8)]
# A line from a peak of 1e-3 × 671,920.9 / 11,920.9 at step 6,719, after the library's warm-up over 1 % of 671,920.9 steps, to 0
ANNEAL_RATE = 1e-3 / 0.99
ANNEALED = [(660_000 + step, ANNEAL_RATE * (11_921 - step) / 11_921) for step in (0, 1_000, 5_921, 11_920)]
RATES: dict[str, list[tuple[int, float]]] = {
    **dict.fromkeys(MICROANNEALING, ANNEALED),
    "dessert-v1": [(820_000, 1.7e-4), (828_500, 1.7e-4), (836_999, 1.7e-4)],
    "dessert-v3": [(820_000, 1.7e-4), (828_500, 1.7e-4), (836_999, 1.7e-4)],
    "cooldown-take-2": [(740_500, 1.7e-3), (780_250, 9.35e-4), (819_999, 1.7e-4 + 1.53e-3 / 79_500)],
    "soft-raccoon": [(820_000, 1.7e-4), (825_000, 9.35e-5), (829_999, 1.7e-5 + 1.53e-8)],
    "softer-raccoon": SOFTER,
    "softer-raccoon-no-decay": SOFTER,
    "softer-raccoon-fresh-moments": SOFTER,
    "hypnotic-spoonbill": SPOONBILL,
    "spoonbill-norms": SPOONBILL,
    "spoonbill-float32": FOCUSED,
    "spoonbill-z-loss": FOCUSED,
    "deeper-spoonbill": [(830_000, 2.75e-5), (835_000, 1.5125e-5), (839_999, 2.75e-6 + 2.475e-9)],
    # 3 % of 10,228 steps is 306.84, of which the library takes the whole steps
    "sft": [(1_420_000, 0.0), (1_420_153, 5e-5), (1_420_306, 1e-4), (1_425_267, 5e-5), (1_430_227, 1e-4 / 9_922)],
}  # fmt: skip
# Billions of tokens.
TOKENS = {
    **dict.fromkeys(MICROANNEALING, "50.0"),
    "dessert-v1": "213.9",
    "dessert-v3": "213.9",
    "soft-raccoon": "125.8",
    "hypnotic-spoonbill": "125.8",
    "sft": "5.36",
}


def shares_of(phases: dict[str, Described], name: str) -> dict[str, float]:
    """The one mixture of a branch."""
    ((step, shares),) = phases[name]["mixture"]
    assert step == phases[name]["start_step"]
    return shares


def part(shares: dict[str, float], *names: str) -> float:
    """What these components have of it, in percent."""
    return sum(shares.get(name, 0.0) for name in names)


def test_there_is_every_branch_and_none_else(phases: dict[str, Described]):
    not_of_the_record = {"context-extension"}
    found = {name for name, phase in phases.items() if phase["branch"]}
    assert found - not_of_the_record == {*BRANCHES, "microannealing-small", "sft-spoonbill"}


@pytest.mark.parametrize("name", BRANCHES)
def test_where_a_branch_starts_and_stops(phases: dict[str, Described], name: str):
    phase, (parent, start, stop, slice_name) = phases[name], BRANCHES[name]
    assert (phase["start"]["parent"], phase["start"]["step"]) == (parent, start)
    assert (phase["start_step"], phase["stop_step"]) == (start, stop)
    assert phase["slice"] == [[start, slice_name]]


def test_what_a_branch_starts_from_is_kept(phases: dict[str, Described]):
    for phase in phases.values():
        if parent := phases.get(phase["start"]["parent"]):
            step, policy = phase["start"]["step"], parent["checkpoints"]
            assert step == parent["stop_step"] or step in policy["at_steps"] or (policy["keep_all"] and step % policy["every_steps"] == 0)


def test_the_tokens_of_a_lineage_are_those_up_to_the_hand_off_and_the_phase_s_own(phases: dict[str, Described]):
    """Spoonbill's focused runs leave their parent in the middle."""
    assert phases["spoonbill-z-loss"]["lineage_tokens"] == phases["spoonbill-norms"]["lineage_tokens"]
    for name in BRANCHES:
        phase, (parent, start, *_) = phases[name], BRANCHES[name]
        (last,) = describe(f"marin-8b/{parent}", "full", start - 1)["phases"]
        assert phase["lineage_tokens"] - phase["tokens"] == last["lineage_tokens_before"] + 4096 * last["batch"]


@pytest.mark.parametrize("name", TOKENS)
def test_tokens(phases: dict[str, Described], name: str):
    assert phases[name]["tokens"] == printed(TOKENS[name], 1e9)


@pytest.mark.parametrize("name", RATES)
def test_learning_rates_by_hand(name: str):
    assert_rates(f"marin-8b/{name}", RATES[name])


@pytest.mark.parametrize(
    ("name", "start", "end"),
    [
        *((name, ANNEAL_RATE, 0.0) for name in MICROANNEALING),
        ("cooldown-take-2", 1.7e-3, 1.7e-4),
        ("soft-raccoon", 1.7e-4, 1.7e-5),
        ("softer-raccoon", 1.7e-5, 1e-6),
        ("hypnotic-spoonbill", 1.7e-4, 2.75e-5),
        ("spoonbill-norms", 1.7e-4, 2.75e-5),
        ("deeper-spoonbill", 2.75e-5, 2.75e-6),
    ],
)
def test_one_line_from_end_to_end(phases: dict[str, Described], name: str, start: float, end: float):
    phase = phases[name]
    assert segments_of(phase) == [("linear", phase["start_step"], phase["stop_step"], start, end)]


@pytest.mark.parametrize("name", [name for name in BRANCHES if not name.startswith(("microannealing", "sft"))])
def test_branches_keep_batch_average_and_clip_of_the_main_line(phases: dict[str, Described], name: str):
    phase = phases[name]
    assert phase["batch"] == [[phase["start_step"], 3072]]
    assert (throughout(phase, "max_grad_norm"), throughout(phase, "ema_decay")) == (1.0, 0.995)
    assert phase["optimizer"]["weight_decay"] == (0.0 if name == "softer-raccoon-no-decay" else 0.1)
    assert phase["start"]["fresh"] == (["optimizer"] if name == "softer-raccoon-fresh-moments" else [])
    assert phase["order"]["first_step"] == 0


# ── microannealing ──


@pytest.mark.parametrize("name", [*MICROANNEALING, *PER_SOURCE, "microannealing-small"])
def test_microannealing_begins_its_data_again_with_the_other_rope(phases: dict[str, Described], name: str):
    phase = phases[name]
    assert phase["order"]["first_step"] == 660_000
    assert phases["kestrel"]["model"]["rope"]["theta"] == 10_000
    assert phase["model"]["rope"]["theta"] == 500_000
    assert phase["optimizer"]["weight_decay"] == 0.05
    assert phase["batch"] == [[660_000, 256 if name == "microannealing-small" else 1024]]
    assert {"mmlu:0", "mmlu:5"} <= set(phase["evaluation"]["benchmarks"])


@pytest.mark.parametrize(
    ("name", "flan", "candidates"),
    [
        ("microannealing-70-30", 0, 1),
        ("microannealing-flan", 15, 1),
        ("microannealing-flan-70-30", 30, 0),
        ("microannealing-all-hq", 15, 8),
        ("microannealing-all-hq-flan-5", 5, 8),
    ],
)
def test_microannealing_mixtures(phases: dict[str, Described], name: str, flan: float, candidates: int):
    shares = shares_of(phases, name)
    assert part(shares, *DCLM) == pytest.approx(70)
    assert part(shares, "dolma_flan") == pytest.approx(flan)
    rest = set(shares) - DCLM - {"dolma_flan"}
    assert rest <= JELLYFISH_HIGH_QUALITY
    assert len(rest) == candidates
    assert part(shares, *rest) == pytest.approx(30 - flan)


@pytest.mark.parametrize(("name", "source"), PER_SOURCE.items())
def test_microannealing_of_one_source(phases: dict[str, Described], name: str, source: str):
    shares = shares_of(phases, name)
    assert part(shares, *DCLM) == pytest.approx(70)
    assert (shares["dolma_flan"], shares[source]) == (pytest.approx(15), pytest.approx(15))
    assert set(shares) <= DCLM | {"dolma_flan", source}


def test_the_control_is_the_pretraining_mixture(phases: dict[str, Described]):
    assert not off_the_print(shares_of(phases, "microannealing-control"), MIXTURES["kestrel"][0][1])


def test_a_small_source_is_read_four_times(phases: dict[str, Described]):
    """Tokens = 4 × its size / 0.30, in batches of 256."""
    phase, shares = phases["microannealing-small"], shares_of(phases, "microannealing-small")
    assert part(shares, *DCLM) == pytest.approx(70)
    (small,) = set(shares) - DCLM
    assert shares[small] == pytest.approx(30)
    assert phase["tokens"] == pytest.approx(4 * SIZES[small] * 1e9 / 0.30, abs=256 * 4096)
    assert segments_of(phase) == [("linear", 660_000, phase["stop_step"], ANNEAL_RATE, 0.0)]


# ── desserts and the second try of the cooldown ──


def test_dessert_v1_has_its_shares_swapped(phases: dict[str, Described]):
    """Web 70, dessert 20, high quality 10: the last two should be 10 and 20."""
    shares = shares_of(phases, "dessert-v1")
    dessert = {"flan", *(name for name in shares if name.startswith("dolmino_") and name != "dolmino_dclm")}
    assert set(shares) == JELLYFISH_WEB | JELLYFISH_HIGH_QUALITY | dessert
    assert part(shares, *JELLYFISH_WEB) == pytest.approx(70)
    assert part(shares, *JELLYFISH_HIGH_QUALITY) == pytest.approx(10)
    assert part(shares, *dessert) == pytest.approx(20)
    jellyfish = MIXTURES["jellyfish"][0][1]
    assert {name: 3 * shares[name] for name in JELLYFISH_HIGH_QUALITY} == pytest.approx(
        {name: float(jellyfish[name]) for name in JELLYFISH_HIGH_QUALITY}, abs=0.01
    )
    assert dessert > {"dolmino_gsm8k", "dolmino_codesearchnet", "dolmino_math_synth", "dolmino_metamath", "dolmino_mathcoder2"}


def test_what_a_block_delivered_of_dessert_v1(phases: dict[str, Described]):
    shares = shares_of(phases, "dessert-v1")
    found = delivered(shares)
    assert {name for name in shares if not found[name]} == {"dolmino_gsm8k", "dolmino_codesearchnet", "dolmino_math_synth"}
    assert shares["dolmino_metamath"] == printed("0.079")
    assert found["dolmino_metamath"] == printed("0.049")


def test_dessert_v3_merges_what_was_lost(phases: dict[str, Described]):
    shares = shares_of(phases, "dessert-v3")
    assert part(shares, *JELLYFISH_WEB) == pytest.approx(70)
    assert part(shares, *JELLYFISH_HIGH_QUALITY) == pytest.approx(20)
    assert (shares["flan"], shares["all_math"]) == (printed("8.01"), printed("1.99"))
    assert set(shares) == JELLYFISH_WEB | JELLYFISH_HIGH_QUALITY | {"flan", "all_math"}
    assert all(delivered(shares).values())


def test_the_second_try_of_the_cooldown(phases: dict[str, Described]):
    shares = shares_of(phases, "cooldown-take-2")
    assert part(shares, *JELLYFISH_WEB) == pytest.approx(70)
    assert shares["flan"] == pytest.approx(5)
    assert part(shares, "all_math", *JELLYFISH_HIGH_QUALITY) == pytest.approx(25)
    assert shares["all_math"] == printed("0.64")
    assert segments_of(phases["cooldown-take-2"]) == segments_of(phases["jellyfish"])


# ── deeper cooldowns ──


@pytest.mark.parametrize("name", ["soft-raccoon", "softer-raccoon", "softer-raccoon-no-decay", "softer-raccoon-fresh-moments"])
def test_raccoons_drink_jellyfish(phases: dict[str, Described], name: str):
    assert not off_the_print(shares_of(phases, name), MIXTURES["jellyfish"][0][1])
    assert throughout(phases[name], "z_loss") is None


@pytest.mark.parametrize(
    ("name", "float32_attention", "z_loss"),
    [
        ("hypnotic-spoonbill", False, None),
        ("spoonbill-norms", False, None),
        ("spoonbill-float32", True, None),
        ("spoonbill-z-loss", True, 1e-4),
        ("deeper-spoonbill", True, 1e-4),
    ],
)
def test_spoonbills(phases: dict[str, Described], name: str, float32_attention: bool, z_loss: float | None):
    shares = shares_of(phases, name)
    assert (shares["flan"], shares["tulu_3_sft_mixture"]) == (printed("2.9"), printed("0.1"))
    jellyfish = {component: 0.97 * float(percent) for component, percent in MIXTURES["jellyfish"][0][1].items()}
    found = {component: share for component, share in shares.items() if component not in ("flan", "tulu_3_sft_mixture")}
    assert found == pytest.approx(jellyfish, abs=0.006)
    assert phases[name]["model"]["float32_attention"] is float32_attention
    assert throughout(phases[name], "z_loss") == z_loss


# ── supervised fine-tuning ──


def test_the_sets_of_the_release_s_fine_tuning(phases: dict[str, Described]):
    """Weighted by documents."""
    expected = {
        "natural_reasoning": "23.4", "smoltalk": "21.3", "tulu_3_sft_mixture": "19.2", "verifiable_math_problems": "15.9",
        "dolphin_r1_reasoning": "11.9", "dolphin_r1_nonreasoning": "4.4", "openthoughts_114k_math": "1.8", "acecode_89k": "1.8",
        "bespoke_stratos_17k": "0.34",
    }  # fmt: skip
    assert not off_the_print(shares_of(phases, "sft"), expected)
    assert shares_of(phases, "sft-spoonbill") == {"tulu_3_sft_mixture": 100}


@pytest.mark.parametrize(("name", "steps", "peak", "warm_up"), [("sft", 10_228, 1e-4, 306), ("sft-spoonbill", 3_834, 5e-6, 115)])
def test_fine_tuning_takes_the_weights_alone(phases: dict[str, Described], name: str, steps: int, peak: float, warm_up: int):
    phase = phases[name]
    first, stop = phase["start_step"], phase["stop_step"]
    assert stop - first == steps
    assert phase["batch"] == [[first, 128]]
    assert phase["tokens"] == 128 * 4096 * steps
    assert segments_of(phase) == [("linear", first, first + warm_up, 0.0, peak), ("linear", first + warm_up, stop, peak, 0.0)]
    assert phase["optimizer"]["weight_decay"] == 0
    assert throughout(phase, "z_loss") is None
    assert "optimizer" in phase["start"]["fresh"]
    assert phase["slice"] == [[first, "v4-128"]]
    assert (phase["order"]["first_step"], phase["order"]["seed"]) == (first, 1)
    assert phase["model"]["float32_attention"] is (name == "sft-spoonbill")


@pytest.mark.parametrize(
    ("name", "steps"),
    [("dessert-v3", 2_000_000), ("microannealing-flan", 10_000), ("soft-raccoon", 20_000), ("spoonbill-z-loss", 5_000), ("sft", 1_000)],
)
def test_checkpoints_are_kept_as_often_as_the_branch_s_own_code_says(phases: dict[str, Described], name: str, steps: int):
    assert phases[name]["checkpoints"]["every_steps"] == steps


def test_spoonbill_s_fine_tuning_starts_from_a_spoonbill(phases: dict[str, Described]):
    assert "spoonbill" in phases["sft-spoonbill"]["start"]["parent"]
    (last,) = describe("marin-8b/sft-spoonbill", "full", phases["sft-spoonbill"]["stop_step"] - 1)["phases"]
    assert last["learning_rate"] == pytest.approx(5e-6 / (3_834 - 115))
