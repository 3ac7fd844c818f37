"""Evaluates the checkpoint at a phase's end and keeps what it found beside it."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from phasewise.tasks.data.template import chats_of_caches, turn_end_ids
from phasewise.tasks.data.tokenizer import load_tokenizer
from phasewise.tasks.evaluation.answer_likelihood import answers_beside_parent, is_finite
from phasewise.tasks.evaluation.answers import BenchmarkResult
from phasewise.tasks.evaluation.asked import Asked
from phasewise.tasks.evaluation.evaluate import evaluate_model, measure_benchmarks, open_model
from phasewise.tasks.evaluation.finished import evaluation_path, finished_evaluation
from phasewise.tasks.evaluation.held_out import HeldOutTokens, read_held_out_tokens
from phasewise.tasks.evaluation.measured import needles_of
from phasewise.tasks.evaluation.schedule_point import read_schedule_point
from phasewise.tasks.progress import say
from phasewise.trainer.base.errors import CheckpointError
from phasewise.trainer.base.identity import write_sealed
from phasewise.trainer.base.storage import as_path
from phasewise.trainer.checkpoints.checkpointer import read_params
from phasewise.trainer.checkpoints.state import average_of_last, kept_steps, last_steps
from phasewise.trainer.config import RunConfig
from phasewise.trainer.model.params import Params

if TYPE_CHECKING:
    from phasewise.tasks.evaluation.language_model import JaxLanguageModel

MAX_AVERAGED = 4
"""So many of a phase's last checkpoints are averaged, and their scores compared, where more are kept."""
MIN_FOR_SPREAD = 3
"""Of fewer checkpoints nothing is left beside a straight line."""


def evaluate_phase(asked: Asked) -> dict[str, Any]:
    """Benchmarks and held-out bits per byte of a phase's last weights, and of their moving average where there is one."""
    run = asked.run
    if found := finished_evaluation(run, asked.key):
        return found
    tokenizer = load_tokenizer(as_path(asked.tokenizer))
    held_out = read_held_out_tokens(
        {name: as_path(url) for name, url in asked.held_out.items()}, tokenizer, max_tokens=asked.measured.held_out_tokens
    )
    haystack, ends = _haystack(asked, tokenizer), _ends(asked, tokenizer)
    checkpoint = Path(asked.result["checkpoint"])
    params = read_params(checkpoint, run.model)
    found = evaluate_model(
        params=params,
        config=run.model,
        tokenizer=tokenizer,
        benchmarks=asked.benchmarks,
        names=asked.measured.benchmarks,
        held_out=held_out,
        real=asked.real,
        renderings=asked.measured.renderings,
        haystack=haystack,
        ends=ends,
    )
    answers = answers_beside_parent(run, params, {name: as_path(url) for name, url in asked.held_out.items()}, asked.measured)
    if answers:
        found["finite"] = found["finite"] and is_finite(answers)
    evaluation = {
        "phase": run.phase,
        "key": asked.key,
        "measured_on": asked.measured_on,
        "checkpoint": str(checkpoint),
        "params_digest": asked.result["params_digest"],
        "weights": "last",
        "schedule": read_schedule_point(run),
        **found,
        "results": _with_checkpoints(
            asked, checkpoint, found["results"], lambda params: open_model(params, run.model, tokenizer, held_out, ends), haystack
        ),
        **_averages(run, checkpoint, held_out),
        **({"answers": answers} if answers else {}),
    }
    write_sealed(evaluation_path(run), evaluation)
    return evaluation


def _haystack(asked: Asked, tokenizer: Tokenizer) -> Sequence[str]:
    """The words that needles are hidden in; none where the phase hides none."""
    if not needles_of(asked.measured.benchmarks):
        return ()
    from phasewise.tasks.evaluation.suites.gated_needles import words_of_held_out

    return words_of_held_out({name: as_path(asked.held_out[name]) for name in asked.haystack}, tokenizer)


def _ends(asked: Asked, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The tokens that end an answer of the conversations that the phase was trained on, as in its export."""
    return turn_end_ids(tokenizer, chats_of_caches(as_path(asked.held_out[name]) for name in sorted(asked.run.caches)))


def _with_checkpoints(
    asked: Asked,
    checkpoint: Path,
    results: Sequence[BenchmarkResult],
    opened: Callable[[Params], "JaxLanguageModel"],
    haystack: Sequence[str],
) -> list[BenchmarkResult]:
    """The results, with the scores of the phase's last checkpoints where at least three are kept: a gate takes their spread as noise.

    Without them where an earlier one is damaged, which is said.
    """
    run, folder = asked.run, checkpoint.parent
    kept = len(kept_steps(folder, run))
    if kept < MIN_FOR_SPREAD:
        return list(results)
    values: list[list[float]] = [[] for _ in results]
    try:
        for step in last_steps(folder, run, min(kept, MAX_AVERAGED))[:-1]:
            model = opened(read_params(folder / str(step), run.model))
            before = measure_benchmarks(model, asked.benchmarks, asked.measured.benchmarks, asked.real, haystack)
            for of_benchmark, earlier in zip(values, before, strict=True):
                of_benchmark.append(earlier["value"])
    except CheckpointError as error:
        say(f"{run.phase}: the spread of its last checkpoints is not measured: {error}")
        return list(results)
    found: list[BenchmarkResult] = []
    for result, of_benchmark in zip(results, values, strict=True):
        with_values = result.copy()
        with_values["checkpoint_values"] = [*of_benchmark, result["value"]]
        found.append(with_values)
    return found


def _averages(run: RunConfig, checkpoint: Path, held_out: Mapping[str, HeldOutTokens]) -> dict[str, Any]:
    """Bits per byte of the moving average, and of the mean of the last checkpoints, of at most `MAX_AVERAGED` of those that are kept.

    None where the phase keeps no average, where it has one checkpoint alone, and where an earlier one is damaged, which is said.
    """
    from phasewise.tasks.evaluation.bits_per_byte import bits_per_byte

    ema = None
    if run.keeps_average:
        ema = bits_per_byte(read_params(checkpoint, run.model, ema=True), run.model, held_out).macro
    mean, steps = None, ()
    if (kept := len(kept_steps(checkpoint.parent, run))) > 1:
        try:
            params, steps = average_of_last(checkpoint.parent, run, min(kept, MAX_AVERAGED))
            mean = bits_per_byte(params, run.model, held_out).macro
        except CheckpointError as error:  # of an earlier one, which nothing else needs
            say(f"{run.phase}: the mean of its last checkpoints is not measured: {error}")
    return {"ema_macro_bits_per_byte": ema, "mean_macro_bits_per_byte": mean, "mean_of_steps": list(steps)}
