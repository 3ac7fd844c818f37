import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from phasewise.tasks.report.card import ENVELOPE_NAME, STATEMENT_NAME, sign, signature_problem
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.storage import write_json
from tests.tasks.report.card.conftest import Carded

pytest.importorskip("cryptography", reason="signatures need cryptography: pip install -e '.[card]'")
PAYLOAD = b'{"a": 1}\n'


def write_keys(folder: Path, kind: str) -> tuple[Path, Path]:
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
    (other := tmp_path / "other").mkdir()
    assert "no signature" in str(signature_problem(envelope, PAYLOAD, write_keys(other, kind)[1]))
    envelope["signatures"][0]["sig"] = envelope["signatures"][0]["sig"][:-8] + "AAAAAAA="
    assert "no signature" in str(signature_problem(envelope, PAYLOAD, public))


def test_other_kinds_of_keys_what_is_no_key_and_what_is_no_envelope_are_refused(tmp_path: Path):
    (no_key := tmp_path / "key.pem").write_text("hello")
    named = "must be Ed25519 or ECDSA on P-256"
    for key, words in ((write_keys(tmp_path, "p384")[0], named), (write_keys(tmp_path, "rsa")[0], named), (no_key, "a private key in PEM")):
        with pytest.raises(ConfigError, match=words):
            sign(PAYLOAD, key)
    envelope = sign(PAYLOAD, write_keys(tmp_path, "ed25519")[0])
    for key, words in ((write_keys(tmp_path, "rsa")[1], named), (no_key, "a public key in PEM")):
        with pytest.raises(ConfigError, match=words):
            signature_problem(envelope, PAYLOAD, key)
    for nothing in ({}, [], {"payload": "!", "payloadType": "x", "signatures": []}):
        assert "does not read" in str(signature_problem(nothing, PAYLOAD, None))
    assert "must hold" in str(signature_problem({**envelope, "payloadType": "x"}, PAYLOAD, None))
    assert "has no signature" in str(signature_problem({**envelope, "signatures": []}, PAYLOAD, None))


def test_a_signed_card_and_its_licence(written: Carded, tmp_path: Path):
    private, public = write_keys(tmp_path, "ed25519")
    carded = Carded(written.home, Path(shutil.copytree(written.card, tmp_path / "card")))
    carded.forge(lambda claims: claims.update(said={"licence": "Apache-2.0"}))
    assert [one.field for one in carded.verify().unchecked] == ["said.licence"]
    write_json(carded.card / ENVELOPE_NAME, sign((carded.card / STATEMENT_NAME).read_bytes(), private))
    assert carded.verify(public_key=public).passes
    assert {one.field for one in carded.verify().unchecked} == {"signature", "said.licence"}
    envelope = (carded.card / ENVELOPE_NAME).read_bytes()
    carded.forge(lambda claims: claims["said"].update(licence="MIT"))
    (carded.card / ENVELOPE_NAME).write_bytes(envelope)
    assert [one.field for one in carded.verify(public_key=public).disagreements] == ["signature"]
    assert json.loads(envelope)["signatures"][0]["keyid"]
