"""What is on the page: recipes, their phases, and what the home has of each. Files say what happened; whether it holds, `checked` says."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from phasewise.flows.recipes import at_scale, load_written, split_target
from phasewise.flows.recipes.phase import Phase
from phasewise.flows.recipes.recipe import Recipe, Scale
from phasewise.flows.site.address import GATES, NAME, SCALES, Gate, PhaseAddress
from phasewise.flows.site.files import Damaged, Files, known
from phasewise.tasks.home import Home
from phasewise.trainer.base.decision import Decisions, Ruling, decision_path, ruling_of
from phasewise.trainer.base.errors import PhasewiseError
from phasewise.trainer.base.run_folder import EVALUATION_NAME, PASSED_OVER_NAME, RESULT_NAME, RUN_NAME, SUPERSEDED, RunFolder
from phasewise.validations.verdict import Verdict

Named = TypeVar("Named", bound=str)
QUESTION = "recovery"
SIGN_OF_LIFE_SECONDS = 120.0
"""So long after its last sign of life a run is taken to be at work."""


@dataclass(frozen=True)
class Set:
    """A recipe at a scale.

    Attributes:
        recipe: as it is written; None where the home has runs of a recipe that is not known here.
        target: what it is asked for by, such as `marin-8b` or a file.
        in_home: whether the home has anything of it.
    """

    name: str
    scale: str
    recipe: Recipe | None
    target: str
    in_home: bool

    @property
    def run_name(self) -> str:
        """What its folders are called."""
        return f"{self.name}-{self.scale}"

    @property
    def path(self) -> str:
        """Its address."""
        return f"{self.name}/{self.scale}"


@dataclass(frozen=True)
class PhaseFiles:
    """What the home has of a phase: read, not judged.

    Attributes:
        phase: as the recipe has it; None where the recipe is not known here, or has no such phase.
        run: what was trained, as `run.json` has it.
        verdicts: gate → its verdict, or why it does not read.
        rulings: gate → what follows from its verdict and from what people decided of it.
        question: what its training asks a person, or why it does not read; None where nothing was asked.
        asked: what follows from that.
        passed_over: `passed_over.json` of its run.
        superseded: names of the folders that were set aside.
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
        """Of its run."""
        return self.home.run(self.address.run_name, self.address.phase)

    @property
    def metrics(self) -> Path:
        """Its metrics."""
        return RunFolder(self.folder).metrics

    @property
    def parent(self) -> str | None:
        """The phase that it starts from."""
        return self.phase.parent if self.phase else _parent_in(self.run)

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
        return not self.result and self.last_sign is not None and now - self.last_sign < SIGN_OF_LIFE_SECONDS

    @property
    def is_unfinished(self) -> bool:
        """Whether something may still happen that a reader waits for."""
        return not (self.result and self.evaluation and len(self.verdicts) == len(GATES))

    @cached_property
    def checkpoints(self) -> tuple[int, ...]:
        """The steps whose checkpoints are there."""
        folder = RunFolder(self.folder).checkpoints
        return tuple(sorted(int(path.name) for path in _entries(folder) if path.name.isdigit()))


