"""What a card claims of judgement: the verdicts with their limits, checks and evidence, and the evaluation that the last one judged."""

import json
import math
from collections.abc import Mapping
from typing import Any, Literal

import pandas as pd
from pydantic import ValidationError

from phasewise.tasks.evaluation.benchmark_folder import read_benchmark_folder
from phasewise.tasks.evaluation.measured import made_of
from phasewise.tasks.publication.card.data_claims import check_shards, find_cache
from phasewise.tasks.publication.card.home_files import HomeFiles
from phasewise.tasks.publication.card.training_claims import Trained
from phasewise.trainer.base.decision import Ruling, ruling_at
from phasewise.trainer.base.errors import DataError, VerdictError
from phasewise.trainer.base.identity import digest_of_file, digest_of_json
from phasewise.trainer.base.run_folder import EVALUATION_NAME, RunFolder
from phasewise.trainer.data.manifest import MANIFEST_NAME
from phasewise.validations.verdict import Verdict, judged_by_gate

Gate = Literal["data", "health", "model"]
GATES: tuple[Gate, ...] = ("data", "health", "model")
ROUNDING = 1e-9
SHARES = ("acc", "exact_match")
"""Metrics that are the share of right answers."""


def read_gate(files: HomeFiles, run_name: str, phase: str, gate: Gate) -> Verdict | None:
    """The verdict in the home; None where it is missing, or says something else than its own checks."""
    content = files.json(f"gates.{gate}", f"verdicts/{run_name}/{phase}/{gate}.json")
    if content is None:
        return None
    return files.tried(f"gates.{gate}.passes", lambda: Verdict.model_validate(content), ValidationError)


def gate_claims(files: HomeFiles, run_name: str, phase: str, gate: Gate, verdict: Verdict) -> dict[str, Any]:
    """One verdict: whether it passes, who let it pass, its limits, what it judged, each check, and the evidence tables by digest."""
    folder = f"verdicts/{run_name}/{phase}/{gate}"
    tables = sorted(f"{folder}/{path.name}" for path in files.place(folder).glob("*.parquet"))
    for name, digest in verdict.tables.items():
        files.check(f"gates.{gate}.evidence.{name}", f"{folder}/{name}.parquet", digest)
    said = verdict.model_dump(mode="json")
    checks = [{name: check[name] for name in ("name", "table", "asks", "severity", "outcome")} for check in said["checks"]]
    ruling = files.tried(f"gates.{gate}.decision", lambda: ruling_at(files.place(f"{folder}.json")), VerdictError)
    return {
        "passes": verdict.passes,
        **_decided(ruling),
        "suite": verdict.suite,
        "suite_version": verdict.suite_version,
        "limits": said["thresholds"],
        "judged": {name.rpartition("/")[2]: digest for name, digest in verdict.judged.items()},
        "decided_by": said["decided_by"],
        "accepts": said["accepts"],
        "checks": checks,
        "rests_on": files.ground(f"{folder}.json", f"{folder}.decision.json", *tables),
    }


def _decided(ruling: Ruling | None) -> dict[str, Any]:
    """What people decided, or that they have not yet; nothing where nobody is asked."""
    if ruling is None or ruling.state in ("passes", "fails"):
        return {}
    return {"ruling": ruling.state, "decision": ruling.decision.model_dump(mode="json") if ruling.decision else None}


def ruling_word(gate: Mapping[str, Any]) -> str:
    """What follows from a verdict of a card: passes, approved, waits, rejected or fails."""
    return str(gate.get("ruling") or ("passes" if gate["passes"] else "fails"))


def hand_off_claims(files: HomeFiles, run_name: str, phase: str) -> dict[str, Any]:
    """What the start of the phase changed against its parent: declared or not, before and after, as the verdict on its data judged it."""
    path = f"verdicts/{run_name}/{phase}/data/hand_off.parquet"
    if not files.has(path):
        return {}
    table = files.tried("hand_off", lambda: pd.read_parquet(files.place(path)), ValueError, OSError)
    rows: list[dict[str, Any]] = [] if table is None else json.loads(table.to_json(orient="records"))
    changes = {str(row["name"]): {name: row[name] for name in ("declared", "found", "before", "after")} for row in rows}
    return {"changes": changes, "rests_on": files.ground(path)}


