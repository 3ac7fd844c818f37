"""Cards: signed lists of digests and results of a trained phase, and their offline verification."""

import base64
import json
import math
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import TemplateError

from phasewise.tasks.report import claims as of_home
from phasewise.tasks.report.export import README_NAME, build_model_card, differing_weights, templates
from phasewise.tasks.report.placing import ORIGIN_NAME
from phasewise.trainer.base.errors import ConfigError, PhasewiseError, VerdictError
from phasewise.trainer.base.identity import NotAsWritten, digest_of_bytes, digest_of_file, digest_of_json, read_sealed
from phasewise.trainer.base.storage import parse_json
from phasewise.trainer.base.wording import name_some

BOM_NAME, CROISSANT_NAME = "ml-bom.cdx.json", "croissant.json"
NAMESPACE = uuid.UUID("6f1d9a8e-6f0f-5a55-9f5d-0b6c3a8f5b11")  # for serial numbers, which are equal for equal claims
STATEMENT_NAME, ENVELOPE_NAME = "statement.json", "statement.dsse.json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:phasewise:card:2"  # format of the predicate, described in `docs/reference/card.md`
NEEDED = ("lineage", "training", "mixture", "order", "data", "evaluation", "checkpoint")
NAMED = ("recipe", "scale", "phase")
SAID = "said"  # statements of the author, such as the licence, which only a signature proves
_NOTHING = object()
PAYLOAD_TYPE = "application/vnd.in-toto+json"


class CardOptions(NamedTuple):
    """Options of a card."""

    key: Path | None = None  # private key
    export: Path | None = None  # exported folder of the phase
    licence: str | None = None
    source_folders: Mapping[str, Path] = {}  # component → folder of source files outside the home


def write_card(home: Path, subject: of_home.Subject, out: Path, options: CardOptions, *, work: Path | None = None) -> dict[str, Any]:
    """Read all claims from the home with the runs in `work`, write the card, and return a summary."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"the folder for the card must be new or empty, and {out} is not: choose another, or remove it.")
    files = of_home.HomeFiles(home, work=work)
    claims = of_home.read_claims(files, subject, source_folders=options.source_folders)
    if options.export is not None:
        claims["export"] = _export(files, subject, options.export)
    if options.licence:
        claims[SAID] = {"licence": options.licence}
    missing = [name for name in NEEDED if not claims.get(name)]
    missing += [f"gates.{gate}" for gate in of_home.GATES if gate not in claims.get("gates", {})]
    if files.problems or missing:
        said = [one.line for one in files.problems] or [f"{name} is missing" for name in missing]
        raise VerdictError(
            f"a card of {subject.recipe}/{subject.phase} needs consistent files, found in {home}: {name_some(said, 3, '; ')}. Run the "
            "recipe again to renew invalid results."
        )
    return {
        "card": str(out.resolve()),
        **{name: claims[name] for name in NAMED},
        "step": claims["checkpoint"]["step"],
        "signed": options.key is not None,
        "passes": all(of_home.ruling_word(gate) in ("passes", "approved") for gate in claims["gates"].values()),
        "files": list(write_bundle(out, claims, options.key)),
        "not_checked": [one.line for one in files.unread],
    }


def render_documents(claims: Mapping[str, Any]) -> dict[str, bytes]:
    """Return name → content of the documents."""
    facts: list[tuple[str, Any]] = [(name, claims["training"][name]) for name in ("run_digest", "params_digest")]
    facts += [("lineage", " → ".join(one["phase"] for one in claims["lineage"])), ("seed", claims["order"]["seed"])]
    facts += [("tokenizer", claims["tokenizer"]["digest"])]
    words = {"passes": "passes", "approved": "let pass by a person"}
    facts += [(f"gate:{gate}", words.get(of_home.ruling_word(verdict), "fails")) for gate, verdict in claims["gates"].items()]
    for step, shares in claims["mixture"]["at_step"].items():
        facts += [(f"mixture:{step}:{name}", f"{share!r} %") for name, share in shares.items()]
    values = {"said": None, "export": None, **claims, "facts": facts, "serial": uuid.uuid5(NAMESPACE, digest_of_json(claims))}
    made: dict[str, bytes] = {}
    for name in (BOM_NAME, CROISSANT_NAME):
        made[name] = _as_json(json.loads(templates().get_template(f"{name}.jinja").render(values)))
    return {**made, README_NAME: build_model_card(claims).encode()}


def write_bundle(folder: Path, claims: Mapping[str, Any], key: Path | None) -> tuple[str, ...]:
    """Write the card's folder atomically, and return the names of its files. Equal claims give equal bytes."""
    documents = render_documents(claims)
    predicate: dict[str, Any] = {name: claims[name] for name in NAMED}
    predicate["claims"] = {name: value for name, value in claims.items() if name not in NAMED}
    predicate["documents"] = {name: digest_of_bytes(content) for name, content in documents.items()}
    statement = {"_type": STATEMENT_TYPE, "subject": _subjects(claims), "predicateType": PREDICATE_TYPE, "predicate": predicate}
    payload = _as_json(statement)
    staged = folder.parent / f".{folder.name}.{uuid.uuid4().hex}"
    try:
        staged.mkdir(parents=True)
        for name, content in {STATEMENT_NAME: payload, **documents}.items():
            (staged / name).write_bytes(content)
        if key is not None:
            (staged / ENVELOPE_NAME).write_bytes(_as_json(sign(payload, key)))
        os.replace(staged, folder)
    except OSError as error:
        raise ConfigError(f"the card cannot be written to {folder}: {error.strerror}. Choose another folder, or make room.") from None
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return tuple(sorted(path.name for path in folder.iterdir()))