class Shelf:
    """Everything in a home, and every recipe that is known.

    Args:
        targets: recipes by name or file.
    """

    def __init__(self, home: Home, targets: Iterable[str], files: Files | None = None) -> None:
        self.home = home
        self.files = files or Files()
        self.problems: list[str] = []
        self._targets: dict[str, str] = {}
        for target in targets:
            try:
                self._targets[load_written(target).name] = split_target(target)[0]
            except PhasewiseError as error:
                self.problems.append(str(error))
        self._recipes: dict[tuple[str, str], Recipe | None] = {}

    def sets(self) -> list[Set]:
        """What the home has, then what it could have: each known recipe at the scales at which it runs."""
        here = self._in_home()
        known_sets = [(name, scale) for name in self._targets for scale in SCALES if self.recipe(name, scale)]
        found = [self._set(name, scale, in_home=True) for name, scale in sorted(here)]
        return found + [self._set(name, scale, in_home=False) for name, scale in known_sets if (name, scale) not in here]

    def find(self, name: str, scale: str) -> Set | None:
        """The recipe at a scale; None where neither the home nor this installation has it."""
        if scale not in SCALES or not NAME.fullmatch(name):
            return None
        in_home = (name, scale) in self._in_home()
        return self._set(name, scale, in_home=in_home) if in_home or self.recipe(name, scale) else None

    def recipe(self, name: str, scale: str) -> Recipe | None:
        """The recipe with all its branches; None where it is not known, or has no such scale."""
        if (name, scale) not in self._recipes:
            self._recipes[name, scale] = self._load(name, scale)
        return self._recipes[name, scale]

    def phase_names(self, found: Set) -> list[str]:
        """The phases of the recipe in its order, then what else the home has under its name."""
        ours = [phase.name for phase in found.recipe.phases] if found.recipe else []
        folders = {path.name for kind in ("runs", "verdicts") for path in _entries(self.home.work / kind / found.run_name)}
        others = [name for name in folders if NAME.fullmatch(name) and name not in ours and self._is_a_phase(found, name)]
        return ours + sorted(others, key=lambda name: (self._start_of(found, name), name))

    def phase(self, found: Set, name: str) -> PhaseFiles | None:
        """What is known of a phase; None where there is no such phase."""
        if name not in self.phase_names(found):
            return None
        return self._read(found, name, self._folders(found))

    def phases(self, found: Set) -> list[PhaseFiles]:
        """Every phase of the recipe."""
        folders = self._folders(found)
        return [self._read(found, name, folders) for name in self.phase_names(found)]

    def _set(self, name: str, scale: str, *, in_home: bool) -> Set:
        return Set(name, scale, self.recipe(name, scale), self._targets.get(name, name), in_home)

    def _load(self, name: str, scale: Scale | str) -> Recipe | None:
        if name not in self._targets:
            return None
        try:
            return at_scale(load_written(self._targets[name]), scale, name)  # pyright: ignore[reportArgumentType]  # one of SCALES
        except PhasewiseError:
            return None  # it has no such scale

    def _in_home(self) -> set[tuple[str, str]]:
        names = {path.name for kind in ("runs", "verdicts") for path in _entries(self.home.work / kind)}
        parts = (name.rpartition("-") for name in names)
        return {(recipe, scale) for recipe, _, scale in parts if scale in SCALES and NAME.fullmatch(recipe)}

    def _is_a_phase(self, found: Set, name: str) -> bool:
        verdicts = self.home.work / "verdicts" / found.run_name / name
        is_begun = RunFolder(self.home.run(found.run_name, name)).run_file.exists()
        return is_begun or any((verdicts / f"{gate}.json").exists() for gate in GATES)

    def _start_of(self, found: Set, name: str) -> int:
        return int(known(self.files.json(RunFolder(self.home.run(found.run_name, name)).run_file)).get("start_step", 0))

    def _folders(self, found: Set) -> tuple[str, ...]:
        """The names of its runs' folders, those that were set aside among them."""
        return tuple(sorted(path.name for path in _entries(self.home.work / "runs" / found.run_name)))

    def _read(self, found: Set, name: str, folders: Sequence[str]) -> PhaseFiles:
        address = PhaseAddress(found.name, found.scale, name)
        folder = self.home.run(found.run_name, name)
        paths: dict[Gate, Path] = {gate: self.home.verdict(found.run_name, name, gate) for gate in GATES}
        verdicts: dict[Gate, Verdict | Damaged] = {
            gate: verdict for gate, path in paths.items() if (verdict := self.files.verdict(path)) is not None
        }
        decisions: dict[Gate, Any] = {gate: self.files.json(path.with_name(f"{gate}.decision.json")) for gate, path in paths.items()}
        rulings, unread = _rulings(verdicts, decisions)
        question = self.files.verdict(RunFolder(folder).question)
        asked, unread_answer = _rulings(
            {QUESTION: question} if question else {}, {QUESTION: self.files.json(decision_path(RunFolder(folder).question))}
        )
        read = {part: self.files.json(folder / part) for part in (RUN_NAME, RESULT_NAME, EVALUATION_NAME, PASSED_OVER_NAME)}
        aside = tuple(one for one in folders if one.startswith(f"{name}{SUPERSEDED}"))
        phases = {phase.name: phase for phase in found.recipe.phases} if found.recipe else {}
        return PhaseFiles(
            address=address,
            phase=phases.get(name),
            home=self.home,
            run=known(read[RUN_NAME]),
            result=known(read[RESULT_NAME]),
            evaluation=known(read[EVALUATION_NAME]),
            verdicts=verdicts,
            rulings=rulings,
            events=self.files.lines(RunFolder(folder).events),
            question=question,
            asked=asked.get(QUESTION),
            passed_over=known(read[PASSED_OVER_NAME]),
            superseded=aside,
            damaged=(*(str(one) for one in (*read.values(), *decisions.values()) if isinstance(one, Damaged)), *unread, *unread_answer),
            last_sign=_last_sign([RunFolder(folder).metrics, RunFolder(folder).heartbeat]),
        )


def _rulings(verdicts: Mapping[Named, Verdict | Damaged], decisions: Mapping[Named, Any]) -> tuple[dict[Named, Ruling], list[str]]:
    """By gate, as the trainer rules; and why a decision does not read. Nothing goes on by one that does not."""
    rulings: dict[Named, Ruling] = {}
    unread: list[str] = []
    for gate, verdict in verdicts.items():
        if isinstance(verdict, Damaged):
            continue
        decided = None
        if isinstance(found := decisions[gate], dict):
            try:
                decided = Decisions.model_validate(found)
            except ValidationError as error:
                unread.append(f"{gate}.decision.json does not read as a decision: {error.errors()[0]['msg']}")
        rulings[gate] = ruling_of(verdict.model_dump(mode="json"), decided)
    return rulings, unread


def _parent_in(run: Mapping[str, Any]) -> str | None:
    """The phase in whose run the checkpoint lies that a run starts from."""
    start = run.get("start")
    parts = Path(str(start.get("checkpoint", ""))).parts if isinstance(start, dict) else ()
    return parts[-3] if len(parts) > 3 else None


def _entries(folder: Path) -> Sequence[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _last_sign(paths: Iterable[Path]) -> float | None:
    times: list[float] = []
    for path in paths:
        try:
            times.append(path.stat().st_mtime)
        except OSError:
            continue
    return max(times, default=None)
