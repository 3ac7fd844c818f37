from collections import Counter
from pathlib import Path

from experiments.survival.chaos import PHASES, RUN, STAGES, plan, shortened
from phasewise.flows.recipes.python_file import allow_code, load_python
from phasewise.flows.recipes.starter import InspectedFolder, starter


def test_kills_are_spread_evenly_over_the_stages_and_strike_every_party():
    homes = list(plan(60))
    struck = Counter((kill.stage.name, kill.party) for kills in homes for kill in kills)
    assert Counter(stage for stage, _ in struck.elements()) == {stage.name: 6 for stage in STAGES}
    assert {*struck} == {(stage.name, party) for stage in STAGES for party in stage.parties}
    assert [[kill.stage.name for kill in kills] for kills in homes] == [[stage.name for stage in STAGES]] * 6, "in the order of the work"


def test_the_recipe_is_that_of_a_newcomer_and_short(tmp_path: Path):
    file = tmp_path / "my_recipe.py"
    file.write_text(shortened(starter(file, tmp_path, InspectedFolder(("*.txt",), None, (), 100, 10))))
    with allow_code():
        recipe = load_python(file, None)
    assert (recipe.run_name, [phase.name for phase in recipe.phases], recipe.phases[-1].stop_step) == (RUN, [*PHASES], 24)
