"""The resolved values of every phase are those that were reviewed last: a digest for each phase at full and proxy scale.

A change of a recipe or of a scale's rule shows here. Review `phasewise show RECIPE/PHASE --diff`, then write the digests anew:
`python -m tests.flows.recipes.test_resolved`.
"""

import json
from itertools import product
from pathlib import Path
from typing import get_args

import pytest

from phasewise.flows.recipes import NAMES, load_record
from phasewise.flows.recipes.recipe import Scale
from phasewise.trainer.base.errors import RecipeError
from phasewise.trainer.base.identity import digest_of_json

DIGESTS = Path(__file__).with_name("resolved.json")
SCALES: tuple[Scale, ...] = ("full", "proxy", "130m", "370m", "1b", "3b")


def digests(name: str, scale: Scale) -> dict[str, str]:
    try:
        recipe = load_record(name, scale)
    except RecipeError as error:
        return {"refused": str(error)}
    rest = recipe.model_dump(mode="json", exclude={"phases"})
    return {phase.name: digest_of_json(phase.model_dump(mode="json"))[:12] for phase in recipe.phases} | {
        "recipe": digest_of_json(rest)[:12]
    }


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", NAMES)
def test_a_phase_has_the_values_that_were_reviewed(name: str, scale: Scale):
    assert set(SCALES) == set(get_args(Scale)) - {"own"}
    reviewed = {key.partition(" "): row for key, row in json.loads(DIGESTS.read_text(encoding="utf-8")).items()}
    assert digests(name, scale) == {phase: row[scale] for (recipe, _, phase), row in reviewed.items() if recipe == name and scale in row}


if __name__ == "__main__":
    rows: dict[str, dict[str, str]] = {}
    for recipe, scale in product(NAMES, SCALES):
        for phase, digest in digests(recipe, scale).items():
            rows.setdefault(f"{recipe} {phase}", {})[scale] = digest
    DIGESTS.write_text("{\n" + ",\n".join(f" {json.dumps(key)}: {json.dumps(row)}" for key, row in rows.items()) + "\n}\n")
