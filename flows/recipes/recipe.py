"""What a recipe is: phases and their lineage, as data. A phase itself is in `phase.py`."""

from collections.abc import Iterable
from itertools import pairwise
from typing import Literal, NamedTuple, TypeVar, get_args

from pydantic import Field, model_validator

from phasewise.flows.recipes.hand_off import changes_between, check_carried, undeclared_changes
from phasewise.flows.recipes.phase import Change, HandOff, Phase
from phasewise.flows.recipes.waivers import accepted_among, approvable_among, check_accepts, check_all_approvable
from phasewise.tasks.data.filters import LengthBias
from phasewise.tasks.data.source import WITHOUT_FIELDS, Pin, Source
from phasewise.tasks.data.tokenizer import BEGIN_OF_TEXT, END_OF_TEXT
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.config import MixtureShares, Steps, sequences_between
from phasewise.trainer.data.mixture import MixtureSchedule
from phasewise.validations.waivers import AcceptedWarning, ApprovableCheck, AsksPeople, asked_in

T = TypeVar("T")
Between = Literal["130m", "370m", "1b", "3b"]
Scale = Literal["proxy", "130m", "370m", "1b", "3b", "full", "own"]
"""`full` is what the record trained, and a recipe of its `own` sizes is run as it is written. The others are computed from the full one."""
SCALES: tuple[Scale, ...] = get_args(Scale)
BETWEEN: tuple[Between, ...] = get_args(Between)


def scale_in_words(scale: Scale) -> str:
    """How a recipe is run, to follow its name."""
    return "as it is written" if scale == "own" else f"at {scale} scale"


class Tokenizer(Frozen):
    """A tokenizer by name on the hub or in a folder, or, where `name` is None, a byte-level BPE trained on the recipe's own training split.

    Attributes:
        name: a folder that `phasewise tokenizer train` wrote begins with `/`, `./`, `../` or `~/`; else it is a name on the hub.
        components: those that it is trained on; None is all that the recipe draws from.
        special_tokens: that one that is trained gets besides those that begin and end a document. Those of the chat templates of what is
            drawn from are among them without being named; name those that only a branch needs, so that the main line's has them, too.
    """

    name: str | None = None
    vocab_size: int = Field(gt=0)
    components: tuple[str, ...] | None = None
    special_tokens: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _is_trained_or_fetched(self) -> "Tokenizer":
        if self.name is not None and self.components is not None:
            raise ValueError(
                f"components are what a tokenizer is trained on, and {self.name} is taken as it is: take them out, or let name be null"
            )
        own = (BEGIN_OF_TEXT, END_OF_TEXT, *self.special_tokens)
        if "" in own or len(set(own)) < len(own):
            raise ValueError(
                f"special_tokens: expected texts that differ from each other and from {BEGIN_OF_TEXT} and {END_OF_TEXT}, found "
                f"{', '.join(map(repr, self.special_tokens))}"
            )
        if self.name is not None and self.special_tokens:
            raise ValueError(
                f"special_tokens are of a tokenizer that is trained here, and {self.name} has the special tokens that it has: take them out"
            )
        return self


class Drawn(NamedTuple):
    """The components that a lineage drew from before a phase.

    Attributes:
        earlier: those of them that it drew from before the order of the phase's parent began, and not since.
    """

    ever: frozenset[str]
    earlier: frozenset[str]


