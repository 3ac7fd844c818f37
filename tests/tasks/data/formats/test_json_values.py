"""JSON that would take much memory is refused before it is parsed; text, however long, is not."""

import pytest

from phasewise.tasks.data.formats import json_values
from phasewise.tasks.data.formats.findings import FileFault
from phasewise.tasks.data.formats.json_values import loads

MIB = 2**20


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_values, "ALWAYS_PARSED_BYTES", 1000)
    monkeypatch.setattr(json_values, "MAX_VALUES_BYTES", MIB)


@pytest.mark.parametrize("unit", [b"[],", b"{},", b'{"a":0},', b'"ab",', b"0,", b'{"":0},'])
def test_many_values_are_refused(unit: bytes):
    assert loads(b"[" + unit * 300 + b"0]") is not None
    with pytest.raises(FileFault, match="of JSON hold more than") as fault:
        loads(b"[" + unit * 30_000 + b"0]")
    assert fault.value.reason == "expands too much"


def test_a_text_full_of_brackets_is_no_list():
    text = r"[{\"x\": [1, 2]}, \\" * 9000
    assert loads(b'{"text": "' + text.encode() + b'"}') == {"text": text.replace(r"\"", '"').replace("\\\\", "\\")}


def test_what_is_short_is_parsed():
    assert loads(b"[" + b"[]," * 300 + b"0]")
