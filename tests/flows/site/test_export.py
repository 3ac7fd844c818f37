import html
import posixpath
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from phasewise.flows.site import export
from phasewise.flows.site.export import MARKER, write_site
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import ConfigError
from tests.flows.commands import Run
from tests.flows.site.homes import RUN_NAME, site_of

LINK = re.compile(r'(?:href|src|action)="([^"]*)"')


@pytest.fixture(scope="module")
def written(finished_home: Home, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "out"
    docs = finished_home.report(RUN_NAME) / "data-docs"
    docs.mkdir(parents=True)
    (docs / "index.html").write_text("<title>docs</title>")
    write_site(site_of(finished_home), folder)
    return folder


def pages_of(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in sorted(folder.rglob("*.html"))}


def test_every_link_of_every_page_leads_to_a_file_beside_it(written: Path) -> None:
    count = 0
    for path, text in pages_of(written).items():
        assert path.startswith("-/") or "default-src 'none'" in html.unescape(text), path
        assert path.startswith("-/") or "data-live" not in text, path
        for link in map(html.unescape, LINK.findall(text)):
            parts = urlsplit(link)
            if link == "data:,":
                continue
            assert not parts.scheme, (path, link)
            assert not parts.netloc, (path, link)
            assert not link.startswith("/"), (path, link)
            target = posixpath.normpath(posixpath.join(posixpath.dirname(path), unquote(parts.path))) if parts.path else path
            assert (written / target).is_file(), (path, link)
            if parts.fragment:
                assert f'id="{unquote(parts.fragment)}"' in (written / target).read_text(), (path, link)
            count += 1
    assert count > 100


def test_the_addresses_are_those_of_the_server(written: Path) -> None:
    wanted = "", "search", "zoo/own", "zoo/own/lion", "zoo/own/lion/model", "zoo/own/tiger/data", "compare/zoo/own/lion/with/zoo/own/tiger"
    assert [path for path in wanted if not (written / path / "index.html").is_file()] == []
    assert (written / "-/docs" / RUN_NAME / "index.html").is_file()


def test_no_page_names_the_folder_of_the_home_but_what_was_judged_there(written: Path, finished_home: Home) -> None:
    root = str(finished_home.root)
    assert [
        path for path, text in pages_of(written).items() if root in text and not path.endswith(("/data/index.html", "/health/index.html"))
    ] == []


def test_somebody_elses_folder_is_left_alone(own_home: Home, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    (tmp_path / "file").write_text("x")
    for place in (tmp_path, tmp_path / "file", own_home.root):
        with pytest.raises(ConfigError, match="something else is there"):
            write_site(site_of(own_home), place)
    assert (tmp_path / "letter.txt").read_text() == "dear"


def test_a_site_is_replaced_as_a_whole_or_not_at_all(own_home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "out"
    write_site(site_of(own_home), folder)
    before = pages_of(folder)
    (folder / "old.html").write_text("of before")
    with monkeypatch.context() as patched, pytest.raises(ZeroDivisionError):
        patched.setattr(export.pages, "compare_page", lambda *_: 1 / 0)
        write_site(site_of(own_home), folder)
    assert pages_of(folder) == before | {"old.html": "of before"}
    write_site(site_of(own_home), folder)
    assert pages_of(folder) == before
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_home_with_nothing_in_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run and no verdict"):
        write_site(site_of(Home(tmp_path / "home", reads_only=True)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command_says_where_it_is(phasewise: Run, own_home: Home, tmp_path: Path) -> None:
    done = phasewise("report --site out --home", own_home.root)
    assert done.exit_code == 0, done.output
    assert f"on zoo/own: {tmp_path / 'out'}/index.html" in done.stdout
    assert (tmp_path / "out" / MARKER).is_file()
    assert phasewise("report --site", own_home.root, "--home", own_home.root).exit_code == 2
    assert phasewise("report").exit_code == 2
