"""Everything that a card claims of a phase, worked out from the bytes of a home alone: no recipe, no network, no clock."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from phasewise.tasks.publication.card.data_claims import data_claims, tokenizer_claims
from phasewise.tasks.publication.card.gate_claims import (
    GATES,
    Gate,
    check_judged,
    evaluation_claims,
    gate_claims,
    hand_off_claims,
    read_gate,
)
from phasewise.tasks.publication.card.home_files import HomeFiles
from phasewise.tasks.publication.card.training_claims import (
    Trained,
    checkpoint_claims,
    lineage_claims,
    mixture_claims,
    order_claims,
    read_trained,
    training_claims,
)
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.run_folder import EVALUATION_NAME
from phasewise.validations.verdict import Verdict

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""A name that is one folder's; a card from elsewhere must not lead out of the home."""
TOLD = ("gates", "hand_off")
TOLD_FROM_PATHS = re.compile(r"(?<![\w.])/(?:[^\s\"',/]+/)+[^\s\"',]*")


class Subject(NamedTuple):
    """Which phase, and what its card needs that no file of the home says.

    Attributes:
        held_out_tokens: the bound on held-out text that the evaluation notes as a digest; it is proved by that.
    """

    recipe: str
    scale: str
    phase: str
    held_out_tokens: int | None

    @property
    def run_name(self) -> str:
        """Its folder under `runs` and `verdicts`."""
        return f"{self.recipe}-{self.scale}"


def read_claims(
    files: HomeFiles, subject: Subject, *, source_folders: Mapping[str, Path] | None = None, judges_again: bool = True
) -> dict[str, Any]:
    """The claims; what is wrong with the home and what could not be read is noted in `files`.

    Args:
        source_folders: component → folder of its source files, where that is not in the home.
        judges_again: give the verdicts again from the bytes that they rest on, which takes some seconds.

    Raises:
        ConfigError: a name is not one of a folder.
    """
    for name in (subject.recipe, subject.scale, subject.phase):
        if not NAME.fullmatch(name):
            raise ConfigError(f"recipe, scale and phase must be names of folders, found {name!r}.")
    claims: dict[str, Any] = {"recipe": subject.recipe, "scale": subject.scale, "phase": subject.phase}
    trained = read_trained(files, subject.run_name, subject.phase, "training")
    found: dict[Gate, Verdict | None] = {gate: read_gate(files, subject.run_name, subject.phase, gate) for gate in GATES}
    verdicts: dict[Gate, Verdict] = {gate: verdict for gate, verdict in found.items() if verdict is not None}
    if trained is None:
        return claims
    files.agree("phase", "its run says", subject.phase, trained.run.phase)
    files.agree("recipe", "its run says", subject.recipe, trained.run.recipe)
    files.agree("scale", "its run says", subject.scale, trained.run.scale)
    order = order_claims(files, trained)
    judged = verdicts["data"].judged if "data" in verdicts else {}
    data = data_claims(files, judged, order, source_folders or {})
    claims |= {
        "lineage": lineage_claims(files, trained, subject.run_name),
        "training": training_claims(files, trained),
        "mixture": mixture_claims(files, trained),
        "order": order,
        "data": data,
        "tokenizer": tokenizer_claims(files, data),
        "hand_off": hand_off_claims(files, subject.run_name, subject.phase),
        "gates": {gate: gate_claims(files, subject.run_name, subject.phase, gate, verdict) for gate, verdict in verdicts.items()},
        **_judgement(files, trained, subject, verdicts, judges_again=judges_again),
        "checkpoint": checkpoint_claims(files, trained),
    }
    return _without_places(claims)


def _judgement(
    files: HomeFiles, trained: Trained, subject: Subject, verdicts: dict[Gate, Verdict], *, judges_again: bool
) -> dict[str, Any]:
    """The evaluation, with what was judged compared; the verdicts are given again where that is asked for."""
    evaluation = files.json("evaluation", f"{trained.folder}/{EVALUATION_NAME}")
    parent = None
    if trained.run.start is not None:
        parent_path = f"runs/{subject.run_name}/{Path(trained.run.start.checkpoint).parts[-3]}/{EVALUATION_NAME}"
        parent = files.json("gates.model.judged", parent_path) if files.has(parent_path) else None
    check_judged(files, trained, verdicts, evaluation, parent)
    if judges_again:
        from phasewise.tasks.publication.card.judged_again import check_again

        places: dict[Gate, tuple[str, Verdict]] = {
            gate: (f"verdicts/{subject.run_name}/{subject.phase}/{gate}", verdict) for gate, verdict in verdicts.items()
        }
        check_again(files, trained, places, evaluation, parent)
    else:
        for gate in verdicts:
            files.skip(f"gates.{gate}.checks", "not judged again")
    if evaluation is None:
        return {}
    return {"evaluation": evaluation_claims(files, trained, evaluation, subject.held_out_tokens)}


def _without_places(claims: dict[str, Any]) -> dict[str, Any]:
    """As JSON reads it again, and what verdicts and tables say in words without absolute paths of a machine."""
    plain = json.loads(json.dumps(claims, ensure_ascii=False))
    told = {name: plain[name] for name in TOLD if name in plain}
    return {**plain, **json.loads(TOLD_FROM_PATHS.sub("<a place>", json.dumps(told, ensure_ascii=False)))}
