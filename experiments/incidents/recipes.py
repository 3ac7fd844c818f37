"""Replays of incidents that a recipe shows before any data exist: mixtures, schedules and hand-offs.

Most of them are data in `incidents.yaml`: `record` edits a phase of a published recipe, and `own` a tiny recipe. Both give values by paths
such as `order.seed`. Values under `sound` are those of the twin.
"""

from typing import Any

from experiments.incidents.case import START, Case, Raw, write_recipe
from experiments.survival.runs import COMPONENTS
from phasewise.flows import api
from phasewise.flows.recipes import load_record
from phasewise.flows.recipes.feasibility import check_feasible
from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.resolved import resolve
from phasewise.trainer.config import Mesh
from phasewise.trainer.sharding import check_batch


def phase_of_the_record(case: Case, *, recipe: str, phase: str, **edit: Any) -> None:
    """Check a published recipe at full scale, with an edit of one phase unless the case is sound."""
    raw = load_record(recipe, "full").model_dump(mode="json")
    changed = next(one for one in raw["phases"] if one["name"] == phase)
    if not case.sound:
        put(changed, edit.get("set", {}))
        declares: list[str] = changed["start"]["declares"]
        changed["start"]["declares"] = sorted({*declares, *edit.get("declares", ())} - {edit.get("undeclared")})
    checked = Recipe.model_validate(raw)
    check_feasible(checked, [checked.phase(phase)])


def recipe_of_its_own(case: Case, *, shares: dict[str, float] | None = None, sound: Raw | None = None, **values: Any) -> None:
    """Open a tiny recipe with these values of its phase, or with those of the twin."""
    chosen = {**values, **(sound or {})} if case.sound else values
    drawn: dict[str, float] = chosen.pop("shares", shares) or COMPONENTS
    api.open_recipe(str(write_recipe(case.folder, lambda raw: put(raw["phases"][0], chosen), shares=drawn)))


def put(raw: Any, values: Raw) -> None:
    """Set values at dotted paths in JSON."""
    for path, value in values.items():
        *outer, last = [int(part) if part.isdecimal() else part for part in path.split(".")]
        at = raw
        for part in outer:
            at = at[part]
        at[last] = value


def dessert_draws_nothing_of_three_components(case: Case) -> None:
    resolve("marin-8b/dessert-v3" if case.sound else "marin-8b/dessert-v1", "full", str(case.folder))


def three_slices_do_not_divide_the_batch(case: Case) -> None:
    case.stage = START
    check_batch(Mesh(replica=3), 7680 if case.sound else 8192, "the batch from step 18500")


def token_ids_exceed_the_embedding(case: Case) -> None:
    def smaller(raw: Raw) -> None:
        raw["tokenizer"]["vocab_size"] = raw["phases"][0]["model"]["vocab_size"] + (0 if case.sound else 1)

    api.open_recipe(str(write_recipe(case.folder, smaller)))


def template_marks_no_answers(case: Case) -> None:
    marks = ("{% generation %}", "{% endgeneration %}") if case.sound else ("", "")
    answer = f"{marks[0]}{{{{ message['content'] }}}}{marks[1]}"
    body = "{% for message in messages %}{{ message['role'] }}: {% if message['role'] == 'assistant' %}" + answer
    (case.folder / "own.jinja").write_text(body + "{% else %}{{ message['content'] }}{% endif %}\n{% endfor %}")

    def answers(raw: Raw) -> None:
        raw["phases"][0]["loss_on"] = "answers"
        for source in raw["sources"].values():
            source["conversation"] = {"messages": "messages", "template": str(case.folder / "own.jinja")}

    api.open_recipe(str(write_recipe(case.folder, answers)))
