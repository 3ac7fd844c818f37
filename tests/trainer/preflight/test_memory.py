import pytest

from phasewise.trainer.preflight.compiler import first_line, read_memory, read_refusal
from tests.trainer.preflight.snippets import BUFFERS, OLDER_REFUSAL, REFUSAL, REPORT

LENT = 1024  # what a called computation names and its caller has: it needs no memory


def test_memory_of_a_chip_and_of_its_host() -> None:
    memory = read_memory(REPORT, BUFFERS)
    assert (memory.peak, memory.arguments, memory.host) == (19_660_826_624 - LENT, 35_389_440 + 512, 20 * 2**30)
    assert memory.temporaries == memory.peak - memory.arguments


@pytest.mark.parametrize(("message", "needed"), [(REFUSAL, 31.53), (OLDER_REFUSAL, 39.30)])
def test_refusals_with_their_numbers(message: str, needed: float) -> None:
    assert read_refusal(message) == (round(needed * 2**30), round(30.75 * 2**30))


def test_another_failure_is_no_refusal_for_memory_and_its_first_line_alone_is_reported() -> None:
    assert read_refusal("INTERNAL: Mosaic failed to compile TPU kernel") is None
    assert first_line(REFUSAL).endswith("HLO module: jit_traced.")
    assert first_line("") == "no reason given"
