"""The addresses of the pages, and links to them: on a server from its root, in exported files relative to the page they are on."""

import posixpath
import re
from collections.abc import Mapping
from typing import Literal, NamedTuple
from urllib.parse import quote, urlencode

from phasewise.trainer.base.errors import ConfigError

Gate = Literal["data", "health", "model"]
GATES: tuple[Gate, ...] = ("data", "health", "model")
GATE_WORDS: Mapping[Gate, str] = {"data": "data", "health": "training", "model": "model"}
"""What each gate judges, in words."""
SCALES = ("proxy", "130m", "370m", "1b", "3b", "full", "own")
STATIC, DOCS, REPORT, EVIDENCE = "-/static", "-/docs", "-/report", "-/evidence"
"""Folders beside the pages. No recipe is called `-`."""
NAME = re.compile(r"[a-z0-9][a-z0-9-]*")


class PhaseAddress(NamedTuple):
    """`RECIPE/SCALE/PHASE`."""

    recipe: str
    scale: str
    phase: str

    @property
    def run_name(self) -> str:
        """What the folders of the recipe's runs are called."""
        return f"{self.recipe}-{self.scale}"

    def __str__(self) -> str:
        return "/".join(self)

    @classmethod
    def parse(cls, text: str) -> "PhaseAddress":
        """The address in a query.

        Raises:
            ConfigError: it is none.
        """
        parts = text.strip("/").split("/")
        if len(parts) != 3 or parts[1] not in SCALES or not all(NAME.fullmatch(part) for part in parts):
            raise ConfigError(f"a phase is named RECIPE/SCALE/PHASE, such as marin-8b/proxy/kestrel; found {text!r}.")
        return cls(*parts)


class Links:
    """Links from the page at `here`, a path from the root without a slash at its beginning; the first page is at the empty path.

    Args:
        is_static: the pages are files: links are relative, and a page is the `index.html` of its folder.
        prefix: what a server's addresses begin with, where it is not at the root of its host.
    """

    def __init__(self, here: str, *, is_static: bool = False, prefix: str = "") -> None:
        self.here = here
        self.is_static = is_static
        self._prefix = prefix.rstrip("/")

    def page(self, path: str, *, anchor: str = "", **query: object) -> str:
        """The address of a page. Exported files have no queries."""
        hash_ = f"#{quote(anchor)}" if anchor else ""
        if self.is_static:
            return self._relative(f"{path}/index.html" if path else "index.html") + hash_
        asked = {name: str(value) for name, value in query.items() if value not in (None, "")}
        return f"{self._prefix}/{quote(path)}" + (f"?{urlencode(asked)}" if asked else "") + hash_

    def file(self, path: str, *, anchor: str = "") -> str:
        """The address of a file beside the pages."""
        hash_ = f"#{quote(anchor)}" if anchor else ""
        return (self._relative(path) if self.is_static else f"{self._prefix}/{quote(path)}") + hash_

    def compare(self, left: "PhaseAddress | str", right: "PhaseAddress | str") -> str:
        """The comparison of two phases; in exported files only those that were written."""
        if self.is_static:
            return self.page(compared_path(str(left), str(right)))
        return self.page("compare", left=left, right=right)

    def _relative(self, path: str) -> str:
        return quote(posixpath.relpath(path, self.here or "."))


def compared_path(left: str, right: str) -> str:
    """Where an exported comparison is."""
    return f"compare/{left}/with/{right}"
