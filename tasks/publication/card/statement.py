"""The statement of a card: in-toto's Statement v1, its subjects the files of the model, its predicate the claims."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from phasewise.trainer.base.identity import digest_of_json

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:phasewise:card:1"
"""Names the shape of the predicate; `docs/reference/card.md` describes it."""
PAYLOAD_TYPE = "application/vnd.in-toto+json"


def build_statement(claims: Mapping[str, Any], documents: Mapping[str, str]) -> dict[str, Any]:
    """The statement.

    Args:
        documents: name → SHA-256 of the other documents of the card, which say the same in other words.
    """
    return {
        "_type": STATEMENT_TYPE,
        "subject": subjects_of(claims),
        "predicateType": PREDICATE_TYPE,
        "predicate": {**claims, "documents": dict(documents)},
    }


def subjects_of(claims: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The files of the checkpoint by their paths in the home, and those of the exported folder where there is one."""
    checkpoint, export = claims.get("checkpoint") or {}, claims.get("export") or {}
    files = {f"{checkpoint.get('where')}/{name}": file["sha256"] for name, file in checkpoint.get("files", {}).items()}
    files |= {f"export/{name}": file["sha256"] for name, file in export.get("files", {}).items()}
    return [{"name": name, "digest": {"sha256": digest}} for name, digest in sorted(files.items())]


def structure_problems(statement: Any) -> Iterator[tuple[str, str]]:
    """What keeps it from being such a statement: field, and why. The standard's own validator asks for the same."""
    if not isinstance(statement, dict):
        yield "statement", "must be a JSON object"
        return
    for name, wanted in (("_type", STATEMENT_TYPE), ("predicateType", PREDICATE_TYPE)):
        if statement.get(name) != wanted:
            yield name, f"must be {wanted}, found {statement.get(name)!r}"
    if unknown := sorted(set(statement) - {"_type", "subject", "predicateType", "predicate"}):
        yield unknown[0], "is no field of a statement"
    if not isinstance(statement.get("predicate"), dict):
        yield "predicate", "must be a JSON object"
    subjects = statement.get("subject")
    if not isinstance(subjects, list) or not subjects:
        yield "subject", "must name at least one file"
        return
    for number, subject in enumerate(subjects):
        digests = subject.get("digest") if isinstance(subject, dict) else None
        if not (isinstance(digests, dict) and isinstance(digests.get("sha256"), str) and len(digests["sha256"]) == 64):
            yield f"subject[{number}]", "must have a name and the SHA-256 of its bytes"


def inner_problems(statement: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any, str]]:
    """Where the card contradicts itself: field, what it says, what follows from the rest of it, and from what. No home is needed."""
    claims: Mapping[str, Any] = statement["predicate"]
    yield "subject", statement["subject"], subjects_of(claims), "its files give"
    training = claims.get("training", {})
    settings = training.get("settings", {})
    yield "training.run_digest", training.get("run_digest"), digest_of_json(settings), "its settings give"
    said = {str(step): shares for step, shares in settings.get("mixture", [])}
    yield "mixture.at_step", claims.get("mixture", {}).get("at_step"), said, "training.settings says"
    order = claims.get("order", {})
    yield "order.batch", order.get("batch"), settings.get("batch"), "training.settings says"
    for name in ("seed", "block_sequences", "rounding", "first_step"):
        yield f"order.{name}", order.get(name), settings.get("order", {}).get(name), "training.settings says"
    buffer = (order.get("buffer") or {}).get("documents")
    yield "order.buffer.documents", buffer, settings.get("order", {}).get("buffer_documents"), "training.settings says"
    packing, loss_on = settings.get("packing", "chunk"), settings.get("loss_on", "all")
    yield "order.packing", order.get("packing"), "buffer" if buffer else packing, "training.settings says"
    yield "order.loss_on", order.get("loss_on", "all"), loss_on, "training.settings says"
    lineage = claims.get("lineage") or [{}]
    yield from _lineage_problems(lineage, training, settings)
    for name, cache in claims.get("data", {}).items():
        yield f"data.{name}.manifest_digest", cache.get("manifest_digest"), digest_of_json(cache.get("manifest")), "its manifest gives"
        yield f"data.{name}.manifest.component", cache.get("manifest", {}).get("component"), name, "it is listed under"
    judged = {name: cache.get("manifest_digest") for name, cache in claims.get("data", {}).items()}
    gates = claims.get("gates", {})
    yield "gates.data.judged", gates.get("data", {}).get("judged"), judged, "data says"
    for gate, verdict in gates.items():
        yield f"gates.{gate}.passes", verdict.get("passes"), _passes(verdict), "its checks give"
    evaluation = claims.get("evaluation", {})
    yield "evaluation.params_digest", evaluation.get("params_digest"), training.get("params_digest"), "training says"
    yield "checkpoint.step", claims.get("checkpoint", {}).get("step"), settings.get("stop_step"), "training.settings says"
    yield "evaluation.benchmarks", evaluation.get("benchmarks"), sorted(evaluation.get("results", {})), "results has"


def _lineage_problems(
    lineage: list[dict[str, Any]], training: Mapping[str, Any], settings: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any, str]]:
    last = f"lineage[{len(lineage) - 1}]"
    for name in ("run_digest", "params_digest"):
        yield f"{last}.{name}", lineage[-1].get(name), training.get(name), "training says"
    for name in ("phase", "start_step", "stop_step", "seed"):
        yield f"{last}.{name}", lineage[-1].get(name), settings.get(name), "training.settings says"
    for number, (parent, child) in enumerate(pairwise(lineage)):
        start = child.get("start") or {}
        said = {"parent": parent.get("phase"), "step": parent.get("left_at_step"), "params_digest": parent.get("params_digest")}
        for name, value in said.items():
            yield f"lineage[{number + 1}].start.{name}", start.get(name), value, f"lineage[{number}] says"


def _passes(verdict: Mapping[str, Any]) -> bool:
    """As a verdict does: no critical check failed, and none is broken."""
    checks = verdict.get("checks", [])
    return not any(one["outcome"] == "broken" or (one["outcome"] == "failed" and one["severity"] == "critical") for one in checks)
