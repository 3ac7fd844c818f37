"""The pages: each a function from what the home holds to HTML. Addresses are in `address.py`."""

from typing import Any

from phasewise.flows.site.address import GATES, Gate, Links, PhaseAddress, compared_path
from phasewise.flows.site.comparison import differences_of
from phasewise.tasks.report.charts import Node, tree
from phasewise.flows.site.outcome import bits_per_byte, files_of, measured_rows, reported_of, scores_of
from phasewise.flows.site.plan import plan_of
from phasewise.flows.site.search import MAX_SHOWN, entries_of, matching
from phasewise.flows.site.shelf import PhaseFiles, Set
from phasewise.flows.site.site import Site
from phasewise.flows.site.states import State, in_words
from phasewise.flows.site.tables import Asked, tables_of
from phasewise.flows.site.training import events_of, pair_of_curves, roll_backs_of, training_of
from phasewise.trainer.base.errors import ConfigError
from phasewise.validations.report.failures import SHOWN_CASES, accepted_of, failures_of
from phasewise.validations.verdict import Verdict

OPEN_FAILURES = 3
POLL_SECONDS, QUIET_POLL_SECONDS = 2, 30


def home_page(site: Site, links: Links) -> str:
    """Every recipe: those of the home with the states of their phases, then those that could be trained."""
    sets = site.shelf.sets()
    here = [(found, _states(site, found)) for found in sets if found.in_home]
    cards = [(found, states, in_words(states.values()), site.holds(found)) for found, states in here]
    return site.render("home.html", links, cards=cards, others=[found for found in sets if not found.in_home], problems=site.shelf.problems)


def recipe_page(site: Site, links: Links, found: Set) -> str:
    """A recipe: its tree, and a row a phase."""
    phases = site.shelf.phases(found)
    states = {files.address.phase: site.state(found, files) for files in phases}
    begun = [files for files in phases if not (files.phase and files.phase.branch) or states[files.address.phase].word != "not begun"]
    return site.render(
        "recipe.html",
        links,
        found=found,
        phases=phases,
        states=states,
        summary=in_words(states.values()),
        shown=len(begun),
        tree=_tree(links, begun, states),
        whole_tree=_tree(links, phases, states) if len(begun) < len(phases) else None,
        holds=site.holds(found),
        plans={files.address.phase: site.plan(found, files.address.phase) for files in phases},
        worst=_look_at_first(phases, states),
        has_report=(site.shelf.home.report(found.run_name) / "report.html").exists(),
        has_docs=(site.shelf.home.report(found.run_name) / "data-docs" / "index.html").exists(),
    )


def phase_page(site: Site, links: Links, found: Set, files: PhaseFiles) -> str:
    """A phase: what it is, how it trains, what came out."""
    phase = files.address.phase
    described = site.plan(found, phase)
    parent = site.shelf.phase(found, files.parent) if files.parent else None
    return site.render(
        "phase.html",
        links,
        found=found,
        files=files,
        state=site.state(found, files),
        holds=site.holds(found),
        plan=plan_of(files, described),
        described=described,
        training=training_of(site, files),
        events=events_of(files),
        roll_backs=roll_backs_of(files),
        verdicts={gate: _verdict_row(files, gate) for gate in GATES},
        measured=measured_rows(files),
        bits=bits_per_byte(files, parent.evaluation if parent else {}),
        parent=parent,
        reported=reported_of(found, phase),
        rows=files_of(site.shelf, files),
        others=[name for name in site.shelf.phase_names(found) if name != phase],
        poll_seconds=POLL_SECONDS,
    )


def live(site: Site, links: Links, found: Set, files: PhaseFiles) -> dict[str, Any]:
    """What changes while a phase trains: numbers for scripts, and the parts of its page that are replaced."""
    training = training_of(site, files)
    state = site.state(found, files)
    return {
        "phase": str(files.address),
        "state": state.word,
        "is_alive": bool(training and training.is_alive),
        "step": training.step if training else None,
        "stop_step": files.stop_step,
        "loss": training.loss if training else None,
        "next_seconds": POLL_SECONDS if files.is_unfinished else QUIET_POLL_SECONDS,
        "parts": {
            "state": site.part("parts.html", "state_line", links, state=state),
            "training": site.part("parts.html", "training_part", links, training=training, files=files),
            "events": site.part("parts.html", "events_part", links, events=events_of(files)),
        },
    }


