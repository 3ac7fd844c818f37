"""A recipe: phases and their lineage, as data."""

from collections.abc import Iterable
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, TypeVar, get_args

from pydantic import Field, model_validator

from phasewise.flows.recipes.benchmarks import own_of
from phasewise.flows.recipes.hand_off import both_in_words, changes_between, check_carried
from phasewise.flows.recipes.phase import Change, HandOff, Phase, Pretrained
from phasewise.flows.recipes.waivers import check_waivers, limited_to
from phasewise.tasks.data.filters import LengthBias
from phasewise.tasks.data.source import WITHOUT_FIELDS, Pin, Source
from phasewise.tasks.data.tokenizer import BEGIN_OF_TEXT, END_OF_TEXT
from phasewise.tasks.evaluation.settings import OwnBenchmark
from phasewise.tasks.training.pretrained import tokenizer_of
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.wording import near
from phasewise.trainer.config import MixtureShares, Steps, sequences_between
from phasewise.trainer.data.mixture import MixtureSchedule
from phasewise.validations.limits import OWN_TEXT, AcceptedWarning, ApprovableCheck, AsksPeople

T = TypeVar("T")
Between = Literal["130m", "370m", "1b", "3b"]
Scale = Literal["proxy", "130m", "370m", "1b", "3b", "full", "own"]
"""`full` is the size of the published run. `own` is a recipe with sizes of its author. Other scales are computed from the full recipe."""
SCALES: tuple[Scale, ...] = get_args(Scale)
BETWEEN: tuple[Between, ...] = get_args(Between)


def scale_in_words(scale: Scale) -> str:
    """The scale as text that follows the name of a recipe."""
    return "as it is written" if scale == "own" else f"at {scale} scale"


class Tokenizer(Frozen):
    """A tokenizer on the hub or in a folder. If `name` is None, a byte-level BPE is trained on the recipe's training split.

    Attributes:
        name: a folder from `phasewise tokenizer train` starts with `/`, `./`, `../` or `~/`. Other names are looked up on the hub.
        components: training text of the tokenizer. None uses all components of the recipe.
        begin: the token before each document. None for a tokenizer without one, as of GPT-2 and Qwen.
        end: the token after each document. None for a tokenizer without one.
        special_tokens: added to a trained tokenizer, with the begin and end of a document and the tokens of all chat templates in use.
            List the tokens of a branch here, so that the main line's tokenizer has them.
    """

    name: str | None = None
    vocab_size: int = Field(gt=0)
    components: tuple[str, ...] | None = None
    special_tokens: tuple[str, ...] = ()
    begin: str | None = BEGIN_OF_TEXT
    end: str | None = END_OF_TEXT

    @model_validator(mode="after")
    def _is_trained_or_fetched(self) -> "Tokenizer":
        if self.name is not None and self.components is not None:
            raise ValueError(f"components: only a tokenizer with name null is trained, found {self.name}. Take out components or the name")
        around = (self.begin, self.end)
        if around == (None, None) or self.begin == self.end:
            raise ValueError(
                f"begin and end: expected two different tokens, or one token and null, found {self.begin} and {self.end}. A token that "
                "only separates documents is their end"
            )
        if self.name is None and around != (BEGIN_OF_TEXT, END_OF_TEXT):
            raise ValueError(
                f"begin and end: a trained tokenizer has {BEGIN_OF_TEXT} and {END_OF_TEXT}. Take them out, or name a tokenizer"
            )
        reserved = (BEGIN_OF_TEXT, END_OF_TEXT, *self.special_tokens)
        if "" in reserved or len(set(reserved)) < len(reserved):
            raise ValueError(
                f"special_tokens: expected texts that differ from each other and from {BEGIN_OF_TEXT} and {END_OF_TEXT}, found "
                f"{', '.join(map(repr, self.special_tokens))}"
            )
        if self.name is not None and self.special_tokens:
            raise ValueError(f"special_tokens: only a trained tokenizer takes special tokens, found {self.name}. Take the tokens out")
        return self


