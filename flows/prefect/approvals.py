"""Approvals in Prefect: a flow run whose verdict needs an approval is suspended, and starts from the top after the decision.

Prefect suspends only runs of deployments, not subflows. Other runs end with the command that records a decision.
"""

import functools
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar, cast
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.exceptions import Pause, PrefectHTTPStatusError
from prefect.input import RunInput
from prefect.input.run_input import keyset_from_paused_state
from prefect.runtime import deployment
from prefect.runtime import flow_run as current
from prefect.states import Suspended
from prefect.utilities.engine import propose_state_sync
from pydantic import Field, ValidationError

from phasewise.flows.recipes.phase import GATES, Phase
from phasewise.flows.resolved import Resolved
from phasewise.tasks.progress import say
from phasewise.tasks.site import gate_address
from phasewise.tasks.validation.decide import decide, read_verdict_file
from phasewise.trainer.base.decision import need_of, read_decisions, seen_of
from phasewise.trainer.base.errors import VerdictError, WaitsForPerson
from phasewise.trainer.base.identity import digest_of_json
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.validations.failures import form_of, why_in_a_line
from phasewise.validations.verdict import read_verdict

P = ParamSpec("P")
R = TypeVar("R")
WAIT_SECONDS = 365 * 24 * 3600  # after a year Prefect fails the run. A new run asks again
CONFLICT = 409  # HTTP status: the server already stores this input


class Answer(RunInput):
    """The form of a suspended run."""

    approve: bool = Field(default=False, title="Approve", description="On: the phase continues. Off: the phase is refused.")
    reason: str = Field(title="Reason", description="Why. Stored and shown with the verdict.", min_length=1, pattern=r"\S")
    who: str = Field(title="Who", description="Your name. Stored as well.", min_length=1, pattern=r"\S")


class Question(NamedTuple):
    """A verdict file that needs an approval, and the digest of the content that the approval covers."""

    verdict: Path
    digest: str

    @property
    def key(self) -> str:
        """Name of the suspension. Prefect accepts letters, digits and dashes."""
        return f"{self.verdict.parent.name}-{self.verdict.stem}-{self.digest[:16]}"


def asking_people(work: Callable[P, R]) -> Callable[P, R]:
    """Suspend a flow whose verdict needs an approval, and run it again after the decision."""

    @functools.wraps(work)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        asked: set[str] = set()
        while True:
            try:
                return work(*args, **kwargs)
            except WaitsForPerson as waiting:
                question = question_at(Path(waiting.verdict))
                if question is None or question.key in asked or not (current.id and deployment.id) or current.parent_flow_run_id:
                    raise
                asked.add(question.key)
                _record(question, _ask(question, str(waiting)))

    return run


def take_answers(resolved: Resolved, phases: Iterable[Phase]) -> None:
    """Record the decisions that users made in the form of this run while it was suspended."""
    if not (current.id and deployment.id) or current.parent_flow_run_id:
        return
    with get_client(sync_client=True) as client:
        asked = client.read_flow_run(UUID(str(current.id))).empirical_policy.pause_keys or set()
    for phase in phases:
        run_name = resolved.recipe.run_name
        verdicts = [resolved.home.verdict(run_name, phase.name, gate) for gate in GATES]
        for path in (*verdicts, RunFolder(resolved.home.run(run_name, phase.name)).question):
            question = question_at(path) if path.exists() else None
            if question and question.key in asked and (answer := _answer(question)):
                _record(question, answer)


def question_at(path: Path) -> Question | None:
    """Return the question of a verdict file, or None if the verdict needs no approval."""
    verdict = read_verdict_file(path)
    return Question(path, digest_of_json(seen_of(verdict))) if need_of(verdict) == "a person" else None


def _ask(question: Question, command: str) -> Answer:
    """Suspend the run by Pause, or return the earlier answer. Raises VerdictError if the run was resumed without an answer."""
    verdict = read_verdict(question.verdict)
    page = gate_address(verdict.subject, question.verdict.stem)
    message = f"Waits for a person. {why_in_a_line(verdict)}{f' See {page}' if page else ''} Decide with Resume, or in a terminal."
    state = Suspended(timeout_seconds=WAIT_SECONDS, pause_key=question.key, message=message)
    keyset = keyset_from_paused_state(state)
    state.state_details.run_input_keyset = {str(name): key for name, key in keyset.items()}
    run_id = UUID(str(current.id))
    description = form_of(verdict, page=page, command=f"Or in a terminal: {command.splitlines()[-1].partition(': ')[2]}")
    try:
        Answer.with_initial_data(description=description).save(keyset, flow_run_id=run_id)
    except PrefectHTTPStatusError as error:
        if error.response.status_code != CONFLICT:
            raise
    with get_client(sync_client=True) as client:
        state = propose_state_sync(client, state, flow_run_id=run_id)
    if state.is_running():  # a user resumed an earlier suspension by the same question
        if (answer := _answer(question)) is None:
            raise VerdictError(f"{question.verdict}: the run was resumed without an answer. {command}")
        return answer
    say(message)
    raise Pause(state=state)


def _answer(question: Question) -> Answer | None:
    with suppress(ValidationError):  # without a running event loop the answer is not a coroutine
        return cast(Answer, Answer.load(keyset_from_paused_state(Suspended(pause_key=question.key)), flow_run_id=UUID(str(current.id))))
    return None


def _record(question: Question, answer: Answer) -> None:
    found = read_decisions(question.verdict)
    wanted = (answer.approve, " ".join(answer.reason.split()), " ".join(answer.who.split()))
    if all((one.approves, one.reason, one.who) != wanted for one in ((*found.before, found.latest) if found else ())):
        say(decide(question.verdict, approves=answer.approve, reason=answer.reason, who=answer.who, question=question.digest).words)
