"""The other documents of a card, worked out from its claims: a page for people, a CycloneDX bill of materials, a Croissant description."""

import functools
import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from phasewise.tasks.report.claims import ruling_word
from phasewise.trainer.base.identity import digest_of_json

README_NAME, BOM_NAME, CROISSANT_NAME = "README.md", "ml-bom.cdx.json", "croissant.json"
TEMPLATES = Path(__file__).parent / "templates"
NAMESPACE = uuid.UUID("6f1d9a8e-6f0f-5a55-9f5d-0b6c3a8f5b11")
"""For serial numbers: equal claims have equal ones."""
TWO_SIDED_95 = 1.959964
MEDIA_TYPES = {"jsonl": "application/jsonlines", "json": "application/json", "parquet": "application/vnd.apache.parquet"}


def render_documents(claims: Mapping[str, Any]) -> dict[str, bytes]:
    """Name → content."""
    values = {BOM_NAME: _bill_of_materials(claims), CROISSANT_NAME: _croissant(claims)}
    written = {name: (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode() for name, value in values.items()}
    return {**written, README_NAME: build_model_card(claims).encode()}


def build_model_card(claims: Mapping[str, Any], origin: Mapping[str, Any] | None = None) -> str:
    """The page about a model, in Markdown.

    Args:
        origin: the weights of an exported folder. Its page has the fields that the hub reads at its head, and names the parts of which the
            home knows nothing.
    """
    changes = {name: one for name, one in (claims.get("hand_off") or {}).get("changes", {}).items() if one["found"]}
    parts = {"lineage": "lineage", "mixture": "mixture", "evaluation": "evaluation", "gates": "verdicts", "data": "data"}
    known = {name: claims.get(name) for name in ("training", "said", "order", *parts)}
    missing = [word for name, word in parts.items() if not known[name] or (name == "mixture" and not known["order"])] if origin else []
    named = {name: claims.get(name) or (origin or {}).get(name) for name in ("recipe", "phase", "scale")}
    text = _template().render(**named, **known, origin=origin, changes=changes, missing=missing)
    return text.rstrip("\n") + "\n"


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(  # Markdown: words of people are escaped by `plain`
        loader=jinja2.FileSystemLoader(TEMPLATES), trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters.update(thousands="{:,}".format, ruling_word=ruling_word, plain=_plain)
    return environment.get_template("model_card.md.jinja")


def _plain(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>#|" else letter for letter in text)


def _bill_of_materials(claims: Mapping[str, Any]) -> dict[str, Any]:
    """CycloneDX 1.6: the model with its card, its files and its data."""
    name = f"{claims['recipe']}/{claims['phase']}"
    training, checkpoint, model = claims["training"], claims["checkpoint"], claims["training"]["settings"]["model"]
    licence = (claims.get("said") or {}).get("licence")
    facts = {
        "run_digest": training["run_digest"],
        "params_digest": training["params_digest"],
        "lineage": " → ".join(one["phase"] for one in claims["lineage"]),
        "seed": str(claims["order"]["seed"]),
        "tokenizer": claims["tokenizer"]["digest"],
        **{f"gate:{gate}": _GATE_WORDS.get(ruling_word(verdict), "fails") for gate, verdict in claims["gates"].items()},
    }
    for step, shares in claims["mixture"]["at_step"].items():
        facts |= {f"mixture:{step}:{component}": f"{share!r} %" for component, share in shares.items()}
    digests = {f"{checkpoint['where']}/{file}": found["sha256"] for file, found in checkpoint["files"].items()}
    digests |= {f"export/{file}": found["sha256"] for file, found in (claims.get("export") or {}).get("files", {}).items()}
    sizes = ("num_layers", "layers"), ("d_model", "d_model"), ("num_query_heads", "query heads"), ("vocab_size", "vocabulary entries")
    shape = ", ".join(f"{model[name]} {word}" for name, word in sizes)
    card = {
        "modelParameters": {
            "approach": {"type": "self-supervised"},
            "task": "text-generation",
            "architectureFamily": "transformer decoder",
            "modelArchitecture": shape,
            "datasets": [{"ref": f"data:{component}"} for component in claims["data"]],
            "inputs": [{"format": "text"}],
            "outputs": [{"format": "text"}],
        },
        "quantitativeAnalysis": {"performanceMetrics": _metrics(claims["evaluation"])},
    }
    component = {
        "type": "machine-learning-model",
        "bom-ref": "model",
        "name": name,
        "version": f"step-{checkpoint['step']}",
        "description": f"{name} at {claims['scale']} scale, after {checkpoint['step']} updates",
        **({"licenses": [{"license": {"name": licence}}]} if licence else {}),
        "modelCard": card,
        "properties": _properties(facts),
    }
    data = [_data_component(name, cache) for name, cache in claims["data"].items()]
    files = [
        {"type": "file", "bom-ref": f"file:{name}", "name": name, "hashes": [{"alg": "SHA-256", "content": digest}]}
        for name, digest in digests.items()
    ]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(NAMESPACE, digest_of_json(claims))}",
        "version": 1,
        "metadata": {**({"timestamp": training["finished"]} if training["finished"] else {}), "component": component},
        "components": [*data, *files],
        "dependencies": [{"ref": "model", "dependsOn": [one["bom-ref"] for one in data]}, *({"ref": one["bom-ref"]} for one in data)],
    }


_GATE_WORDS = {"passes": "passes", "approved": "let pass by a person"}


def _metrics(evaluation: Mapping[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name, result in evaluation["results"].items():
        half = TWO_SIDED_95 * result["stderr"]
        interval = {"lowerBound": repr(result["value"] - half), "upperBound": repr(result["value"] + half)}
        found.append({"type": result["metric"], "value": repr(result["value"]), "slice": name, "confidenceInterval": interval})
    bits = {**evaluation["bits_per_byte"], "mean of components": evaluation["macro_bits_per_byte"]}
    return found + [{"type": "bits per byte", "value": repr(value), "slice": name} for name, value in bits.items()]


def _data_component(name: str, cache: Mapping[str, Any]) -> dict[str, Any]:
    manifest = cache["manifest"]
    facts = {
        "content": cache["content"],
        "where": cache["where"],
        "documents": str(manifest["documents"]),
        "tokens": str(manifest["tokens"]),
    }
    facts |= {f"source:{one['name']}": one["digest"] for one in manifest["sources"]}
    return {
        "type": "data",
        "bom-ref": f"data:{name}",
        "name": name,
        "version": manifest["key"],
        "data": [{"type": "dataset", "name": name}],
        "hashes": [{"alg": "SHA-256", "content": cache["manifest_digest"]}],
        "properties": _properties(facts),
    }


def _properties(facts: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": f"phasewise:{name}", "value": value} for name, value in facts.items()]


def _croissant(claims: Mapping[str, Any]) -> dict[str, Any]:
    """Croissant 1.0: every source file by its digest."""
    licence = (claims.get("said") or {}).get("licence")
    finished = claims["training"]["finished"]
    lines = [f"The text that {claims['recipe']}/{claims['phase']} ({claims['scale']} scale) was trained on, each file with its digest."]
    files: list[dict[str, Any]] = []
    for component, cache in claims["data"].items():
        manifest = cache["manifest"]
        counts = f"{manifest['documents']} documents, {manifest['tokens']} tokens"
        lines.append(f"{component}: {counts}; cache manifest {cache['manifest_digest']}.")
        for file in manifest["sources"]:
            kind, _, digest = file["digest"].partition(":")
            files.append(
                {
                    "@type": "cr:FileObject",
                    "@id": f"{component}/{file['name']}",
                    "name": f"{component}/{file['name']}",
                    "description": f"Source file of {component}. Its digest as it was noted: {file['digest']}.",
                    "contentUrl": f"sources/{component}/{file['name']}",
                    "contentSize": f"{file['size_bytes']} B",
                    "encodingFormat": MEDIA_TYPES.get(manifest["source"]["format"], "text/plain"),
                    **({kind: digest} if kind in ("sha256", "md5") else {}),
                }
            )
    for step, shares in claims["mixture"]["at_step"].items():
        lines.append(f"From step {step} on: {', '.join(f'{name} {share!r} %' for name, share in shares.items())}.")
    return {
        "@context": json.loads((TEMPLATES / "croissant_context.json").read_text(encoding="utf-8")),
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": f"{claims['recipe']}-{claims['scale']}-{claims['phase']}",
        "description": " ".join(lines),
        **({"license": licence} if licence else {}),
        **({"datePublished": finished} if finished else {}),
        "version": "1.0.0",
        "distribution": files,
    }
