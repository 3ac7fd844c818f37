import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from phasewise.tasks.report.html import build_data_docs
from tests.validations.report.samples import HOSTILE, LEAK, STALE, evidence, judged, known_test_file, register

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
QUIET = ("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-default-apps")
PHONE_PIXELS = 390


class Seen(NamedTuple):
    """What the browser made of a page: its document, what it wrote on its console, which addresses off this machine it asked for."""

    document: str
    console: list[str]
    requests: list[str]


Look = Callable[[Path], Seen]


@pytest.fixture
def look(tmp_path: Path) -> Look:
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        pytest.skip(f"needs a browser ({', '.join(BROWSERS)}) to look at the report")

    def show(page: Path) -> Seen:
        log = tmp_path / "net-log.json"
        command = [
            browser, "--headless=new", "--no-sandbox", "--disable-gpu", *QUIET, "--host-resolver-rules=MAP * ~NOTFOUND",
            "--enable-logging=stderr", f"--log-net-log={log}", f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1200,1000",
            "--virtual-time-budget=2000", "--dump-dom", page.as_uri(),
        ]  # fmt: skip
        run = subprocess.run(command, capture_output=True, text=True, timeout=50, check=True)
        console = [line for line in run.stderr.splitlines() if ":CONSOLE" in line]
        events = [event["params"] for event in json.loads(log.read_text())["events"] if "url" in event.get("params", {})]
        # What the browser asks for of its own has no page's origin.
        asked = {event["url"] for event in events if event.get("initiator", "not an origin") != "not an origin"}
        return Seen(run.stdout, console, sorted(url for url in asked if not url.startswith(("file:", "data:"))))

    return show


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    register(monkeypatch)
    verdicts = [
        judged("marin-32b/proxy/bison data", evidence(leaked=40, stale=1, like_tests=2, excerpt=HOSTILE), tmp_path / "bison"),
        judged("marin-32b/proxy/mantis data", evidence(), tmp_path / "mantis"),
        judged("marin-32b/proxy/phase-1 data", evidence(like_tests=1, components=2), tmp_path / "phase-1", known_test_file()),
        judged("marin-32b/proxy/qk-norm data", evidence(like_tests=1), tmp_path / "qk-norm", known_test_file(), known_test_file("never")),
    ]
    return build_data_docs(tmp_path / "docs", verdicts)


def framed(pages: list[Path], folder: Path) -> Path:
    """A page that shows these pages as a phone would, one beside the other, and reports how each of them is laid out."""
    frames = "".join(f'<iframe src="{page.as_uri()}" width="{PHONE_PIXELS}" height="800"></iframe>' for page in pages)
    (folder / "phone.html").write_text(f"<!DOCTYPE html><title>phone</title>{frames}")
    return folder / "phone.html"


def test_the_index_reads_offline_and_says_what_failed(look: Look, index: Path):
    seen = look(index)
    assert STALE in seen.document
    assert LEAK.replace("1,319 of", "40 of") in seen.document
    assert "Run <code>phasewise data prepare</code> again." in seen.document
    for standing in ("failed", "passed with 1 warning", "passed"):
        assert f"</span> {standing}</span>" in seen.document
    assert "4 of 5 checks passed, 1 warning accepted by the recipe" in seen.document
    assert (seen.console, seen.requests) == ([], [])


def test_no_page_asks_for_anything_or_complains(look: Look, index: Path, tmp_path: Path):
    pages = sorted(index.parent.rglob("*.html"))
    assert len(pages) == 1 + 4 * 3 + 4 * 2
    seen = look(framed(pages, tmp_path))
    assert seen.document.count("<iframe") == len(pages)
    assert (seen.console, seen.requests) == ([], [])


def test_what_a_page_may_not_do_would_be_seen(look: Look, tmp_path: Path):
    page = tmp_path / "talks.html"
    page.write_text("<!DOCTYPE html><img src='http://example.invalid/pixel.png'><script>console.error('a word')</script>")
    seen = look(page)
    assert any("a word" in line for line in seen.console)
    assert seen.requests == ["http://example.invalid/pixel.png"]


def test_a_phone_shows_every_page_without_scrolling_sideways(look: Look, index: Path, tmp_path: Path):
    copies = [copy_with_probe(page) for page in sorted(index.parent.rglob("*.html"))]
    page = framed(copies, tmp_path)
    page.write_text(f"<script>onmessage = told => document.body.append(told.data + ';')</script>{page.read_text()}")
    measured = re.findall(r"(\d+) (\d+) (\w+);", look(page).document)
    assert len(measured) == len(copies)
    assert all(int(content) <= int(width) == PHONE_PIXELS for width, content, _ in measured)
    assert {style for _, _, style in measured} == {"1180px", "1500px"}, "the style sheet was read"


def copy_with_probe(page: Path) -> Path:
    """The page with its folds open and a script that tells its parent its width, how wide its content is, and a value of its style."""
    html = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text()).replace("<details", "<details open")
    widths = "[innerWidth, document.documentElement.scrollWidth, getComputedStyle(document.querySelector('main')).maxWidth]"
    copy = page.with_name(f"probe-{page.name}")
    copy.write_text(html.replace("</body>", f"<script>parent.postMessage({widths}.join(' '), '*')</script></body>"))
    return copy