class Recipe(Frozen):
    """Phases in an order in which every parent comes before its children.

    Refused where a hand-off changes something that it does not declare.

    Attributes:
        sources: the components that the recipe brings its own text for, instead of the catalogue's, at every scale.
        pins: finished caches to use, at this scale only. A pin never skips a check.
        accepts: the warnings that are expected because the recipe prescribes what they warn of. What stops a phase cannot be accepted.
        approvable: the checks whose failure a person may let pass. Of data, none that looks for test items, stale caches or what a
            hand-off does not declare.
        length_bias: component → which of its documents are trained on, by their length; of the others all are.
        max_tokens: read about so many tokens of all components together, in files that are chosen by their names, rather than everything. A
            scale between reads what it draws and a quarter more where this is None.
        warnings_ask_people: a phase whose verdict warns waits for a person; else it goes on, and the warning is shown.
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
        """What its folders are called."""
        return f"{self.name}-{self.scale}"

    @property
    def is_scaled(self) -> bool:
        """Whether it is computed from a larger one. Then every phase is on this machine, unless a slice is named."""
        return self.scale not in ("full", "own")

    @property
    def uses_stand_ins(self) -> bool:
        """Whether the text of a component without a source of its own is what this installation carries, and not the real data set."""
        return self.scale in ("proxy", "own")

    @property
    def components(self) -> tuple[str, ...]:
        """What all phases together draw from, sorted."""
        return tuple(sorted({name for phase in self.phases for name in phase.components}))

    @property
    def main_components(self) -> tuple[str, ...]:
        """What the main line draws from, sorted: what every phase is measured on, whichever branch is trained beside it."""
        return tuple(sorted({name for phase in self.main_line or self.phases for name in phase.components}))

    def phase(self, name: str) -> Phase:
        """The phase of that name.

        Raises:
            ConfigError: there is none.
        """
        for phase in self.phases:
            if phase.name == name:
                return phase
        raise ConfigError(f"{self.name} has no phase {name!r}; it has {', '.join(phase.name for phase in self.phases)}.")

    @property
    def main_line(self) -> tuple[Phase, ...]:
        """The phases that are trained where none is named."""
        return tuple(phase for phase in self.phases if not phase.branch)

    def with_branch(self, name: str | None) -> "Recipe":
        """The main line, and of the branches only the phase of that name and what it rests on.

        Raises:
            ConfigError: there is no such phase.
        """
        needed = {name, *(phase.name for phase in self.ancestors(self.phase(name)))} if name else set[str]()
        phases = tuple(phase for phase in self.phases if not phase.branch or phase.name in needed)
        drawn = {component for phase in phases for component in phase.components}
        sources = {component: source for component, source in self.sources.items() if component in drawn}
        pins = tuple(pin for pin in self.pins if pin.component in drawn)
        length_bias = {component: bias for component, bias in self.length_bias.items() if component in drawn}
        tokenizer = self.tokenizer
        if drawn == set(tokenizer.components or ()):
            tokenizer = tokenizer.but(components=None)
        names = [phase.name for phase in phases]
        return Recipe(
            name=self.name,
            scale=self.scale,
            tokenizer=tokenizer,
            phases=phases,
            sources=sources,
            pins=pins,
            accepts=accepted_among(names, self.accepts),
            approvable=approvable_among(names, self.approvable),
            warnings_ask_people=self.warnings_ask_people,
            max_tokens=self.max_tokens,
            length_bias=length_bias,
        )

    def asks_people_in(self, phase: Phase) -> AsksPeople:
        """What a phase puts to people."""
        return asked_in(phase.name, self.approvable, on_warnings=self.warnings_ask_people)

    def tokens_before(self, phase: Phase, step: int) -> int:
        """Tokens that the lineage of a phase had trained on when so many updates were applied."""
        stretches = ((part, min(stop, step)) for part, stop in self._parts(phase) if part.start_step < step)
        return sum(part.model.seq_len * sequences_between(part.batch, part.start_step, stop) for part, stop in stretches)

    def changes_of(self, phase: Phase, parent: Phase | None = None) -> dict[Change, tuple[object, object]]:
        """What the hand-off to a phase changes, name → before and after; nothing where it starts from scratch.

        Args:
            parent: as it was really trained; None is the recipe's.
        """
        if not isinstance(phase.start, HandOff):
            return {}
        drawn = self.drawn_before(phase)
        return changes_between(parent or self.phase(phase.start.parent), phase, drawn=drawn.ever, earlier=drawn.earlier)

    def drawn_before(self, phase: Phase) -> Drawn:
        """The components that the lineage drew from before a phase."""
        parts = self._parts(phase)[:-1]
        first = parts[-1][0].order.first_step if parts else 0
        ever = frozenset(name for part, stop in parts for name in part.drawn_in(part.start_step, stop))
        within = ((part, max(part.start_step, first), stop) for part, stop in parts if stop > first)
        by_order = frozenset(name for part, start, stop in within for name in part.drawn_in(start, stop))
        return Drawn(ever, ever - by_order)

    def lineage(self, phase: Phase) -> tuple[Phase, ...]:
        """The phase's ancestors and itself, oldest first."""
        before = self.lineage(self.phase(phase.parent)) if phase.parent else ()
        return (*before, phase)

    def ancestors(self, phase: Phase) -> tuple[Phase, ...]:
        """Every phase that this one rests on: what it starts from or grafts a part of its state from, and what those do; parents first."""
        found: set[str] = set()
        waiting = [phase]
        while waiting:
            start = waiting.pop().start
            if isinstance(start, HandOff):
                names = {start.parent, *(graft.phase for graft in start.graft)} - found
                found |= names
                waiting += [self.phase(name) for name in names]
        return tuple(one for one in self.phases if one.name in found)

    def batch_of_lineage(self, phase: Phase) -> Steps[int]:
        """Batch sizes from step 0 to the phase's end."""
        return Steps[int](
            _without_repeats((step, size) for part, stop in self._parts(phase) for step, size in part.batch.within(part.start_step, stop))
        )

    def mixture_of_lineage(self, phase: Phase) -> Steps[MixtureShares]:
        """Mixtures from step 0 to the phase's end: the data order reaches back to the start of the lineage."""
        entries = ((step, shares) for part, stop in self._parts(phase) for step, shares in part.mixture.within(part.start_step, stop))
        return Steps[MixtureShares](_without_repeats(entries))

    def mixture_schedule(self, phase: Phase) -> MixtureSchedule:
        """Component counts of each step, from step 0 to the phase's end."""
        return MixtureSchedule(batch=self.batch_of_lineage(phase), mixture=self.mixture_of_lineage(phase), order=phase.order)

    def _parts(self, phase: Phase) -> list[tuple[Phase, int]]:
        lineage = self.lineage(phase)
        return [(part, child.start_step) for part, child in pairwise(lineage)] + [(phase, phase.stop_step)]

    @model_validator(mode="after")
    def _hand_offs_are_declared(self) -> "Recipe":
        known: dict[str, Phase] = {}
        for phase in self.phases:
            if phase.name in known:
                raise ValueError(f"two phases are called {phase.name}")
            if isinstance(phase.start, HandOff):
                self._check_hand_off(phase, phase.start, known)
            elif phase.order.first_step:
                raise ValueError(f"the order of phase {phase.name}, which starts from scratch, must begin at step 0")
            known[phase.name] = phase
        return self

    def _check_hand_off(self, phase: Phase, start: HandOff, known: dict[str, Phase]) -> None:
        parent = _having(known, start.parent, start.step, f"phase {phase.name} starts from")
        for graft in start.graft:
            _having(known, graft.phase, graft.step, f"phase {phase.name} grafts {graft.part} from")
        if phase.order.first_step not in (parent.order.first_step, start.step):
            raise ValueError(
                f"the order of phase {phase.name} must begin where its parent's does, at step {parent.order.first_step}, or again at step "
                f"{start.step}; found order.first_step {phase.order.first_step}"
            )
        check_carried(parent, phase, start)
        made = self.changes_of(phase, parent)
        if needless := [name for name in start.declares if name not in made and (name != "slice" or not self.is_scaled)]:
            raise ValueError(
                f"the hand-off {parent.name} → {phase.name} declares {', '.join(needless)}, and changes no such thing: take "
                f"{'it' if len(needless) == 1 else 'them'} out of `declares`, or make the change"
            )
        if undeclared := undeclared_changes(made, start):
            changes = "; ".join(f"{name}: {words}" for name, words in undeclared.items())
            raise ValueError(
                f"the hand-off {parent.name} → {phase.name} makes {'a change' if len(undeclared) == 1 else 'changes'} that it does not "
                f"declare. {changes}. Name {', '.join(undeclared)} in `declares`, or take {'it' if len(undeclared) == 1 else 'them'} back"
            )

    @model_validator(mode="after")
    def _sources_and_pins_have_components(self) -> "Recipe":
        named = (
            ("sources", tuple(self.sources)),
            ("length_bias", tuple(self.length_bias)),
            ("pins", tuple(pin.component for pin in self.pins)),
            ("tokenizer.components", self.tokenizer.components or ()),
        )
        for kind, names in named:
            if unknown := sorted(set(names) - set(self.components)):
                raise ValueError(
                    f"{kind} names {', '.join(unknown)}, which no phase draws from; they draw from {', '.join(self.components)}"
                )
        caches = [f"{pin.component} ({pin.split})" for pin in self.pins]
        if twice := sorted({cache for cache in caches if caches.count(cache) > 1}):
            raise ValueError(f"pins names the cache of {', '.join(twice)} more than once")
        return self

    @model_validator(mode="after")
    def _sources_have_the_keys_that_are_read(self) -> "Recipe":
        for name, source in self.sources.items():
            if source.format in WITHOUT_FIELDS and source.text_key != Source.model_fields["text_key"].default:
                raise ValueError(
                    f"the source of {name} names the text_key {source.text_key!r}, and a file of the format {source.format} has no keys: "
                    "it is text alone. Take the text_key out"
                )
        return self

    @model_validator(mode="after")
    def _models_have_every_token(self) -> "Recipe":
        for phase in self.phases:
            if phase.model.vocab_size < self.tokenizer.vocab_size:
                raise ValueError(
                    f"the model of phase {phase.name} must have a row for each of the tokenizer's {self.tokenizer.vocab_size:,} tokens, "
                    f"found a vocab_size of {phase.model.vocab_size:,}"
                )
        return self

    @model_validator(mode="after")
    def _accepts_what_can_only_warn(self) -> "Recipe":
        check_accepts(self.accepts, self.phases)
        check_all_approvable(self.approvable, self.phases)
        return self


def _having(known: dict[str, Phase], name: str, step: int, takes_from: str) -> Phase:
    phase = known.get(name)
    if phase is None:
        raise ValueError(f"{takes_from} {name}, which is no phase before it")
    if not phase.start_step < step <= phase.stop_step:
        others = [other.name for other in known.values() if other.start_step < step <= other.stop_step]
        hint = f"; {' and '.join(others)} had it" if others else ""
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
