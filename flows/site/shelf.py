"""The recipes of a home, their phases, and the parsed files of each phase. Files are parsed again only when they change.

On a server, links start at the root. In exported files, links are relative to their page.
"""

import posixpath
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, cast
from urllib.parse import quote, urlencode

from pydantic import ValidationError

from phasewise.flows.recipes import at_scale, load_written, split_target
from phasewise.flows.recipes.phase import Phase
from phasewise.flows.recipes.recipe import Recipe
from phasewise.tasks.home import Home
from phasewise.tasks.phase_state import Work, read_stage, read_work
from phasewise.trainer.base.decision import Decisions, Ruling, decision_path, ruling_of
from phasewise.trainer.base.errors import ConfigError, PhasewiseError, VerdictError
from phasewise.trainer.base.identity import NotAsWritten, read_sealed
from phasewise.trainer.base.run_folder import EVALUATION_NAME, PASSED_OVER_NAME, RESULT_NAME, RUN_NAME, SUPERSEDED, RunFolder, read_events
from phasewise.validations.verdict import Verdict, read_verdict

Gate = Literal["data", "health", "model"]
GATES: tuple[Gate, ...] = ("data", "health", "model")
SCALES = ("proxy", "130m", "370m", "1b", "3b", "full", "own")
STATIC, DOCS, REPORT, EVIDENCE, EXPERIMENT = "-/static", "-/docs", "-/report", "-/evidence", "-/experiment"
"""Folders of files. No recipe has the name `-`."""
COMPARISON = "compare/{}/with/{}"  # path of an exported comparison of a phase with its parent
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


T = TypeVar("T")
QUESTION = "recovery"
STORE_SECONDS = 10.0  # the page asks a store at most this often for the work on a phase
MAX_KEPT = 4000


class Damaged(str):
    """The reason that an existing file cannot be parsed."""


