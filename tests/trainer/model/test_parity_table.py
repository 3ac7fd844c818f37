"""The page of parity is what its command prints; only the figures are not compared, as PyTorch is needed to measure them."""

import re
from pathlib import Path

from tests.trainer.model.parity import cases
from tests.trainer.model.parity_table import ABOVE, BELOW, settings

PAGE = Path(__file__).parents[3] / "docs" / "lab" / "parity.md"


def test_the_page_has_a_row_for_each_case_and_the_words_of_the_command() -> None:
    without_figures = re.sub(r" \d\.\de-\d\d \| \d\.\de-\d\d \|$", "", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert without_figures == "\n".join([ABOVE, *map(settings, cases()), BELOW, ""])
