"""Making Data Docs readable without a network: nothing is fetched, and the index says the verdicts and their reasons.

Great Expectations' pages load styles and scripts from other hosts, send one of them the id of the context with its logo, and fill the
index's table by script: offline it stays empty.
"""

import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

from validations.verdict import Verdict

_FETCHED = re.compile(
    r"""<script[^>]*\bsrc="https?:[^>]*>\s*</script>|<link[^>]*\bhref="https?:[^>]*>|<img[^>]*\bsrc="https?:[^>]*>"""
    r"""|url\(['"]?https?:[^)]*\)|<footer\b.*?</footer>""",
    re.DOTALL,
)
_STYLE = """<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #222; background: #fff; }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; }
td, th { border: 1px solid #ccc; padding: .3rem .6rem; text-align: left; vertical-align: top; }
ul { margin: 0; padding-left: 1.2rem; }
a { color: #06c; }
.passes { color: #17692e; font-weight: 600; }
.fails { color: #b00020; font-weight: 600; }
</style>"""


def cut_from_network(pages: Path) -> None:
    """Take out of every page what it would fetch, and give it a style of its own."""
    for page in pages.rglob("*.html"):
        html = _FETCHED.sub("", page.read_text(encoding="utf-8"))
        page.write_text(html.replace("</head>", f"{_STYLE}</head>", 1), encoding="utf-8")


def write_index(pages: Path, verdicts: Sequence[Verdict], links: Mapping[str, Mapping[str, str]]) -> None:
    """Write `index.html`: a row a verdict. `links` is subject and suite, joined by a space → table → its page, relative to the index."""
    rows = "\n".join(_row(verdict, links[f"{verdict.subject} {verdict.suite}"]) for verdict in verdicts)
    head = f"<!DOCTYPE html><html lang='en'><head><meta charset='utf-8'><title>Verdicts</title>{_STYLE}</head>"
    titles = "<tr><th>Judged</th><th>Suite</th><th>Verdict</th><th>Checks, by evidence table</th><th>Reasons</th></tr>"
    (pages / "index.html").write_text(f"{head}<body><h1>Verdicts</h1><table>{titles}\n{rows}</table></body></html>\n", encoding="utf-8")


def _row(verdict: Verdict, links: Mapping[str, str]) -> str:
    word = "passes" if verdict.passes else "fails"
    tables = "<br>".join(f'<a href="{quote(link)}">{escape(table)}</a>' for table, link in links.items())
    reasons = "".join(f"<li>{escape(reason.severity)}: {escape(reason.sentence)}</li>" for reason in verdict.reasons)
    cells = (escape(verdict.subject), f"{verdict.suite} {verdict.suite_version}", f'<span class="{word}">{word}</span>', tables)
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + f"<td><ul>{reasons}</ul></td></tr>"
