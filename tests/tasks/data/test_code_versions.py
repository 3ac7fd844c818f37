"""What decides bytes is in a version: each module that such a module uses is digested, or named here as deciding nothing."""

import ast
import sys
from pathlib import Path
from types import ModuleType

from phasewise.tasks.data import caches, documents, encode, hashed_file, normalize, reading, tokenizer
from phasewise.tasks.data.conversations import compose
from phasewise.tasks.evaluation import finished
from phasewise.trainer.base import code_digest

DECIDES_NOTHING = {
    "phasewise.trainer.base.code_digest": "makes the versions",
    "phasewise.tasks.data.records": "reads back what was written",
    "phasewise.tasks.data.source": "settings, which are in the key themselves",
    "phasewise.tasks.data.listing": "names and digests of files, which are in the key themselves",
    "phasewise.tasks.data.pin": "a pin names a place",
    "phasewise.tasks.data.conversations.built_in": "chat templates, which are in the key themselves",
}


def modules_used_by(module: ModuleType) -> set[str]:
    """Modules of the data rooms that a module imports."""
    found: set[str] = set()
    assert module.__file__
    for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("phasewise.tasks.data"):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name for name in names if name in sys.modules} or {node.module}
    return found


DECIDES_NO_MEASURE = {
    "phasewise.tasks.data.conversations.template": "the tokens that end an answer in it are in the key",
    "phasewise.tasks.data.plan": "names caches, whose contents are in the key",
    "phasewise.tasks.data.verify": "compares a cache with its manifest, and refuses it or not",
    "phasewise.tasks.data.tokenizer": "the tokenizer's digest is in the keys of the caches",
    "phasewise.tasks.evaluation.benchmark_folder": "reads benchmarks, whose bytes are in the key",
    "phasewise.tasks.evaluation.finished": "makes the key",
    "phasewise.tasks.evaluation.measured": "settings, which are in the key themselves",
    "phasewise.tasks.evaluation.suites.gated": "its code is in the digests of the real benchmarks, which are in the key",
    "phasewise.tasks.evaluation.suites.gated_needles": "its code is in the digests of the needles, which are in the key",
    "phasewise.tasks.progress": "says what happens",
}


def test_every_module_that_decides_what_is_measured_is_in_a_version():
    digested = {path.relative_to(code_digest.HOUSE).as_posix() for path in code_digest.files_of(*finished.MEASURING)}
    used: set[str] = set()
    for path in digested:
        tree = ast.parse((code_digest.HOUSE / path).read_text())
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and str(node.module).startswith("phasewise.tasks.")]
        used |= {str(node.module) for node in imports}
    modules = {f"phasewise.{path.removesuffix('.py').replace('/', '.')}" for path in digested}
    assert used - modules == set(DECIDES_NO_MEASURE)


def test_every_module_that_decides_bytes_is_in_a_version():
    of_reader = [
        sys.modules[name]
        for name in modules_used_by(reading)
        if name.startswith(("phasewise.tasks.data.formats", "phasewise.tasks.data.filters"))
    ]
    digested = [reading, normalize, *of_reader, *documents.DOCUMENTS_CODE, *caches.ENCODER_CODE, *compose.COMPOSER_CODE]
    used = {name for module in digested for name in modules_used_by(module)}
    assert used - {module.__name__ for module in digested} <= set(DECIDES_NOTHING)
    assert {encode, documents, hashed_file, tokenizer} <= set(caches.ENCODER_CODE)


def test_each_version_ends_with_its_digest():
    assert code_digest.code_digest(*documents.DOCUMENTS_CODE) in documents.DOCUMENTS
    assert code_digest.code_digest(*caches.ENCODER_CODE) in caches.ENCODER
    assert code_digest.code_digest(*compose.COMPOSER_CODE, compose.SANDBOX) in compose.COMPOSER
    assert code_digest.code_digest(tokenizer) in tokenizer.TOKENIZER_VERSION
    assert code_digest.code_digest(normalize) in normalize.NORMALIZER
