"""Checking a card: against itself, its signature, and with a home each claim against the bytes that it rests on. Nothing is fetched."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from phasewise.tasks.publication.card.bundle import DOCUMENTS, ENVELOPE_NAME, STATEMENT_NAME, render_documents
from phasewise.tasks.publication.card.claims import NAME, Subject, read_claims
from phasewise.tasks.publication.card.differences import disagreements
from phasewise.tasks.publication.card.exported import check_export
from phasewise.tasks.publication.card.home_files import MAX_READ_BYTES, Disagreement, HomeFiles
from phasewise.tasks.publication.card.readme import README_NAME
from phasewise.tasks.publication.card.signature import signature_problem
from phasewise.tasks.publication.card.statement import inner_problems, structure_problems
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.identity import digest_of_bytes
from phasewise.trainer.base.json_reader import parse_json

SAID = "said"
"""Words of the author that rest on no bytes, such as the licence: a signature alone speaks for them."""
NOT_OF_THE_HOME = (SAID, "documents", "export")


class Against(NamedTuple):
    """What a card is checked against; None is not at hand.

    Attributes:
        home: the folder that training wrote.
        work: as `HomeFiles` takes it.
        export: the exported folder.
        public_key: of who says to have signed.
        source_folders: component → folder of its source files, where that is not in the home.
        max_read_bytes: how much is read for digests.
        judges_again: give the verdicts again from their evidence.
    """

    home: Path | None = None
    work: Path | None = None
    export: Path | None = None
    public_key: Path | None = None
    source_folders: Mapping[str, Path] = {}
    max_read_bytes: int = MAX_READ_BYTES
    judges_again: bool = True


@dataclass
class Verification:
    """What came out. It passes only where nothing disagrees and nothing was left unchecked.

    Attributes:
        signed: whether the card has an envelope.
        checked: what was checked, in words.
    """

    signed: bool = False
    disagreements: list[Disagreement] = field(default_factory=list)
    unchecked: list[Disagreement] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    read_bytes: int = 0

    @property
    def passes(self) -> bool:
        """Whether all was checked, and holds."""
        return not self.disagreements and not self.unchecked

    def add(self, found: str, words: str) -> None:
        """A field that does not hold."""
        one = Disagreement(found, words)
        if one not in self.disagreements:
            self.disagreements.append(one)


def subject_of(folder: Path) -> Subject | None:
    """What a card says that it is of, before anything of it is checked; None where it does not say so in words that are names."""
    try:
        said = parse_json((folder / STATEMENT_NAME).read_bytes())["predicate"]
        named = Subject(said["recipe"], said["scale"], said["phase"], None)
        return named if all(NAME.fullmatch(name) for name in (named.recipe, named.scale, named.phase)) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def verify_card(folder: Path, against: Against) -> Verification:
    """Check a card.

    Raises:
        ConfigError: there is no card at the folder.
    """
    path = folder / STATEMENT_NAME
    if not path.is_file():
        raise ConfigError(f"{folder} is no card: it has no {STATEMENT_NAME}. `phasewise card` writes one.")
    payload = path.read_bytes()
    found = Verification()
    _check_signature(folder, payload, against.public_key, found)
    statement = _read_statement(payload, found)
    if statement is None:
        return found
    claims = {name: value for name, value in statement["predicate"].items() if name != "documents"}
    try:
        _check_itself(statement, claims, folder, found)
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        found.add("predicate", f"a part is missing or of another kind: {type(error).__name__} {error}")
        return found
    _check_said(claims, against.public_key, found)
    _check_home(claims, against, found)
    return found


def _read_statement(payload: bytes, found: Verification) -> dict[str, Any] | None:
    try:
        statement = parse_json(payload)
    except ValueError as error:
        found.add("statement", f"{STATEMENT_NAME} is no JSON: {error}")
        return None
    before = len(found.disagreements)
    for name, words in structure_problems(statement):
        found.add(name, words)
    return statement if len(found.disagreements) == before else None


def _check_signature(folder: Path, payload: bytes, public_key: Path | None, found: Verification) -> None:
    path = folder / ENVELOPE_NAME
    found.signed = path.is_file()
    if not found.signed:
        if public_key is not None:
            found.add("signature", f"a key was given, and the card is not signed: it has no {ENVELOPE_NAME}")
        return
    try:
        envelope = parse_json(path.read_bytes())
    except ValueError:
        found.add("signature", f"{ENVELOPE_NAME} is no JSON")
        return
    if problem := signature_problem(envelope, payload, public_key):
        found.add("signature", problem)
    elif public_key is None:
        found.unchecked.append(Disagreement("signature", "who signed was not checked: --public-key names the key to expect"))
    else:
        found.checked.append(f"the signature, by the key in {public_key.name}")


def _check_itself(statement: dict[str, Any], claims: dict[str, Any], folder: Path, found: Verification) -> None:
    """The claims against each other, and the other documents against the claims."""
    for name, said, follows, other in inner_problems(statement):
        for one in disagreements(said, follows, name, other=other):
            found.add(*one)
    rendered = render_documents(claims)
    noted: Mapping[str, Any] = statement["predicate"].get("documents", {})
    for name in DOCUMENTS:
        path = folder / name
        if not path.is_file():
            found.add(name, "the card has no such file")
            continue
        content = path.read_bytes()
        if noted.get(name) != digest_of_bytes(content):
            found.add(
                f"documents.{name}", f"the statement names {str(noted.get(name))[:16]}, its bytes have {digest_of_bytes(content)[:16]}"
            )
        _compare_document(name, content, rendered[name], found)
    strays = {path.name for path in folder.iterdir()} - {*DOCUMENTS, STATEMENT_NAME, ENVELOPE_NAME}
    for name in sorted(strays):
        found.add(name, "is no file of a card, and nothing speaks for it")
    if not [one for one in found.disagreements if one.field != "signature"]:
        found.checked.append("the card against itself, and its other documents against the statement")


def _compare_document(name: str, content: bytes, rendered: bytes, found: Verification) -> None:
    if content == rendered:
        return
    if name == README_NAME:
        pairs = zip(content.decode(errors="replace").split("\n"), rendered.decode().split("\n"), strict=False)
        line = next((number for number, (one, another) in enumerate(pairs, 1) if one != another), "the end")
        found.add(f"{name}:{line}", "the page says something else than the statement")
        return
    try:
        said = parse_json(content)
    except ValueError as error:
        found.add(name, f"is no JSON: {error}")
        return
    for one in disagreements(said, parse_json(rendered), other="the statement says"):
        found.add(f"{name}: {one.field}", one.words)


def _check_said(claims: Mapping[str, Any], public_key: Path | None, found: Verification) -> None:
    """The author's own words: a signature that was checked speaks for them, nothing else does."""
    for name in claims.get(SAID, {}):
        if not (found.signed and public_key):
            words = "rests on no bytes: only a signature that is checked with --public-key speaks for it"
            found.unchecked.append(Disagreement(f"{SAID}.{name}", words))


def _check_home(claims: Mapping[str, Any], against: Against, found: Verification) -> None:
    if against.home is None:
        found.unchecked.append(Disagreement("all claims", "no home was given: nothing was compared with the bytes that it rests on"))
        return
    files = HomeFiles(against.home, work=against.work, max_read_bytes=against.max_read_bytes)
    subject = Subject(claims["recipe"], claims["scale"], claims["phase"], claims.get("evaluation", {}).get("held_out_tokens"))
    again = read_claims(files, subject, source_folders=against.source_folders, judges_again=against.judges_again)
    said = {name: value for name, value in claims.items() if name not in NOT_OF_THE_HOME}
    for one in disagreements(said, again):
        found.add(*one)
    check_export(files, claims.get("export"), subject, against.export)
    for one in files.problems:
        found.add(*one)
    found.unchecked += files.unread
    found.read_bytes = files.read_bytes
    if not files.problems:
        found.checked.append(f"each claim against the home: {files.read_bytes:,} bytes of caches and checkpoint, and every smaller file")
