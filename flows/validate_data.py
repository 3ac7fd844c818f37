"""Evidence → verdict, for the data of one phase."""

from prefect import flow

from flows.plan import build_run, data_plan
from flows.recipes import load_recipe
from flows.recipes.recipe import Scale
from tasks.home import Home
from tasks.validation.task import judge_data
from trainer.errors import VerdictError
from validations.verdict import Verdict


@flow(name="validate_data", flow_run_name="validate data of {recipe}/{phase} ({scale})")
def validate_data(recipe: str, phase: str, scale: Scale = "proxy", home: str | None = None) -> None:
    """Judge the caches, the mixture and the leakage of a phase. Fails where the verdict does.

    Args:
        recipe: Name of a recipe, or path of a recipe's JSON file.
        phase: Name of one of its phases.
        scale: `proxy` or `full`.
        home: Folder of everything; PHASEWISE_HOME if not given.
    """
    wanted, place = load_recipe(recipe, scale), Home.open(home)
    chosen, plan = wanted.phase(phase), data_plan(wanted, place)
    run = build_run(wanted, chosen, place, plan.folders("train"))
    evidence = place.verdict(wanted.run_name, phase, "data").with_suffix("")
    verdict = judge_data(run, plan, chosen.gates.data, place, evidence)
    raise_unless_passed(verdict)


def raise_unless_passed(verdict: Verdict) -> None:
    """Turn a verdict that fails into the error that stops a phase.

    Raises:
        VerdictError: with the first three reasons.
    """
    if verdict.passes:
        return
    critical = [reason.sentence for reason in verdict.reasons if reason.severity == "critical"] or [r.sentence for r in verdict.reasons]
    more = f" (and {len(critical) - 3} more reasons)" if len(critical) > 3 else ""
    raise VerdictError(f"{verdict.subject} does not pass: {' '.join(critical[:3])}{more}")