@dataclass
class Files:
    """A thread-safe cache of parsed files, valid until a file changes. Missing files are None."""

    _kept: OrderedDict[tuple[str, Path], tuple[tuple[int, ...], Any]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def json(self, path: Path) -> dict[str, Any] | Damaged | None:
        """Parse a JSON object."""
        return self.read("json", path, read_sealed)

    def read(self, kind: str, path: Path, read: Callable[[Path], T]) -> T | Damaged | None:
        """Return the result of `read`, cached until the file's inode, size or times change."""
        try:
            stat = path.stat()
            now = (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
            with self._lock:
                kept = self._kept.get((kind, path))
                if kept and kept[0] == now:
                    self._kept.move_to_end((kind, path))
                    return cast(T, kept[1])
            try:
                value = read(path)
            except (NotAsWritten, VerdictError) as error:
                value = Damaged(str(error))
        except OSError:
            return None
        with self._lock:
            self._kept[kind, path] = (now, value)
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        return value


def known(value: object) -> dict[str, Any]:
    """Return a parsed object, or an empty dictionary for a missing or damaged file."""
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


@dataclass(frozen=True)
class Set:
    """A recipe at a scale.

    `recipe`: None for runs of a recipe that is not installed. `target`: name on the command line, for example `marin-8b` or a file.
    """

    name: str
    scale: str
    recipe: Recipe | None
    target: str
    in_home: bool

    @property
    def run_name(self) -> str:
        """Name of its folders."""
        return f"{self.name}-{self.scale}"

    @property
    def path(self) -> str:
        """Path of its page."""
        return f"{self.name}/{self.scale}"


@dataclass(frozen=True)
class PhaseFiles:
    """The parsed files of a phase.

    `phase`: None if the installed recipes lack it. `verdicts`: gate → verdict, or the reason that it cannot be parsed. `judged`: gates with
    a readable verdict.
    """

    address: PhaseAddress
    phase: Phase | None
    parent: str | None
    start_step: int | None
    stop_step: int | None
    home: Home
    folder: Path
    run: Mapping[str, Any]
    result: Mapping[str, Any]
    evaluation: Mapping[str, Any]
    verdicts: Mapping[Gate, Verdict | Damaged]
    judged: tuple[tuple[Gate, Verdict], ...]
    rulings: Mapping[Gate, Ruling]
    events: tuple[Mapping[str, Any], ...]
    question: Verdict | Damaged | None
    asked: Ruling | None
    passed_over: Mapping[str, Any]
    superseded: tuple[str, ...]
    damaged: tuple[str, ...]
    last_sign: float | None
    work: Work

    @property
    def unreadable(self) -> tuple[str, ...]:
        """The reasons why files of the phase cannot be parsed."""
        return (*self.damaged, *(str(one) for one in self.verdicts.values() if isinstance(one, Damaged)))

    @property
    def components(self) -> Sequence[str]:
        """The components of the phase in the recipe, or of its run."""
        return self.phase.components if self.phase else sorted(known(self.run.get("caches")))

    def evidence(self, gate: Gate) -> Path:
        """Folder of a verdict's evidence."""
        return self.home.verdict(self.address.run_name, self.address.phase, gate).with_suffix("")


class Shelf:
    """The recipes of a home and the installed recipes."""

    def __init__(self, home: Home, targets: Iterable[str]) -> None:
        self.home, self.files = home, Files()
        self.problems: list[str] = []
        self._targets: dict[str, str] = {}
        for target in targets:
            try:
                self._targets[load_written(target).name] = split_target(target)[0]
            except PhasewiseError as error:
                self.problems.append(str(error))
        self._recipes: dict[tuple[str, str], Recipe | None] = {}
        self._works: dict[tuple[str, str], tuple[float, Work]] = {}

    def sets(self) -> list[Set]:
        """Return the recipes of the home, then all other recipes at each of their scales."""
        here = self._in_home()
        others = [(name, scale) for name in self._targets for scale in SCALES if (name, scale) not in here and self.recipe(name, scale)]
        pairs = (*sorted(here), *others)
        return [Set(name, scale, self.recipe(name, scale), self._targets.get(name, name), (name, scale) in here) for name, scale in pairs]

    def find(self, name: str, scale: str) -> Set | None:
        """Return a recipe at a scale, or None if it is neither in the home nor installed."""
        if scale not in SCALES or not NAME.fullmatch(name):
            return None
        found = Set(name, scale, self.recipe(name, scale), self._targets.get(name, name), (name, scale) in self._in_home())
        return found if found.in_home or found.recipe else None

    def recipe(self, name: str, scale: str) -> Recipe | None:
        """Return a recipe with all branches, or None if it is not installed or lacks the scale."""
        if (name, scale) not in self._recipes:
            recipe = None
            if name in self._targets:
                with suppress(PhasewiseError):  # it lacks the scale
                    recipe = at_scale(load_written(self._targets[name]), scale, name)  # pyright: ignore[reportArgumentType]  # one of SCALES
            self._recipes[name, scale] = recipe
        return self._recipes[name, scale]

    def phase_names(self, found: Set) -> list[str]:
        """Return the phases of the recipe in order, then other phases in the home."""
        ours = [phase.name for phase in found.recipe.phases] if found.recipe else []
        others: list[tuple[int, str]] = []
        for name in {path.name for kind in ("runs", "verdicts") for path in _entries(self.home.work / kind / found.run_name)} - set(ours):
            run_file = RunFolder(self.home.run(found.run_name, name)).run_file
            paths = [run_file, *(self.home.verdict(found.run_name, name, gate) for gate in GATES)]
            if NAME.fullmatch(name) and any(path.exists() for path in paths):
                others.append((int(known(self.files.json(run_file)).get("start_step", 0)), name))
        return ours + [name for _, name in sorted(others)]

    def phase(self, found: Set, name: str) -> PhaseFiles | None:
        """Return the files of a phase, or None if it does not exist."""
        return next(iter(self.phases(found, name)), None)

    def phases(self, found: Set, only: str | None = None) -> list[PhaseFiles]:
        """Return the files of all phases, or of the phase `only`. A phase is read until its process stays in a stage."""
        read: list[PhaseFiles] = []
        folders = sorted(path.name for path in _entries(self.home.work / "runs" / found.run_name))
        for name in [name for name in self.phase_names(found) if only in (None, name)]:
            while True:
                files = self._read(found, name, folders, self._work(found, name))
                if not self.home.is_local or read_stage(self.home, found.run_name, name) == files.work.stage:
                    break
            read.append(files)
        return read

    def _in_home(self) -> set[tuple[str, str]]:
        names = {path.name for kind in ("runs", "verdicts") for path in _entries(self.home.work / kind)}
        parts = (name.rpartition("-") for name in names)
        return {(recipe, scale) for recipe, _, scale in parts if scale in SCALES and NAME.fullmatch(recipe)}

    def _work(self, found: Set, name: str) -> Work:
        now = time.monotonic()
        at, work = self._works.get((found.run_name, name), (now, None))
        if work is None or self.home.is_local or now - at > STORE_SECONDS:
            at, work = now, read_work(self.home, found.run_name, name)
            self._works[found.run_name, name] = at, work
        return work

    def _read(self, found: Set, name: str, folders: Sequence[str], work: Work) -> PhaseFiles:
        folder = RunFolder(self.home.run(found.run_name, name))
        paths: dict[str, Path] = {gate: self.home.verdict(found.run_name, name, gate) for gate in GATES}
        verdicts: dict[str, Verdict | Damaged] = {}
        rulings: dict[str, Ruling] = {}
        read: list[object] = []
        for gate, path in {**paths, QUESTION: folder.question}.items():
            verdict, decisions = self.files.read("verdict", path, read_verdict), self.files.json(decision_path(path))
            read.append(decisions)
            if verdict is not None:
                verdicts[gate] = verdict
            if isinstance(verdict, Verdict):
                decided = None  # a damaged decision approves nothing
                try:
                    decided = Decisions.model_validate(decisions) if isinstance(decisions, dict) else None
                except ValidationError as error:
                    read.append(Damaged(f"{gate}.decision.json does not read as a decision: {error.errors()[0]['msg']}"))
                rulings[gate] = ruling_of(verdict.model_dump(mode="json"), decided)
        events = self.files.read("lines", folder.events, lambda _path: tuple(read_events(folder.path)))
        names = (RUN_NAME, RESULT_NAME, EVALUATION_NAME, PASSED_OVER_NAME)
        run, result, evaluation, passed_over = parts = [self.files.json(folder.path / part) for part in names]
        times: list[float] = []
        for path in (folder.metrics, folder.heartbeat):
            try:
                times.append(path.stat().st_mtime)
            except OSError:
                continue
        phase = next((phase for phase in found.recipe.phases if phase.name == name), None) if found.recipe else None
        start_step, stop_step = (known(run).get(step) for step in ("start_step", "stop_step"))
        above = Path(str(known(known(run).get("start")).get("checkpoint", ""))).parts  # …/PHASE/checkpoints/STEP
        of_gates: dict[Gate, Verdict | Damaged] = {gate: verdicts[gate] for gate in GATES if gate in verdicts}
        return PhaseFiles(
            address=PhaseAddress(found.name, found.scale, name),
            phase=phase,
            parent=phase.parent if phase else above[-3] if len(above) > 3 else None,
            start_step=phase.start_step if phase else start_step,
            stop_step=phase.stop_step if phase else stop_step,
            home=self.home,
            folder=folder.path,
            run=known(run),
            result=known(result),
            evaluation=known(evaluation),
            verdicts=of_gates,
            judged=tuple((gate, verdict) for gate, verdict in of_gates.items() if isinstance(verdict, Verdict)),
            rulings={gate: rulings[gate] for gate in GATES if gate in rulings},
            events=events if isinstance(events, tuple) else (),
            question=verdicts.get(QUESTION),
            asked=rulings.get(QUESTION),
            passed_over=known(passed_over),
            superseded=tuple(one for one in folders if one.startswith(f"{name}{SUPERSEDED}")),
            damaged=tuple(str(one) for one in (*parts, *read) if isinstance(one, Damaged)),
            last_sign=max(times, default=None),
            work=work,
        )


def _entries(folder: Path) -> Sequence[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