def verdict_page(site: Site, links: Links, found: Set, files: PhaseFiles, gate: Gate, asked: Asked) -> str:
    """A verdict: in words first, then check by check, then its evidence."""
    verdict = files.verdicts.get(gate)
    if not isinstance(verdict, Verdict):
        return site.render("no_verdict.html", links, found=found, files=files, gate=gate, problem=verdict)
    folder = files.home.verdict(files.address.run_name, files.address.phase, gate).with_suffix("")
    failures = failures_of(verdict)
    record = site.record(found, files.address.phase)
    return site.render(
        "verdict.html",
        links,
        found=found,
        files=files,
        gate=gate,
        verdict=verdict,
        failures=failures,
        by_check={(failure.table, failure.asks): failure for failure in failures},
        accepted=accepted_of(verdict),
        ruling=files.rulings[gate],
        out_of_date="" if record is None or verdict in record.verdicts else "; ".join(record.lacks).rstrip(" .…"),
        holds=site.holds(found),
        measured=measured_rows(files) if gate == "model" else (),
        tables=tables_of(site.shelf.files, verdict, folder, asked),
        asked=asked,
        folder=folder,
        own_docs=(folder / "report" / "index.html").exists(),
        all_docs=(site.shelf.home.report(found.run_name) / "data-docs" / "index.html").exists(),
        open_failures=OPEN_FAILURES,
        shown_cases=SHOWN_CASES,
    )


def compare_page(site: Site, links: Links, left: str, right: str) -> str:
    """Two phases side by side: plans, curves, scores. Without two, the form that asks for them.

    Raises:
        ConfigError: a phase is named that nobody knows.
    """
    names = [str(PhaseAddress(found.name, found.scale, name)) for found in site.shelf.sets() for name in site.shelf.phase_names(found)]
    if not left or not right:
        return site.render("compare.html", links, names=names, left=left, right=right, pair=None, path=compared_path)
    pair = [find_phase(site, PhaseAddress.parse(text)) for text in (left, right)]
    (first, first_files), (second, second_files) = pair
    plans = _plans(site, pair)
    return site.render(
        "compare.html",
        links,
        names=names,
        left=left,
        right=right,
        pair=[(files, site.state(found, files)) for found, files in pair],
        differences=differences_of(*plans) if plans else None,
        curves=pair_of_curves(site, first_files, second_files),
        scores=scores_of(first_files, second_files),
        other_scale=first.scale != second.scale,
    )


def search_page(site: Site, links: Links, query: str) -> str:
    """What matches, by its kind; in exported files everything that can be found, for the browser to filter."""
    entries = entries_of(site, in_home=links.is_static)
    found = entries if links.is_static else matching(entries, query)
    return site.render("search.html", links, query=query, found=found[: None if links.is_static else MAX_SHOWN], total=len(found))


def problem_page(site: Site, links: Links, title: str, said: str) -> str:
    """What is not there, and where to go on."""
    return site.render("problem.html", links, title=title, said=said)


def find_phase(site: Site, address: PhaseAddress) -> tuple[Set, PhaseFiles]:
    """A phase of the home or of a recipe that is known.

    Raises:
        ConfigError: there is none of that name.
    """
    found = site.shelf.find(address.recipe, address.scale)
    files = site.shelf.phase(found, address.phase) if found else None
    if found is None or files is None:
        raise ConfigError(f"there is no phase {address}: the home has no files of it, and no recipe that is known here names it.")
    return found, files


def _plans(site: Site, pair: list[tuple[Set, PhaseFiles]]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Both as their recipes have them, or both as their run files have them; None where they cannot be held beside each other."""
    first, second = (site.plan(found, files.address.phase) for found, files in pair)
    if first and second:
        return first, second
    runs = [dict(files.run) for _, files in pair]
    return (runs[0], runs[1]) if all(runs) else None


def _states(site: Site, found: Set) -> dict[str, State]:
    return {files.address.phase: site.state(found, files) for files in site.shelf.phases(found)}


def _tree(links: Links, phases: list[PhaseFiles], states: dict[str, State]) -> Any:
    nodes = [
        Node(files.address.phase, files.parent, links.page(str(files.address)), state.kind, f"{state.mark} {state.word}")
        for files, state in ((files, states[files.address.phase]) for files in phases)
    ]
    return tree(nodes)


def _look_at_first(phases: list[PhaseFiles], states: dict[str, State]) -> tuple[PhaseFiles, State, Gate | None] | None:
    """The first phase that is refused or damaged, and the gate that refuses it."""
    for files in phases:
        state = states[files.address.phase]
        if state.kind == "failed":
            return files, state, next((gate for gate, _ in files.judged if not files.rulings[gate].lets_go_on), None)
    return None


def _verdict_row(files: PhaseFiles, gate: Gate) -> dict[str, Any]:
    """A verdict in a line: its standing, and the worst that it says."""
    verdict = files.verdicts.get(gate)
    if not isinstance(verdict, Verdict):
        return {"standing": None, "words": str(verdict) if verdict else "not judged yet", "worst": ""}
    failures = failures_of(verdict)
    return {"standing": verdict.counts.standing, "words": verdict.counts.words, "worst": failures[0].worst.what if failures else ""}