def check_judged(
    files: HomeFiles, trained: Trained, verdicts: Mapping[Gate, Verdict], evaluation: Mapping[str, Any] | None, parent: Any
) -> None:
    """That the verdicts on training and model judged the metrics and the evaluations that are in the home."""
    metrics = RunFolder(files.place(trained.folder)).metrics
    if "health" in verdicts and metrics.is_file():
        said = sorted(verdicts["health"].judged.values())
        files.agree("gates.health.judged", "metrics.jsonl has", said, [digest_of_file(metrics)])
    if "model" in verdicts and evaluation is not None:
        found = judged_by_gate(evaluation, parent)  # pyright: ignore[reportArgumentType]  # as it lies in the file
        judged = verdicts["model"].judged
        for name in {**judged, **found}:
            files.agree(f"gates.model.judged.{name}", "the evaluations have", judged.get(name), found.get(name))


def evaluation_claims(files: HomeFiles, trained: Trained, evaluation: Mapping[str, Any], held_out_tokens: int | None) -> dict[str, Any]:
    """Scores with their errors, bits per byte, the benchmarks by digest, and the held-out text that it was measured on.

    Scores are worked out again from the answers to the items, and the average of bits per byte from its parts.
    """
    path = f"{trained.folder}/{EVALUATION_NAME}"
    files.agree("evaluation.params_digest", "the result has", evaluation.get("params_digest"), trained.result.get("params_digest"))
    results: dict[str, Any] = {}
    for result in evaluation["results"]:
        name = result["benchmark"]
        _check_score(files, name, result)
        results[name] = {key: value for key, value in result.items() if key not in ("benchmark", "answers")}
    bits = evaluation["bits_per_byte"]
    mean, macro = sum(bits.values()) / len(bits), evaluation["macro_bits_per_byte"]
    if not math.isclose(mean, macro, rel_tol=ROUNDING):
        files.problem("evaluation.macro_bits_per_byte", f"the home says {macro}, the components give {mean}")
    kept = ("key", "weights", "params_digest", "benchmarks", "benchmarks_digest", "bits_per_byte", "macro_bits_per_byte", "finite")
    return {
        **{name: evaluation[name] for name in kept},
        **{name: evaluation.get(name) for name in ("ema_macro_bits_per_byte", "mean_macro_bits_per_byte", "mean_of_steps")},
        "results": results,
        "benchmark_files": _benchmark_files(files, evaluation),
        "held_out_tokens": held_out_tokens,
        "held_out": _held_out(files, evaluation, held_out_tokens),
        "rests_on": files.ground(path),
    }


def _check_score(files: HomeFiles, name: str, result: Mapping[str, Any]) -> None:
    """A score that is the share of right answers is worked out again from them."""
    field, answers = f"evaluation.results.{name}.value", result.get("answers")
    if result["metric"] not in SHARES or answers is None:
        files.skip(field, f"{result['metric']} is not worked out again: it is no share of right answers, or these are not kept")
        return
    right = sum(answer["right"] for answer in answers) / len(answers) if answers else math.nan
    if not math.isclose(right, result["value"], abs_tol=ROUNDING) or len(answers) != result["items"]:
        words = f"the home says {result['value']} of {result['items']} items, the answers give {right} of {len(answers)}"
        files.problem(field, words)


def _benchmark_files(files: HomeFiles, evaluation: Mapping[str, Any]) -> dict[str, str]:
    """The items that were asked, by the digest that the evaluation names."""
    for path in sorted(files.place("benchmarks").glob(f"*/{MANIFEST_NAME}")):
        try:
            chosen = read_benchmark_folder(path.parent).only(made_of(evaluation["benchmarks"]))
        except DataError:
            continue
        if chosen.digest == evaluation["benchmarks_digest"]:
            where = f"benchmarks/{path.parent.name}"
            named = [f"{where}/{one.name}.{kind}" for one in chosen.benchmarks for kind in ("jsonl", "yaml")]
            return files.ground(f"{where}/{MANIFEST_NAME}", *named)
    said = str(evaluation["benchmarks_digest"])
    files.problem("evaluation.benchmarks_digest", f"no whole benchmarks in the home have the digest {said[:16]} that was measured")
    return {}


def _held_out(files: HomeFiles, evaluation: Mapping[str, Any], held_out_tokens: int | None) -> dict[str, Any]:
    """Component → its held-out cache, found by what the evaluation notes of it: a digest of the cache's key and of the bound."""
    found: dict[str, Any] = {}
    for name, noted in sorted(evaluation["measured_on"].items()):
        field = f"evaluation.held_out.{name}"
        cache = find_cache(files, name, "held_out", lambda manifest, noted=noted: digest_of_json([manifest.key, held_out_tokens]) == noted)
        if cache is None:
            files.problem(field, f"no held-out cache in the home gives {noted[:16]}, which the evaluation was measured on")
            continue
        where, manifest = cache
        check_shards(files, field, where, manifest)
        found[name] = {"measured_on": noted, "manifest_digest": manifest.digest, "rests_on": files.ground(f"{where}/{MANIFEST_NAME}")}
    return found
