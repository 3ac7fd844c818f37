"""What a card claims of an exported folder: its files by digest, and that its weights are those of the checkpoint."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phasewise.tasks.publication.card.claims import Subject
from phasewise.tasks.publication.card.differences import disagreements
from phasewise.tasks.publication.card.home_files import HomeFiles
from phasewise.tasks.publication.card.readme import README_NAME
from phasewise.tasks.publication.card.training_claims import read_trained
from phasewise.tasks.publication.exported_weights import differing_weights
from phasewise.tasks.publication.placing import ORIGIN_NAME
from phasewise.trainer.base.errors import PhasewiseError
from phasewise.trainer.base.identity import NotAsWritten, digest_of_file, read_sealed


def export_claims(files: HomeFiles, subject: Subject, folder: Path) -> dict[str, Any]:
    """The files of the folder, what it says of its weights, and a problem where these are other weights than it says."""
    named = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    found = {name: {"size_bytes": path.stat().st_size, "sha256": digest_of_file(path)} for name, path in named.items()}
    if ORIGIN_NAME not in named:
        files.problem(f"export.{ORIGIN_NAME}", "the folder does not say which weights it holds: export it again")
        return {"files": found}
    origin = files.tried("export.origin", lambda: read_sealed(folder / ORIGIN_NAME, may_lack_seal=True), NotAsWritten)
    if origin is None:
        return {"files": found}
    for name, digest in origin.get("files", {}).items():
        if name != README_NAME:  # people write into it
            files.agree(f"export.files.{name}", "the folder's file has", digest, found.get(name, {}).get("sha256"))
    for name, value in {"recipe": subject.recipe, "scale": subject.scale, "phase": subject.phase}.items():
        files.agree(f"export.origin.{name}", "the card is of", origin.get(name), value)
    trained = read_trained(files, subject.run_name, subject.phase, "training")
    if trained is not None:
        try:
            words = differing_weights(folder, trained.run, files.place(trained.checkpoint), origin)
        except (PhasewiseError, KeyError, ValueError) as error:
            words = " ".join(str(error).split())
        if words:
            files.problem("export.weights", words)
    return {"origin": dict(origin), "files": found}


def check_export(files: HomeFiles, said: Mapping[str, Any] | None, subject: Subject, folder: Path | None) -> None:
    """Compare what a card says of an exported folder with the folder."""
    if said is None:
        if folder is not None:
            files.problem("export", "a folder was given, and the card says nothing of an export")
        return
    if folder is None:
        files.skip("export", "no exported folder was given: --export names it")
        return
    for one in disagreements(said, export_claims(files, subject, folder), "export"):
        files.problems.append(one)
