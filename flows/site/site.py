"""What every page is made from: the home, what was read of it, and the templates."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phasewise.flows.record import PhaseRecord
from phasewise.flows.show.describe import describe_phase, describe_recipe
from phasewise.flows.site.address import Links
from phasewise.flows.site.checked import Checked, Checker
from phasewise.flows.site.metrics import Metrics
from phasewise.flows.site.shelf import PhaseFiles, Set, Shelf
from phasewise.flows.site.states import State, state_of
from phasewise.tasks.report.html import environment

CHECKING = "The page shows what the files say. Whether that still holds is being checked, and shown in a few seconds."


@dataclass
class Site:
    """A home to look at.

    Attributes:
        prefect: the address of Prefect's UI, where it is known.
        is_own_prefect: whether that is the server of this home, which a link may give its auth string (`flows.own_address.opened`).
        reads_within: seconds that a page may read metrics for, before it is drawn from a part of them.
        written: when the pages were written as files, as ISO time.
    """

    shelf: Shelf
    prefect: str = ""
    is_own_prefect: bool = False
    reads_within: float = 0.25
    written: str = ""
    metrics: Metrics = field(default_factory=Metrics)
    checker: Checker = field(init=False)
    _plans: dict[tuple[str, str, str], dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.checker = Checker(self.shelf)

    def place(self, path: Path) -> str:
        """Where a file or folder is in the home: pages that are published name no folder of this machine."""
        root = self.shelf.home.work
        return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name

    def record(self, found: Set, phase: str) -> PhaseRecord | None:
        """What was last found out of a phase; None where nobody knows yet, or can."""
        checked = self.checker.latest(found)
        return checked.records.get(phase) if checked else None

    def state(self, found: Set, files: PhaseFiles) -> State:
        """The state of a phase."""
        return state_of(files, self.record(found, files.address.phase))

    def holds(self, found: Set) -> str:
        """What a reader must know of how far the states of a recipe can be relied on; empty where everything was checked."""
        if not found.in_home:
            return ""
        if found.recipe is None:
            return (
                "This installation does not know the recipe, so the page shows what its files say. Whether that still holds for the "
                "sources, the code and the limits of now is not checked."
            )
        checked: Checked | None = self.checker.latest(found)
        if checked is None:
            return CHECKING
        return f"Whether the results still hold cannot be checked: {checked.problem}" if checked.problem else ""

    def plan(self, found: Set, phase: str) -> dict[str, Any] | None:
        """Every number of a phase, as `phasewise show` has it; None where its recipe is not known."""
        if found.recipe is None or phase not in {one.name for one in found.recipe.phases}:
            return None
        key = (found.name, found.scale, phase)
        if key not in self._plans:
            described = describe_phase(found.recipe, found.recipe.phase(phase))
            self._plans[key] = described | {"tokenizer": describe_recipe(found.recipe)["tokenizer"]}
        return self._plans[key]

    def render(self, template: str, links: Links, **values: Any) -> str:
        """A page. Everything that comes from the home is escaped."""
        return environment().get_template(template).render(links=links, site=self, **values)

    def part(self, template: str, name: str, links: Links, **values: Any) -> str:
        """A part of a page, for one who has the rest of it already."""
        module = environment().get_template(template).make_module({"links": links, "site": self})
        return str(getattr(module, name)(**values))
