import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\((?!https?:)([^)\s#]*)(?:#([^)\s]+))?\)")
GENERATED = {ROOT / "docs" / "reference" / name for name in ("cli.md", "api.md")}  # `docs/hooks.py` makes these when the site is built
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]


def anchors(page: Path) -> set[str]:
    """The headings of a page as the end of an address: lower case, signs left out, spaces as hyphens."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(page: Path) -> list[str]:
    found: list[str] = []
    for name, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        target = page.parent / name if name else page
        if target.resolve() not in GENERATED and (not target.exists() or (anchor and anchor not in anchors(target))):
            found.append(f"{name}#{anchor}" if anchor else name)
    return found


def test_no_link_between_pages_is_broken() -> None:
    assert {str(page.relative_to(ROOT)): links for page in PAGES if (links := broken(page))} == {}


def test_a_missing_page_and_a_missing_heading_are_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# Other\n\n## The `scan`, measured\n")
    page = tmp_path / "page.md"
    page.write_text("# Page\n[a](other.md#the-scan-measured) [b](other.md#gone) [c](gone.md) [d](#page) [e](https://example.org/x.md)\n")
    assert broken(page) == ["other.md#gone", "gone.md"]
