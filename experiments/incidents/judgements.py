"""Replays of incidents of training and evaluation: the trainer stops them, or a gate does before the next phase."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from experiments.incidents.case import GATE, STEP, Case
from experiments.incidents.collapse import LIMITS as BALANCE_LIMITS
from experiments.incidents.collapse import train as train_experts
from phasewise.flows import api
from phasewise.tasks.data.tokenizer import load_tokenizer, special_tokens
from phasewise.tasks.evaluation.language_model import JaxLanguageModel
from phasewise.trainer.base.errors import VerdictError
from phasewise.trainer.metrics import Row
from phasewise.trainer.model.params import init_params
from phasewise.validations.evidence.health.phenomena import Measure
from phasewise.validations.expectations.suites import HEALTH_SUITE
from phasewise.validations.failures import why_in_a_line
from phasewise.validations.limits import NOBODY
from phasewise.validations.verdict import Verdict, judge_gate, judge_suite
from tests.trainer.token_caches import BEGIN, END, write_conversations
from tests.validations.evidence.health.simulated import LIMITS as HEALTH_LIMITS
from tests.validations.evidence.health.simulated import Scenario, evidence, healthy_rows, with_loss
from tests.validations.evidence.health.test_trained_runs import HEALTHY, PROVOKED
from tests.validations.evidence.health.trained import train as train_tiny
from tests.validations.evidence.test_exposure import ASKED, read
from tests.validations.made_answers import guessed_result, setting
from tests.validations.test_gate import BETTER, LIMITS, PARENT
from tests.validations.test_gate_against_parent import LIMITS as PARENT_LIMITS
from tests.validations.test_gate_against_parent import answered, of

COLLAPSE_STEPS = 120
ITEMS = 200


def training_goes_on_with_nan(case: Case) -> None:
    rate = 1e-2 if case.sound else 1e30
    case.train(case.run(learning_rate=[{"kind": "constant", "start_step": 0, "end_step": 4, "start": rate, "end": rate}]))


def every_answer_lies_beyond_the_row(case: Case) -> None:
    rng = np.random.default_rng(0)
    documents: list[tuple[np.ndarray, Sequence[tuple[int, int]]]] = []
    for _ in range(40):
        body = rng.integers(2, 200, 60)
        documents.append((np.array([BEGIN, *body, END], np.uint16), [(5, 20) if case.sound else (40, 60)]))
    folder = write_conversations(case.folder / "tokens" / "web", [documents])
    case.train(case.run(caches={"web": str(folder)}, mixture=[[0, {"web": 100}]], packing="pad", loss_on="answers"))


def router_sends_all_tokens_to_one_expert(case: Case) -> None:
    case.stage = STEP
    found = train_experts("smebu" if case.sound else "none", 0, case.folder, COLLAPSE_STEPS)
    assert BALANCE_LIMITS.max_violation is not None
    case.stage, case.step = GATE, COLLAPSE_STEPS
    refuse(found.verdict)


def loss_spikes_recur(case: Case) -> None:
    judge_training(case, train_tiny(HEALTHY if case.sound else PROVOKED[Measure.LOSS_SPIKES]))


def head_grows_at_a_low_rate(case: Case) -> str | None:
    return judge_training(case, train_tiny(HEALTHY if case.sound else PROVOKED[Measure.LM_HEAD_GROWTH]), names="lm_head explodes")


def loss_shifts_with_the_data_order(case: Case) -> None:
    judge_training(case, train_tiny(HEALTHY if case.sound else PROVOKED[Measure.LOSS_SHIFT]))


def loss_creeps_up_in_a_deep_cooldown(case: Case) -> str | None:
    rows = healthy_rows(Scenario())
    return judge_training(case, rows if case.sound else with_loss(rows, np.linspace(0, 0.4, len(rows))), names="loss creeps up")


def cached_answers_are_of_another_model(case: Case) -> None:
    from lm_eval.api.model import CachingLM

    first = language_model(case)
    case.stage = GATE
    if not case.sound:
        CachingLM(first, str(case.folder / "answers.db"))
    first.loglikelihood([request("The river", " follows")])


def nan_model_scores_above_zero(case: Case) -> None:
    model = language_model(case, scale=1.0 if case.sound else np.nan)
    case.stage = GATE
    model.loglikelihood([request("The river", " follows"), request("The river", " waits")])


def limit_takes_the_first_items(case: Case) -> None:
    result = guessed_result(right=80, first=100)
    whole = ITEMS if case.sound else 4 * ITEMS
    judge_model(case, BETTER | {"results": [result | {"setting": setting("continuation", whole, asked=ITEMS)}]}, LIMITS)


def broken_generation_enters_a_report(case: Case) -> None:
    judge_model(case, of("ocelot", answered(lost=0 if case.sound else 119)), PARENT_LIMITS, of("kestrel", answered()))


def one_prompt_format_falls_by_22_points(case: Case) -> None:
    evaluation = BETTER | {"renderings": read(seed=2, seen_nats=0.0 if case.sound else 9.0)}
    judge_model(case, evaluation, ASKED, PARENT | {"renderings": read(seed=1)})


def language_model(case: Case, scale: float = 1.0) -> JaxLanguageModel:
    """A model with fresh weights times `scale`, and the tokenizer of the prepared home."""
    recipe = case.prepared()
    resolved, phase = api.open_recipe(str(recipe), home=str(case.folder / "home"))
    tokenizer = load_tokenizer(resolved.plan.tokenizer)
    params = jax.tree.map(lambda weight: weight * scale, init_params(0, phase.model))
    special = special_tokens(tokenizer, resolved.plan.tokenizer)
    return JaxLanguageModel(params=params, config=phase.model, tokenizer=tokenizer, special=special)


def request(context: str, continuation: str) -> Any:
    """A request of lm-eval for the likelihood of a continuation."""
    from lm_eval.api.instance import Instance

    return Instance("loglikelihood", {}, (context, continuation), 0)


def judge_training(case: Case, rows: list[Row], names: str | None = None) -> str | None:
    """Judge the metrics of a training as the health gate does. Return the warning with the words `names`."""
    case.stage, case.step = GATE, int(rows[-1]["step"])
    tables, folder = {"health": evidence(rows)}, case.folder / "health"
    verdict = judge_suite(HEALTH_SUITE, "training", tables, HEALTH_LIMITS, (), NOBODY, judged={}, folder=folder)
    refuse(verdict)
    return next((f"warning: {reason.what}" for reason in verdict.reasons if names and names in reason.what), None)


def judge_model(case: Case, evaluation: dict[str, Any], limits: Any, parent: dict[str, Any] | None = None) -> None:
    """Judge an evaluation as the model gate does."""
    case.stage = GATE
    refuse(judge_gate("model", evaluation, parent_evaluation=parent, limits=limits, folder=case.folder / "gate"))


def refuse(verdict: Verdict) -> None:
    """Raise VerdictError for a verdict that fails."""
    if not verdict.passes:
        raise VerdictError(why_in_a_line(verdict))
