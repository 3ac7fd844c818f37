"""A phase that waits for a person: its flow run is suspended, and goes on from the top once somebody has decided.

Prefect suspends runs of deployments alone, and no subflow. Elsewhere the phase ends with the command that decides.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.exceptions import Pause, PrefectHTTPStatusError
from prefect.input import RunInput
from prefect.input.run_input import keyset_from_paused_state
from prefect.runtime import deployment
from prefect.runtime import flow_run as current
from prefect.states import Suspended
from prefect.utilities.engine import propose_state_sync
from pydantic import Field, ValidationError

from phasewise.flows.recipes.phase import Phase
from phasewise.flows.resolved import Resolved
from phasewise.tasks.progress import say
from phasewise.tasks.report.task import shown_on_this_run
from phasewise.tasks.site import gate_address
from phasewise.tasks.validation.decide import decide, is_written, read_verdict_file
from phasewise.trainer.base.decision import need_of, question_of
from phasewise.trainer.base.errors import VerdictError, WaitsForPerson
from phasewise.validations.failures import form_of, why_in_a_line
from phasewise.validations.verdict import read_verdict

P = ParamSpec("P")
R = TypeVar("R")
WAIT_SECONDS = 365 * 24 * 3600
"""After a year without a decision Prefect ends the run as failed; a new run asks again."""
GATES = ("data", "health", "model")
CONFLICT = 409
"""The server has this already."""


class Answer(RunInput):
    """The form of a run that waits."""

    approve: bool = Field(default=False, title="Approve", description="On: the phase goes on. Off: it is refused.")
    reason: str = Field(title="Reason", description="Why. It is kept beside the verdict and shown with it.", min_length=1, pattern=r"\S")
    who: str = Field(title="Who", description="Your name. It is kept, too.", min_length=1, pattern=r"\S")


class Question(NamedTuple):
    """What a verdict asks a person.

    Attributes:
        verdict: its file.
        digest: of all that is shown of it.
    """

    verdict: Path
    digest: str

    @property
    def key(self) -> str:
        """Names the suspension: phase, gate and digest. Prefect takes letters, digits and dashes."""
        return f"{self.verdict.parent.name}-{self.verdict.stem}-{self.digest[:16]}"


def asking_people(work: Callable[P, R]) -> Callable[P, R]:
    """A flow's function that, where a verdict waits for a person, is suspended, and does its work again once that person has decided.

    The pages of its verdicts are on its own run's page.
    """

    @functools.wraps(work)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        asked: set[str] = set()
        while True:
            try:
                with shown_on_this_run():
                    return work(*args, **kwargs)
            except WaitsForPerson as waiting:
                question = question_at(Path(waiting.verdict))
                if question is None or question.key in asked or not may_be_suspended():
                    raise
                asked.add(question.key)
                _write(question, _ask(question, str(waiting)))

    return run


def may_be_suspended() -> bool:
    """Whether this is a run of a deployment, and no subflow."""
    return bool(current.id and deployment.id and not current.parent_flow_run_id)


def take_answers(resolved: Resolved, phases: Iterable[Phase]) -> bool:
    """Write down what was answered in the form of this run since it was suspended; whether there was such an answer."""
    if not may_be_suspended():
        return False
    with get_client(sync_client=True) as client:
        fired = client.read_flow_run(UUID(str(current.id))).empirical_policy.pause_keys or set()
        answered = [(question, _answer(question)) for question in open_questions(resolved, phases) if question.key in fired]
    for question, answer in answered:
        if answer is not None:
            _write(question, answer)
    return any(answer is not None for _, answer in answered)


def open_questions(resolved: Resolved, phases: Iterable[Phase]) -> Iterator[Question]:
    """What the verdicts of these phases put to people, decided or not."""
    for phase in phases:
        run_name = resolved.recipe.run_name
        verdicts = [resolved.home.verdict(run_name, phase.name, gate) for gate in GATES]
        for path in (*verdicts, resolved.home.question(run_name, phase.name)):
            if path.exists() and (question := question_at(path)):
                yield question


def question_at(path: Path) -> Question | None:
    """What the verdict in a file puts to people; None where it puts nothing to them."""
    verdict = read_verdict_file(path)
    return Question(path, question_of(verdict)) if need_of(verdict) == "a person" else None


def _ask(question: Question, command: str) -> Answer:
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
    if state.is_running():  # the same was asked before, and the run was resumed
        if (answer := _answer(question)) is None:
            raise VerdictError(f"the question about {question.verdict} was asked before and not answered. {command}")
        return answer
    say(message)
    raise Pause(state=state)


def _answer(question: Question) -> Answer | None:
    keyset = keyset_from_paused_state(Suspended(pause_key=question.key))
    try:
        answer = Answer.load(keyset, flow_run_id=UUID(str(current.id)))
    except ValidationError:
        return None
    return cast(Answer, answer)  # it is no coroutine where no loop runs


def _write(question: Question, answer: Answer) -> None:
    approves, reason, who = answer.approve, answer.reason, answer.who
    if not is_written(question.verdict, approves=approves, reason=reason, who=who):
        say(decide(question.verdict, approves=approves, reason=reason, who=who, question=question.digest).words)


def resume_waiting(client: SyncPrefectClient, question: Question, answer: dict[str, Any]) -> list[str]:
    """Resume the runs that are suspended by this question; their names."""
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateName

    suspended = FlowRunFilter(state=FlowRunFilterState(name=FlowRunFilterStateName(any_=["Suspended"])))
    found = client.read_flow_runs(flow_run_filter=suspended, limit=200)
    mine = [run for run in found if run.state and run.state.state_details.pause_key == question.key]
    for run in mine:
        client.resume_flow_run(run.id, answer)
    return [run.name for run in mine]
