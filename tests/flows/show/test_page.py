import json
from collections.abc import Callable
from typing import Any

import pytest

from phasewise.flows.show.describe import describe
from phasewise.trainer.base.wording import number, rounded, tokens
from tests.flows.commands import Run


@pytest.fixture
def phasewise(phasewise: Run, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments: object) -> str:
        result = phasewise(*arguments, "--scale", "full")
        assert (result.exit_code, result.stderr) == (0, "")
        return " ".join(result.stdout.split())

    return run


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict | list):
        return [leaf for part in (value.values() if isinstance(value, dict) else value) for leaf in leaves(part)]
    return [value]


@pytest.mark.parametrize("target", ["marin-8b/kestrel", "marin-32b/phase-1", "marin-32b/muon", "marin-8b/sft"])
def test_every_number_of_a_phase_is_on_its_page(phasewise: Callable[..., str], target: str):
    (phase,) = describe(target, "full", None)["phases"]
    shown = phasewise("show", target)
    parts = [phase[name] for name in ("model", "optimizer", "stability", "order", "slice", "checkpoints", "evaluation", "gates", "batch")]
    for leaf in leaves(parts):
        if isinstance(leaf, int | float) and not isinstance(leaf, bool):
            assert number(leaf) in shown, leaf
        elif isinstance(leaf, str):
            assert leaf in shown, leaf


@pytest.mark.parametrize(
    ("target", "step", "name", "rate", "batch", "ended"),
    [
        ("marin-8b/starling", 1_400_000, "starling", 1.7e-5, 4096, True),
        ("marin-8b", 1_400_000, "deeper-starling", 1.7e-5, 4096, False), ("marin-8b", 1_420_000, "deeper-starling", 1.7e-5, 4096, True),
        ("marin-8b/kestrel", 660_000, "kestrel", 1e-4, 1024, True), ("marin-8b", 660_000, "ocelot", 1.7e-3, 1024, False),
        ("marin-8b/soft-raccoon", 825_000, "soft-raccoon", 9.35e-5, 3072, False), ("marin-8b/sft", 1_430_228, "sft", 0.0, 128, True),
    ],
)  # fmt: skip
def test_the_last_step_of_a_phase_and_branches(target: str, step: int, name: str, rate: float, batch: int, ended: bool):
    (phase,) = describe(target, "full", step)["phases"]
    assert (phase["name"], phase["learning_rate"], phase["batch"], phase["ended"]) == (name, rate, batch, ended)


def test_after_its_last_update_a_phase_has_what_that_update_had():
    (kestrel,) = describe("marin-8b/kestrel", "proxy", 660)["phases"]
    (ocelot,) = describe("marin-8b", "proxy", 660)["phases"]
    assert (kestrel["batch"], kestrel["ended"], ocelot["name"], ocelot["batch"]) == (2, True, "ocelot", 6)


def test_the_lineage_of_a_phase_is_what_it_rests_on(phasewise: Callable[..., str]):
    for branch, names in {"bison-flat": ["phase-1", "qk-norm", "bison"], "necromancy": ["phase-1"]}.items():
        shown = json.loads(phasewise("lineage", f"marin-32b/{branch}", "--json"))
        assert [phase["name"] for phase in shown["phases"]] == [*names, branch]
    assert "mantis" not in phasewise("lineage", "marin-32b/bison")


def test_notes_are_those_of_the_main_line_or_of_the_phase(phasewise: Callable[..., str]):
    shown = phasewise("show", "marin-32b", "--notes")
    assert "bison, learning_rate: differs, high" in shown
    assert "mantis, batch: not stated in the reports" in shown
    assert "muon, start" not in shown
    assert "muon, start: differs, medium" in phasewise("show", "marin-32b/muon", "--notes")
    assert "muon, start: differs, medium" in phasewise("show", "marin-32b", "--notes", "--branches")


def test_sources_are_printed_by_kind(phasewise: Callable[..., str]):
    shown = phasewise("show", "marin-32b/phase-1", "--sources")
    for words in (
        "phase-1: a library's default",
        "stability.skip_step.sigmas 6 (Levanter 87b05a9f, src/levanter/optim/skipstep.py",
        "gates.health.max_ema_gap 0.2 (limits of",
    ):
        assert words in shown, words


def test_numbers_are_short():
    values = {0.0017: "0.0017", 1.7e-5: "1.7e-05", 1.7e-3 + 1e-12: "0.0017", 12_000: "12,000", 10_000.0: "10,000"}
    assert {value: number(value) for value in values} == values
    assert rounded(1.7e-3 + 2e-16) == 0.0017
    counts = {2_768_240_640_000: "2.768 T", 335_544_320_000: "335.5 B", 999: "999", 1_000_000_000_000: "1.000 T"}
    assert {count: tokens(count) for count in counts} == counts
