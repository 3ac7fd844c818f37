"""The other documents of a card, rendered from its claims: a page for people, a CycloneDX bill of materials, a Croissant description."""

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
NAMESPACE = uuid.UUID("6f1d9a8e-6f0f-5a55-9f5d-0b6c3a8f5b11")
"""For serial numbers: equal claims have equal ones."""
PARTS = {"lineage": "lineage", "mixture": "mixture", "evaluation": "evaluation", "gates": "verdicts", "data": "data"}


def render_documents(claims: Mapping[str, Any]) -> dict[str, bytes]:
    """Name → content."""
    facts: list[tuple[str, Any]] = [(name, claims["training"][name]) for name in ("run_digest", "params_digest")]
    facts += [
        ("lineage", " → ".join(one["phase"] for one in claims["lineage"])),
        ("seed", claims["order"]["seed"]),
        ("tokenizer", claims["tokenizer"]["digest"]),
    ]
    words = {"passes": "passes", "approved": "let pass by a person"}
    facts += [(f"gate:{gate}", words.get(ruling_word(verdict), "fails")) for gate, verdict in claims["gates"].items()]
    for step, shares in claims["mixture"]["at_step"].items():
        facts += [(f"mixture:{step}:{name}", f"{share!r} %") for name, share in shares.items()]
    values = {"said": None, "export": None, **claims, "facts": facts, "serial": uuid.uuid5(NAMESPACE, digest_of_json(claims))}
    made: dict[str, bytes] = {}
    for name in (BOM_NAME, CROISSANT_NAME):
        content = json.loads(_templates().get_template(f"{name}.jinja").render(values))
        made[name] = (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()
    return {**made, README_NAME: build_model_card(claims).encode()}


def build_model_card(claims: Mapping[str, Any], origin: Mapping[str, Any] | None = None) -> str:
    """The page about a model, in Markdown.

    Args:
        origin: the weights of an exported folder. Its page has the fields that the hub reads at its head, and names the parts of which the
            home knows nothing.
    """
    changes = {name: one for name, one in (claims.get("hand_off") or {}).get("changes", {}).items() if one["found"]}
    known = {name: claims.get(name) for name in ("training", "said", "order", *PARTS)}
    missing = [word for name, word in PARTS.items() if not known[name] or (name == "mixture" and not known["order"])] if origin else []
    named = {name: claims.get(name) or (origin or {}).get(name) for name in ("recipe", "phase", "scale")}
    text = _templates().get_template("model_card.md.jinja").render(**named, **known, origin=origin, changes=changes, missing=missing)
    return text.rstrip("\n") + "\n"


@functools.cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(  # Markdown and JSON: words of people are escaped by `plain` and `tojson`
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"), trim_blocks=True, lstrip_blocks=True
    )
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False}
    environment.filters.update(thousands="{:,}".format, ruling_word=ruling_word, plain=_plain)
    return environment


def _plain(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>#|" else letter for letter in text)
