"""The data of a card as a Croissant 1.0 description: every source file by its digest. Worked out from the claims alone."""

from collections.abc import Mapping
from typing import Any

CONFORMS_TO = "http://mlcommons.org/croissant/1.0"
CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileProperty": "cr:fileProperty",
    "fileObject": "cr:fileObject",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}
MEDIA_TYPES = {"jsonl": "application/jsonlines", "json": "application/json", "parquet": "application/vnd.apache.parquet"}
UNKNOWN_TYPE = "text/plain"


def build_croissant(claims: Mapping[str, Any]) -> dict[str, Any]:
    """The description, as JSON-LD."""
    name = f"{claims['recipe']}-{claims['scale']}-{claims['phase']}"
    licence = claims.get("said", {}).get("licence")
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": CONFORMS_TO,
        "name": name,
        "description": _description(claims),
        **({"license": licence} if licence else {}),
        **({"datePublished": claims["training"]["finished"]} if claims["training"]["finished"] else {}),
        "version": "1.0.0",
        "distribution": [
            _file(component, cache, file) for component, cache in claims["data"].items() for file in cache["manifest"]["sources"]
        ],
    }


def _description(claims: Mapping[str, Any]) -> str:
    lines = [f"The text that {claims['recipe']}/{claims['phase']} ({claims['scale']} scale) was trained on, each file with its digest."]
    for component, cache in claims["data"].items():
        manifest = cache["manifest"]
        lines.append(
            f"{component}: {manifest['documents']} documents, {manifest['tokens']} tokens; cache manifest {cache['manifest_digest']}."
        )
    for step, shares in claims["mixture"]["at_step"].items():
        lines.append(f"From step {step} on: {', '.join(f'{name} {share!r} %' for name, share in shares.items())}.")
    return " ".join(lines)


def _file(component: str, cache: Mapping[str, Any], file: Mapping[str, Any]) -> dict[str, Any]:
    kind, _, digest = file["digest"].partition(":")
    known = {kind: digest} if kind in ("sha256", "md5") else {}
    made_from = f"Source file of {component}. Its digest as it was noted: {file['digest']}."
    return {
        "@type": "cr:FileObject",
        "@id": f"{component}/{file['name']}",
        "name": f"{component}/{file['name']}",
        "description": made_from,
        "contentUrl": f"sources/{component}/{file['name']}",
        "contentSize": f"{file['size_bytes']} B",
        "encodingFormat": MEDIA_TYPES.get(cache["manifest"]["source"]["format"], UNKNOWN_TYPE),
        **known,
    }
