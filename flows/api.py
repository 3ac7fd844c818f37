"""Phasewise in Python, in five calls: `open_recipe`, `prepare`, `build_loader`, `build_step` and `sample`.

The calls run in this process, without Prefect. A loop of one's own writes no checkpoints and no metrics, and does not resume.
`phasewise run` does all of that. `docs/how-to/python.md` has an example.
"""

import multiprocessing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from phasewise.flows.recipes import scale_of
from phasewise.flows.recipes.phase import Phase
from phasewise.flows.recipes.python_file import allow_code
from phasewise.flows.recipes.recipe import Scale
from phasewise.flows.resolved import Resolved, resolve
from phasewise.flows.status.phase_status import approving_command, raise_unless_let_pass
from phasewise.flows.status.verdict_inputs import judge_data
from phasewise.tasks.data import prepare as stages
from phasewise.trainer.base.errors import ConfigError
from phasewise.validations.verdict import Verdict

if TYPE_CHECKING:
    from phasewise.trainer.data.loader import Batch, Loader
    from phasewise.trainer.model.params import Params
    from phasewise.trainer.step import StepMetrics, TrainState

    Step = Callable[[TrainState, int, Batch], tuple[TrainState, StepMetrics]]


def open_recipe(target: str, *, scale: Scale | None = None, home: str | None = None) -> tuple[Resolved, Phase]:
    """Open `RECIPE/PHASE`, or the first phase of `RECIPE`. The code of a Python file runs. Nothing is written.

    Raises ConfigError for an unknown recipe or phase, and RecipeError for an invalid recipe.
    """
    with allow_code():
        resolved, phase = resolve(target, scale_of(target, scale), home)
    return resolved, phase or resolved.recipe.phases[0]


def prepare(resolved: Resolved, phase: Phase) -> Verdict:
    """Build the missing caches of the recipe, and judge the data of the phase. The parent of a later phase must be trained.

    Raises VerdictError if the verdict fails and nobody approved the phase. The processes of Dask import a script again: a script needs
    `if __name__ == "__main__":` around its calls.
    """
    if multiprocessing.parent_process() is not None:
        raise ConfigError('prepare: a process of Dask imports this script again. Put the calls under `if __name__ == "__main__":`.')
    from phasewise.tasks.data.cluster import one_cluster  # Dask
    from phasewise.tasks.evaluation.made_benchmarks import write_missing_benchmarks
    from phasewise.tasks.validation.judge import judge_phase_data  # Great Expectations

    resolved.check([phase])
    resolved.home.make_ready()
    with resolved.held("a Python program"), one_cluster() as shared:
        if stages.collect_stand_ins(resolved.stand_ins, resolved.home.sources, shared):
            resolved.look_again()
        tokenizer = resolved.recipe.tokenizer
        stages.write_missing_documents(resolved.plan, shared)
        stages.make_missing_tokenizer(resolved.plan, tokenizer.vocab_size, tokenizer.name)
        stages.build_missing_caches(resolved.plan, shared)
        write_missing_benchmarks(resolved.plan)
        verdict = judge_data(resolved, phase, judge_phase_data)
    raise_unless_let_pass(verdict, resolved.run(phase).verdict, approving_command(resolved, phase))
    return verdict


def build_loader(resolved: Resolved, phase: Phase) -> "Loader":
    """The batches of a phase: `loader.batch(step)` has `tokens` and `segment_ids`, int32 of shape (batch, seq_len), by random access.

    Raises VerdictError without a valid verdict on exactly these data.
    """
    from phasewise.trainer.data.loader import Loader
    from phasewise.trainer.run import check_verdict

    run = resolved.run(phase)
    check_verdict(run)
    return Loader(run)


def build_step(resolved: Resolved, phase: Phase) -> "tuple[TrainState, Step]":
    """The first state of a phase and its compiled update: `state, metrics = step(state, number, batch)`.

    The update number decides the learning rate. The step donates the old state, which must not be used again.
    """
    from phasewise.trainer.checkpoints.state import state_to_start_from
    from phasewise.trainer.interventions import scheduled_at
    from phasewise.trainer.sharding import place_batch, run_mesh
    from phasewise.trainer.step import build_train_step

    run = resolved.run(phase)
    mesh = run_mesh(run)
    update = build_train_step(run.model, run.optimizer, run.execution, mesh)

    def step(state: "TrainState", number: int, batch: "Batch") -> "tuple[TrainState, StepMetrics]":
        targets = () if batch.targets is None else (place_batch(batch.targets, mesh),)
        return update(state, place_batch(batch.tokens, mesh), place_batch(batch.segment_ids, mesh), scheduled_at(run, number), *targets)

    return state_to_start_from(run), step


def sample(
    resolved: Resolved, phase: Phase, params: "Params", prompt: str, *, tokens: int = 64, temperature: float = 0.0, seed: int = 0
) -> str:
    """Continue a text with the weights of a state, such as `state.params`. Temperature 0 takes the likeliest token.

    `tokens`: the maximum number of new tokens.
    """
    from lm_eval.api.instance import Instance

    from phasewise.tasks.data.template import turn_end_ids
    from phasewise.tasks.data.tokenizer import load_tokenizer, special_tokens
    from phasewise.tasks.evaluation.language_model import JaxLanguageModel

    file = resolved.plan.tokenizer
    tokenizer = load_tokenizer(file)
    ends = turn_end_ids(tokenizer, resolved.plan.chats_of(phase.components))
    model = JaxLanguageModel(
        params=params, config=phase.model, tokenizer=tokenizer, special=special_tokens(tokenizer, file), ends=ends, seed=seed
    )
    settings: dict[str, Any] = {"max_gen_toks": tokens, "until": [], "do_sample": temperature > 0, "temperature": temperature}
    return model.generate_until([Instance("generate_until", {}, (prompt, settings), 0)])[0]
