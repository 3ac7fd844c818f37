"""Healthy runs as their metrics would be, with the noise and the slow trends of real ones, and the phenomena put into them."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.signal import lfilter

from phasewise.trainer.metrics import PARAM_GROUPS, Row
from phasewise.validations.evidence.health.evidence import health_evidence
from phasewise.validations.limits import HealthLimits

LIMITS = HealthLimits(
    spike_deviations=7.0, spike_window=1000, max_spike_percent=0.1, max_lm_head_growth=4.0, max_loss_rise=0.02, max_loss_shift=0.02,
    max_ema_gap=0.2, max_data_share=0.1,
)  # fmt: skip


@dataclass(frozen=True)
class Scenario:
    """What kind of run it is.

    Attributes:
        schedule: of the learning rate: "warm_up" (and constant), "wsd", "wsd_s" (ten cycles), "cosine", "cooldown", "reheat".
        noise: standard deviation of the loss around its trend, in nats; `correlation` is that of neighbouring updates.
        first_step: 1 starts from fresh weights, else the run goes on from a parent.
        changes: rows at which the mixture changes, and the batch with it.
        evaluations: how many; 0 is none.
        groups: of weights, that the model has.
    """

    updates: int = 2000
    schedule: str = "cooldown"
    noise: float = 0.03
    correlation: float = 0.0
    first_step: int = 100_001
    changes: tuple[int, ...] = ()
    evaluations: int = 20
    seed: int = 0
    groups: tuple[str, ...] = PARAM_GROUPS


def evidence(rows: list[Row], limits: HealthLimits = LIMITS, *, groups: tuple[str, ...] = PARAM_GROUPS) -> pd.DataFrame:
    return health_evidence(rows, limits, groups=groups)


def flagged(table: pd.DataFrame) -> set[str]:
    return set(table["measure"][table["value"] > table["limit"]])


def random_scenario(seed: int) -> Scenario:
    rng = np.random.default_rng(seed)
    updates = int(rng.choice([40, 80, 200, 660, 2000, 5000]))
    return Scenario(
        updates=updates, seed=seed, schedule=str(rng.choice(["warm_up", "wsd", "wsd_s", "cosine", "cooldown", "reheat"])),
        noise=float(rng.choice([0.01, 0.03, 0.1, 0.4])), correlation=float(rng.choice([0.0, 0.3])),
        first_step=int(rng.choice([1, 100_001])), changes=tuple(sorted(rng.integers(1, updates, int(rng.integers(0, 3))).tolist())),
        evaluations=int(rng.choice([0, 5, 20, 100])),
    )  # fmt: skip


def learning_rates(schedule: str, updates: int) -> np.ndarray:
    t = np.arange(updates) / updates
    shapes = {
        "warm_up": np.minimum(1, t / 0.05),
        "wsd": np.minimum(np.minimum(1, t / 0.02), np.maximum(0.0, (1 - t) / 0.2)),
        "wsd_s": np.where(t * 10 % 1 < 0.8, 1.0, 1 - 0.9 * (t * 10 % 1 - 0.8) / 0.2) * np.minimum(1, t / 0.02),
        "cosine": np.minimum(1, t / 0.02) * (0.1 + 0.45 * (1 + np.cos(np.pi * t))),
        "cooldown": 1 - 0.99 * t,
        "reheat": np.where(t < 0.1, 0.1, 1.0),
    }
    return 1e-3 * shapes[schedule]


def healthy_rows(scenario: Scenario) -> list[Row]:
    rng = np.random.default_rng(scenario.seed)
    n = scenario.updates
    rates = learning_rates(scenario.schedule, n)
    trend = _trend(scenario, rates)
    stage = np.searchsorted(np.array(scenario.changes), np.arange(n), side="right")
    starts = np.array([0, *(scenario.first_step - 1 + change for change in scenario.changes)])
    tokens = np.where(stage % 2, 3, 1) * 1024
    deviations = _noise(rng, n, scenario.correlation)
    losses = trend + np.concatenate([[0.0], rng.normal(0, 0.3, 8)])[stage] + scenario.noise / np.sqrt(tokens / 1024) * deviations
    columns: dict[str, np.ndarray] = {
        "step": scenario.first_step + np.arange(n), "loss": losses, "learning_rate": rates, "z_loss": np.zeros(n), "tokens": tokens,
        "mixture_since": starts[stage], "data_seconds": rng.exponential(0.001, n),
        "seconds": 5 + np.cumsum(rng.uniform(0.09, 0.11, n)), **_norms(rng, rates, scenario),
    }  # fmt: skip
    columns["ema_distance"] = 5 * np.exp(rng.normal(0, 0.05, n)) * columns["update_norm"] / columns["param_norm"]
    rows: list[Row] = [{name: column[row].item() for name, column in columns.items()} for row in range(n)]
    for row in np.linspace(0, n - 1, scenario.evaluations).astype(int):
        rows[row] |= {"eval_loss": trend[row] + 0.1 + rng.normal(0, 0.001), "ema_eval_loss": trend[row] + 0.06 + rng.normal(0, 0.001)}
    return rows


def _trend(scenario: Scenario, rates: np.ndarray) -> np.ndarray:
    """A river that runs down with the learning that was done, and a hill that follows the learning rate with a lag (WSD-S)."""
    n = len(rates)
    learned = np.cumsum(rates) / 1e-3
    river = 2 + 6 / np.sqrt(1 + learned / max(3, n / 100)) if scenario.first_step == 1 else 2.5 - 0.1 * learned / n
    return river + _lagging(0.15 * rates / 1e-3, 1 - 1 / max(2, n / 50))


def _lagging(values: np.ndarray, lag: float) -> np.ndarray:
    """An exponential average of the values, from the first one on."""
    return np.asarray(lfilter([1 - lag], [1, -lag], values, zi=[lag * values[0]])[0])


def _noise(rng: np.random.Generator, n: int, correlation: float) -> np.ndarray:
    """Standard, with tails heavier than the normal distribution's, each correlated with the one before."""
    fresh = rng.standard_t(20, n) / np.sqrt(20 / 18) * np.sqrt(1 - correlation**2)
    return np.asarray(lfilter([1], [1, -correlation], fresh, zi=[correlation * fresh[0]])[0])


def _norms(rng: np.random.Generator, rates: np.ndarray, scenario: Scenario) -> dict[str, np.ndarray]:
    n = len(rates)
    grown = np.cumsum(rates) / 1e-3 / n
    size = 30 * (1 + 2 * grown) if scenario.first_step == 1 else 100 * (1 + 0.2 * grown)
    columns: dict[str, np.ndarray] = {}
    for name in ("", *(f"/{group}" for group in scenario.groups)):
        columns[f"grad_norm{name}"] = 0.3 * (1 + 0.5 * np.exp(-np.arange(n) / (n / 10))) * np.exp(rng.normal(0, 0.1, n))
        columns[f"update_norm{name}"] = rates * 400 * (1 - 0.3 * grown) * np.exp(rng.normal(0, 0.02, n))
        columns[f"param_norm{name}"] = size + np.cumsum(rates * rng.normal(0, 0.5, n))
    return columns


def with_loss(rows: list[Row], added: np.ndarray, *, names: tuple[str, ...] = ("loss",)) -> list[Row]:
    return [{**row, **{name: row[name] + float(more) for name in names if name in row}} for row, more in zip(rows, added, strict=True)]


def scaled(rows: list[Row], name: str, factors: np.ndarray) -> list[Row]:
    return [{**row, name: row[name] * float(factor)} for row, factor in zip(rows, factors, strict=True)]
