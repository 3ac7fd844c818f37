"""Every component has a real data set with its revision, and a stand-in of its own."""

import pytest

from flows.recipes import NAMES, load_recipe
from flows.recipes.catalogue import CATALOGUE
from tasks.data.standins import StandIn

COMPONENTS = sorted({name for recipe in NAMES for name in load_recipe(recipe, "full").components})
REVISIONS = {
    "mlfoundations/dclm-baseline-1.0": "a3b142c",
    "bigcode/starcoderdata": "9fc30b5",
    "EleutherAI/proof-pile-2": "901a927",
    "allenai/dolma": "7f48140",
    "allenai/dolmino-mix-1124": "bb54cab",
    "HuggingFaceTB/finemath": "8f233cf",
}
FROM_DOLMA = {"dolma_pes2o", "dolma_arxiv", "dolma_stackexchange", "dolma_wiki", "megawika", "open_web_math", "algebraic_stack"}
FROM_DOLMINO = {"dolmino_dclm", "dolmino_pes2o", "dolmino_stackexchange", "dolmino_wiki", "flan", "all_math"}


def test_it_covers_every_component_and_nothing_else():
    assert sorted(CATALOGUE) == COMPONENTS
    assert len(COMPONENTS) == 28


@pytest.mark.parametrize("name", COMPONENTS)
def test_a_source_names_the_revision_that_the_record_has(name: str):
    url = CATALOGUE[name].source.url
    assert url.startswith(("hf://datasets/", "https://data.commoncrawl.org/contrib/Nemotron/"))
    dataset, _, revision = url.removeprefix("hf://datasets/").partition("@")
    if dataset in REVISIONS:
        assert revision == REVISIONS[dataset]
    else:
        assert "@" not in url
        assert dataset.startswith("marin-community/") or name.startswith("nemotron_")


def test_sources_are_where_the_record_has_them():
    def of(dataset: str) -> set[str]:
        return {name for name, data in CATALOGUE.items() if f"/{dataset}@" in data.source.url}

    assert of("allenai/dolma") == FROM_DOLMA
    assert of("allenai/dolmino-mix-1124") == FROM_DOLMINO
    assert CATALOGUE["starcoderdata"].source.text_key == "content"
    nemotron = [data.source.url for name, data in CATALOGUE.items() if name.startswith("nemotron_")]
    assert len(nemotron) == len(set(nemotron)) == 7


def test_all_math_has_all_seven_splits():
    """The one with the GSM8K test items too: the record read it, and leakage is for the scan to find."""
    assert len(CATALOGUE["all_math"].source.include) == 7
    assert any("gsm8k" in glob for glob in CATALOGUE["all_math"].source.include)


def test_no_two_components_read_the_same_files():
    sources = [data.source.model_dump_json() for data in CATALOGUE.values()]
    assert len(set(sources)) == len(sources)


def test_no_two_stand_ins_are_alike():
    """Another view of the same files is another text; the same view of the same files is not."""
    stand_ins = [(data.stand_in.view, data.stand_in.where) for data in CATALOGUE.values()]
    assert len(set(stand_ins)) == len(stand_ins)


@pytest.mark.parametrize("view", sorted({data.stand_in.view for data in CATALOGUE.values()}))
def test_stand_ins_of_one_view_come_from_different_files(view: str):
    """No package is seen in the same way by two components, unless one of them leaves the other's files out."""
    of_view: dict[str, StandIn] = {name: data.stand_in for name, data in CATALOGUE.items() if data.stand_in.view == view}
    for name, stand_in in of_view.items():
        for other, another in of_view.items():
            shared = set(stand_in.where) & set(another.where) if name != other else set[str]()
            assert not shared - set(stand_in.without) - set(another.without), (name, other)
