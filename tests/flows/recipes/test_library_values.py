"""Values that a record left to a library: each phase has what is written down, and what is written down is what the library has.

The second needs the libraries: LIBRARY_CLONES names a folder with a clone of each, as `owner+name`, or a released package unpacked as
`name-version`. Without it these tests are skipped, and the others are not.
"""

import ast
import os
import subprocess
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from phasewise.flows.recipes import load_record
from phasewise.flows.recipes.facts import FACTS, LibraryValue, leaves_of, library_values, rules_of, sources_of
from phasewise.flows.recipes.phase import Phase

RECORDS = {recipe: file.partition("/")[0] for recipe, file in FACTS.items()}
PHASES = [(recipe, phase.name) for recipe in RECORDS for phase in load_record(recipe, "full").phases]
LIBRARY_WORDS = ("default", "Levanter", "library", "transformers", "KellerJordan")
SAID_OF_LIBRARIES = {
    "order.rounding": "this project rounds otherwise than the library",
    "model.initializer_std": "this project's value, which the discrepancies set against the library's",
    "model.embedding_scale": "a product, not a value: √d_model",
}
"""Fields whose source speaks of a library or a default and rests on no value of it, with the reason."""


def phase_of(recipe: str, name: str) -> Phase:
    return load_record(recipe, "full").phase(name)


def plain(entry: Any) -> Any:
    """A value without the step from which it holds."""
    return entry[1] if isinstance(entry, list) else entry


def disagreement(value: LibraryValue, phase: Phase) -> str:
    """What a phase has in place of what a library gives it; empty if they agree."""
    entries = leaves_of(phase).get(value.decides)
    if entries is None:
        return f"{phase.name} has no {value.decides}"
    found = [plain(entry) for entry in entries]
    agree = value.given in found if value.among else all(one == value.given for one in found)
    return "" if agree else f"{phase.name}: {value.decides} is {found}, and {value.in_words} gives {value.given}"


@pytest.mark.parametrize(("recipe", "name"), PHASES)
def test_a_phase_has_what_its_library_gives(recipe: str, name: str):
    """Unless the phase's own sources name the field, and so say who decided otherwise."""
    phase, values = phase_of(recipe, name), library_values(RECORDS[recipe]).of(f"{recipe}/{name}")
    rules = rules_of(recipe, name)
    decisive = [value for value, *_ in values if rules[value.decides].place.endswith(value.in_words)]
    assert not [text for value in decisive if (text := disagreement(value, phase))]
    decided = [value.decides for value, *_ in values]
    assert len(set(decided)) == len(decided), "two values of libraries decide the same field"


@pytest.mark.parametrize(("recipe", "name"), PHASES)
def test_every_value_that_names_a_library_is_written_down(recipe: str, name: str):
    record = load_record(recipe, "full")
    phase = record.phase(name)
    written = {value.decides for value, *_ in library_values(RECORDS[recipe]).of(f"{recipe}/{name}")}
    for field, source in sources_of(record, phase).items():
        claims = source.kind == "default" or any(word in source.place for word in LIBRARY_WORDS)
        if claims and field not in SAID_OF_LIBRARIES:
            assert field in written or source.kind != "default", f"{field}: {source.place}"
            assert field in written or "experiments/" in source.place, f"{field}: {source.place}"


@pytest.mark.parametrize(("recipe", "name"), PHASES)
def test_a_phase_of_marin_is_checked_by_one_commit_of_levanter(recipe: str, name: str):
    """Only the branch that the record does not have is checked by none."""
    if RECORDS[recipe] == "marin":
        checked = [one.commit for one in library_values("marin").versions if any(fnmatchcase(f"{recipe}/{name}", to) for to in one.phases)]
        assert len(checked) == (name != "context-extension"), checked


def test_a_value_that_was_inherited_is_seen():
    """AdamW's decay of the first phase in a phase whose library has another, as it was in Muon's group and in Ocelot."""
    phase = phase_of("marin-8b", "ocelot")
    [decay] = [value for value, *_ in library_values("marin").of("marin-8b/ocelot") if value.decides == "optimizer.weight_decay"]
    assert disagreement(decay, phase) == ""
    inherited = phase.but(optimizer=phase_of("marin-8b", "kestrel").optimizer)
    assert disagreement(decay, inherited).endswith("is [0.05], and OptimizerConfig.weight_decay is 0.1 gives 0.1")


# ── the libraries themselves ──


@cache
def source(repository: str, commit: str, path: str) -> ast.Module:
    """A file of a library at a commit, or of its release."""
    root = Path(os.environ["LIBRARY_CLONES"])
    released = root / f"{repository.rpartition('/')[2]}-{commit}"
    if released.is_dir():
        return ast.parse((released / path).read_text(encoding="utf-8"))
    clone = root / repository.replace("/", "+")
    clone = clone / "repo" if (clone / "repo").is_dir() else clone
    shown = subprocess.run(["git", "-C", str(clone), "show", f"{commit}:{path}"], capture_output=True, text=True, check=True)
    return ast.parse(shown.stdout)


