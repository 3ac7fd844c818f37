"""The cards of a sparse run's report: of each phase the course of the balance, and a map of the load at its end."""

from dataclasses import dataclass

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from phasewise.tasks.publication.contents import PhaseReport, Points, Report, RoutingReport
from phasewise.tasks.publication.drawing import BASELINE, LOSS, MUTED, in_one_width, new_figure
from phasewise.tasks.publication.routing import LEVELS, busiest_in_words, heat_map
from phasewise.tasks.publication.training_curves import finite_points, thinned
from phasewise.trainer.base.wording import count

CARD_PIXELS, CARD_HEIGHT = 480, 330
MIN_ROW_PIXELS, MIN_MAP_PIXELS = 4, 120
CURVES = 3


@dataclass(frozen=True)
class Card:
    """A phase whose model has experts.

    Attributes:
        heat_map: None where the load was not recorded; then `busiest` is empty.
        heat_pixels: how high the map is.
    """

    phase: PhaseReport
    routing: RoutingReport
    picture: Markup
    heat_map: Markup | None
    heat_pixels: int
    busiest: str


def routing_cards(report: Report) -> list[Card]:
    """One a phase, in their order; none for dense models."""
    top = max([_highest(phase.routing) for phase in report.phases if phase.routing], default=0.0)
    return [_card(f"routing-{number}", phase, phase.routing, top) for number, phase in enumerate(report.phases) if phase.routing]


def levels() -> list[tuple[int, str]]:
    """The levels of the map, and what each means."""
    return [(level, words) for level, (_, words) in enumerate(LEVELS)]


def _highest(routing: RoutingReport) -> float:
    """What the axis of MaxVio must reach."""
    return max([routing.limit or 0.0, *finite_points(routing.max_violation)[1].tolist()])


def _card(name: str, phase: PhaseReport, routing: RoutingReport, top: float) -> Card:
    pixels = max(MIN_MAP_PIXELS, MIN_ROW_PIXELS * len(routing.loads))
    busiest = busiest_in_words(routing) if routing.loads else ""
    return Card(phase, routing, balance_picture(name, phase, routing, top=top), heat_map(routing), pixels, busiest)


def balance_picture(name: str, phase: PhaseReport, routing: RoutingReport, *, top: float) -> Markup:
    """MaxVio with its limit, dead experts and the router's entropy over the steps of a phase.

    Args:
        name: begins the ids of the picture.
        top: where the axis of MaxVio ends; the cards of a report share it.
    """
    return in_one_width(name, lambda: balance_figure(phase, routing, top=top))


def balance_figure(phase: PhaseReport, routing: RoutingReport, *, top: float) -> Figure:
    """Three axes over the same steps."""
    figure = new_figure(CARD_PIXELS, CARD_HEIGHT)
    violation, dead, entropy = figure.subplots(CURVES, 1, sharex=True, height_ratios=(5, 3, 3))
    figure.subplots_adjust(left=40 / CARD_PIXELS, right=1 - 8 / CARD_PIXELS, top=1 - 20 / CARD_HEIGHT, bottom=40 / CARD_HEIGHT, hspace=0.5)
    violation.set_xlim(phase.start_step, max(phase.stop_step, phase.start_step + 1))
    _draw(violation, routing.max_violation, "MaxVio")
    violation.set_ylim(0, 1.05 * top or 1.0)
    if routing.limit is not None:
        violation.axhline(routing.limit, color=BASELINE, linewidth=1.3, linestyle=(0, (5, 3)))
    _draw(dead, routing.dead_experts, "experts without a token")
    dead.yaxis.set_major_locator(MaxNLocator(2, integer=True))
    _draw(entropy, routing.router_entropy, "entropy of the scores")
    entropy.set_ylim(0, 1.05)
    entropy.set_xlabel("step")
    entropy.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    entropy.xaxis.set_major_formatter(FuncFormatter(lambda step, _: count(round(step)) if step >= 1e5 else f"{step:,.0f}"))
    return figure


def _draw(axes: Axes, points: Points, name: str) -> None:
    """A curve that begins at zero, where nothing is missing; its name is above it."""
    steps, values = finite_points(points)
    if len(steps):
        axes.plot(*thinned(steps, values, CURVES * len(steps)), color=LOSS, linewidth=1.2)
    axes.set_ylim(bottom=0)
    axes.set_title(name, loc="left", color=MUTED, pad=5)
    axes.grid(axis="y")
    axes.tick_params(length=0)
    axes.yaxis.set_major_locator(MaxNLocator(3))
