from pathlib import Path

import pytest

from phasewise.flows.plan import sources_of, stand_ins_of
from phasewise.flows.recipes import NAMES, load_recipe, load_record
from phasewise.flows.recipes.scales import proxy_model
from phasewise.tasks.data.source import Source
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import RecipeError
from phasewise.trainer.config import learning_rate_at
from phasewise.trainer.model.params import count_active_parameters, count_parameters

TRINITY = tuple(name for name in NAMES if name.startswith("trinity-"))
FULL = {name: load_record(name, "full") for name in TRINITY}
PROXY = {name: load_record(name, "proxy") for name in TRINITY}
TRILLION = 1e12


@pytest.mark.parametrize(
    ("name", "sizes", "trillions", "steps"),
    [
        ("trinity-nano", (6_120_003_328, 1_023_923_968), (7, 1.8, 1.2, 0.117), (417_233, 470_877, 506_640, 510_127)),
        ("trinity-mini", (26_123_974_400, 3_474_732_800), (7, 1.8, 1.2, 0.117), (417_233, 470_877, 506_640, 510_127)),
        ("trinity-large", (398_635_286_016, 13_371_686_400), (11.05, 3.4, 2.55, 0.117), (94_498, 119_830, 138_829, 139_701)),
    ],
)
def test_phases_have_the_sizes_and_tokens_of_the_report(
    name: str, sizes: tuple[int, int], trillions: tuple[float, ...], steps: tuple[int, ...]
):
    main_line = FULL[name].main_line
    assert {(count_parameters(phase.model), count_active_parameters(phase.model)) for phase in main_line} == {sizes}
    assert [phase.name for phase in main_line] == ["phase-1", "phase-2", "phase-3", "context-extension"]
    assert tuple(phase.stop_step for phase in main_line) == steps
    for phase, expected in zip(main_line, trillions, strict=True):
        one_step = phase.model.seq_len * phase.batch.at(phase.stop_step)
        assert abs(phase.tokens - expected * TRILLION) <= one_step


@pytest.mark.parametrize(
    ("name", "step", "expected"),
    [
        ("trinity-nano", 0, 0.0), ("trinity-nano", 1_000, 5e-4), ("trinity-nano", 2_000, 1e-3), ("trinity-nano", 470_877, 1e-3),
        ("trinity-nano", 506_640, 0.0), ("trinity-nano", 506_989, 1e-4), ("trinity-nano", 510_127, 0.0),
        ("trinity-mini", 1_000, 5e-4), ("trinity-mini", 470_876, 1e-3), ("trinity-mini", 506_640, 0.0),
        ("trinity-large", 1_000, 4e-4), ("trinity-large", 94_498, 8e-4), ("trinity-large", 138_829, 8e-5),
        ("trinity-large", 139_701, 4e-5), ("trinity-large", round((94_498 + 138_829) / 2), (8e-4 + 8e-5) / 2),
    ],
)  # fmt: skip
def test_rates_at_the_ends_and_between(name: str, step: int, expected: float):
    phases = load_recipe(name, "full").phases
    phase = next((one for one in phases if one.start_step <= step < one.stop_step), phases[-1])
    assert learning_rate_at(phase.learning_rate, step) == pytest.approx(expected, rel=1e-4)


def test_sources_of_one_s_own_take_the_place_of_closed_data(tmp_path: Path):
    mine = Source(url=str(tmp_path), include=("*.jsonl",), format="jsonl")
    full, proxy = FULL["trinity-mini"], PROXY["trinity-mini"]
    with pytest.raises(RecipeError, match=r"code_trinity, .*whose data are not public.*`sources`.*--scale proxy"):
        sources_of(full, Home.open(str(tmp_path / "home")))
    assert set(sources_of(proxy, Home.open(str(tmp_path / "home")))) == set(stand_ins_of(proxy)) == set(proxy.components)
    some = full.but(sources=dict.fromkeys(full.components[1:], mine))
    with pytest.raises(RecipeError, match=rf"draws from {full.components[0]}, whose"):
        sources_of(some, Home.open(str(tmp_path / "home")))
    whole = full.but(sources=dict.fromkeys(full.components, mine))
    assert sources_of(whole, Home.open(str(tmp_path / "home"))) == dict.fromkeys(full.components, mine)


def test_narrow_experts_are_widened_and_plain_embeddings_stay_plain():
    model = FULL["trinity-nano"].phase("phase-1").model
    assert model.experts
    small = proxy_model(model.but(experts=model.experts.but(d_expert=16), embedding_scale=1.0))
    assert small.experts
    assert (small.experts.d_expert, small.embedding_scale) == (32, 1.0)
