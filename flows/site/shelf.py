"""Everything in a home: recipes, their phases, and the files of each. Files are read again only when they change."""

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import ValidationError

from phasewise.flows.recipes import at_scale, load_written, split_target
from phasewise.flows.recipes.phase import Phase
from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.site.address import GATES, NAME, SCALES, Gate, PhaseAddress
from phasewise.tasks.home import Home
from phasewise.trainer.base.decision import Decisions, Ruling, decision_path, ruling_of
from phasewise.trainer.base.errors import PhasewiseError, VerdictError
from phasewise.trainer.base.identity import NotAsWritten, read_sealed
from phasewise.trainer.base.run_folder import EVALUATION_NAME, PASSED_OVER_NAME, RESULT_NAME, RUN_NAME, SUPERSEDED, RunFolder
from phasewise.validations.verdict import Verdict, read_verdict

T = TypeVar("T")
QUESTION = "recovery"
ALIVE_SECONDS = 120.0
"""A run is taken to be at work for so long after its last metrics or heartbeat."""
MAX_KEPT = 4000


class Damaged(str):
    """Why an existing file does not read, in words."""


class Files:
    """Parsed files of a home, each kept until it changes. Several threads may read."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, Path], tuple[tuple[int, ...], Any]] = OrderedDict()
        self._lock = threading.Lock()

    def json(self, path: Path) -> dict[str, Any] | Damaged | None:
        """The JSON object in the file; None if there is no file."""
        return self.read("json", path, lambda path: read_sealed(path, may_lack_seal=True))

    def verdict(self, path: Path) -> Verdict | Damaged | None:
        """The verdict in the file; None if there is no file."""
        return self.read("verdict", path, read_verdict)

    def lines(self, path: Path) -> tuple[dict[str, Any], ...]:
        """The JSON objects in the file, one a line. A line that is not a JSON object is left out."""

        def read(path: Path) -> tuple[dict[str, Any], ...]:
            found: list[dict[str, Any]] = []
            for line in path.read_bytes().splitlines():
                try:
                    value = json.loads(line)
                except ValueError:
                    continue
                if isinstance(value, dict):
                    found.append(cast(dict[str, Any], value))
            return tuple(found)

        found = self.read("lines", path, read)
        return found if isinstance(found, tuple) else ()

    def read(self, kind: str, path: Path, read: Callable[[Path], T]) -> T | Damaged | None:
        """The result of `read`, kept until the file's inode, size or times change; None if there is no file."""
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
    """The object that was read; empty if it is missing or damaged."""
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


@dataclass(frozen=True)
class Set:
    """A recipe at a scale.

    Attributes:
        recipe: None if the home has runs of a recipe that is not known here.
        target: its name on the command line, such as `marin-8b` or a file.
        in_home: whether the home has anything of it.
    """

    name: str
    scale: str
    recipe: Recipe | None
    target: str
    in_home: bool

    @property
    def run_name(self) -> str:
        """The name of its folders."""
        return f"{self.name}-{self.scale}"

    @property
    def path(self) -> str:
        """Its address."""
        return f"{self.name}/{self.scale}"


@dataclass(frozen=True)
class PhaseFiles:
    """The files of a phase in the home: read, not judged.

    Attributes:
        phase: None if the recipe is not known here, or has no such phase.
        verdicts: gate → its verdict, or why it does not read.
        rulings: gate → the ruling on its verdict and on people's decisions.
        question: the question of its training to a person, or why it does not read; None if nothing was asked.
        asked: the ruling on the question.
        superseded: names of the folders that were archived.
    """

    address: PhaseAddress
    phase: Phase | None
    home: Home
    run: Mapping[str, Any]
    result: Mapping[str, Any]
    evaluation: Mapping[str, Any]
    verdicts: Mapping[Gate, Verdict | Damaged]
    rulings: Mapping[Gate, Ruling]
    events: tuple[Mapping[str, Any], ...]
    question: Verdict | Damaged | None
    asked: Ruling | None
    passed_over: Mapping[str, Any]
    superseded: tuple[str, ...]
    damaged: tuple[str, ...]
    last_sign: float | None

    @property
    def folder(self) -> Path:
        """The folder of its run."""
        return self.home.run(self.address.run_name, self.address.phase)

    def evidence(self, gate: Gate) -> Path:
        """The folder of a verdict's evidence."""
        return self.home.verdict(self.address.run_name, self.address.phase, gate).with_suffix("")

    @property
    def parent(self) -> str | None:
        """The phase that it starts from; without a recipe, by the path of the checkpoint that its run starts from."""
        if self.phase:
            return self.phase.parent
        parts = Path(str(known(self.run.get("start")).get("checkpoint", ""))).parts
        return parts[-3] if len(parts) > 3 else None

    @property
    def start_step(self) -> int | None:
        """The step that it starts at."""
        return self.phase.start_step if self.phase else self.run.get("start_step")

    @property
    def stop_step(self) -> int | None:
        """The step that it ends at."""
        return self.phase.stop_step if self.phase else self.run.get("stop_step")

    @property
    def judged(self) -> tuple[tuple[Gate, Verdict], ...]:
        """The verdicts that read."""
        return tuple((gate, verdict) for gate, verdict in self.verdicts.items() if isinstance(verdict, Verdict))

    def is_alive(self, now: float) -> bool:
        """Whether it trains, as far as its files say."""
        return not self.result and self.last_sign is not None and now - self.last_sign < ALIVE_SECONDS

    @property
    def is_unfinished(self) -> bool:
        """Whether a reader may wait for something."""
        return not (self.result and self.evaluation and len(self.verdicts) == len(GATES))

    @cached_property
    def checkpoints(self) -> tuple[int, ...]:
        """The steps of its checkpoints."""
        return tuple(sorted(int(path.name) for path in _entries(RunFolder(self.folder).checkpoints) if path.name.isdigit()))


