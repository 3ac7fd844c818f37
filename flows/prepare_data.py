"""Sources → documents → tokenizer → token caches → benchmarks."""

from flows.door import door
from flows.plan import check_sources, data_plan, stand_ins_of
from flows.recipes import load_recipe
from flows.recipes.recipe import Scale
from tasks.data.task import build_caches, collect_stand_ins, make_tokenizer, write_benchmarks, write_documents
from tasks.home import Home


@door(name="prepare_data", flow_run_name="prepare data of {recipe} ({scale})")
def prepare_data(recipe: str = "marin-8b", scale: Scale = "proxy", home: str | None = None) -> None:
    """Build every token cache that the recipe needs and that is not there yet.

    Args:
        recipe: Name of a recipe, or path of a recipe's JSON file.
        scale: `proxy` runs on this machine in minutes; `full` reads the real data sets.
        home: Folder of everything; PHASEWISE_HOME if not given.
    """
    wanted, place = load_recipe(recipe, scale), Home.open(home)
    check_sources(wanted, place)
    collect_stand_ins(stand_ins_of(wanted), place.sources)
    plan = data_plan(wanted, place)
    write_documents(plan)
    make_tokenizer(plan, wanted.tokenizer.vocab_size, wanted.tokenizer.name)
    build_caches(plan)
    write_benchmarks(plan)
