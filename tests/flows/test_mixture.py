"""The search of a mixture: refusals before any work, the written recipe, and one whole search by the command."""

import json
from pathlib import Path

import numpy as np
import pytest

from experiments.survival.runs import COMPONENTS
from phasewise.flows.recipes import load_written
from phasewise.flows.recipes.phase import HandOff
from phasewise.flows.resolved import resolve_phase
from phasewise.flows.search_mixture import write_recipe
from phasewise.trainer.base.identity import digest_of_file, read_sealed
from tests.flows.commands import Run, assert_refused


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["{recipe}"], 2, "mixture: expected a phase, found"),
        (["{recipe}/kestrel", "--out", "mixed.py"], 2, "--out: expected a new .json file, found mixed.py"),
    ],
)
def test_a_search_is_refused_before_any_work(phasewise: Run, recipe: str, words: list[str], code: int, said: str, tmp_path: Path):
    home = tmp_path / "home"
    assert_refused(phasewise("mixture", *(word.format(recipe=recipe) for word in words), "--scale", "proxy", "--home", home), code, said)
    assert not home.exists()


def test_hand_offs_of_the_written_recipe_declare_the_mixture(recipe: str, tmp_path: Path):
    flan = {"flan": 100.0}
    for phase, shares, changes in (
        ("kestrel", {"medu_science_qa": 25.0, "dolmino_stackexchange": 50.0, "flan": 25.0}, True),
        ("ocelot", flan, True),
        ("ocelot", COMPONENTS, False),
    ):
        resolved, chosen = resolve_phase(recipe, phase, "proxy", str(tmp_path))
        path = tmp_path / f"{phase}-{len(shares)}-{changes}.json"
        write_recipe(path, resolved, chosen, shares)
        written = load_written(str(path))
        assert written.name == path.stem.lower()
        assert written.phase(phase).mixture.at(chosen.start_step) == shares
        start = written.phases[1].start
        assert isinstance(start, HandOff)
        assert ("mixture" in start.declares) == changes


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_command_writes_a_recipe_that_it_predicts(phasewise: Run, recipe: str, tmp_path: Path):
    out = tmp_path / "mixed.json"
    given = ["--scale", "proxy", "--home", tmp_path / "home", "--proxies", "8", "--steps", "12", "--out", out, "--json"]
    found = json.loads(phasewise("mixture", f"{recipe}/kestrel", *given, "--target", "flan", "--seeds", "1").stdout)
    counts = {one["name"]: one["best"] for one in found["components"]}
    assert (sum(counts.values()), min(counts.values()) >= 1) == (20, True)
    assert found["predicted"]["low"] < found["predicted"]["mean"] < found["predicted"]["high"]
    (sealed,) = (tmp_path / "home" / "mixtures" / "tiny-proxy" / "kestrel").glob("*/prediction.json")
    assert read_sealed(sealed)["digest"] == digest_of_file(out)
    assert np.isfinite([found["measured"][0][name] for name in ("natural", "swarm_best", "best")]).all()
    assert load_written(str(out)).phases[0].mixture.root[0][1] == {name: 100 * count / 20 for name, count in counts.items()}
