"""Great Expectations' content as HTML: the same words, in tables and folds that need neither a script nor a network.

The content is a tree of blocks, as the library's renderers make them. Everything in it is escaped; no markup of its own is taken over.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from string import Template
from typing import Any, cast

from markupsafe import Markup, escape

Block = Mapping[str, Any]

_BREAK = re.compile(r"\s*<br\s*/?>\s*")
_TAG = re.compile(r"</?[a-zA-Z][^>]*>")
_SIGNS = {"text-success": ("passed", "✓ passes"), "text-warning": ("warned", "! not checked"), "text-danger": ("failed", "✗ fails")}
_TAGS = {"code", "strong", "em", "pre"}


def as_html(block: Any) -> Markup:
    """One block with all that it holds; a list of blocks one after the other."""
    if block is None:
        return Markup("–")
    if isinstance(block, list | tuple):
        return Markup(" ").join(as_html(part) for part in cast(Sequence[Any], block))
    if not isinstance(block, Mapping):
        return escape(block)
    known = cast(Block, block)
    return _KINDS.get(str(known.get("content_block_type")), _unknown)(known)


def section_as_html(section: Block) -> tuple[str, Markup]:
    """A section of the page: its title, and what is under it. The block at its head, which says the title once more, is left out."""
    blocks: list[Any] = list(section["content_blocks"])
    if blocks and blocks[0].get("content_block_type") == "header":
        blocks = blocks[1:]
    return str(section.get("section_name") or "Results"), as_html(blocks)


def _text(block: Block) -> Markup:
    template: Mapping[str, Any] = block["string_template"]
    params: Mapping[str, Any] = template.get("params") or {}
    if "icon" in params or "html_success_icon" in params:
        return _sign(template, params)
    values = {name: "–" if value is None else str(value) for name, value in params.items()}
    lines = [Template(line).safe_substitute(values) for line in _BREAK.split(str(template["template"])) if line.strip()]
    html = Markup("<br>").join(lines)
    tag = str(template.get("tag") or "")
    return Markup(f"<{tag}>{html}</{tag}>") if tag in _TAGS else html


def _sign(template: Mapping[str, Any], params: Mapping[str, Any]) -> Markup:
    """An icon as a word with its sign. The overview's line, whose parameters carry the library's markup, is known by its outcome too."""
    look = str(template.get("styling")) + str(params.get("icon")) + str(params.get("html_success_icon"))
    name, word = next((sign for mark, sign in _SIGNS.items() if mark in look), ("", "–"))
    return Markup('<span class="word {}">{}</span>').format(name, word)


def _table(block: Block) -> Markup:
    titles = [as_html(cell) for cell in block.get("header_row") or ()]
    head = Markup("<thead><tr>{}</tr></thead>").format(Markup("").join(Markup('<th scope="col">{}</th>').format(title) for title in titles))
    rows = Markup("").join(
        Markup("<tr>{}</tr>").format(Markup("").join(Markup("<td>{}</td>").format(as_html(cell)) for cell in row)) for row in block["table"]
    )
    return _headed(
        block, Markup('<table class="{}">{}<tbody>{}</tbody></table>').format("" if titles else "pairs", head if titles else "", rows)
    )


def _fold(block: Block) -> Markup:
    body = Markup("").join(Markup("<div>{}</div>").format(as_html(part)) for part in block["collapse"])
    summary = as_html(block.get("collapse_toggle_link") or "Show more")
    return Markup("<details><summary>{}</summary>{}</details>").format(summary, _headed(block, body))


def _list(block: Block) -> Markup:
    entries = block.get("bullet_list") or block.get("value_list") or ()
    return _headed(block, Markup("<ul>{}</ul>").format(Markup("").join(Markup("<li>{}</li>").format(as_html(entry)) for entry in entries)))


def _container(block: Block) -> Markup:
    return _headed(block, Markup("").join(as_html(part) for part in block["content_blocks"]))


def _paragraphs(block: Block) -> Markup:
    texts = block.get("text") or block.get("markdown") or ()
    listed = cast(Sequence[Any], texts) if isinstance(texts, list | tuple) else [texts]
    return _headed(block, Markup("").join(Markup("<p>{}</p>").format(as_html(text)) for text in listed))


def _headed(block: Block, body: Markup | str = "") -> Markup:
    parts = [Markup("<p><strong>{}</strong></p>").format(as_html(block["header"]))] if block.get("header") else []
    parts += [Markup("<p>{}</p>").format(as_html(block["subheader"]))] if block.get("subheader") else []
    return Markup("").join([*parts, body])


def _unknown(block: Block) -> Markup:
    """A block of a kind that is not known here is shown as it is, rather than lost."""
    return Markup("<pre>{}</pre>").format(_TAG.sub("", str(dict(block))))


_KINDS: Mapping[str, Callable[[Block], Markup]] = {
    "string_template": _text,
    "table": _table,
    "collapse": _fold,
    "bullet_list": _list,
    "value_list": _list,
    "content_block_container": _container,
    "text": _paragraphs,
    "markdown": _paragraphs,
    "header": _headed,
}