def _subjects(claims: Mapping[str, Any]) -> list[dict[str, Any]]:
    checkpoint, export = claims.get("checkpoint") or {}, claims.get("export") or {}
    digests = {f"{checkpoint.get('where')}/{name}": file["sha256"] for name, file in checkpoint.get("files", {}).items()}
    digests |= {f"export/{name}": file["sha256"] for name, file in export.get("files", {}).items()}
    return [{"name": name, "digest": {"sha256": digest}} for name, digest in sorted(digests.items())]


def _as_json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


class Against(NamedTuple):
    """The material for a verification. None is unavailable."""

    home: Path | None = None
    work: Path | None = None
    export: Path | None = None
    public_key: Path | None = None  # of the signer
    source_folders: Mapping[str, Path] = {}
    max_read_bytes: int = of_home.MAX_READ_BYTES


@dataclass
class Verification:
    """The result of a verification, with descriptions of the successful checks in `checked`."""

    signed: bool = False
    disagreements: list[of_home.Disagreement] = field(default_factory=list)
    unchecked: list[of_home.Disagreement] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    read_bytes: int = 0

    @property
    def passes(self) -> bool:
        """Whether everything was checked and is valid."""
        return not self.disagreements and not self.unchecked

    def add(self, found: str, words: str) -> None:
        """Add a disagreement once."""
        if (one := of_home.Disagreement(found, words)) not in self.disagreements:
            self.disagreements.append(one)


