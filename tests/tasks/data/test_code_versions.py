"""What decides bytes is in a version: each module that such a module uses is digested, or named here as deciding nothing."""

import ast

import pytest

from phasewise.tasks.data import caches, conversation_text, documents, filters, reading, tokenizer
from phasewise.tasks.evaluation import phase_evaluation
from phasewise.trainer.base import identity

DECIDES_NOTHING = {
    "phasewise.tasks.data.source": "settings, which are in the key themselves",
    "phasewise.tasks.data.digests": "names and digests of files, which are in the key themselves",
    "phasewise.tasks.data.listing": "names and digests of files, which are in the key themselves",
}
DECIDES_NO_MEASURE = {
    "phasewise.tasks.data.conversation": "a template's text is in the key of its cache",
    "phasewise.tasks.data.plan": "names caches, whose contents are in the key",
    "phasewise.tasks.data.verify": "compares a cache with its manifest, and refuses it or not",
    "phasewise.tasks.evaluation.made_benchmarks": "reads benchmarks, whose bytes are in the key",
    "phasewise.tasks.evaluation.gate_benchmarks": "its code is in the digests of real benchmarks and needles, which are in the key",
    "phasewise.tasks.progress": "says what happens",
}


def modules_used_by(paths: set[str], room: str) -> set[str]:
    """Modules of the room that the files import."""
    trees = [ast.parse((identity.HOUSE / path).read_text()) for path in paths]
    imports = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and str(node.module).startswith(room)]
    named = {(str(node.module), f"{node.module}.{alias.name}") for node in imports for alias in node.names}
    return {
        name if (identity.HOUSE / f"{name.removeprefix('phasewise.').replace('.', '/')}.py").exists() else module for module, name in named
    }


def names_of(paths: set[str]) -> set[str]:
    return {f"phasewise.{path.removesuffix('.py').replace('/', '.')}" for path in paths}


def test_every_module_that_decides_what_is_measured_is_in_a_version():
    digested = {path.relative_to(identity.HOUSE).as_posix() for path in identity.files_of(*phase_evaluation.MEASURING)}
    assert modules_used_by(digested, "phasewise.tasks.") - names_of(digested) == set(DECIDES_NO_MEASURE)


def test_every_module_that_decides_bytes_is_in_a_version():
    digested = {*reading.READER_CODE, *documents.DOCUMENTS_CODE, *caches.ENCODER_CODE, *conversation_text.COMPOSER_CODE}
    assert modules_used_by(digested, "phasewise.tasks.data") - names_of(digested) <= set(DECIDES_NOTHING)


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (reading.READER, reading.READER_CODE),
        (documents.DOCUMENTS, documents.DOCUMENTS_CODE),
        (caches.ENCODER, caches.ENCODER_CODE),
        (conversation_text.COMPOSER, conversation_text.COMPOSER_CODE),
        (tokenizer.TOKENIZER_VERSION, (tokenizer,)),
        (filters.NORMALIZER, (filters,)),
    ],
)
def test_each_version_has_its_digest(version: str, code: tuple[object, ...]):
    assert identity.code_digest(*code) in version  # pyright: ignore[reportArgumentType]
