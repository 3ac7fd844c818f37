"""Marin 8B at full scale against the public record: the numbers here are copied from it, none is computed from the recipe's own."""

import pytest

from phasewise.flows.recipes import load_recipe
from phasewise.flows.recipes.phase import Phase
from phasewise.trainer.config import MixtureShares
from phasewise.trainer.schedule import learning_rate_at

MARIN_8B = load_recipe("marin-8b", "full")
PHASES = ("kestrel", "ocelot", "jellyfish", "phoenix", "starling", "deeper-starling")
TRILLIONS = {"kestrel": 2.768, "ocelot": 1.013, "jellyfish": 1.000, "phoenix": 6.291, "starling": 1.342, "deeper-starling": 0.336}
STEPS = {
    "kestrel": (0, 660_000),
    "ocelot": (660_000, 740_500),
    "jellyfish": (740_500, 820_000),
    "phoenix": (820_000, 1_320_000),
    "starling": (1_320_000, 1_400_000),
    "deeper-starling": (1_400_000, 1_420_000),
}
DCLM = {"dclm_baseline": 92.57, "starcoderdata": 6.09, "proofpile_2": 1.34}
JELLYFISH = {
    "dolmino_dclm": 67.77, "starcoderdata": 2.23,
    "dolma_pes2o": 10.78, "finemath_3_plus": 6.31, "dolma_arxiv": 5.18, "dolma_stackexchange": 3.17, "algebraic_stack": 2.13,
    "open_web_math": 0.94, "megawika": 0.82, "dolma_wiki": 0.68,
}  # fmt: skip
PHOENIX_BRIDGE = {
    "dclm_baseline": 25.66, "proofpile_2": 0.37, "starcoderdata": 1.69,
    "nemotron_medium": 22.82, "nemotron_hq_synth": 18.36, "nemotron_medium_low": 10.40, "nemotron_hq_actual": 6.17,
    "nemotron_medium_high": 5.57, "nemotron_low_actual": 4.73, "nemotron_low_synth": 4.24,
}  # fmt: skip
PHOENIX = {
    "nemotron_medium": 30.85, "nemotron_hq_synth": 24.82, "nemotron_medium_low": 14.06, "nemotron_hq_actual": 8.34,
    "nemotron_medium_high": 7.53, "nemotron_low_actual": 6.40, "nemotron_low_synth": 5.73, "starcoderdata": 2.28,
}  # fmt: skip
STARLING = {
    "nemotron_medium": 22.10, "nemotron_hq_synth": 17.78, "nemotron_medium_low": 10.07, "nemotron_hq_actual": 5.97,
    "nemotron_medium_high": 5.39, "nemotron_low_actual": 4.58, "nemotron_low_synth": 4.10,
    "starcoderdata": 4.47, "proofpile_2": 4.47, "arxiv_markdownified": 5.20, "dolmino_pes2o": 5.20, "flan": 3.04, "finemath_3_plus": 3.04,
    "dolmino_stackexchange": 1.53, "stackexchange_custom": 1.53, "all_math": 0.755, "dolmino_wiki": 0.327, "wikipedia_markdown": 0.327,
    "medu_science_qa": 0.107,
}  # fmt: skip
LAST_DIGIT = 0.01


def phase(name: str) -> Phase:
    return MARIN_8B.phase(name)


def assert_shares(shares: MixtureShares, record: dict[str, float]):
    """Within the last digit of the record, which rounds twice for some."""
    assert set(shares) == set(record)
    assert sum(shares.values()) == pytest.approx(100, abs=1e-9)
    wrong = {name: (shares[name], percent) for name, percent in record.items() if abs(shares[name] - percent) > LAST_DIGIT}
    assert wrong == {}


def test_the_phases_follow_each_other():
    assert tuple(one.name for one in MARIN_8B.phases) == PHASES
    assert {one.name: (one.start_step, one.stop_step) for one in MARIN_8B.phases} == STEPS
    assert [one.parent for one in MARIN_8B.phases] == [None, *PHASES[:-1]]


@pytest.mark.parametrize("name", PHASES)
def test_tokens_of_a_phase(name: str):
    assert phase(name).tokens / 1e12 == pytest.approx(TRILLIONS[name], abs=0.0005)


def test_tokens_of_all_phases():
    assert sum(one.tokens for one in MARIN_8B.phases) / 1e12 == pytest.approx(12.751, abs=0.0005)


def test_the_batch_grows_from_one_to_three_to_four():
    """In sequences of 4,096 tokens; each change comes one step after the phase that it belongs to starts, as in the run."""
    assert all(one.model.seq_len == 4096 for one in MARIN_8B.phases)
    sizes = [phase(name).batch.at(phase(name).stop_step - 1) for name in PHASES]
    assert sizes == [1024, 3072, 3072, 3072, 4096, 4096]
    batch = MARIN_8B.batch_of_lineage(phase("deeper-starling"))
    assert batch.root == ((0, 1024), (660_001, 3072), (1_320_001, 4096))


@pytest.mark.parametrize(
    ("name", "step", "record"),
    [
        ("kestrel", 0, DCLM),
        ("kestrel", 659_999, DCLM),
        ("ocelot", 700_000, DCLM),
        ("jellyfish", 740_500, JELLYFISH),
        ("phoenix", 820_000, PHOENIX_BRIDGE),
        ("phoenix", 821_999, PHOENIX_BRIDGE),
        ("phoenix", 822_000, PHOENIX),
        ("phoenix", 1_319_999, PHOENIX),
        ("starling", 1_320_000, STARLING),
        ("deeper-starling", 1_419_999, STARLING),
    ],
)
def test_the_mixture_is_that_of_the_record(name: str, step: int, record: dict[str, float]):
    assert_shares(phase(name).mixture.at(step), record)