def subject_of(folder: Path) -> of_home.Subject | None:
    """Return the phase in an unchecked card, or None if a name is not a folder's name."""
    try:
        said = parse_json((folder / STATEMENT_NAME).read_bytes())["predicate"]
        named = of_home.Subject(said["recipe"], said["scale"], said["phase"], None)
        return named if all(of_home.NAME.fullmatch(name) for name in named[:3]) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def verify_card(folder: Path, against: Against) -> Verification:
    """Check a card's signature and documents and, with a home, each claim against the bytes."""
    if not (folder / STATEMENT_NAME).is_file():
        raise ConfigError(f"{folder} is no card: it has no {STATEMENT_NAME}. `phasewise card` writes one.")
    payload = (folder / STATEMENT_NAME).read_bytes()
    found = Verification(signed=(folder / ENVELOPE_NAME).is_file())
    if found.signed:
        try:
            envelope = parse_json((folder / ENVELOPE_NAME).read_bytes())
        except ValueError:
            found.add("signature", f"{ENVELOPE_NAME} is no JSON")
        else:
            if problem := signature_problem(envelope, payload, against.public_key):
                found.add("signature", problem)
            elif against.public_key is None:
                words = "who signed was not checked: --public-key names the key to expect"
                found.unchecked.append(of_home.Disagreement("signature", words))
            else:
                found.checked.append(f"the signature, by the key in {against.public_key.name}")
    elif against.public_key is not None:
        found.add("signature", f"a key was given, and the card is not signed: it has no {ENVELOPE_NAME}")
    try:
        statement = parse_json(payload)
        for name, expected in (("_type", STATEMENT_TYPE), ("predicateType", PREDICATE_TYPE)):
            if statement[name] != expected:
                found.add(name, f"must be {expected}, found {statement[name]!r}")
        predicate = statement["predicate"]
        claims = {**{name: predicate[name] for name in NAMED}, **predicate["claims"]}
        for one in _differences(statement["subject"], _subjects(claims), "subject", "its files give"):
            found.add(*one)
        noted, before = predicate["documents"], len(found.disagreements)
        rendered = render_documents(claims)
        for name, expected in rendered.items():
            if not (folder / name).is_file():
                found.add(name, "the card has no such file")
                continue
            content = (folder / name).read_bytes()
            if noted.get(name) != (digest := digest_of_bytes(content)):
                found.add(f"documents.{name}", f"the statement names {str(noted.get(name))[:16]}, its bytes have {digest[:16]}")
            if content != expected:
                pairs = zip(content.splitlines(), expected.splitlines(), strict=False)
                line = next((number for number, (one, another) in enumerate(pairs, 1) if one != another), "the end")
                found.add(f"{name}:{line}", "the document says something else than the statement")
        for name in sorted({path.name for path in folder.iterdir()} - {*rendered, STATEMENT_NAME, ENVELOPE_NAME}):
            found.add(name, "is no file of a card, and nothing speaks for it")
        if len(found.disagreements) == before:
            found.checked.append("the card's other documents against the statement")
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, TemplateError) as error:
        found.add("statement", f"a part is missing or of another kind: {type(error).__name__} {error}")
        return found
    for name in claims.get(SAID, {}):
        if not (found.signed and against.public_key):
            words = "rests on no bytes: only a signature that is checked with --public-key speaks for it"
            found.unchecked.append(of_home.Disagreement(f"{SAID}.{name}", words))
    if against.home is None:
        found.unchecked.append(
            of_home.Disagreement("all claims", "no home was given: nothing was compared with the bytes that it rests on")
        )
    else:
        _check_home(claims, of_home.HomeFiles(against.home, work=against.work, max_read_bytes=against.max_read_bytes), against, found)
    return found


def _check_home(claims: Mapping[str, Any], files: of_home.HomeFiles, against: Against, found: Verification) -> None:
    evaluation = claims.get("evaluation") or {}
    subject = of_home.Subject(claims["recipe"], claims["scale"], claims["phase"], evaluation.get("held_out_tokens"))
    again = of_home.read_claims(files, subject, source_folders=against.source_folders)
    unread = {name for name in claims.get("digests", {}) if name not in files.digests and files.place(name).is_file()}
    again["digests"] = {**again.get("digests", {}), **{name: claims["digests"][name] for name in unread if files.unread}}
    said = {name: value for name, value in claims.items() if name not in (SAID, "export")}
    for one in _differences(said, again):
        found.add(*one)
    if claims.get("export") is None:
        if against.export is not None:
            files.problem("export", "a folder was given, and the card says nothing of an export")
    elif against.export is None:
        files.unread.append(of_home.Disagreement("export", "no exported folder was given: --export names it"))
    else:
        files.problems += _differences(claims["export"], _export(files, subject, against.export), "export", "the exported folder says")
    for one in files.problems:
        found.add(*one)
    found.unchecked += files.unread
    found.read_bytes = files.read_bytes
    if not files.problems:
        found.checked.append(f"each claim against the home: {files.read_bytes:,} bytes of caches and checkpoint, and every smaller file")


