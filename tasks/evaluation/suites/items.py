"""The items of a suite's benchmarks as lm-eval puts them to a model, for the search in training data."""

import tempfile
from pathlib import Path
from typing import NamedTuple

from phasewise.tasks.evaluation.harness_items import items_of_tasks
from phasewise.tasks.evaluation.suites.definition import Asked, Definition, Suite
from phasewise.tasks.evaluation.suites.harness import quiet_harness
from phasewise.tasks.evaluation.suites.known import find_definition
from phasewise.tasks.evaluation.suites.prepare import Hole, Prepared, prepare, write_definitions
from phasewise.trainer.base.errors import ConfigError, DataError
from phasewise.trainer.base.identity import digest_of_json
from phasewise.validations.evidence.leakage.item_files import read_examples
from phasewise.validations.evidence.leakage.items import BenchmarkItem, merge_equal


class SuiteItems(NamedTuple):
    """Items under a key of their content, and benchmark → why it has none here."""

    items: list[BenchmarkItem]
    key: str
    missing: dict[str, str]


def find_items(suite: Suite, folder: Path) -> SuiteItems:
    """The test items of each benchmark once, with however many examples it is put; then the items of other splits in the folder, which are
    known as examples and are not searched for.

    Raises:
        ConfigError: the folder is not there, or has no item of the suite.
    """
    if not folder.is_dir():
        raise ConfigError(f"--benchmarks must be a folder with a folder for each benchmark, found none at {folder}.")
    items: list[BenchmarkItem] = []
    missing: dict[str, str] = {}
    contents: list[list[str | None]] = []
    for name in dict.fromkeys(asked.benchmark for asked in suite.asked):
        definition = find_definition(name)
        prepared = prepare(definition, Asked(benchmark=name, shots=0, source="the search for leaks"), folder, allow_code=True)
        found = prepared if isinstance(prepared, Hole) else _items_of(definition, prepared)
        if isinstance(found, Hole):
            missing[name] = found.reason
            continue
        items += found
        assert not isinstance(prepared, Hole)
        contents.append([name, prepared.items_digest, prepared.definition_digest])
    if not items:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in missing.items())
        raise ConfigError(f"{folder} must have items of the suite {suite.name}, and has none: {reasons}.")
    examples = read_examples(folder)
    key = digest_of_json({"items": contents, "examples": [item._asdict() for item in examples]})
    return SuiteItems([*merge_equal(items), *examples], key, missing)


def _items_of(definition: Definition, prepared: Prepared) -> list[BenchmarkItem] | Hole:
    """The items of all parts, under the benchmark's name."""
    with tempfile.TemporaryDirectory(prefix="phasewise-suite-") as temporary, quiet_harness(offline=True):
        definitions = write_definitions(prepared, Path(temporary))
        try:
            found = items_of_tasks([part.task for part in prepared.parts], definitions, built_in=False)
        except DataError as error:
            return Hole(str(error))
    return [item._replace(benchmark=definition.name) for item in found]