def test_high_quality_data_is_three_tenths_of_the_cooldowns():
    web = {"dolmino_dclm", "starcoderdata"}
    assert sum(share for name, share in phase("jellyfish").mixture.at(740_500).items() if name in web) == pytest.approx(70)
    starling = phase("starling").mixture.at(1_320_000)
    assert sum(share for name, share in starling.items() if name.startswith("nemotron_")) == pytest.approx(70)


@pytest.mark.parametrize(
    ("name", "step", "rate"),
    [
        ("kestrel", 0, 0.0),
        ("kestrel", 500, 5e-4),
        ("kestrel", 1_000, 1e-3),
        ("kestrel", 9_000, 1e-3),
        ("kestrel", 9_500, 1 / (0.5 / 1e-3 + 0.5 / 1e-4)),  # the reciprocal moves linearly
        ("kestrel", 10_000, 1e-3),  # back at once
        ("kestrel", 19_000, 1e-3),
        ("kestrel", 659_000, 1e-3),
        ("ocelot", 660_000, 1.7e-3),
        ("ocelot", 740_499, 1.7e-3),
        ("jellyfish", 740_500, 1.7e-3),
        ("jellyfish", 780_250, (1.7e-3 + 1.7e-4) / 2),
        ("phoenix", 820_000, 1.7e-4),
        ("phoenix", 821_000, (1.7e-3 + 1.7e-4) / 2),
        ("phoenix", 822_000, 1.7e-3),
        ("phoenix", 1_319_999, 1.7e-3),
        ("starling", 1_320_000, 1.7e-3),
        ("starling", 1_360_000, (1.7e-3 + 1.7e-5) / 2),
        ("deeper-starling", 1_400_000, 1.7e-5),
        ("deeper-starling", 1_419_999, 1.7e-5),
    ],
)
def test_the_learning_rate_is_that_of_the_record(name: str, step: int, rate: float):
    assert learning_rate_at(phase(name).learning_rate, step) == pytest.approx(rate, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "end"), [("kestrel", 1e-4), ("jellyfish", 1.7e-4), ("phoenix", 1.7e-3), ("starling", 1.7e-5), ("deeper-starling", 1.7e-5)]
)
def test_the_learning_rate_ends_where_the_record_says(name: str, end: float):
    last = phase(name).learning_rate[-1]
    assert (last.end_step, last.end) == (phase(name).stop_step, end)


def test_kestrel_has_66_cycles_and_warms_up_once():
    kinds = [segment.kind for segment in phase("kestrel").learning_rate]
    assert kinds == ["linear", *["constant", "inverse"] * 66]


@pytest.mark.parametrize("name", PHASES)
def test_what_all_phases_share(name: str):
    one, decay = phase(name), 0.05 if name == "kestrel" else 0.1
    assert one.optimizer.model_dump() == {"kind": "adamw", "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": decay}
    assert one.stability.max_grad_norm.root == ((0, 1.0),)
    assert (one.order.permutation, one.order.block_sequences, one.order.seed) == ("linear", 2048, 0)
    assert one.checkpoints.every_steps == 20_000
    model = one.model
    shape = (model.d_model, model.d_ff, model.num_query_heads, model.num_kv_heads, model.num_layers, model.head_dim, model.vocab_size)
    assert shape == (4096, 14_336, 32, 8, 32, 128, 128_256)
    assert (model.rms_norm_epsilon, model.initializer_std, model.compute_dtype) == (1e-5, 0.02, "bfloat16")


def test_the_model_has_8_03_billion_parameters():
    from phasewise.trainer.model.params import count_parameters

    assert count_parameters(phase("kestrel").model) / 1e9 == pytest.approx(8.030, abs=0.0005)


def test_the_moving_average_begins_at_ocelot():
    assert [phase(name).stability.ema_decay.at(10**6) for name in PHASES] == [None, *[0.995] * 5]
    assert [getattr(phase(name).start, "fresh", ()) for name in PHASES] == [(), ("ema",), (), (), (), ()]


def test_the_z_loss_begins_at_starling():
    assert [phase(name).stability.z_loss.root for name in PHASES] == [((0, None),)] * 4 + [((0, 1e-4),)] * 2


def test_the_rotary_embedding_changes_at_ocelot():
    assert phase("kestrel").model.rope.model_dump() == {"theta": 10_000, "scaling": None}
    scaling = {"factor": 8, "low_frequency_factor": 1, "high_frequency_factor": 4, "original_max_positions": 8192}
    assert [phase(name).model.rope.model_dump() for name in PHASES[1:]] == [{"theta": 500_000, "scaling": scaling}] * 5


def test_the_slices():
    assert [phase(name).slice.root for name in PHASES] == [((0, "2x v5e-256"),), *[((0, "v4-2048"),)] * 5]


def test_every_discrepancy_names_its_sources():
    found = [discrepancy for one in MARIN_8B.phases for discrepancy in one.discrepancies]
    assert len(found) >= 7
    assert all(discrepancy.code and discrepancy.retrospective and discrepancy.source for discrepancy in found)
