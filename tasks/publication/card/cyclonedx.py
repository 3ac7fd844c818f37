"""The claims as a CycloneDX 1.6 bill of materials: the model with its card, its files and its data. Worked out from the claims alone."""

import uuid
from collections.abc import Mapping
from typing import Any

from phasewise.tasks.publication.card.gate_claims import ruling_word
from phasewise.trainer.base.identity import digest_of_json

NAMESPACE = uuid.UUID("6f1d9a8e-6f0f-5a55-9f5d-0b6c3a8f5b11")
"""For serial numbers: equal claims have equal ones."""
TWO_SIDED_95 = 1.959964


GATE_WORDS = {"passes": "passes", "approved": "let pass by a person"}


def build_ml_bom(claims: Mapping[str, Any]) -> dict[str, Any]:
    """The bill of materials, as JSON."""
    name = f"{claims['recipe']}/{claims['phase']}"
    data = [_data(component, cache) for component, cache in claims["data"].items()]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(NAMESPACE, digest_of_json(claims))}",
        "version": 1,
        "metadata": {
            **({"timestamp": claims["training"]["finished"]} if claims["training"]["finished"] else {}),
            "component": {
                "type": "machine-learning-model",
                "bom-ref": "model",
                "name": name,
                "version": f"step-{claims['checkpoint']['step']}",
                "description": f"{name} at {claims['scale']} scale, after {claims['checkpoint']['step']} updates",
                **_licences(claims),
                "modelCard": _model_card(claims),
                "properties": _properties(claims),
            },
        },
        "components": [*data, *_files(claims)],
        "dependencies": [{"ref": "model", "dependsOn": [one["bom-ref"] for one in data]}, *({"ref": one["bom-ref"]} for one in data)],
    }


def _model_card(claims: Mapping[str, Any]) -> dict[str, Any]:
    model = claims["training"]["settings"]["model"]
    shape = (
        f"{model['num_layers']} layers, d_model {model['d_model']}, {model['num_query_heads']} query heads, "
        f"vocabulary {model['vocab_size']}"
    )
    return {
        "modelParameters": {
            "approach": {"type": "self-supervised"},
            "task": "text-generation",
            "architectureFamily": "transformer decoder",
            "modelArchitecture": shape,
            "datasets": [{"ref": f"data:{name}"} for name in claims["data"]],
            "inputs": [{"format": "text"}],
            "outputs": [{"format": "text"}],
        },
        "quantitativeAnalysis": {"performanceMetrics": _metrics(claims.get("evaluation", {}))},
    }


def _metrics(evaluation: Mapping[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name, result in evaluation.get("results", {}).items():
        half = TWO_SIDED_95 * result["stderr"]
        interval = {"lowerBound": repr(result["value"] - half), "upperBound": repr(result["value"] + half)}
        found.append({"type": result["metric"], "value": repr(result["value"]), "slice": name, "confidenceInterval": interval})
    bits = evaluation.get("bits_per_byte", {})
    found += [{"type": "bits per byte", "value": repr(value), "slice": name} for name, value in bits.items()]
    if bits:
        found.append({"type": "bits per byte", "value": repr(evaluation["macro_bits_per_byte"]), "slice": "mean of components"})
    return found


def _properties(claims: Mapping[str, Any]) -> list[dict[str, str]]:
    said = {
        "phasewise:run_digest": claims["training"]["run_digest"],
        "phasewise:params_digest": claims["training"]["params_digest"],
        "phasewise:lineage": " → ".join(one["phase"] for one in claims["lineage"]),
        "phasewise:seed": str(claims["order"]["seed"]),
        "phasewise:tokenizer": claims["tokenizer"]["digest"],
    }
    said |= {f"phasewise:gate:{name}": GATE_WORDS.get(ruling_word(gate), "fails") for name, gate in claims["gates"].items()}
    for step, shares in claims["mixture"]["at_step"].items():
        said |= {f"phasewise:mixture:{step}:{name}": f"{share!r} %" for name, share in shares.items()}
    return [{"name": name, "value": value} for name, value in said.items()]


def _data(name: str, cache: Mapping[str, Any]) -> dict[str, Any]:
    manifest = cache["manifest"]
    said = {
        "phasewise:content": cache["content"],
        "phasewise:where": cache["where"],
        "phasewise:documents": str(manifest["documents"]),
        "phasewise:tokens": str(manifest["tokens"]),
        **{f"phasewise:source:{one['name']}": one["digest"] for one in manifest["sources"]},
    }
    return {
        "type": "data",
        "bom-ref": f"data:{name}",
        "name": name,
        "version": manifest["key"],
        "data": [{"type": "dataset", "name": name}],
        "hashes": [{"alg": "SHA-256", "content": cache["manifest_digest"]}],
        "properties": [{"name": one, "value": value} for one, value in said.items()],
    }


def _files(claims: Mapping[str, Any]) -> list[dict[str, Any]]:
    where = claims["checkpoint"]["where"]
    named = {f"{where}/{name}": file["sha256"] for name, file in claims["checkpoint"]["files"].items()}
    named |= {f"export/{name}": file["sha256"] for name, file in (claims.get("export") or {}).get("files", {}).items()}
    return [
        {"type": "file", "bom-ref": f"file:{name}", "name": name, "hashes": [{"alg": "SHA-256", "content": digest}]}
        for name, digest in named.items()
    ]


def _licences(claims: Mapping[str, Any]) -> dict[str, Any]:
    licence = claims.get("said", {}).get("licence")
    return {"licenses": [{"license": {"name": licence}}]} if licence else {}
