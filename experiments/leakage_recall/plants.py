"""Documents with a planted item: its position in real text and its neighbors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

PARAGRAPHS_AROUND = 2
LONG_DOCUMENT_BYTES = 200_000
Layout = Callable[[str, "Hosts", Random], list[str]]


@dataclass(frozen=True)
class Hosts:
    """Real paragraphs to plant items among."""

    paragraphs: Sequence[str]

    def text(self, rng: Random, paragraphs: int = PARAGRAPHS_AROUND) -> str:
        start = rng.randrange(max(1, len(self.paragraphs) - paragraphs))
        return "\n\n".join(self.paragraphs[start : start + rng.randint(1, paragraphs)])


def among_paragraphs(text: str, hosts: Hosts, rng: Random) -> list[str]:
    """Paragraphs before and after."""
    return [f"{hosts.text(rng)}\n\n{text}\n\n{hosts.text(rng)}"]


def alone(text: str, _hosts: Hosts, _rng: Random) -> list[str]:
    return [text]


def at_the_start(text: str, hosts: Hosts, rng: Random) -> list[str]:
    return [f"{text} {hosts.text(rng)}"]


def at_the_end(text: str, hosts: Hosts, rng: Random) -> list[str]:
    return [f"{hosts.text(rng)} {text}"]


def inside_a_sentence(text: str, hosts: Hosts, rng: Random) -> list[str]:
    around = hosts.text(rng).split()
    place = rng.randrange(len(around) + 1)
    return [" ".join([*around[:place], *text.split(), *around[place:]])]


def in_a_long_document(text: str, hosts: Hosts, rng: Random) -> list[str]:
    """Somewhere in a document of `LONG_DOCUMENT_BYTES`."""
    before, size = list[str](), 0
    while size < LONG_DOCUMENT_BYTES:
        before.append(hosts.text(rng, 8))
        size += len(before[-1].encode())
    place = rng.randrange(len(before) + 1)
    return ["\n\n".join([*before[:place], text, *before[place:]])]


def three_times(text: str, hosts: Hosts, rng: Random) -> list[str]:
    return [f"{hosts.text(rng)}\n\n{text}" for _ in range(3)]


def over_two_documents(text: str, _hosts: Hosts, rng: Random) -> list[str]:
    """Cut in the middle: the first part is a document, and the rest is the next one."""
    return list(_halves(text, rng))


def over_two_documents_with_prose_around(text: str, hosts: Hosts, rng: Random) -> list[str]:
    first, rest = _halves(text, rng)
    return [f"{hosts.text(rng)}\n\n{first}", f"{rest}\n\n{hosts.text(rng)}"]


def over_two_documents_with_prose_between(text: str, hosts: Hosts, rng: Random) -> list[str]:
    return [f"{hosts.text(rng)}\n\n{half}\n\n{hosts.text(rng)}" for half in _halves(text, rng)]


def over_three_documents(text: str, _hosts: Hosts, rng: Random) -> list[str]:
    first, rest = _halves(text, rng)
    return [first, *_halves(rest, rng)]


def _halves(text: str, rng: Random) -> tuple[str, str]:
    """Cut at a space between four and six tenths."""
    pieces = text.split(" ")
    place = max(1, round(len(pieces) * rng.uniform(0.4, 0.6)))
    return " ".join(pieces[:place]), " ".join(pieces[place:])
