"""A checker of plain English for pages, docstrings, comments and error messages: a ratchet that `make lint` runs.

    python -m tests.architecture.english            # exit 1 if a page or a folder is over its limit
    python -m tests.architecture.english --list PATH…   # each sentence that breaks a rule, with the rule

Two measures: the share of sentences that break a rule of PATTERNS (or are too long), and the share of generic words.
LIMIT is the goal for each page and each folder. CEILINGS has the pages and folders above LIMIT: lower a ceiling when
the text has improved, never raise one.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
LIMIT = (8.0, 7.5)  # percent of sentences that break a rule; percent of generic words
MIN_SENTENCES = 20  # shorter pages are measured together with the other short pages of their folder
CEILINGS = {"trainer": (8.0, 8.2), "validations": (8.0, 7.9), "deployments": (8.0, 8.8)}
FOLDERS = ("flows", "tasks", "trainer", "validations", "deployments", "experiments")
MAX_WORDS = 30
PATTERNS = {
    "clause with 'what'": r"\bwhat (?!if\b|you\b|kinds?\b)(?:it|its|they|their|is|are|was|were|has|have|had|the|an?|this|that|each|every|of|no|one|did|can|cannot|may|must|\w+s)\b(?![^.]*\?)",
    "'where' for 'if'": r"\b(?:none|nothing|empty|null|0|false|true|zero|error) where\b|\bwhere (?:it|there|they|that|this|one|no|none|nothing|both|all|an?|the|its|each|only|two|\w+s) (?:\w+ ){0,3}?(?:is|are|was|were|has|have|had|does|do|did|can|cannot|may|must|needs?|changed?|changes|names?|says?)\b",
    "no actor": r"\b(?:is|are|was|were|be|been) (?:\w+ )?(?:said|told|asked(?! to)|let pass|looked (?:at|for|after))\b|\bin words\b|\bby name\b",
    "'says'": r"\b(?:says?|said) (?:so|of|what|which|how|why|where|whether|for|that)\b",
    "'go on', 'begin'": r"\b(?:go|goes|going|went|gone) on\b|\banew\b|\b(?:begin|begins|began|begun|beginning)\b",
    "'is no'": r"\b(?:is|are|was|were) no (?!longer\b|more\b|need\b|way\b|effect\b|such\b|default\b|limit\b|support\b|guarantee\b)[a-z]+",
    "'of its own'": r"\bof (?:its|their|one's|our|your|his) own\b|\bof (?:ours|yours|theirs|somebody|nobody)\b",
    "pronoun without its noun": r"\b(?:those|that) of\b|\b(?:the|that|this|another|each|every|no|one|of|to|from|with|by) ones? (?:that|which|of|is|are|has|than|another|before|after|alone)\b|\banother (?:one )?than\b|\bthose (?:that|which)\b",
    "'beside', 'nobody', 'alone', 'too'": r"\bbeside\b|\b(?:nobody|somebody|whoever|whatever|whichever)\b|\b(?!stand|let|leave|left|\d)(?:\w+(?<!\bis)(?<!\bare)) alone\b|\w, too\b",
    "'is there'": r"\b(?:is|are|was|were) (?:not )?there(?: yet| already)?(?=[.,:;)]|$| and| but| as)",
    "'as it is'": r"\bas (?:it|they|that|those) (?:is|are|was|were|does|do|did|had|has)\b|\bof (?:now|then|before|today)\b",
    "'so many'": r"\bso (?:many|far as|few)\b(?! (?:that|of))|\bsome (?:\d|twenty|thirty|ten|third|half)\b|\bas far as\b",
    "abstract verb": r"\b(?:lies|lie|stands?) (?:in|under|above|below|on|still|there|for)\b|\brests? on\b|\bcomes? of\b|\bholds? (?:to|of|for|only|where)\b|\btakes? turns\b|\bkeeps? to\b",
    "semicolon": r";",
}
COMPILED = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in PATTERNS.items()}
GENERIC = frozenset(
    "what that which it its one ones those them they there where such so as other others another same thing things this these "
    "whatever whoever some any all each both nothing nobody none".split()
)
SENTENCE_END = re.compile(r"(?<!e\.g\.)(?<!i\.e\.)(?<=[.!?])[\"”)\]*_`]*\s+(?=[\"“(\[*_`]*[A-Z0-9`–])")


class Sentence(NamedTuple):
    """A sentence and the line that its paragraph starts at."""

    line: int
    text: str


def sentences(line: int, paragraph: str) -> Iterator[Sentence]:
    """The sentences of a paragraph with at least four words."""
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split())).replace("**", "")
    for text in SENTENCE_END.split(plain):
        if len(text.split()) >= 4:
            yield Sentence(line, text.strip())


def of_markdown(source: str) -> Iterator[Sentence]:
    """The sentences of paragraphs and list items: not of headings, tables and code."""
    kept: list[str] = []
    start, fenced = 1, False
    for number, raw in enumerate([*source.splitlines(), ""], 1):
        fence = raw.lstrip().startswith(("```", "~~~"))
        item = re.match(r"\s*(?:[*+-]|\d+\.)\s+(.*)", raw)
        if fence or fenced or not raw.strip() or item or raw.lstrip().startswith(("#", "|", "<", "![")):
            yield from sentences(start, " ".join(kept))
            kept, start = ([item[1]], number) if item and not fenced else ([], number + 1)
            fenced = fenced != fence
        else:
            kept.append(raw)


def of_python(source: str) -> Iterator[Sentence]:
    """The sentences of docstrings, raised messages and comments."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (docstring := ast.get_docstring(node)):
            for paragraph in re.split(r"\n\s*\n", docstring):
                yield from sentences(node.body[0].lineno, paragraph)
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            message = node.exc.args[0]
            parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in getattr(message, "values", [message])]
            yield from sentences(node.lineno, "".join(str(part) for part in parts))
    comment: list[str] = []
    for number, raw in enumerate([*source.splitlines(), ""], 1):
        if match := re.match(r"\s*# (.*)|.*\S  # (?!noqa|type:|pyright)(.*)", raw):
            comment.append(match[1] or match[2])
        elif comment:
            yield from sentences(number - len(comment), " ".join(comment))
            comment = []


