"""Signatures of a statement in a DSSE envelope, with the user's Ed25519 or P-256 key (ECDSA with SHA-256) in PEM.

DSSE signs the type and length of the payload, so the bytes cannot pass as another kind of document. The extra `card` has the packages.
"""

import base64
from pathlib import Path
from typing import Any

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.identity import digest_of_bytes

PAYLOAD_TYPE = "application/vnd.in-toto+json"


def sign(payload: bytes, key: Path) -> dict[str, Any]:
    """Build the envelope. A ConfigError reports an unusable key or a missing package."""
    hashes, serialization, ec, ed25519 = _cryptography()
    try:
        private = serialization.load_pem_private_key(key.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"the key to sign with must be a private key in PEM without a password, {key} is not: {error}.") from None
    if isinstance(private, ed25519.Ed25519PrivateKey):
        made = private.sign(_encode(payload))
    elif isinstance(private, ec.EllipticCurvePrivateKey) and isinstance(private.curve, ec.SECP256R1):
        made = private.sign(_encode(payload), ec.ECDSA(hashes.SHA256()))
    else:
        raise ConfigError(f"the key to sign with must be Ed25519 or ECDSA on P-256, {key} is {type(private).__name__}.")
    public = private.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    signature = {"keyid": digest_of_bytes(public), "sig": base64.b64encode(made).decode()}
    return {"payloadType": PAYLOAD_TYPE, "payload": base64.b64encode(payload).decode(), "signatures": [signature]}


def signature_problem(envelope: Any, payload: bytes, public_key: Path | None) -> str | None:
    """Return the reason why the envelope does not sign these bytes, or None. `public_key` None checks only the payload.

    Raises:
        ConfigError: the key is unreadable, or a package is missing.
    """
    try:
        inside = base64.b64decode(envelope["payload"], validate=True)
        made = [base64.b64decode(one["sig"], validate=True) for one in envelope["signatures"]]
        kind = envelope["payloadType"]
    except (KeyError, TypeError, ValueError):
        return "the envelope does not read as one of DSSE"
    if kind != PAYLOAD_TYPE:
        return f"the envelope must hold {PAYLOAD_TYPE}, found {kind}"
    if inside != payload:
        return "the envelope was made for another statement than statement.json"
    if not made:
        return "the envelope has no signature"
    if public_key is None:
        return None
    hashes, serialization, ec, ed25519 = _cryptography()
    from cryptography.exceptions import InvalidSignature

    try:
        public = serialization.load_pem_public_key(public_key.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"the key to check with must be a public key in PEM, {public_key} is not: {error}.") from None
    options: tuple[Any, ...] = ()
    if isinstance(public, ec.EllipticCurvePublicKey) and isinstance(public.curve, ec.SECP256R1):
        options = (ec.ECDSA(hashes.SHA256()),)
    elif not isinstance(public, ed25519.Ed25519PublicKey):
        raise ConfigError(f"the key to check with must be Ed25519 or ECDSA on P-256, {public_key} is {type(public).__name__}.")
    for signature in made:
        try:
            public.verify(signature, _encode(payload), *options)
            return None
        except InvalidSignature:
            continue
    return f"no signature of the statement is by the key in {public_key.name}"


def _encode(payload: bytes) -> bytes:
    kind = PAYLOAD_TYPE.encode()
    return b" ".join([b"DSSEv1", str(len(kind)).encode(), kind, str(len(payload)).encode(), payload])


def _cryptography() -> tuple[Any, Any, Any, Any]:
    try:
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec, ed25519
    except ImportError:
        raise ConfigError("signatures need the package cryptography: pip install 'phasewise[card]'.") from None
    return hashes, serialization, ec, ed25519
