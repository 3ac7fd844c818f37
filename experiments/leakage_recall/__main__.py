"""Recall of the leakage scan on real benchmarks by format, and false alarms in clean text.

python -m experiments.leakage_recall [--items 300] [--seed 0] [--formats NAME …] [--benchmarks NAME …] [--clean 30000]
                                 [--misses N] [--mutations] [--json FILE]
"""

import argparse
import fnmatch
from pathlib import Path

import orjson

from experiments.leakage_recall.detectors import DETECTORS
from experiments.leakage_recall.formats import FORMATS
from experiments.leakage_recall.material import Material
from experiments.leakage_recall.mutations import MUTATIONS
from experiments.leakage_recall.report import as_json, as_markdown, mutation_lines


def main() -> int:
    chosen = _arguments()
    formats = [found for name, found in FORMATS.items() if any(fnmatch.fnmatchcase(name, pattern) for pattern in chosen.formats)]
    if not formats:
        raise SystemExit(f"no format is called {' or '.join(chosen.formats)}; there are:\n" + "\n".join(FORMATS))
    material = Material.real(clean=chosen.clean, long=chosen.clean // 150, seed=chosen.seed, planted=chosen.benchmarks)
    if not material.by_benchmark:
        raise SystemExit(f"no benchmark is called {' or '.join(chosen.benchmarks)}")
    if chosen.mutations:
        return _print_mutations(material, chosen.items)
    table = material.table(DETECTORS[chosen.detector], formats, chosen.items)
    print(as_markdown(table, chosen.misses))
    if chosen.json:
        chosen.json.write_bytes(orjson.dumps(as_json(table), option=orjson.OPT_INDENT_2))
    return 1 if table.failures else 0


def _print_mutations(material: Material, count: int) -> int:
    rows = [(mutation, mutation.measure(material, count, whole=True), mutation.measure(material, count)) for mutation in MUTATIONS]
    print(mutation_lines([(mutation.part, whole, broken) for mutation, whole, broken in rows]))
    return 0 if all(whole.passes and not broken.passes for _, whole, broken in rows) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.leakage_recall", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--items", type=int, default=300, help="items a format")
    parser.add_argument("--seed", type=int, default=0, help="decides items, places and edits")
    parser.add_argument("--formats", nargs="+", default=["*"], metavar="NAME", help='names or patterns, such as "*homoglyphs*"')
    parser.add_argument("--benchmarks", nargs="+", metavar="NAME", help="plant items of these alone, and look for all")
    parser.add_argument("--clean", type=int, default=30_000, help="clean documents; one longer one for every 150")
    parser.add_argument("--detector", choices=DETECTORS, default="ours")
    parser.add_argument(
        "--misses", type=int, default=0, metavar="N", help="list the first missed items of each format, as they were planted"
    )
    parser.add_argument("--mutations", action="store_true", help="only show which row falls without which part of the scan")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table here as well")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
