"""A card as a folder: the statement, its envelope where it is signed, and the documents that say the same in other words."""

import json
import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phasewise.tasks.publication.card.croissant import build_croissant
from phasewise.tasks.publication.card.cyclonedx import build_ml_bom
from phasewise.tasks.publication.card.readme import README_NAME, build_readme
from phasewise.tasks.publication.card.signature import sign, write_envelope
from phasewise.tasks.publication.card.statement import build_statement
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.identity import digest_of_bytes

STATEMENT_NAME = "statement.json"
ENVELOPE_NAME = "statement.dsse.json"
BOM_NAME = "ml-bom.cdx.json"
CROISSANT_NAME = "croissant.json"
DOCUMENTS = (BOM_NAME, CROISSANT_NAME, README_NAME)


def write_bundle(folder: Path, claims: Mapping[str, Any], key: Path | None) -> tuple[str, ...]:
    """Write the card; the folder appears when all is in it. The names of its files.

    Equal claims give equal bytes: nothing in it is of the day on which it was written.

    Raises:
        ConfigError: there is something at the folder already, or the key cannot be used.
    """
    check_free(folder)
    documents = render_documents(claims)
    statement = build_statement(claims, {name: digest_of_bytes(content) for name, content in documents.items()})
    payload = as_bytes(statement)
    staged = folder.parent / f".{folder.name}.{uuid.uuid4().hex}"
    try:
        staged.mkdir(parents=True)
        for name, content in {STATEMENT_NAME: payload, **documents}.items():
            (staged / name).write_bytes(content)
        if key is not None:
            write_envelope(staged / ENVELOPE_NAME, sign(payload, key))
        os.replace(staged, folder)
    except OSError as error:
        raise ConfigError(f"the card cannot be written to {folder}: {error.strerror}. Choose another folder, or make room.") from None
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return tuple(sorted(path.name for path in folder.iterdir()))


def check_free(folder: Path) -> None:
    """Refuse a folder with something in it.

    Raises:
        ConfigError: it is not new or empty.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"the folder for the card must be new or empty, and {folder} is not: choose another, or remove it.")


def render_documents(claims: Mapping[str, Any]) -> dict[str, bytes]:
    """Name → content of what is worked out from the claims."""
    contents: dict[str, Any] = {BOM_NAME: build_ml_bom(claims), CROISSANT_NAME: build_croissant(claims)}
    return {**{name: as_bytes(value) for name, value in contents.items()}, README_NAME: build_readme(claims).encode()}


def as_bytes(value: Any) -> bytes:
    """JSON as a card has it."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
