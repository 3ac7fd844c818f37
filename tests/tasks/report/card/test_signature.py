"""Signing a card, and what gives a forged signature away. Needs the extra `card`."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from phasewise.tasks.report.card import ENVELOPE_NAME, STATEMENT_NAME, Against, verify_card
from phasewise.tasks.report.signature import sign, signature_problem
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.storage import write_json
from tests.tasks.report.card.conftest import Carded

pytest.importorskip("cryptography", reason="signatures need cryptography: pip install -e '.[card]'")
PAYLOAD = b'{"a": 1}\n'


def write_keys(folder: Path, kind: str) -> tuple[Path, Path]:
    """A private and a public key."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    made: dict[str, Any] = {
        "ed25519": ed25519.Ed25519PrivateKey.generate,
        "p256": lambda: ec.generate_private_key(ec.SECP256R1()),
        "p384": lambda: ec.generate_private_key(ec.SECP384R1()),
        "rsa": lambda: rsa.generate_private_key(65537, 2048),
    }
    key = made[kind]()
    private, public = folder / f"{kind}.pem", folder / f"{kind}.pub.pem"
    pem = serialization.Encoding.PEM
    private.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
    return private, public


@pytest.mark.parametrize("kind", ["ed25519", "p256"])
def test_a_signature_is_of_these_bytes_and_by_this_key(kind: str, tmp_path: Path):
    private, public = write_keys(tmp_path, kind)
    envelope = sign(PAYLOAD, private)
    assert signature_problem(envelope, PAYLOAD, public) is None
    assert "another statement" in str(signature_problem(envelope, PAYLOAD + b" ", public))
    other = tmp_path / "other"
    other.mkdir()
    assert "no signature" in str(signature_problem(envelope, PAYLOAD, write_keys(other, kind)[1]))
    envelope["signatures"][0]["sig"] = envelope["signatures"][0]["sig"][:-8] + "AAAAAAA="
    assert "no signature" in str(signature_problem(envelope, PAYLOAD, public))


@pytest.mark.parametrize("kind", ["p384", "rsa"])
def test_other_kinds_of_keys_are_refused(kind: str, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"must be Ed25519 or ECDSA on P-256"):
        sign(PAYLOAD, write_keys(tmp_path, kind)[0])


def test_what_is_no_key_is_refused(tmp_path: Path):
    path = tmp_path / "key.pem"
    path.write_text("hello")
    with pytest.raises(ConfigError, match="must be a private key in PEM"):
        sign(PAYLOAD, path)


@pytest.mark.parametrize("envelope", [{}, [], {"payload": "!", "payloadType": "x", "signatures": []}])
def test_what_is_no_envelope_is_refused(envelope: Any):
    assert "does not read" in str(signature_problem(envelope, PAYLOAD, None))


def test_a_signed_card_and_its_licence(written: Carded, tmp_path: Path):
    """The licence rests on no bytes: without a signature that is checked it is not counted as checked."""
    private, public = write_keys(tmp_path, "ed25519")
    carded = Carded(written.home, Path(shutil.copytree(written.card, tmp_path / "card")))
    carded.forge(lambda claims: claims.update(said={"licence": "Apache-2.0"}))
    assert [one.field for one in carded.verify().unchecked] == ["said.licence"]
    payload = (carded.card / STATEMENT_NAME).read_bytes()
    write_json(carded.card / ENVELOPE_NAME, sign(payload, private))
    assert carded.verify(public_key=public).passes
    assert {one.field for one in carded.verify().unchecked} == {"signature", "said.licence"}
    envelope = (carded.card / ENVELOPE_NAME).read_bytes()
    carded.forge(lambda claims: claims["said"].update(licence="MIT"))
    (carded.card / ENVELOPE_NAME).write_bytes(envelope)
    found = verify_card(carded.card, Against(public_key=public))
    assert [one.field for one in found.disagreements] == ["signature"]
    assert json.loads(envelope)["signatures"][0]["keyid"]
