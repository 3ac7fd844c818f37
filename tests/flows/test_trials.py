import json
from pathlib import Path

import pytest

from experiments.survival.runs import tiny_recipe
from phasewise.flows.plan import build_run
from phasewise.flows.recipes.assignments import assigned, setting
from phasewise.flows.resolved import with_trial
from phasewise.tasks.home import Home
from phasewise.trainer.base.identity import write_sealed

RECIPE = tiny_recipe()
OPTIMIZER = "ocelot.optimizer.beta2=0.9"
SCHEDULE = 'ocelot.learning_rate=[{"kind": "linear", "start_step": 40, "end_step": 52, "start": 0.0017, "end": 0.001}]'
SETTINGS = {
    OPTIMIZER: {"ocelot"}, SCHEDULE: {"ocelot"}, "ocelot.checkpoints.every_steps=4": {"ocelot"},
    "kestrel.start.seed=5": {"kestrel", "ocelot"}, "kestrel.model.rope.theta=20000": {"kestrel", "ocelot"},
    "recipe.max_tokens=1000000": {"kestrel", "ocelot"}, "recipe.tokenizer.vocab_size=3000": {"kestrel", "ocelot"},
    "ocelot.evaluation.loss_sequences=7": set[str](), "ocelot.gates.model.max_increase_bits_per_byte=4": set[str](),
    "ocelot.instrumentation.tensorboard=true": set[str](), "recipe.warnings_ask_people=true": set[str](), "*.slice=v6e-8": set[str](),
}  # fmt: skip
DECLARES = RECIPE.phases[1].start.declares  # pyright: ignore[reportAttributeAccessIssue]  # a hand-off
ALSO = {
    "kestrel.model.rope.theta=20000": ["ocelot.model.rope.theta=20000"],
    OPTIMIZER: [f"ocelot.start.declares={json.dumps([*DECLARES, 'optimizer'])}"],
    SCHEDULE: [f"ocelot.start.declares={json.dumps([*DECLARES, 'schedule'])}"],
}


@pytest.mark.parametrize("one", SETTINGS)
def test_a_trial_has_folders_of_its_own_for_what_it_trains_otherwise(one: str, tmp_path: Path):
    with setting((one, *ALSO.get(one, ()))):
        changed = assigned(RECIPE)
    home = Home(tmp_path)
    trial = with_trial(home, RECIPE, changed)
    names = {phase.name for phase in RECIPE.phases}
    assert {name for name in names if trial.run("tiny-proxy", name) != home.run("tiny-proxy", name)} == SETTINGS[one]
    verdicts = [{name: place.verdict("tiny-proxy", name, "data") for name in names} for place in (trial, home)]
    assert {name for name in names if verdicts[0][name] != verdicts[1][name]} == SETTINGS[one]
    assert (trial.report("tiny-proxy") != home.report("tiny-proxy")) == bool(SETTINGS[one])
    assert trial == with_trial(home, RECIPE, changed)  # the same command finds it again
    if not one.startswith("recipe."):  # of those the caches say it
        write_sealed(home.run("tiny-proxy", "kestrel") / "result.json", {"params_digest": "weights"})
        write_sealed(trial.run("tiny-proxy", "kestrel") / "result.json", {"params_digest": "weights"})
        caches = dict.fromkeys(RECIPE.components, tmp_path)
        digests = [{phase.name: build_run(of, phase, home, caches).digest for phase in of.phases} for of in (RECIPE, changed)]
        assert {name for name in names if digests[0][name] != digests[1][name]} == SETTINGS[one]
