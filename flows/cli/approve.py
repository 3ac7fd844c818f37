"""`phasewise approve`."""

import getpass
import os
import shlex
from pathlib import Path
from typing import Any

from phasewise.flows.recipes import load_recipe, split_target
from phasewise.flows.recipes.assignments import settings_in_force
from phasewise.flows.recipes.phase import GATES
from phasewise.flows.recipes.recipe import Scale
from phasewise.flows.resolved import home_in_trial
from phasewise.tasks.home import Home
from phasewise.tasks.locks import holder_of
from phasewise.tasks.validation.decide import decide
from phasewise.trainer.base.decision import Decision, decision_path, ruling_at
from phasewise.trainer.base.errors import ConfigError, PhasewiseError, VerdictError
from phasewise.trainer.base.run_folder import RunFolder

RECOVERY = "recovery"  # name of the question after a jump of the loss


def approve_phase(target: str, scale: Scale, home: str | None, *, approves: bool, reason: str, who: str | None, gate: str | None) -> Any:
    """Record a decision on a verdict of a phase and resume the flow runs that wait for it. Return it in the shape of `--json`."""
    _, phase = split_target(target)
    if phase is None:
        raise ConfigError(f"approve needs a phase, such as {target}/PHASE: a decision is about the verdict of one phase.")
    recipe = load_recipe(target, scale)
    opened = home_in_trial(Home.at(home, reads_only=True), target, scale)
    name = recipe.phase(phase).name
    paths = {one: opened.verdict(recipe.run_name, name, one) for one in GATES}
    paths[RECOVERY] = RunFolder(opened.run(recipe.run_name, name)).question
    opened.look(recipe.run_name)
    chosen = gate
    if not chosen:
        rulings = {name: ruling_at(path) for name, path in paths.items() if path.exists()}
        waiting = [name for name, ruling in rulings.items() if ruling.state == "waits"]
        if len(waiting) > 1:
            raise ConfigError(f"{' and '.join(waiting)} of {target} wait for a person: name one with --gate.")
        if not waiting:
            reasons = [f"{name} was {ruling.decision.words}" for name, ruling in rulings.items() if ruling.decision]
            again = " To change a decision, name a verdict with --gate. Earlier decisions are kept." if reasons else ""
            reasons += [f"{name} fails by a check that people can't waive" for name, ruling in rulings.items() if ruling.state == "fails"]
            text = "; ".join(reasons) or "its verdicts pass, or are missing"
            raise VerdictError(f"no verdict of {target} waits for a person: {text}.{again}")
        (chosen,) = waiting
    try:
        decider = who or getpass.getuser()
    except (KeyError, OSError):
        raise ConfigError("this machine has no user name: give your name with --who.") from None
    decided: list[Decision] = []

    def write() -> Path:
        decided.append(decide(paths[chosen], approves=approves, reason=reason, who=decider))
        return decision_path(paths[chosen])

    opened.add(recipe.run_name, write)
    (decision,) = decided
    resumed, why_not = _resume(opened, paths[chosen], {"approve": approves, "reason": decision.reason, "who": decision.who})
    settings = "".join(f" --set {shlex.quote(one)}" for one in settings_in_force())
    return {
        "recipe": recipe.name,
        "scale": recipe.scale,
        "phase": phase,
        "gate": chosen,
        "approves": approves,
        "who": decision.who,
        "reason": decision.reason,
        "resumed": resumed,
        "why_not_resumed": why_not,
        "command": f"phasewise run {target} --scale {scale} --home {opened.root}{settings}",
    }


def print_decision(found: dict[str, Any]) -> None:
    """Print the decision and its effect on waiting flow runs."""
    word = "approved" if found["approves"] else "rejected"
    print(f"{found['recipe']}/{found['scale']}/{found['phase']} {found['gate']}: {word} by {found['who']}: {found['reason']}")
    if found["why_not_resumed"]:
        print(f"A flow run that waits was not resumed: {found['why_not_resumed']}.")
    for name in found["resumed"]:
        print(f"The flow run '{name}' resumes.")
    if not found["resumed"] and found["approves"]:
        print(f"No flow run waits for it here. To continue: {found['command']}")


def _resume(home: Home, path: Path, answer: dict[str, Any]) -> tuple[list[str], str]:
    """Return the names of the resumed flow runs, and the reason if the server did not answer."""
    given, holder = os.environ.get("PREFECT_API_URL"), holder_of(home.server_lock)
    url = given or (holder.url if holder else None)
    if not url:
        return [], ""
    import httpx
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateName
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    from phasewise.flows.prefect.access import auth_of_running
    from phasewise.flows.prefect.approvals import question_at

    question = question_at(path)
    if question is None:
        return [], ""
    try:
        auth = {} if given else {PREFECT_API_AUTH_STRING: auth_of_running(home)}
        with temporary_settings({PREFECT_API_URL: url, **auth}), get_client(sync_client=True) as client:
            suspended = FlowRunFilter(state=FlowRunFilterState(name=FlowRunFilterStateName(any_=["Suspended"])))
            found = client.read_flow_runs(flow_run_filter=suspended, limit=200)
            resumed = [run for run in found if run.state and run.state.state_details.pause_key == question.key]
            for run in resumed:
                client.resume_flow_run(run.id, answer)
            return [run.name for run in resumed], ""
    except (httpx.HTTPError, PhasewiseError) as error:
        return [], f"the Prefect server at {url} did not answer ({error})"
