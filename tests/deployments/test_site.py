import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from phasewise.deployments.site import TOKEN_COOKIE, TOKEN_HEADER, create_app, names_of
from phasewise.deployments.site_process import TOKEN_VARIABLE, URL_VARIABLE, own_site
from phasewise.flows.prefect.access import page_token
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import PhasewiseError
from tests.flows.site.homes import RUN_NAME, site_of, write_home
from tests.ports import free_port

TOKEN = "a-token-that-nobody-guesses"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    place = write_home(tmp_path_factory.mktemp("home"))
    docs = place.report(RUN_NAME) / "data-docs"
    docs.mkdir(parents=True)
    (docs / "index.html").write_text("docs")
    (docs.parent / "report.html").write_text("report")
    (place.root / "secret.html").write_text("secret")
    (docs / "secret.json").write_text("secret")
    (docs / "link.html").symlink_to(place.root / "secret.html")
    return place


@pytest.fixture
def client(home: Home) -> Iterator[TestClient]:
    with TestClient(create_app(site_of(home)), base_url="http://127.0.0.1:4201") as found:
        yield found


@pytest.fixture
def guarded(home: Home) -> Iterator[TestClient]:
    app = create_app(site_of(home), names=names_of("big.example"), token=TOKEN)
    with TestClient(app, base_url="http://big.example:4201", follow_redirects=False) as found:
        yield found


