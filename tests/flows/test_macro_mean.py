"""A mean over components is read from phase to phase: it must be over the same ones."""

from typing import Any

import pytest

from phasewise.flows.status.summary import macro_mean, shared_components


def evaluation(ema: float | None = 1.5, **bits: float) -> dict[str, Any]:
    return {"bits_per_byte": bits, "macro_bits_per_byte": sum(bits.values()) / len(bits), "ema_macro_bits_per_byte": ema}


FIRST, SECOND = evaluation(web=2.0, code=1.0), evaluation(web=1.8, code=1.0)
TALKS = evaluation(web=1.8, code=1.0, talks=4.4)


@pytest.mark.parametrize("phases", [[], [None], [FIRST], [FIRST, None, SECOND]])
def test_phases_that_are_measured_alike_have_the_mean_that_was_kept(phases: list[dict[str, Any] | None]):
    shared = shared_components(phases)
    assert shared == ()
    for phase in phases:
        kept = (phase["macro_bits_per_byte"], 1.5) if phase else (None, None)
        assert macro_mean(phase, shared) == kept


def test_a_phase_with_text_of_its_own_is_not_worse_for_it():
    shared = shared_components([FIRST, SECOND, None, TALKS])
    assert shared == ("code", "web")
    means = [macro_mean(phase, shared) for phase in (FIRST, SECOND, TALKS)]
    assert [mean.trained for mean in means] == [1.5, 1.4, 1.4]
    assert [mean.averaged for mean in means] == [1.5, 1.5, None]  # of averaged weights only the mean over all is kept


def test_phases_that_share_no_component_have_their_own_means():
    other = evaluation(talks=4.0)
    shared = shared_components([FIRST, other])
    assert shared == ()
    assert macro_mean(other, shared).trained == 4.0
