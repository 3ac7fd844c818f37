"""Synthetic sentences: clauses of random words, so two sentences seldom share three words in a row."""

from dataclasses import dataclass
from random import Random

from experiments.leakage_recall.word_lists import WORD_LISTS

NAMES = WORD_LISTS["names"]
ADJECTIVES = WORD_LISTS["adjectives"]
THINGS = WORD_LISTS["things"]
PLACES = WORD_LISTS["places"]
PREPOSITIONS = WORD_LISTS["prepositions"]
VERBS = WORD_LISTS["verbs"]
ACTIONS = WORD_LISTS["actions"]
HAPPENINGS = WORD_LISTS["happenings"]
UNITS = WORD_LISTS["units"]
SUBSTANCES = WORD_LISTS["substances"]
FIELDS = WORD_LISTS["fields"]


@dataclass(frozen=True)
class Writer:
    """Puts clauses together."""

    rng: Random

    def any(self, *options: str) -> str:
        return self.rng.choice(options)

    def word(self, of: list[str]) -> str:
        return self.rng.choice(of)

    def thing(self) -> str:
        """Several of something."""
        return f"{self.word(ADJECTIVES)} {self.word(THINGS)}"

    def place(self) -> str:
        near, noun = self.word(PREPOSITIONS), self.word(PLACES)
        return self.any(
            f"{near} the {noun}",
            f"{near} {self.word(NAMES)}'s {noun}",
            f"{near} a {self.word(ADJECTIVES)} {noun}",
            f"{near} the {noun} of {self.word(NAMES)}'s {self.any('aunt', 'uncle', 'rival', 'tailor', 'dentist')}",
            f"between {self.word(NAMES)}'s {noun} and the {self.word(PLACES)}",
        )

    def time(self) -> str:
        """When."""
        unit = self.word(UNITS)
        return self.any(
            f"every {unit}",
            f"on the {self.any('first', 'third', 'last', 'coldest')} {unit}",
            f"{self.any('during', 'after', 'before')} {self.word(NAMES)}'s {unit}",
            f"{self.any('twice', 'once')} each {unit}",
            f"while the {self.word(PLACES)} {self.word(HAPPENINGS)}",
            f"until that {self.word(ADJECTIVES)} {unit}",
        )

    def reason(self) -> str:
        """Why."""
        return self.any(
            f"because the {self.word(ADJECTIVES)} {self.word(PLACES)} {self.word(HAPPENINGS)}",
            f"to {self.word(ACTIONS)} {self.word(NAMES)}'s {self.word(THINGS)}",
            f"so that no {self.word(PLACES)} {self.word(HAPPENINGS)}",
            f"in return for {self.thing()}",
            f"since {self.word(NAMES)} must {self.word(ACTIONS)} {self.thing()}",
            f"instead of {self.word(THINGS)}",
        )

    def effect(self) -> str:
        return self.any(
            f"its {self.word(ADJECTIVES)} {self.any('surface', 'rim', 'core', 'shadow', 'crust')} {self.word(HAPPENINGS)} {self.time()}",
            f"the {self.word(SUBSTANCES)} {self.word(HAPPENINGS)} {self.place()}",
            f"{self.thing()} {self.any('appear', 'gather', 'disappear', 'stick')} {self.place()}",
            f"{self.word(SUBSTANCES)} {self.word(HAPPENINGS)} like {self.thing()}",
        )
