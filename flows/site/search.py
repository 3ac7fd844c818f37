"""Search over recipes, phases, components, checks and the reasons of verdicts."""

from collections.abc import Sequence
from dataclasses import dataclass

from phasewise.flows.site.address import GATE_WORDS, PhaseAddress
from phasewise.flows.site.shelf import PhaseFiles, Set
from phasewise.flows.site.site import Site
from phasewise.validations.report.failures import failures_of

MAX_SHOWN = 200
MAX_QUERY = 200


@dataclass(frozen=True)
class Entry:
    """Something that can be found.

    Attributes:
        kind: recipe, phase, component, check or reason.
        path: the page that it leads to.
    """

    kind: str
    name: str
    where: str
    path: str


def entries_of(site: Site, *, in_home: bool = False) -> list[Entry]:
    """Everything: what fails first, then in the order of recipes and phases. A check is named once for all phases.

    Args:
        in_home: only of what the home has something.
    """
    found: list[Entry] = []
    passing: dict[str, Entry] = {}
    for one in site.shelf.sets():
        if in_home and not one.in_home:
            continue
        found.append(Entry("recipe", one.name, f"at {one.scale} scale" if one.scale != "own" else "as it is written", one.path))
        for files in site.shelf.phases(one):
            found += _of_phase(one, files)
            for check in _checks_of(files):
                passing.setdefault(check.name, check)
    order = {"reason": 0, "recipe": 1, "phase": 2, "component": 3}
    return sorted(found, key=lambda entry: order[entry.kind]) + list(passing.values())


def matching(entries: Sequence[Entry], query: str) -> list[Entry]:
    """Those in which every word of the query occurs, capitals or not; none without a word."""
    words = query[:MAX_QUERY].casefold().split()
    if not words:
        return []
    return [entry for entry in entries if all(word in f"{entry.kind} {entry.name} {entry.where}".casefold() for word in words)]


def _of_phase(found: Set, files: PhaseFiles) -> list[Entry]:
    address = files.address
    entries = [Entry("phase", address.phase, f"of {address.recipe}, {address.scale}", str(address))]
    components = files.phase.components if files.phase else sorted(_components_of(files))
    entries += [Entry("component", name, f"in {address}", str(address)) for name in components]
    for gate, verdict in files.judged:
        for failure in failures_of(verdict):
            entries += [
                Entry("reason", case.what, f"verdict on the {GATE_WORDS[gate]} of {address}", f"{address}/{gate}") for case in failure.cases
            ]
    return entries


def _checks_of(files: PhaseFiles) -> list[Entry]:
    return [
        Entry("check", check.asks, f"verdict on the {GATE_WORDS[gate]} of {_first(files.address)}", f"{files.address}/{gate}")
        for gate, verdict in files.judged
        for check in verdict.checks
    ]


def _first(address: PhaseAddress) -> str:
    return f"{address}, among others"


def _components_of(files: PhaseFiles) -> set[str]:
    caches = files.run.get("caches")
    return {str(name) for name in caches} if isinstance(caches, dict) else set()