class Recipe(Frozen):
    """Phases, parents before children. A hand-off with an undeclared change is an error.

    Attributes:
        sources: the text of components, at every scale. The catalogue has the text of other components.
        pins: finished caches of this scale. Pinned caches pass the same checks as built caches.
        accepts: expected warnings. A failure cannot be accepted.
        approvable: checks whose failure a person may approve. Leaked test items, stale caches and undeclared changes are never approvable.
        length_bias: component → selection of its documents by length. Other components keep all documents.
        max_tokens: read about this number of tokens of all components together, in files that are chosen by name. If None, the scales
            between proxy and full read a quarter more than they draw, and other scales read everything.
        warnings_ask_people: a phase with a warning waits for a person.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    scale: Scale = "own"
    tokenizer: Tokenizer
    phases: tuple[Phase, ...] = Field(min_length=1)
    sources: dict[str, Source] = Field(default={})
    pins: tuple[Pin, ...] = ()
    accepts: tuple[AcceptedWarning, ...] = ()
    approvable: tuple[ApprovableCheck, ...] = ()
    warnings_ask_people: bool = False
    max_tokens: int | None = Field(default=None, gt=0)
    length_bias: dict[str, LengthBias] = Field(default={})

    @property
    def run_name(self) -> str:
        """The name of the recipe's folders."""
        return f"{self.name}-{self.scale}"

    @property
    def is_scaled(self) -> bool:
        """Whether the sizes are computed from a larger recipe. Phases then run on this machine, unless a slice is named."""
        return self.scale not in ("full", "own")

    @property
    def uses_stand_ins(self) -> bool:
        """Whether components without a source in the recipe read proxy data sets of this installation."""
        return self.scale in ("proxy", "own")

    @property
    def components(self) -> tuple[str, ...]:
        """The components of all phases, sorted."""
        return tuple(sorted({name for phase in self.phases for name in phase.components}))

    @property
    def main_line(self) -> tuple[Phase, ...]:
        """The phases that are no branches."""
        return tuple(phase for phase in self.phases if not phase.branch)

    def phase(self, name: str) -> Phase:
        """Find a phase by name, or raise ConfigError."""
        if name not in self._by_name:
            raise ConfigError(f"{self.name} has no phase {name!r}, {near(name, [phase.name for phase in self.phases])}")
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, Phase]:
        return {phase.name: phase for phase in reversed(self.phases)}  # the first of equal names

    def with_branch(self, name: str | None) -> "Recipe":
        """The main line, and the named phase with its ancestors. Raises ConfigError for an unknown phase."""
        needed = {name, *(phase.name for phase in self.ancestors(self.phase(name)))} if name else set[str]()
        phases = tuple(phase for phase in self.phases if not phase.branch or phase.name in needed)
        drawn = {component for phase in phases for component in phase.components}
        if phases == self.phases and drawn != set(self.tokenizer.components or ()):
            return self
        names = [phase.name for phase in phases]
        kept: dict[str, Any] = dict(self)
        kept |= {
            "phases": phases,
            "sources": {component: source for component, source in self.sources.items() if component in drawn},
            "pins": tuple(pin for pin in self.pins if pin.component in drawn),
            "accepts": limited_to(names, self.accepts),
            "approvable": limited_to(names, self.approvable),
            "length_bias": {component: bias for component, bias in self.length_bias.items() if component in drawn},
        }
        if drawn == set(self.tokenizer.components or ()):
            kept["tokenizer"] = self.tokenizer.but(components=None)
        return Recipe(**kept)

    def asks_people_in(self, phase: Phase) -> AsksPeople:
        """The checks and warnings of a phase that people decide."""
        listed = tuple(check for check in self.approvable if check.phases is None or phase.name in check.phases)
        return AsksPeople(approvable=listed, on_warnings=self.warnings_ask_people)

    def own_benchmarks(self, phase: Phase) -> tuple[OwnBenchmark, ...]:
        """The own benchmarks and text of the main line and of the phase's lineage, which the leakage scan of the phase searches for."""
        phases = {one.name: one.evaluation for one in (*self.main_line, *self.lineage(phase))}
        found = {(label, one.include or "") for one in phases.values() for label in own_of(one.benchmarks)}
        return tuple(sorted(found | {(OWN_TEXT, one.held_out) for one in phases.values() if one.held_out}))

    def tokens_before(self, phase: Phase, step: int) -> int:
        """The tokens of the phase's lineage up to a step."""
        stretches = ((part, min(stop, step)) for part, stop in self._parts(phase) if part.start_step < step)
        return sum(part.model.seq_len * sequences_between(part.batch, part.start_step, stop) for part, stop in stretches)

    def changes_of(self, phase: Phase, parent: Phase | None = None) -> dict[Change, tuple[object, object]]:
        """The changes of the hand-off to a phase, name → before and after. A phase from scratch has none.

        `parent`: settings of the trained parent. None is the recipe's parent.
        """
        if not isinstance(phase.start, HandOff):
            return {}
        drawn, earlier = self.drawn_before(phase)
        return changes_between(parent or self.phase(phase.start.parent), phase, drawn=drawn, earlier=earlier)

    def drawn_before(self, phase: Phase) -> tuple[frozenset[str], frozenset[str]]:
        """All components of the lineage before a phase, and components only of steps before the parent's data order started."""
        parts = self._parts(phase)[:-1]
        first = parts[-1][0].order.first_step if parts else 0
        ever = frozenset(name for part, stop in parts for name in part.drawn_in(part.start_step, stop))
        if not first:
            return ever, frozenset()
        within = ((part, max(part.start_step, first), stop) for part, stop in parts if stop > first)
        by_order = frozenset(name for part, start, stop in within for name in part.drawn_in(start, stop))
        return ever, ever - by_order

    def lineage(self, phase: Phase) -> tuple[Phase, ...]:
        """The phase and its parents, oldest first."""
        found = [phase]
        while parent := found[-1].parent:
            found.append(self.phase(parent))
        return tuple(reversed(found))

    def ancestors(self, phase: Phase) -> tuple[Phase, ...]:
        """All phases that a phase starts or grafts from, directly or through other phases, parents first."""
        found: set[str] = set()
        waiting = [phase]
        while waiting:
            start = waiting.pop().start
            if isinstance(start, HandOff):
                names = {start.parent, *(graft.phase for graft in start.graft)} - found
                found |= names
                waiting += [self.phase(name) for name in names]
        return tuple(one for one in self.phases if one.name in found)

    def schedules_of_lineage(self, phase: Phase) -> tuple[Steps[int], Steps[MixtureShares]]:
        """Batch sizes and mixtures from step 0 to the end of the phase."""
        parts = self._parts(phase)
        batch = _without_repeats(entry for part, stop in parts for entry in part.batch.within(part.start_step, stop))
        mixture = _without_repeats(entry for part, stop in parts for entry in part.mixture.within(part.start_step, stop))
        return Steps[int](batch), Steps[MixtureShares](mixture)

    def mixture_schedule(self, phase: Phase) -> MixtureSchedule:
        """Component counts of each step, from step 0 to the phase's end."""
        batch, mixture = self.schedules_of_lineage(phase)
        return MixtureSchedule(batch=batch, mixture=mixture, order=phase.order)

    def _parts(self, phase: Phase) -> list[tuple[Phase, int]]:
        lineage = self.lineage(phase)
        return [(part, child.start_step) for part, child in pairwise(lineage)] + [(phase, phase.stop_step)]

    @model_validator(mode="before")
    @classmethod
    def _takes_tokenizer_of_source(cls, given: Any) -> Any:
        """Fill in a tokenizer that is left out from the files of the first phase's pretrained start."""
        if not isinstance(given, dict) or given.get("tokenizer") is not None or not given.get("phases"):
            return given
        first: Any = given["phases"][0]
        start: Any = first.start if isinstance(first, Phase) else first.get("start") if isinstance(first, dict) else None
        if isinstance(start, dict) and "pretrained" in start:
            start = Pretrained.model_validate(start)
        if not isinstance(start, Pretrained):
            return given
        name, vocab_size, around = tokenizer_of(start.pretrained, start.revision)
        return given | {"tokenizer": {"name": name, "vocab_size": vocab_size, **around._asdict()}}

    @model_validator(mode="after")
    def _is_consistent(self) -> "Recipe":
        known: dict[str, Phase] = {}
        for phase in self.phases:
            if phase.name in known:
                raise ValueError(f"two phases are called {phase.name}")
            if isinstance(phase.start, HandOff):
                self._check_hand_off(phase, phase.start, known)
            elif phase.order.first_step:
                raise ValueError(
                    f"phase {phase.name} starts from scratch: expected order.first_step 0, found {phase.order.first_step}. Set it to 0"
                )
            known[phase.name] = phase
        named = (
            ("sources", tuple(self.sources)),
            ("length_bias", tuple(self.length_bias)),
            ("pins", tuple(pin.component for pin in self.pins)),
            ("tokenizer.components", self.tokenizer.components or ()),
        )
        for kind, names in named:
            if unknown := sorted(set(names) - set(self.components)):
                raise ValueError(f"{kind} names {', '.join(unknown)}: expected components of the phases ({', '.join(self.components)})")
        caches = [f"{pin.component} ({pin.split})" for pin in self.pins]
        if twice := sorted({cache for cache in caches if caches.count(cache) > 1}):
            raise ValueError(f"pins names the cache of {', '.join(twice)} more than once")
        for name, source in self.sources.items():
            if source.format in WITHOUT_FIELDS and source.text_key != Source.model_fields["text_key"].default:
                raise ValueError(
                    f"the source of {name} names the text_key {source.text_key!r}: a file of the format {source.format} has no keys. "
                    "Take the text_key out"
                )
        for phase in self.phases:
            if phase.model.vocab_size < self.tokenizer.vocab_size:
                raise ValueError(
                    f"the model of phase {phase.name} must have a row for each of the tokenizer's {self.tokenizer.vocab_size:,} tokens, "
                    f"found a vocab_size of {phase.model.vocab_size:,}"
                )
        check_waivers(self.accepts, self.approvable, self.phases)
        return self

    def _check_hand_off(self, phase: Phase, start: HandOff, known: dict[str, Phase]) -> None:
        parent = _having(known, start.parent, start.step, f"phase {phase.name} starts from")
        for graft in start.graft:
            _having(known, graft.phase, graft.step, f"phase {phase.name} grafts {graft.part} from")
        if phase.order.first_step not in (parent.order.first_step, start.step):
            raise ValueError(
                f"phase {phase.name}: expected order.first_step {parent.order.first_step} (the parent's order) or {start.step} (a new "
                f"order), found {phase.order.first_step}"
            )
        if phase.evaluation.held_out not in (None, parent.evaluation.held_out):
            raise ValueError(
                f"phase {phase.name}: expected the evaluation.held_out of its parent ({parent.evaluation.held_out}), found "
                f"{phase.evaluation.held_out}. Give both the same text"
            )
        check_carried(parent, phase, start)
        made = self.changes_of(phase, parent)
        if needless := [name for name in start.declares if name not in made and (name != "slice" or not self.is_scaled)]:
            raise ValueError(
                f"the hand-off {parent.name} → {phase.name} declares {', '.join(needless)}, and changes no such thing: take "
                f"{'it' if len(needless) == 1 else 'them'} out of `declares`, or make the change"
            )
        undeclared: dict[Change, str] = {}
        for name in sorted(set(made) - set(start.declares)):
            before, after = made[name]
            undeclared[name] = " → ".join(both_in_words(before, after))
            if name == "learning_rate" and isinstance(before, float) and isinstance(after, float) and min(before, after) > 0:
                factor = max(before, after) / min(before, after)
                undeclared[name] += f", {factor:.3g} times {'higher' if after > before else 'lower'} in one step"
        if undeclared:
            changes = ", and ".join(f"{name}: {words}" for name, words in undeclared.items())
            raise ValueError(
                f"the hand-off {parent.name} → {phase.name} makes {'a change' if len(undeclared) == 1 else 'changes'} that it does not "
                f"declare. {changes}. Name {', '.join(undeclared)} in `declares`, or take {'it' if len(undeclared) == 1 else 'them'} back"
            )


def _having(known: dict[str, Phase], name: str, step: int, takes_from: str) -> Phase:
    phase = known.get(name)
    if phase is None:
        raise ValueError(f"{takes_from} {name}, which is not an earlier phase")
    if not phase.start_step < step <= phase.stop_step:
        others = [other.name for other in known.values() if other.start_step < step <= other.stop_step]
        hint = f". Step {step} is in {' and '.join(others)}" if others else ""
        raise ValueError(
            f"{takes_from} step {step} of {name}, a step it never has: it trains steps {phase.start_step} → {phase.stop_step}{hint}"
        )
    if step != phase.stop_step and not phase.checkpoints.keeps(step):
        raise ValueError(f"{takes_from} step {step} of {name}, which keeps no checkpoint there: name it in its checkpoints.at_steps")
    return phase


def _without_repeats(entries: Iterable[tuple[int, T]]) -> tuple[tuple[int, T], ...]:
    kept: list[tuple[int, T]] = []
    for step, value in entries:
        if not kept or kept[-1][1] != value:
            kept.append((step, value))
    return tuple(kept)
