"""The data sets of Marin 8B at its real size are listed and read as the record has them, from servers of our own.

The whole of it is a measurement: `experiments.studies.full_scale`.
"""

from collections.abc import Iterator

import fsspec
import pytest
from fsspec.implementations.http import HTTPFileSystem
from huggingface_hub import constants

from experiments.studies.full_scale import DOCUMENTS, RECIPE, SCALE, names_of, on_the_web, repositories_of
from phasewise.flows.recipes import load_recipe
from phasewise.flows.recipes.catalogue import CATALOGUE
from phasewise.tasks.data.hub import Hub
from phasewise.tasks.data.listing import at_commit, expand, fingerprint
from phasewise.tasks.data.reading import Record, pieces_of, read_piece
from phasewise.tasks.data.source import Source
from tests.stores.mirror import VARIABLE, Mirrored, serving

SOURCES = {name: source for name in load_recipe(RECIPE, SCALE).components if (source := CATALOGUE[name].source) is not None}
MAX_NAMED = 12
"""A server that lists nothing is asked for one file after another: components of hundreds of files are left to the measurement."""
ONE_OF_EACH = ("dolma_wiki", "finemath_3_plus", "nemotron_hq_actual", "starcoderdata", "proofpile_2", "wikipedia_markdown", "flan")
"""A component of each server, format and packing, and the one with filters."""


@pytest.fixture(scope="module", autouse=True)
def servers() -> Iterator[None]:
    sources = SOURCES.values()
    with serving(repositories_of(sources), lambda path: on_the_web(path, sources)) as (address, _), pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, address)
        patch.setattr(constants, "ENDPOINT", address)
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}")
        patch.delenv("HF_TOKEN", raising=False)
        fsspec.register_implementation("https", Mirrored, clobber=True)
        yield
        fsspec.register_implementation("https", HTTPFileSystem, clobber=True)
    Hub.clear_instance_cache()
    HTTPFileSystem.clear_instance_cache()


@pytest.mark.parametrize("name", [name for name, source in SOURCES.items() if len(source.include) <= MAX_NAMED])
def test_every_glob_of_the_record_selects_its_files(name: str):
    source = SOURCES[name]
    wanted = {file for glob in source.include for file in names_of(glob)}
    assert set(expand(at_commit(source)).files) == wanted


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_file_of_each_layout_is_read_whole(name: str):
    """Nothing is left out: fields, packing and filters are the record's."""
    source = SOURCES[name]
    one = at_commit(_with_one_file(source))
    pieces = pieces_of(one, fingerprint(one).files)
    found = [record for piece in pieces for record in read_piece(one, piece)]
    assert [type(record) for record in found] == [Record] * DOCUMENTS


def _with_one_file(source: Source) -> Source:
    return source.but(include=(names_of(source.include[0])[0],))
