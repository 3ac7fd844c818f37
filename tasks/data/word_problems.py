"""Word problems with worked solutions, made up here: a benchmark that stands in for GSM8K, and never for anything that is measured.

They are the same on every machine. A bundle of mathematics that holds some of them has leaked (`Bison`, Marin 32B retrospective, phase 4).
"""

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

BENCHMARK = "word_problems"
NUM_ITEMS = 256
NAMES = ("Amara", "Bruno", "Chiara", "Dmitri", "Esi", "Farid", "Greta", "Hiro", "Ines", "Jonas", "Keiko", "Lena", "Marek", "Nadia", "Olu")
THINGS = ("lanterns", "clay bowls", "apple crates", "paper kites", "tin whistles", "wool scarves", "honey jars", "bicycle bells")
PLACES = ("the harbour market", "the school fair", "her uncle's shop", "the spring festival", "the railway kiosk", "the village square")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


class WordProblem(NamedTuple):
    """One item. `solution` shows the work, with calculator marks as GSM8K has them, and ends with the answer."""

    id: str
    question: str
    solution: str
    answer: int

    @property
    def text(self) -> str:
        """As OLMES writes it into a prompt."""
        return f"Question: {self.question}\nAnswer: {self.solution}"


def word_problems() -> Iterator[WordProblem]:
    """`NUM_ITEMS` of them; no two ask the same."""
    random = Random(BENCHMARK)
    seen = set[str]()
    while len(seen) < NUM_ITEMS:
        made = _word_problem(random, f"{BENCHMARK}-{len(seen):03d}")
        if made.question not in seen:
            seen.add(made.question)
            yield made


def _word_problem(random: Random, identity: str) -> WordProblem:
    seller, helper = random.sample(NAMES, 2)
    thing, place, first, last = random.choice(THINGS), random.choice(PLACES), *random.sample(DAYS, 2)
    made = random.randint(23, 97)
    broken = random.randint(2, 19)
    days = random.randint(3, 12)
    price = random.randint(2, 29)
    left, total, earned = made - broken, (made - broken) * days, (made - broken) * days * price
    question = (
        f"On {first} {seller} packs {made} {thing} for {place}, but {helper} drops {broken} of them on the way. The same happens every day "
        f"for {days} days in a row, until {last}. Each of the {thing} that arrive whole is sold for ${price}. How many dollars does "
        f"{seller} take home from {place} in all?"
    )
    solution = (
        f"{made} - {broken} = <<{made}-{broken}={left}>>{left} {thing} arrive whole each day.\n"
        f"In {days} days these are {left} * {days} = <<{left}*{days}={total}>>{total} {thing}.\n"
        f"They bring {total} * {price} = $<<{total}*{price}={earned}>>{earned}.\n#### {earned}"
    )
    return WordProblem(identity, question, solution, earned)
