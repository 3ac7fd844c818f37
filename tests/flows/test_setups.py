from itertools import pairwise

from phasewise.flows.plan import setups_of
from phasewise.flows.recipes import load_recipe
from phasewise.tasks.preflight.plan import Plan, spec_for, step_shape
from phasewise.tasks.preflight.slices import find_slice


def test_every_step_of_every_phase_is_in_one_setup_of_each_slice() -> None:
    for name in ("marin-8b", "marin-32b"):
        for phase in load_recipe(name, "full").phases:
            covered = sorted(stretch for setup in setups_of([phase]) for stretch in setup.stretches)
            assert covered[0][0] == phase.start_step
            assert covered[-1][1] == phase.stop_step
            assert all(before[1] == after[0] for before, after in pairwise(covered))
    setups = setups_of([load_recipe("marin-32b", "full").phases[0]])
    shown = {(setup.slice, setup.step.batch_sequences): setup.stretches for setup in setups}
    assert shown[("4x v5p-512", 8192)] == ((0, 18_500),)
    assert shown[("3x v5p-512", 7680)] == ((18_500, 21_010),)
    assert shown[("v4-2048", 8192)][0][0] == 21_010


def test_phases_whose_steps_are_equal_share_a_compilation() -> None:
    recipe, where = load_recipe("marin-8b", "full"), find_slice("v4-2048")
    shapes = {phase.name: step_shape(phase, 3072) for phase in recipe.phases}
    assert shapes["ocelot"] == shapes["jellyfish"] == shapes["phoenix"]
    assert shapes["ocelot"].keeps_average
    assert not shapes["kestrel"].keeps_average
    specs = {name: spec_for(shape, where, Plan(remat="full")).model_dump_json() for name, shape in shapes.items()}
    assert specs["ocelot"] == specs["jellyfish"] != specs["kestrel"]