def broken_rules(text: str) -> list[str]:
    """The names of the rules that a sentence breaks."""
    plain = re.sub(r"`[^`]*`", "CODE", text)
    long = ["too long"] if len(re.findall(r"[A-Za-z][\w'’-]*", plain)) > MAX_WORDS else []
    return [name for name, pattern in COMPILED.items() if pattern.search(plain)] + long


def rates(texts: list[str]) -> tuple[float, float]:
    """Percent of sentences that break a rule, percent of generic words."""
    words = [word.lower() for text in texts for word in re.findall(r"[A-Za-z][A-Za-z'’-]*", re.sub(r"`[^`]*`", "CODE", text))]
    hits = sum(bool(broken_rules(text)) for text in texts)
    return 100 * hits / max(1, len(texts)), 100 * sum(word in GENERIC for word in words) / max(1, len(words))


def of_file(path: Path) -> list[Sentence]:
    source = path.read_text(encoding="utf-8")
    return list(of_markdown(source) if path.suffix == ".md" else of_python(source))


def texts_by_name() -> dict[str, list[str]]:
    """The sentences of each page with at least MIN_SENTENCES, of the other pages of a folder together, and of each folder of code."""
    found: dict[str, list[str]] = {}
    for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]):
        texts = [sentence.text for sentence in of_file(path)]
        name = path.relative_to(ROOT).as_posix()
        short = len(texts) < MIN_SENTENCES
        found.setdefault(f"{path.parent.relative_to(ROOT).as_posix()}/ (short pages)" if short else name, []).extend(texts)
    for folder in FOLDERS:
        found[folder] = [sentence.text for path in sorted((ROOT / folder).rglob("*.py")) for sentence in of_file(path)]
    return found


def main(arguments: list[str]) -> int:
    """Print the sentences of given files, or compare each page and folder with its limit."""
    if "--list" in arguments:
        named = [Path(name) for name in arguments if name != "--list"]
        for path in [path for name in named for path in ([name] if name.is_file() else sorted(name.rglob("*.py")))]:
            for line, text in of_file(path):
                if rules := broken_rules(text):
                    print(f"{path}:{line} {', '.join(rules)}: {text}")
        return 0
    failed = False
    for name, texts in texts_by_name().items():
        reached, ceiling = rates(texts), CEILINGS.get(name, LIMIT)
        if any(value > limit + 0.05 for value, limit in zip(reached, ceiling, strict=True)):
            failed = True
            print(
                f"{name}: expected at most {ceiling[0]} % of sentences with a broken rule and {ceiling[1]} % generic words, "
                f"found {reached[0]:.1f} % and {reached[1]:.1f} %. Run `python -m tests.architecture.english --list PATH`."
            )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
