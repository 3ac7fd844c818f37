"""Sources → documents → tokenizer → token caches → benchmarks."""

from phasewise.flows.prefect.flow_decorator import door
from phasewise.flows.recipes.assignments import Settings
from phasewise.flows.recipes.recipe import Scale
from phasewise.flows.resolved import resolve
from phasewise.tasks.progress import explain


@door(name="prepare-data")
def prepare_data(recipe: str = "marin-8b", scale: Scale = "proxy", home: str | None = None, settings: Settings = ()) -> None:
    """Build all missing token caches of a recipe.

    Args:
        scale: `proxy` takes minutes on this machine, `full` reads the real data sets, `own` is for a recipe with this scale.
    """
    from phasewise.tasks.data.cluster import one_cluster  # it imports Dask
    from phasewise.tasks.data.task import build_caches, collect_stand_ins, make_tokenizer, write_documents
    from phasewise.tasks.evaluation.task import make_benchmarks

    explain("preparing data: missing documents, token caches and benchmarks")
    resolved, _ = resolve(recipe, scale, home)
    resolved.check_sources()
    resolved.home.make_ready()
    with one_cluster() as shared:
        if collect_stand_ins(resolved.stand_ins, resolved.home.sources, shared):
            resolved.look_again()
        tokenizer = resolved.recipe.tokenizer
        write_documents(resolved.plan, shared)
        make_tokenizer(resolved.plan, tokenizer.vocab_size, tokenizer.name)
        build_caches(resolved.plan, shared)
    make_benchmarks(resolved.plan)