class Shelf:
    """Everything in a home, and every known recipe.

    Args:
        targets: recipes by name or file.
    """

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

    def sets(self) -> list[Set]:
        """The recipes in the home, then the others: each known recipe at its scales."""
        here = self._in_home()
        others = [(name, scale) for name in self._targets for scale in SCALES if (name, scale) not in here and self.recipe(name, scale)]
        return [self._set(name, scale, here) for name, scale in (*sorted(here), *others)]

    def find(self, name: str, scale: str) -> Set | None:
        """The recipe at a scale; None if neither the home nor this installation has it."""
        if scale not in SCALES or not NAME.fullmatch(name):
            return None
        found = self._set(name, scale, self._in_home())
        return found if found.in_home or found.recipe else None

    def recipe(self, name: str, scale: str) -> Recipe | None:
        """The recipe with all its branches; None if it is not known, or has no such scale."""
        if (name, scale) not in self._recipes:
            recipe = None
            if name in self._targets:
                try:
                    recipe = at_scale(load_written(self._targets[name]), scale, name)  # pyright: ignore[reportArgumentType]  # one of SCALES
                except PhasewiseError:  # it has no such scale
                    pass
            self._recipes[name, scale] = recipe
        return self._recipes[name, scale]

    def phase_names(self, found: Set) -> list[str]:
        """The phases of the recipe in its order, then the others in the home under its name."""
        ours = [phase.name for phase in found.recipe.phases] if found.recipe else []
        others: list[tuple[int, str]] = []
        for name in {path.name for kind in ("runs", "verdicts") for path in _entries(self.home.work / kind / found.run_name)} - set(ours):
            run_file = RunFolder(self.home.run(found.run_name, name)).run_file
            paths = [run_file, *(self.home.verdict(found.run_name, name, gate) for gate in GATES)]
            if NAME.fullmatch(name) and any(path.exists() for path in paths):
                others.append((int(known(self.files.json(run_file)).get("start_step", 0)), name))
        return ours + [name for _, name in sorted(others)]

    def phase(self, found: Set, name: str) -> PhaseFiles | None:
        """The files of a phase; None if there is no such phase."""
        return self._read(found, name, self._folders(found)) if name in self.phase_names(found) else None

    def phases(self, found: Set) -> list[PhaseFiles]:
        """Every phase of the recipe."""
        folders = self._folders(found)
        return [self._read(found, name, folders) for name in self.phase_names(found)]

    def _set(self, name: str, scale: str, here: set[tuple[str, str]]) -> Set:
        return Set(name, scale, self.recipe(name, scale), self._targets.get(name, name), (name, scale) in here)

    def _in_home(self) -> set[tuple[str, str]]:
        names = {path.name for kind in ("runs", "verdicts") for path in _entries(self.home.work / kind)}
        parts = (name.rpartition("-") for name in names)
        return {(recipe, scale) for recipe, _, scale in parts if scale in SCALES and NAME.fullmatch(recipe)}

    def _folders(self, found: Set) -> list[str]:
        return sorted(path.name for path in _entries(self.home.work / "runs" / found.run_name))

    def _read(self, found: Set, name: str, folders: Sequence[str]) -> PhaseFiles:
        folder = RunFolder(self.home.run(found.run_name, name))
        paths: dict[str, Path] = {gate: self.home.verdict(found.run_name, name, gate) for gate in GATES}
        verdicts: dict[str, Verdict | Damaged] = {}
        rulings: dict[str, Ruling] = {}
        read: list[object] = []
        for gate, path in {**paths, QUESTION: folder.question}.items():
            verdict, decisions = self.files.verdict(path), self.files.json(decision_path(path))
            read.append(decisions)
            if verdict is not None:
                verdicts[gate] = verdict
            if isinstance(verdict, Verdict):  # a decision that does not read lets nothing pass
                decided = None
                try:
                    decided = Decisions.model_validate(decisions) if isinstance(decisions, dict) else None
                except ValidationError as error:
                    read.append(Damaged(f"{gate}.decision.json does not read as a decision: {error.errors()[0]['msg']}"))
                rulings[gate] = ruling_of(verdict.model_dump(mode="json"), decided)
        names = (RUN_NAME, RESULT_NAME, EVALUATION_NAME, PASSED_OVER_NAME)
        run, result, evaluation, passed_over = parts = [self.files.json(folder.path / part) for part in names]
        times: list[float] = []
        for path in (folder.metrics, folder.heartbeat):
            try:
                times.append(path.stat().st_mtime)
            except OSError:
                continue
        phases = {phase.name: phase for phase in found.recipe.phases} if found.recipe else {}
        return PhaseFiles(
            address=PhaseAddress(found.name, found.scale, name),
            phase=phases.get(name),
            home=self.home,
            run=known(run),
            result=known(result),
            evaluation=known(evaluation),
            verdicts={gate: verdicts[gate] for gate in GATES if gate in verdicts},
            rulings={gate: rulings[gate] for gate in GATES if gate in rulings},
            events=self.files.lines(folder.events),
            question=verdicts.get(QUESTION),
            asked=rulings.get(QUESTION),
            passed_over=known(passed_over),
            superseded=tuple(one for one in folders if one.startswith(f"{name}{SUPERSEDED}")),
            damaged=tuple(str(one) for one in (*parts, *read) if isinstance(one, Damaged)),
            last_sign=max(times, default=None),
        )


def _entries(folder: Path) -> Sequence[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
