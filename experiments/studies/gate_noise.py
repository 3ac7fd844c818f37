"""False rejections of a gate, and its power at the stated effect size: `python -m experiments.studies.gate_noise [--pairs N]`.

Pairs of checkpoints answer six benchmarks of 30 to 1,319 items. Difficulties of items are normal, and a guesser answers a quarter
correctly. The latent scores of the two checkpoints have a correlation of 0.8. Falls are shifts of the ability. The functions that
decide are the gate's own. `docs/reference/gates.md` has the figures.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr

from phasewise.validations.evidence.proportions import Pairs, difference_interval, fall_p_value, holm, smallest_fall

ITEMS = (30, 96, 128, 200, 500, 1319)
ABILITIES = (1.2, 0.6, 0.8, 0.0, 0.3, -0.3)
"""Of the parent on each benchmark, in standard deviations of the difficulties."""
GUESS, CORRELATION, DIFFICULTY = 0.25, 0.8, 1.0
RATE, MAX_FALL, MAX_RISE = 0.05, 0.01, 0.25
"""Those of the recipes."""
PAIRS, STATED_PAIRS = 2000, 200
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(80)


@dataclass(frozen=True)
class Share:
    found: int
    of: int

    @property
    def share(self) -> float:
        return self.found / self.of

    @property
    def error(self) -> float:
        return float(np.sqrt(self.share * (1 - self.share) / self.of))

    def __str__(self) -> str:
        return f"{100 * self.share:.1f} ± {100 * self.error:.1f} %"


def true_score(ability: float) -> float:
    right = ndtr(ability - DIFFICULTY * _NODES)
    return float(GUESS + (1 - GUESS) * np.dot(_WEIGHTS, right) / _WEIGHTS.sum())


def ability_after(fall: float, ability: float) -> float:
    """The ability at which the true score is lower by `fall`."""
    wanted = true_score(ability) - fall
    found: Any = brentq(lambda one: true_score(one) - wanted, -12.0, 12.0)
    return float(found)


def draw_pairs(rng: np.random.Generator, number: int, items: int, abilities: tuple[float, float]) -> list[Pairs]:
    difficulty = DIFFICULTY * rng.standard_normal((number, items))
    shared = rng.standard_normal((number, items))
    right = [_answers(rng, ability - difficulty, shared) for ability in abilities]
    gained, lost = (right[1] & ~right[0]).sum(axis=1), (right[0] & ~right[1]).sum(axis=1)
    return [Pairs(items, int(one), int(other)) for one, other in zip(gained, lost, strict=True)]


def _answers(rng: np.random.Generator, ahead: np.ndarray, shared: np.ndarray) -> np.ndarray:
    luck = np.sqrt(CORRELATION) * shared + np.sqrt(1 - CORRELATION) * rng.standard_normal(ahead.shape)
    return ndtr(luck) < GUESS + (1 - GUESS) * ndtr(ahead)


@dataclass(frozen=True)
class Gate:
    max_fall: float = MAX_FALL
    max_rise: float | None = MAX_RISE
    rate: float = RATE

    def refused(self, pairs: Sequence[Pairs]) -> list[bool]:
        falls = [fall_p_value(one, max_fall=self.max_fall) for one in pairs]
        rises = [fall_p_value(one.turned, max_fall=self.max_rise) for one in pairs] if self.max_rise else []
        adjusted = holm([*falls, *rises])
        return [min(adjusted[place :: len(pairs)]) <= self.rate for place in range(len(pairs))]

    def states(self, pair: Pairs, benchmarks: int) -> float:
        tests = benchmarks * (2 if self.max_rise else 1)
        return smallest_fall(pair, level=self.rate / tests, max_fall=self.max_fall)


def false_refusals(rng: np.random.Generator, gate: Gate, number: int, *, fall: float = 0.0) -> Share:
    drawn = [draw_pairs(rng, number, items, (a, ability_after(fall, a))) for items, a in zip(ITEMS, ABILITIES, strict=True)]
    return Share(sum(any(gate.refused(pairs)) for pairs in zip(*drawn, strict=True)), number)


def coverage(rng: np.random.Generator, place: int, number: int, *, fall: float) -> Share:
    ability = ABILITIES[place]
    drawn = draw_pairs(rng, number, ITEMS[place], (ability, ability_after(fall, ability)))
    held = [low <= -fall <= high for low, high in map(difference_interval, drawn)]
    return Share(sum(held), number)


def power(rng: np.random.Generator, gate: Gate, place: int, number: int) -> tuple[float, Share]:
    ability, items = ABILITIES[place], ITEMS[place]

    def stated(fall: float) -> float:
        pairs = draw_pairs(rng, min(number, STATED_PAIRS), items, (ability, ability_after(fall, ability)))
        return float(np.median([gate.states(pair, len(ITEMS)) for pair in pairs]))

    fall = stated(stated(0.0))
    after = ability_after(fall, ability)
    drawn = [
        draw_pairs(rng, number, items, (a, after if at == place else a)) for at, (items, a) in enumerate(zip(ITEMS, ABILITIES, strict=True))
    ]
    return fall, Share(sum(gate.refused(pairs)[place] for pairs in zip(*drawn, strict=True)), number)


def tell(number: int, say: Callable[[str], None] = print) -> None:
    rng = np.random.default_rng(18)
    say(f"{number:,} pairs of checkpoints, benchmarks of {', '.join(map(str, ITEMS))} items; ± is the standard error of the simulation")
    say(f"refused, as good as the parent, limits of the recipes: {false_refusals(rng, Gate(), number)}")
    say(f"refused, as good as the parent, no fall allowed:        {false_refusals(rng, Gate(0.0, None), number)}")
    say(f"refused, worse by the {MAX_FALL:g} that is allowed everywhere:    {false_refusals(rng, Gate(), number, fall=MAX_FALL)}")
    say("items  states  seen            interval holds 0   interval holds the stated fall")
    for place, items in enumerate(ITEMS):
        fall, seen = power(rng, Gate(), place, number)
        if np.isnan(fall):
            say(f"{items:>5}    none  –               {coverage(rng, place, number, fall=0.0)}")
            continue
        held, held_fallen = (coverage(rng, place, number, fall=one) for one in (0.0, fall))
        say(f"{items:>5}   {fall:.3f}  {seen!s:<15} {held!s:<18} {held_fallen}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    tell(parser.parse_args().pairs)
