"""One function reads JSON strictly (`trainer.base.json_reader`). What parses text otherwise is named here, with its reason."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("trainer", "validations", "tasks", "flows", "deployments")
PARSERS = {"json.loads", "json.load", "orjson.loads", "yaml.safe_load", "yaml.load", "tomllib.loads", "tomllib.load"}
METHODS = {"model_validate_json", "validate_json"}
MADE_HERE = "what this process or its own child wrote a moment before"
HOME = "a line or a small file that a process of this home writes and pydantic or the caller checks"
STORE = "what a store answers about an object"
TEXT = "documents of a data set: orjson refuses NaN and depth, and each line that it refuses is counted with its reason"
OTHERS: dict[str, str] = {
    "trainer/base/storage.py": "the function itself",
    "trainer/checkpoints/shards.py": HOME,
    "trainer/base/run_folder.py": HOME,
    "trainer/metrics.py": HOME,
    "trainer/recorder.py": HOME,
    "tasks/locks.py": HOME,
    "tasks/training/time_breakdown.py": HOME,
    "tasks/store/content.py": STORE,
    "tasks/data/plan.py": HOME,
    "tasks/data/stand_ins.py": HOME,
    "flows/site/metrics.py": HOME,
    "tasks/training/execution.py": MADE_HERE,
    "tasks/evaluation/phase_evaluation.py": MADE_HERE,
    "tasks/evaluation/sandbox.py": MADE_HERE,
    "tasks/evaluation/sandbox_child.py": MADE_HERE,
    "flows/recipes/waivers.py": MADE_HERE,
    "tasks/report/card.py": MADE_HERE,
    "tasks/report/claims.py": MADE_HERE,
    "tasks/report/export.py": MADE_HERE,
    "validations/evidence/leakage/detokenize.py": "a tokenizer that the library tokenizers has read and written again",
    "validations/evidence/leakage/fold.py": "a table of an installed package",
    "tasks/evaluation/made_benchmarks.py": "items whose digest the manifest names, compared first",
    "tasks/evaluation/benchmark_definitions.py": "a YAML file of this package",
    "tasks/accelerator_bench.py": "a YAML file of this package",
    **dict.fromkeys(("flows/cli/help.py", "trainer/flops.py"), "a TOML file of this package"),
    "tasks/evaluation/own_benchmarks.py": "a user's YAML of lm-eval, by a safe loader; its digest is in the key of each result",
    "tasks/evaluation/checkpoint.py": "definitions whose digest the manifest names, compared first",
    "tasks/data/text_files.py": TEXT,
    "tasks/data/template.py": MADE_HERE,
    "tasks/data/sandbox.py": MADE_HERE,
    "tasks/data/table_process.py": MADE_HERE,
    "tasks/data/tables.py": MADE_HERE,
    "tasks/preflight/slices.py": "slices.toml of this package; TOML refuses a name that is there twice, pydantic NaN",
}


def parsers_in(source: str) -> set[str]:
    called = [node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    methods = {one.attr for one in called if isinstance(one, ast.Attribute) and one.attr in METHODS}
    return methods | ({ast.unparse(one) for one in called} & PARSERS)


def test_json_from_outside_is_read_by_one_function():
    found = {str(path.relative_to(ROOT)): parsers_in(path.read_text()) for name in PACKAGES for path in (ROOT / name).rglob("*.py")}
    assert {path: calls for path, calls in found.items() if calls and path not in OTHERS} == {}
    assert [path for path in OTHERS if not found.get(path)] == []  # an exception that is gone is taken out
