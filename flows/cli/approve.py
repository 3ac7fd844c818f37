"""`phasewise approve`."""

import getpass
import os
import shlex
from pathlib import Path
from typing import Any

from phasewise.flows.recipes import load_recipe, split_target
from phasewise.flows.recipes.assignments import settings_in_force
from phasewise.flows.recipes.recipe import Scale
from phasewise.flows.resolved import home_in_trial
from phasewise.tasks.holder import holder_of
from phasewise.tasks.home import Home
from phasewise.tasks.validation.decide import decide
from phasewise.trainer.base.decision import Decision, decision_path, ruling_at
from phasewise.trainer.base.errors import ConfigError, PhasewiseError, VerdictError

GATES = ("data", "health", "model")
RECOVERY = "recovery"
"""Names the question of a training whose loss jumped."""


def approve_phase(target: str, scale: Scale, home: str | None, *, approves: bool, reason: str, who: str | None, gate: str | None) -> Any:
    """Decide of the verdict of a phase that waits for a person, and resume the flow runs that wait for it; in the shape of `--json`.

    Raises:
        ConfigError: no phase is named, or several of its verdicts wait and none is named.
        VerdictError: none of its verdicts waits for a person.
        TakenOver, StorageError: as `Home.add`.
    """
    _, phase = split_target(target)
    if phase is None:
        raise ConfigError(f"approve needs a phase, such as {target}/PHASE: a decision is about the verdict of one phase.")
    recipe = load_recipe(target, scale)
    place = home_in_trial(Home.at(home, reads_only=True), target, scale)
    name = recipe.phase(phase).name
    paths = {gate: place.verdict(recipe.run_name, name, gate) for gate in GATES} | {RECOVERY: place.question(recipe.run_name, name)}
    place.look(recipe.run_name)
    chosen = gate or _waiting_gate(target, paths)
    decided: list[Decision] = []

    def write() -> Path:
        decided.append(decide(paths[chosen], approves=approves, reason=reason, who=who or _user()))
        return decision_path(paths[chosen])

    place.add(recipe.run_name, write)
    (decision,) = decided
    answer = {"approve": approves, "reason": decision.reason, "who": decision.who}
    resumed, why_not = _resume(place, paths[chosen], answer)
    given = "".join(f" --set {shlex.quote(one)}" for one in settings_in_force())
    command = f"phasewise run {target} --scale {scale} --home {place.root}{given}"
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
        "command": command,
    }


def print_decision(found: dict[str, Any]) -> None:
    """What was decided, and what goes on."""
    word = "approved" if found["approves"] else "rejected"
    print(f"{found['recipe']}/{found['scale']}/{found['phase']} {found['gate']}: {word} by {found['who']}: {found['reason']}")
    if found["why_not_resumed"]:
        print(f"A flow run that waits was not resumed: {found['why_not_resumed']}.")
    for name in found["resumed"]:
        print(f"The flow run '{name}' goes on.")
    if not found["resumed"] and found["approves"]:
        print(f"No flow run waits for it here. To go on: {found['command']}")


def _waiting_gate(target: str, paths: dict[str, Path]) -> str:
    states = {name: ruling_at(path) for name, path in paths.items() if path.exists()}
    waiting = [name for name, ruling in states.items() if ruling.state == "waits"]
    if len(waiting) > 1:
        raise ConfigError(f"{' and '.join(waiting)} of {target} wait for a person: name one with --gate.")
    if waiting:
        return waiting[0]
    decided = [f"{name} was {ruling.decision.words}" for name, ruling in states.items() if ruling.decision]
    failing = [name for name, ruling in states.items() if ruling.state == "fails"]
    said = [*decided, *(f"{name} fails by what nobody may let pass" for name in failing)] or ["its verdicts pass, or are not there yet"]
    again = " Name a verdict with --gate to decide otherwise; what was decided before is kept." if decided else ""
    raise VerdictError(f"no verdict of {target} waits for a person: {'; '.join(said)}.{again}")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise ConfigError("this machine does not say who decides: give your name with --who.") from None


def _resume(home: Home, path: Path, answer: dict[str, Any]) -> tuple[list[str], str]:
    holder = holder_of(home.server_lock)
    url = os.environ.get("PREFECT_API_URL") or (holder.url if holder else None)
    if not url:
        return [], ""
    import httpx
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    from phasewise.flows.prefect.access import auth_of_running
    from phasewise.flows.prefect.approvals import question_at, resume_waiting

    question = question_at(path)
    if question is None:
        return [], ""
    try:
        own = {} if os.environ.get("PREFECT_API_URL") else {PREFECT_API_AUTH_STRING: auth_of_running(home)}
        with temporary_settings({PREFECT_API_URL: url, **own}), get_client(sync_client=True) as client:
            return resume_waiting(client, question, answer), ""
    except (httpx.HTTPError, PhasewiseError) as error:
        return [], f"the Prefect server at {url} did not answer ({error})"