def is_there(repository: str) -> bool:
    root = os.environ.get("LIBRARY_CLONES")
    names = (repository.replace("/", "+"), f"{repository.rpartition('/')[2]}-*")
    return root is not None and any(True for name in names for _ in Path(root).glob(name))


def definitions(module: ast.Module, name: str) -> list[Any]:
    """Classes and functions of that name, wherever they are."""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(module) if isinstance(node, kinds) and node.name == name]


def fields_of(module: ast.Module, name: str) -> dict[str, ast.expr | None]:
    """The fields of a class with their defaults, those of its base classes in the same file included."""
    found: dict[str, ast.expr | None] = {}
    for node in definitions(module, name):
        assert isinstance(node, ast.ClassDef)
        for base in node.bases:
            found |= fields_of(module, ast.unparse(base))
        found |= {ast.unparse(line.target): line.value for line in node.body if isinstance(line, ast.AnnAssign)}
    return found


def parameters_of(node: ast.FunctionDef) -> dict[str, ast.expr | None]:
    positional = node.args.args[len(node.args.args) - len(node.args.defaults) :]
    named = [*zip(positional, node.args.defaults, strict=True), *zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)]
    return {argument.arg: default for argument, default in named}


def calls(tree: ast.AST, name: str) -> list[ast.Call]:
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [call for call in found if ast.unparse(call.func).rpartition(".")[2] == name]


def is_true(value: LibraryValue, module: ast.Module) -> bool:
    """Whether a file of a library shows what is written down of it."""
    owner, _, name = value.name.rpartition(".")
    match value.evidence:
        case "exists":
            return bool(definitions(module, value.name))
        case "absent":
            return bool(definitions(module, owner)) and name not in fields_of(module, owner)
        case "argument":
            return any(keyword.arg == name for call in calls(module, owner) for keyword in call.keywords)
        case "literal":
            numbers = (node.value for of in definitions(module, value.name) for node in ast.walk(of) if isinstance(node, ast.Constant))
            return value.value in numbers
        case "never_calls":
            return bool(definitions(module, owner)) and not any(calls(of, name) for of in definitions(module, owner))
        case "default":
            defaults = [
                fields_of(module, owner) if isinstance(of, ast.ClassDef) else parameters_of(of) for of in definitions(module, owner)
            ]
            found = [ast.literal_eval(one[name]) for one in defaults if one.get(name) is not None]  # pyright: ignore[reportArgumentType]
            return bool(found) and found[0] == value.value and type(found[0] == value.value) is bool


LOOKED_UP = sorted(
    {
        (value.model_copy(update={"phases": ("*",)}), repository, commit)
        for recipe, name in PHASES
        for value, repository, commit in library_values(RECORDS[recipe]).of(f"{recipe}/{name}")
    },
    key=lambda one: (one[1], one[2], one[0].path, one[0].name, one[0].decides),
)
"""What is written down, once for each commit that it was checked by."""


@pytest.mark.parametrize(
    ("value", "repository", "commit"), LOOKED_UP, ids=[f"{commit}-{value.name}-{value.decides}" for value, _, commit in LOOKED_UP]
)
def test_a_library_has_what_is_written_down(value: LibraryValue, repository: str, commit: str):
    if not is_there(repository):
        pytest.skip(f"LIBRARY_CLONES has no {repository}")
    assert is_true(value, source(repository, commit, value.path)), f"{repository} {commit} {value.path}: {value.in_words}"


def test_a_false_default_is_found():
    """The reader of the libraries itself, on a library that is made here."""
    module = ast.parse(
        "class Base:\n    weight_decay: float = 0.1\nclass Muon(Base):\n    clip: float | None = 1.0\n"
        "def build(steps=5, *, eos=None):\n    norm(0.5)\n    data(eos_id=3)\n"
    )

    def shown(**fields: Any) -> bool:
        return is_true(LibraryValue.model_validate({"library": "", "path": "", "decides": "", "phases": ["*"], **fields}), module)

    assert shown(name="Muon.weight_decay", value=0.1)
    assert not shown(name="Muon.weight_decay", value=0.05)
    assert shown(name="Muon.skip", evidence="absent")
    assert not shown(name="Muon.weight_decay", evidence="absent")
    assert shown(name="build.steps", value=5)
    assert shown(name="build.eos", value=None)
    assert not shown(name="build.steps", value=10)
    assert shown(name="data.eos_id", evidence="argument")
    assert not shown(name="norm.eos_id", evidence="argument")
    assert shown(name="build", evidence="literal", value=0.5)
    assert shown(name="build.clip", evidence="never_calls")
    assert not shown(name="build.norm", evidence="never_calls")