@pytest.mark.parametrize(
    "path",
    ["/", "/zoo/own", "/zoo/own/", "/zoo/own/lion", "/zoo/own/tiger/data", "/zoo/own/puma/model", "/compare", "/search?q=lion",
     "/compare?phase=zoo/own/lion&phase=zoo/own/tiger", "/live", "/suggest",
     "/zoo/own/lion/text?component=law", "/live/zoo/own/puma", "/-/static/style.css", f"/-/docs/{RUN_NAME}/index.html",
     f"/-/report/{RUN_NAME}/report.html"],
)  # fmt: skip
def test_pages_are_there_and_carry_their_policy(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "set-cookie" not in answer.headers
    if path.startswith(("/-/docs", "/-/report")):
        assert answer.text in ("docs", "report")


@pytest.mark.parametrize(
    "path",
    ["/zoo", "/none/own", "/zoo/half", "/zoo/own/none", "/zoo/own/lion/none", "/live/zoo/own/none", "/compare?phase=zoo/own/lion&phase=x",
     "/zoo/own/lion/text?component=..%2F..", "/zoo/own/lion/text?page=x",
     "/-/static/none.css", "/-/static/..%2Fsite.py", f"/-/docs/{RUN_NAME}/..%2F..%2F..%2Fsecret.html", "/-/docs/..%2F/index.html",
     f"/-/docs/{RUN_NAME}/secret.json", f"/-/docs/{RUN_NAME}/link.html",
     f"/-/docs/{RUN_NAME}/%2Fetc%2Fpasswd", "/-/evidence/zoo-own/tiger/none/index.html", "/openapi.json",
     "/zoo/own/%3Cscript%3E"],
)  # fmt: skip
def test_what_is_not_there_is_not_found_and_says_no_more(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert "secret" not in answer.text.replace("secret.", "")
    assert "404" not in answer.text
    assert "<script>" not in answer.text


ROUTES = (
    "/{}", "/zoo/own/{}", "/zoo/own/lion/{}", "/live/zoo/own/{}", "/-/static/{}", "/-/report/{}/report.html", f"/-/docs/{RUN_NAME}/{{}}",
    f"/-/evidence/{RUN_NAME}/{{}}/data/x.html", f"/-/evidence/{RUN_NAME}/lion/data/{{}}", "/search?q={}", "/compare?phase={0}&phase={0}",
    "/zoo/own/tiger/data?{}=1",
)  # fmt: skip
HOSTILE = (
    "%00", "a%00b", "x" * 300, "x" * 9_000, "%", "%zz", "%ff%fe", "..", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "..%5c..", "%0d%0aX:y", "%c0%af",
    "%ed%a0%80", "*", "%F0%9F%98%80",
)  # fmt: skip


@pytest.mark.parametrize("route", ROUTES)
def test_a_hostile_address_is_refused_in_a_line_and_never_an_error(client: TestClient, route: str) -> None:
    for part in HOSTILE:
        answer = client.get(route.format(part))
        assert answer.status_code in ((200, 400, 404) if "?" in route or part == ".." else (400, 404)), part
        if "%00" in part or "%ff" in part or len(part) > 8_000:
            assert answer.status_code == 400, part
            assert answer.text.startswith("The address ")
            assert answer.text.count("\n") == 1


def test_a_disk_that_fails_is_said_in_a_line(client: TestClient, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_path: Path) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(home.report(RUN_NAME) / "report.html"))

    monkeypatch.setattr(Path, "read_bytes", fail)  # nothing real fails so at will
    answer = client.get(f"/-/report/{RUN_NAME}/report.html")
    assert answer.status_code == 503
    assert "report.html: Input/output error. Check the disk" in answer.text
    assert answer.text.count("\n") == 1


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:4201", "10.0.0.9", ""])
def test_another_hosts_name_is_refused(client: TestClient, host: str) -> None:
    assert client.get("/", headers={"host": host}).status_code == 421
    for own in ("localhost:4201", "127.0.0.1", "[::1]:4201", "LOCALHOST"):
        assert client.get("/", headers={"host": own}).status_code == 200


@pytest.mark.parametrize("path", ["/", "/-/static/style.css", "/live/zoo/own/puma", f"/-/docs/{RUN_NAME}/index.html", "/none", "/zoo/own/"])
def test_without_its_token_nothing_is_shown(guarded: TestClient, path: str) -> None:
    for headers in ({}, {TOKEN_HEADER: "wrong"}, {TOKEN_HEADER: ""}, {TOKEN_HEADER: TOKEN[:-1]}, {"cookie": f"{TOKEN_COOKIE}=x"}):
        answer = guarded.get(path, headers=headers)
        assert answer.status_code == 401
        assert "docs" not in answer.text


def test_a_token_in_a_header_serves_scripts_and_one_in_the_address_becomes_a_cookie(guarded: TestClient) -> None:
    assert guarded.get("/live/zoo/own/lion", headers={TOKEN_HEADER: TOKEN}).json()["state"] == "done"
    assert guarded.get("/", headers={TOKEN_HEADER: TOKEN, "host": "10.0.0.9:4201"}).status_code == 200
    assert guarded.get("/", headers={TOKEN_HEADER: TOKEN, "host": "evil.example"}).status_code == 421
    answer = guarded.get(f"/zoo/own?a=b&token={TOKEN}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/zoo/own?a=b")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert guarded.get("/zoo/own").status_code == 200
    assert guarded.get("/zoo/own?token=wrong").status_code == 401
    assert guarded.get(f"http://big.example:4201//evil.example/x?token={TOKEN}").headers["location"] == "/evil.example/x"


def test_reading_changes_nothing_in_the_home_and_nothing_can_be_sent(client: TestClient, home: Home) -> None:
    def listed() -> list[tuple[Path, int, int]]:
        return sorted((path, path.stat().st_mtime_ns, path.stat().st_size) for path in home.root.rglob("*"))

    before = listed()
    for path in ("/", "/zoo/own", "/zoo/own/tiger", "/zoo/own/tiger/data", "/live/zoo/own/puma"):
        client.get(path)
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            assert client.request(method, path).status_code == 405
    assert listed() == before


def test_it_does_not_start_without_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    command = [sys.executable, "-m", "phasewise.deployments.site", "--home", str(tmp_path), "--host", "0.0.0.0", "--port", str(free_port())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert TOKEN_VARIABLE in done.stderr


def test_up_gives_it_a_port_near_prefects_and_the_homes_token_and_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    home = Home(tmp_path)
    with own_site(home, prefect_port=free_port(), prefect_url="http://127.0.0.1:4200") as here:
        assert here.link("phasewise:x") == f"{here.url}/?token={page_token(home)}#prefect=phasewise:x"
        assert here.problem == ""
        with own_site(home, "0.0.0.0", free_port(), prefect_port=4200, prefect_url="") as wide:
            assert wide.token == here.token
            assert wide.token not in repr(wide)
            assert wide.token not in " ".join(map(str, wide.process.args if isinstance(wide.process.args, list) else ()))
    assert here.process.poll() is not None
    assert "not served" in wide.problem


def test_a_token_of_ones_own_is_not_printed_and_a_port_that_is_taken_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    monkeypatch.setenv(URL_VARIABLE, "http://of.before")
    with own_site(Home(tmp_path), "0.0.0.0", free_port(), prefect_port=4200, prefect_url="") as wide:
        assert TOKEN not in wide.link()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        site = own_site(Home(tmp_path), "127.0.0.1", taken.getsockname()[1], prefect_port=4200, prefect_url="")
        with pytest.raises(PhasewiseError, match="--site-port"):
            site.__enter__()
    with pytest.raises(PhasewiseError, match="no port after 65535"):
        own_site(Home(tmp_path), prefect_port=65_535, prefect_url="").__enter__()
