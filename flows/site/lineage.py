"""The tree of a recipe's phases, drawn: each phase a box that leads to its page, below it those that start from it."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

BOX_WIDTH, BOX_HEIGHT = 196, 46
COLUMN, ROW = 228, 62
MARGIN = 4
NAME_CHARACTERS = 22


@dataclass(frozen=True)
class Node:
    """A phase in the tree.

    Attributes:
        kind: of its state, which colours it.
        said: a line below its name.
    """

    name: str
    parent: str | None
    link: str
    kind: str
    said: str


def tree(nodes: Sequence[Node]) -> Markup:
    """The tree as SVG, from left to right. It goes down a row where a second phase starts from the same one."""
    places = _places(nodes)
    columns = max((column for column, _ in places.values()), default=0) + 1
    rows = max((row for _, row in places.values()), default=0) + 1
    width, height = columns * COLUMN - (COLUMN - BOX_WIDTH) + 2 * MARGIN, rows * ROW - (ROW - BOX_HEIGHT) + 2 * MARGIN
    body = Markup("").join([*(_edge(node, places) for node in nodes), *(_box(node, places[node.name]) for node in nodes)])
    return Markup('<svg class="tree" width="{w}" height="{h}" viewBox="0 0 {w} {h}">{body}</svg>').format(w=width, h=height, body=body)


def _places(nodes: Sequence[Node]) -> dict[str, tuple[int, int]]:
    """Column and row of each phase. The first child goes on in its parent's row."""
    children: dict[str | None, list[str]] = {}
    names = {node.name for node in nodes}
    for node in nodes:
        children.setdefault(node.parent if node.parent in names and node.parent != node.name else None, []).append(node.name)
    places: dict[str, tuple[int, int]] = {}
    next_row = 0
    waiting = [(name, 0, True) for name in reversed(children.get(None, []))]
    while waiting:
        name, column, is_new_row = waiting.pop()
        if name in places:
            continue
        row = next_row if is_new_row else places[_parent(nodes, name)][1]
        next_row = max(next_row, row + 1)
        places[name] = (column, row)
        below = children.get(name, [])
        waiting += [(child, column + 1, number > 0) for number, child in reversed(list(enumerate(below)))]
    for node in nodes:  # phases that start from each other, in a damaged home
        if node.name not in places:
            places[node.name] = (0, next_row)
            next_row += 1
    return places


def _parent(nodes: Sequence[Node], name: str) -> str:
    return next(node.parent for node in nodes if node.name == name) or ""


def _edge(node: Node, places: dict[str, tuple[int, int]]) -> Markup | str:
    if node.parent not in places:
        return ""
    (from_column, from_row), (to_column, to_row) = places[node.parent], places[node.name]
    x1, y1 = MARGIN + from_column * COLUMN + BOX_WIDTH, MARGIN + from_row * ROW + BOX_HEIGHT / 2
    x2, y2 = MARGIN + to_column * COLUMN, MARGIN + to_row * ROW + BOX_HEIGHT / 2
    middle = x2 - (COLUMN - BOX_WIDTH) / 2
    return Markup('<path class="edge" d="M{},{} H{} V{} H{}"/>').format(x1, y1, middle, y2, x2)


def _box(node: Node, place: tuple[int, int]) -> Markup:
    x, y = MARGIN + place[0] * COLUMN, MARGIN + place[1] * ROW
    name = node.name if len(node.name) <= NAME_CHARACTERS else f"{node.name[: NAME_CHARACTERS - 1]}…"
    said = node.said if len(node.said) <= NAME_CHARACTERS + 8 else f"{node.said[: NAME_CHARACTERS + 7]}…"
    box = Markup('<rect class="box {}" x="{}" y="{}" width="{}" height="{}" rx="8"/>').format(node.kind, x, y, BOX_WIDTH, BOX_HEIGHT)
    words = Markup('<text class="name" x="{x}" y="{a}">{name}</text><text class="said {kind}" x="{x}" y="{b}">{said}</text>').format(
        x=x + 12, a=y + 19, b=y + 36, name=name, said=said, kind=node.kind
    )
    title = Markup("<title>{}: {}</title>").format(node.name, node.said)
    return Markup('<a href="{}">{}{}{}</a>').format(node.link, title, box, words)
