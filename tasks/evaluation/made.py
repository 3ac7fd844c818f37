"""The benchmarks that are made here, from documents that nothing trains on."""

from phasewise.tasks.data.plan import DataPlan
from phasewise.tasks.data.tokenizer import load_tokenizer
from phasewise.tasks.evaluation.benchmark_folder import write_benchmarks
from phasewise.tasks.evaluation.held_out import read_held_out_texts
from phasewise.tasks.locks import held
from phasewise.tasks.progress import say


def write_missing_benchmarks(plan: DataPlan) -> bool:
    """Make the benchmarks from held-out documents unless they are there; whether they were made.

    Only the beginning of each component is looked at, so that it takes no longer however large they are.
    """
    if plan.has_benchmarks:
        return False
    with held(plan.lock):
        if plan.has_benchmarks:
            return False
        asked_of = {name: plan.components[name].held_out.folder for name in plan.benchmark_components}
        write_benchmarks(plan.benchmarks, read_held_out_texts(asked_of, load_tokenizer(plan.tokenizer)))
    say("made the benchmarks from held-out documents")
    return True
