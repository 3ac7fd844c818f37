"""URLs of the pages. On a server, links start at the root. In exported files, links are relative to their page."""

import posixpath
import re
from dataclasses import dataclass
from typing import Literal, NamedTuple
from urllib.parse import quote, urlencode

from phasewise.trainer.base.errors import ConfigError

Gate = Literal["data", "health", "model"]
GATES: tuple[Gate, ...] = ("data", "health", "model")
SCALES = ("proxy", "130m", "370m", "1b", "3b", "full", "own")
STATIC, DOCS, REPORT, EVIDENCE, EXPERIMENT = "-/static", "-/docs", "-/report", "-/evidence", "-/experiment"
"""Folders of files. No recipe has the name `-`."""
COMPARISON = "compare/{}/with/{}"
"""Path of an exported comparison of a phase with its parent."""
NAME = re.compile(r"[a-z0-9][a-z0-9-]*")


class PhaseAddress(NamedTuple):
    """`RECIPE/SCALE/PHASE`."""

    recipe: str
    scale: str
    phase: str

    @property
    def run_name(self) -> str:
        """Name of the folders of the recipe's runs."""
        return f"{self.recipe}-{self.scale}"

    def __str__(self) -> str:
        return "/".join(self)

    @classmethod
    def parse(cls, text: str) -> "PhaseAddress":
        """Parse an address, or raise a ConfigError."""
        parts = text.strip("/").split("/")
        if len(parts) != 3 or parts[1] not in SCALES or not all(NAME.fullmatch(part) for part in parts):
            raise ConfigError(f"a phase is named RECIPE/SCALE/PHASE, such as marin-8b/proxy/kestrel, found {text!r}.")
        return cls(*parts)


@dataclass(frozen=True)
class Links:
    """Links from the page at `here`, a path from the root without a leading slash. The first page has the empty path.

    `is_static`: for exported files. Links are relative, and a page is the `index.html` of its folder.
    """

    here: str
    is_static: bool = False

    def page(self, path: str, *, anchor: str = "", **query: object) -> str:
        """Return the URL of a page. Exported files have no queries."""
        if self.is_static:
            return self.file(f"{path}/index.html" if path else "index.html", anchor=anchor)
        asked = {name: str(value) for name, value in query.items() if value not in (None, "")}
        return f"/{quote(path)}" + (f"?{urlencode(asked)}" if asked else "") + (f"#{quote(anchor)}" if anchor else "")

    def file(self, path: str, *, anchor: str = "") -> str:
        """Return the URL of a file."""
        address = quote(posixpath.relpath(path, self.here or ".")) if self.is_static else f"/{quote(path)}"
        return address + (f"#{quote(anchor)}" if anchor else "")

    def compare(self, *phases: "PhaseAddress | str") -> str:
        """Return the URL of a comparison. Exported files only compare phases with their parents."""
        return self.page(COMPARISON.format(*phases)) if self.is_static else f"/compare?{urlencode([('phase', str(one)) for one in phases])}"