def _differences(said: Any, found: Any, place: str = "", speaker: str = "the home says") -> Iterator[of_home.Disagreement]:
    """Yield the innermost fields in which the card differs from the bytes."""
    lists = [isinstance(value, Sequence) and not isinstance(value, str) for value in (said, found)]
    if isinstance(said, Mapping) and isinstance(found, Mapping):
        for name in dict.fromkeys([*said, *found]):
            below = f"{place}[{name}]" if str(name).isdecimal() else f"{place}.{name}".lstrip(".")
            yield from _differences(said.get(name, _NOTHING), found.get(name, _NOTHING), below, speaker)
    elif all(lists) and len(said) == len(found):
        for number, (one, another) in enumerate(zip(said, found, strict=True)):
            yield from _differences(one, another, f"{place}[{number}]", speaker)
    elif all(isinstance(value, float) and math.isnan(value) for value in (said, found)):
        return
    elif said != found or isinstance(said, bool) != isinstance(found, bool):
        mine, theirs = ("nothing" if value is _NOTHING else of_home.shown(value) for value in (said, found))
        yield of_home.Disagreement(place, f"the card says {mine}, {speaker} {theirs}")


def _export(files: of_home.HomeFiles, subject: of_home.Subject, folder: Path) -> dict[str, Any]:
    named = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    found = {name: {"size_bytes": path.stat().st_size, "sha256": digest_of_file(path)} for name, path in named.items()}
    if ORIGIN_NAME not in named:
        files.problem(f"export.{ORIGIN_NAME}", "the folder does not say which weights it holds: export it again")
        return {"files": found}
    origin = files.tried("export.origin", lambda: read_sealed(folder / ORIGIN_NAME), NotAsWritten)
    if origin is None:
        return {"files": found}
    for name, digest in origin.get("files", {}).items():
        if name != README_NAME:  # edited by people
            files.agree(f"export.files.{name}", "the folder's file has", digest, found.get(name, {}).get("sha256"))
    for name in NAMED:
        files.agree(f"export.origin.{name}", "the card is of", origin.get(name), getattr(subject, name))
    if trained := of_home.read_trained(files, subject.run_name, subject.phase, "training"):
        try:
            words = differing_weights(folder, trained.run, files.place(trained.checkpoint), origin)
        except (PhasewiseError, KeyError, ValueError) as error:
            words = " ".join(str(error).split())
        if words:
            files.problem("export.weights", words)
    return {"origin": dict(origin), "files": found}


def sign(payload: bytes, key: Path) -> dict[str, Any]:
    """Sign a statement in a DSSE envelope with an Ed25519 or P-256 key in PEM, or raise a ConfigError for an unusable key."""
    hashes, serialization, ec, ed25519 = _cryptography()
    try:
        private = serialization.load_pem_private_key(key.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"the key to sign with must be a private key in PEM without a password, {key} is not: {error}.") from None
    if isinstance(private, ed25519.Ed25519PrivateKey):
        made = private.sign(_pre_authentication(payload))
    elif isinstance(private, ec.EllipticCurvePrivateKey) and isinstance(private.curve, ec.SECP256R1):
        made = private.sign(_pre_authentication(payload), ec.ECDSA(hashes.SHA256()))
    else:
        raise ConfigError(f"the key to sign with must be Ed25519 or ECDSA on P-256, {key} is {type(private).__name__}.")
    public = private.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    signature = {"keyid": digest_of_bytes(public), "sig": base64.b64encode(made).decode()}
    return {"payloadType": PAYLOAD_TYPE, "payload": base64.b64encode(payload).decode(), "signatures": [signature]}


def signature_problem(envelope: Any, payload: bytes, public_key: Path | None) -> str | None:
    """Return the reason why the envelope does not sign these bytes, or None. `public_key` None checks only the payload."""
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
            public.verify(signature, _pre_authentication(payload), *options)
            return None
        except InvalidSignature:
            continue
    return f"no signature of the statement is by the key in {public_key.name}"


def _pre_authentication(payload: bytes) -> bytes:
    """Encode the payload with its type and length, so that the bytes cannot pass as another kind of document."""
    kind = PAYLOAD_TYPE.encode()
    return b" ".join([b"DSSEv1", str(len(kind)).encode(), kind, str(len(payload)).encode(), payload])


def _cryptography() -> tuple[Any, Any, Any, Any]:
    try:
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec, ed25519
    except ImportError:
        raise ConfigError("signatures need the package cryptography: pip install 'phasewise[card]'.") from None
    return hashes, serialization, ec, ed25519
