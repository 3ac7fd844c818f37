"""Writing a card of a trained phase."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from phasewise.tasks.publication.card.bundle import check_free, write_bundle
from phasewise.tasks.publication.card.claims import Subject, read_claims
from phasewise.tasks.publication.card.exported import export_claims
from phasewise.tasks.publication.card.gate_claims import ruling_word
from phasewise.tasks.publication.card.home_files import HomeFiles
from phasewise.trainer.base.errors import VerdictError
from phasewise.trainer.base.wording import name_some

NEEDED = ("lineage", "training", "mixture", "order", "data", "gates", "evaluation", "checkpoint")
MAX_NAMED = 3


class CardOptions(NamedTuple):
    """What is asked for beside the phase.

    Attributes:
        key: a private key to sign with.
        export: an exported folder of the phase, to be named in the card.
        licence: as the author says it.
        source_folders: component → folder of its source files, where that is not in the home.
    """

    key: Path | None = None
    export: Path | None = None
    licence: str | None = None
    source_folders: Mapping[str, Path] = {}


def write_card(
    home: Path, subject: Subject, out: Path, options: CardOptions, *, work: Path | None = None, judges_again: bool = True
) -> dict[str, Any]:
    """Read every claim from the home and write the card; what is in it.

    Args:
        work: as `HomeFiles` takes it.

    Raises:
        ConfigError: the folder is not empty, or the key cannot be used.
        VerdictError: something that a card needs is missing in the home, or the home contradicts itself.
    """
    check_free(out)
    files = HomeFiles(home, work=work)
    claims = read_claims(files, subject, source_folders=options.source_folders, judges_again=judges_again)
    if options.export is not None:
        claims["export"] = export_claims(files, subject, options.export)
    if options.licence:
        claims["said"] = {"licence": options.licence}
    missing = [name for name in NEEDED if not claims.get(name)] + [
        f"gates.{gate}" for gate in ("data", "health", "model") if gate not in claims.get("gates", {})
    ]
    if files.problems or missing:
        said = [one.line for one in files.problems] or [f"{name} is missing" for name in missing]
        raise VerdictError(
            f"a card of {subject.recipe}/{subject.phase} must rest on bytes that agree, and those in {home} do not: "
            f"{name_some(said, MAX_NAMED, '; ')}. Run the recipe again, which makes what does not hold any more."
        )
    names = write_bundle(out, claims, options.key)
    return {
        "card": str(out.resolve()),
        "recipe": subject.recipe,
        "scale": subject.scale,
        "phase": subject.phase,
        "step": claims["checkpoint"]["step"],
        "signed": options.key is not None,
        "passes": all(ruling_word(gate) in ("passes", "approved") for gate in claims["gates"].values()),
        "files": list(names),
        "not_checked": [one.line for one in files.unread],
    }
