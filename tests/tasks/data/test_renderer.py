"""The process that renders chat templates: what stops it, what it can reach, and when it ends."""

import json
import math
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from phasewise.tasks.data import template as renderers
from phasewise.tasks.data.template import Renderer, as_line, renderer
from tests.tasks.data.hostile_templates import HOSTILE

ROOT = Path(__file__).parents[3]
PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"
MAX_SECONDS, MAX_MIB = 2.0, 300
"""Of a processor, with the start of the process: the clock passes faster where other tests run."""


@pytest.fixture(scope="module")
def outcomes() -> dict[str, dict[str, Any]]:
    """What comes of each hostile template, in a process of its own, so that the peaks are theirs."""
    command = [sys.executable, "-P", "-m", "tests.tasks.data.hostile_templates"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONPATH": str(ROOT)})
    return {row["name"]: row for row in map(json.loads, ran.stdout.splitlines())}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_template_that_takes_all_is_refused_soon_and_by_name(outcomes: dict[str, dict[str, Any]], name: str):
    found = outcomes[name]
    assert found["said"].startswith((f"DataError: the chat template {name} ", f"ConfigError: the chat template {name} ")), found
    assert any(limit in found["said"] for limit in (*renderers.LIMITS.values(), "recursion depth", "Range too big")), found
    assert found["said"].count("\n") == 0
    assert found["processor_seconds"] <= MAX_SECONDS
    assert max(found["own_mib"], found["child_mib"]) <= MAX_MIB


@pytest.mark.parametrize("value", [math.nan, math.inf, 2**70, 1.5, True, None, "ü🌳", "\ud800", [{"a": [1, "x"]}, []], {"b": {}}])
def test_what_a_message_has_arrives_as_it_is(value: object):
    said = [{"role": "user", "content": "u", "more": value}]
    _, found = renderer().ask("{{ messages[0].more | tojson(ensure_ascii=true) }}", ("", ""), [as_line(said)])
    assert found[:2] == ["text", json.dumps(value)]


def test_a_process_that_was_killed_is_started_again():
    own = Renderer()
    line = as_line([{"role": "user", "content": "u"}])
    assert own.ask(PLAIN, ("", ""), [line])[1][1] == "u"
    (child,) = [one for one in psutil.Process().children() if one.pid == own._process.pid]  # pyright: ignore  # the process itself is meant
    child.kill()
    psutil.wait_procs([child])
    assert own.ask(PLAIN, ("", ""), [line])[1][1] == "u"
    own.close()


def test_one_that_does_not_answer_is_ended(monkeypatch: pytest.MonkeyPatch):
    own = Renderer()
    own.ask(PLAIN, ("", ""), ())
    assert own._process  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(renderers, "WALL_SECONDS", 0.5)
    own._process.send_signal(signal.SIGSTOP)  # pyright: ignore[reportPrivateUsage]
    assert own.ask(PLAIN, ("", ""), [as_line([{"content": "u" * 2**20}])])[-1] == ["limit", "clock"]


def test_it_can_open_nothing_and_start_nothing_and_ends_with_its_parent():
    """As if a template had got out of Jinja: the program itself, with a line that tries."""
    tries = (
        "open('/etc/passwd')",
        "__import__('socket').socket()",
        "os.fork()",
        "os.execv('/bin/true', ['true'])",
        "__import__('ctypes').CDLL(None)",
    )
    attempts = "".join(
        f"    try:\n        {one}\n        print('done')\n    except Exception as e:\n        print(type(e).__name__)\n" for one in tries
    )
    program = renderers.PROGRAM.read_text().replace("    sys.addaudithook(refuse)\n", f"    sys.addaudithook(refuse)\n{attempts}")
    ran = subprocess.run([sys.executable, "-P", "-c", program], input="", capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["SecurityError"] * len(tries)
    parent = (
        "import os, signal\nfrom phasewise.tasks.data.template import renderer as r\n"
        "r().ask('x', ('', ''), ())\nprint(r()._process.pid, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    said = subprocess.run([sys.executable, "-c", parent], capture_output=True, text=True, check=False, env={"PYTHONPATH": str(ROOT)}).stdout
    _, alive = psutil.wait_procs([psutil.Process(int(said))] if psutil.pid_exists(int(said)) else [], timeout=30)
    assert not alive
