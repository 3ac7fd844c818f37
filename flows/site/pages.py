"""Functions that render pages as HTML, and the search over recipes, phases, components, checks and reasons."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from phasewise.flows.prefect.server import EVERY_PHASE
from phasewise.flows.show.difference import cell_of, fields_of
from phasewise.flows.site.documents import Asked, advice_of, pairs_of, tables_of, text_page
from phasewise.flows.site.outcome import NOT_A_PLAN, bits_per_byte, files_of, measured_rows, plan_of, scores_of, topics_of
from phasewise.flows.site.shelf import GATES, Gate, Links, PhaseAddress, PhaseFiles, Set, known
from phasewise.flows.site.site import ShownState, Site, in_words
from phasewise.flows.site.training import Training, curves_of, events_of, history_of, roll_backs_of, training_of
from phasewise.flows.status.summary import reported_by_the_record
from phasewise.flows.trace.causes import explain
from phasewise.flows.trace.trace_context import open_traced
from phasewise.tasks.phase_state import State
from phasewise.tasks.report.charts import Node, tree
from phasewise.tasks.report.html import GATE_WORDS
from phasewise.tasks.report.sections import time_use
from phasewise.tasks.training.time_breakdown import read_goodput
from phasewise.trainer.base.errors import ConfigError, PhasewiseError
from phasewise.trainer.base.wording import name_some
from phasewise.validations.failures import failures_of
from phasewise.validations.verdict import Verdict

MAX_FOUND = MAX_QUERY = 200
MAX_COMPARED = 8
LATE_STAGE, MAX_SETTING = re.compile(r" \d\d"), 120
"""The search leaves out settings from the tenth stage of a schedule on, and long values."""
POLL_SECONDS, QUIET_POLL_SECONDS = 2, 30


def home_page(site: Site, links: Links) -> str:
    """Render the phases at work and the queue, the recipes of the home with the states of their phases, then the other recipes."""
    cards, now = _now(site)
    summaries = [(found, states, in_words(states.values()), site.holds(found)) for found, states in cards]
    others = [found for found in site.shelf.sets() if not found.in_home]
    return site.render("home.html", links, cards=summaries, now=now, others=others, problems=site.shelf.problems, poll_seconds=POLL_SECONDS)


def live_home(site: Site, links: Links) -> dict[str, Any]:
    """Return the changing parts of the first page."""
    _, now = _now(site)
    next_seconds = POLL_SECONDS if now["working"] or now["queue"] else QUIET_POLL_SECONDS
    parts = {"now": site.part("now_part", links, now=now)}
    return {"is_alive": bool(now["working"]), "next_seconds": next_seconds, "parts": parts}


def _now(site: Site) -> tuple[list[tuple[Set, dict[str, ShownState]]], dict[str, Any]]:
    """Return the recipes of the home with the states of their phases, and the phases at work, in the queue, and that need a person."""
    cards: list[tuple[Set, dict[str, ShownState]]] = []
    working: list[tuple[PhaseFiles, ShownState, Training | None]] = []
    waiting: list[tuple[PhaseAddress, ShownState]] = []
    sets = site.shelf.sets()
    if sets and not sets[0].in_home:
        site.latest_check(sets[0])  # reads the queue, also for an empty home
    for found in [found for found in sets if found.in_home]:
        phases = site.shelf.phases(found)
        states = site.states(found, phases)
        cards.append((found, states))
        for files in phases:
            state = states[files.address.phase]
            if state.kind == "active":
                working.append((files, state, training_of(site, files, state)))
            elif state.word in (State.WAITS_FOR_PERSON, State.REFUSED):
                waiting.append((files.address, state))
    by_name = {(found.target, found.scale): found for found in sets}
    queue = [(run, by_name.get((run.recipe, run.scale))) for run in site.queue]
    return cards, {"working": working, "waiting": waiting, "queue": queue}


def recipe_page(site: Site, links: Links, found: Set) -> str:
    """Render a recipe: a tree, and a row per phase."""
    phases = site.shelf.phases(found)
    states = site.states(found, phases)
    begun = [files for files in phases if not (files.phase and files.phase.branch) or states[files.address.phase].word != State.NOT_STARTED]
    worst: tuple[PhaseFiles, ShownState, Gate | None] | None = None
    for files in phases:
        if (state := states[files.address.phase]).kind == "failed":
            worst = files, state, next((gate for gate, _ in files.judged if not files.rulings[gate].lets_go_on), None)
            break
    report = site.shelf.home.report(found.run_name)
    results = sorted(site.shelf.home.experiment(found.run_name, "").glob("*/result.json"))
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
        forms=site.forms_of(found, EVERY_PHASE) if site.prefect else None,
        plans={files.address.phase: site.plan(found, files.address.phase) for files in phases},
        worst=worst,
        experiments=[result for path in results if (result := known(site.shelf.files.json(path)))],
        has_report=(report / "report.html").exists(),
        has_docs=(report / "data-docs" / "index.html").exists(),
    )


def phase_page(site: Site, links: Links, found: Set, files: PhaseFiles) -> str:
    """Render a phase: plan, training, results."""
    phase = files.address.phase
    described = site.plan(found, phase)
    parent = site.shelf.phase(found, files.parent) if files.parent else None
    state = site.state(found, files)
    verdicts: dict[Gate, dict[str, Any]] = {}
    for gate in GATES:
        verdict = files.verdicts.get(gate)
        verdicts[gate] = {"standing": None, "words": str(verdict) if verdict else "not judged yet", "worst": "", "advice": None}
        if isinstance(verdict, Verdict):
            failures = failures_of(verdict)
            worst = failures[0].worst.what if failures else ""
            standing = verdict.counts.standing
            advice = advice_of(found, files, gate, failures[0]) if standing == "failed" and failures else None
            verdicts[gate] = {"standing": standing, "words": verdict.counts.words, "worst": worst, "advice": advice}
    return site.render(
        "phase.html",
        links,
        found=found,
        files=files,
        state=state,
        holds=site.holds(found),
        plan=plan_of(files, described),
        described=described,
        training=training_of(site, files, state),
        time=time_use(phase, spent.seconds) if (spent := read_goodput(site.shelf.home, found.run_name, phase)) else None,
        events=events_of(files),
        history=history_of(site, files),
        roll_backs=roll_backs_of(files),
        verdicts=verdicts,
        measured=measured_rows(files),
        bits=bits_per_byte(files, parent.evaluation if parent else {}),
        reported=reported_by_the_record(found.recipe, phase) if found.recipe else (),
        rows=files_of(site.shelf, files),
        texts=files.components if files.run or files.verdicts else (),
        others=[name for name in site.shelf.phase_names(found) if name != phase],
        forms=site.forms_of(found, phase) if site.prefect else None,
        poll_seconds=POLL_SECONDS,
    )


def live(site: Site, links: Links, found: Set, files: PhaseFiles) -> dict[str, Any]:
    """Return the changing parts of a phase's page: numbers for scripts, and HTML for the browser."""
    state = site.state(found, files)
    training = training_of(site, files, state)
    return {
        "phase": str(files.address),
        "state": state.word,
        "is_alive": state.kind == "active",
        "step": training.step if training else None,
        "stop_step": files.stop_step,
        "loss": training.loss if training else None,
        "next_seconds": QUIET_POLL_SECONDS if files.result and files.evaluation and len(files.verdicts) == len(GATES) else POLL_SECONDS,
        "parts": {
            "state": site.part("state_line", links, state=state),
            "training": site.part("training_part", links, training=training, files=files),
            "events": site.part("events_part", links, events=events_of(files)),
        },
    }


def verdict_page(site: Site, links: Links, found: Set, files: PhaseFiles, gate: Gate, asked: Asked) -> str:
    """Render a verdict: summary, checks, evidence."""
    verdict = files.verdicts.get(gate)
    if not isinstance(verdict, Verdict):
        return site.render("no_verdict.html", links, found=found, files=files, gate=gate, problem=verdict)
    folder, failures = files.evidence(gate), failures_of(verdict)
    record = site.record(found, files)
    leaks = "".join(f"{case.what}," for failure in failures if failure.table == "leakage" for case in failure.cases)
    return site.render(
        "verdict.html",
        links,
        found=found,
        files=files,
        gate=gate,
        verdict=verdict,
        failures=failures,
        advice={id(failure): advice_of(found, files, gate, failure) for failure in failures if failure.severity == "critical"},
        pairs=[(name, pairs_of(site, files, name)) for name in files.components if f"component {name}," in leaks],
        by_check={(failure.table, failure.asks): failure for failure in failures},
        accepted=[finding for check in verdict.checks for finding in check.accepted],
        ruling=files.rulings[gate],
        out_of_date="" if record is None or verdict in record.verdicts else "; ".join(record.lacks).rstrip(" .…"),
        holds=site.holds(found),
        measured=measured_rows(files) if gate == "model" else (),
        tables=tables_of(site.shelf.files, verdict, folder, asked),
        asked=asked,
        folder=folder,
        own_docs=(folder / "report" / "index.html").exists(),
        all_docs=(site.shelf.home.report(found.run_name) / "data-docs" / "index.html").exists(),
    )


def documents_page(site: Site, links: Links, found: Set, files: PhaseFiles, component: str, page: int) -> str:
    """Render the training text of a component: documents, the counts of the filters, the findings of the scan.

    Raises:
        ConfigError: the phase does not draw from the component.
    """
    if component not in files.components:
        raise ConfigError(f"component {component!r}: expected one of {', '.join(files.components)}.")
    text = text_page(site, found, files, component, page)
    return site.render("documents.html", links, found=found, files=files, component=component, text=text)


def step_page(site: Site, links: Links, found: Set, files: PhaseFiles, step: int) -> str:
    """Render the causes of a step's loss, with the text of its rows, or the reason why they are unknown."""
    why, problem = None, ""
    try:
        target, scale = f"{found.target}/{files.address.phase}", found.scale
        traced = open_traced(target, scale, str(site.shelf.home.root), only_phase=True)  # pyright: ignore[reportArgumentType]  # one of SCALES
        why = explain(traced, step)
    except PhasewiseError as error:
        problem = str(error)
    return site.render("step.html", links, found=found, files=files, step=step, why=why, problem=problem)


def compare_page(site: Site, links: Links, given: Sequence[str]) -> str:
    """Render curves, scores and plans of up to eight phases, or a form without two phases.

    Raises:
        ConfigError: more phases.
    """
    names = [str(PhaseAddress(found.name, found.scale, name)) for found in site.shelf.sets() for name in site.shelf.phase_names(found)]
    chosen = [str(PhaseAddress.parse(text)) for text in dict.fromkeys(given) if text]
    if len(chosen) > MAX_COMPARED:
        raise ConfigError(f"compare: expected at most {MAX_COMPARED} phases, found {len(chosen)}. Remove some of them.")
    pairs = [find_phase(site, PhaseAddress.parse(text)) for text in chosen]
    every = [files for _, files in pairs]
    if len(pairs) < 2:
        return site.render("compare.html", links, names=names, chosen=chosen, phases=[], most=MAX_COMPARED)
    described = [site.plan(found, files.address.phase) for found, files in pairs]
    if not all(described):  # all from recipes, or all from run files
        described = [None for _ in every]
    plans = [plan or dict(files.run) for plan, files in zip(described, every, strict=True)]
    topics, keys = topics_of(plans) if all(plans) else (None, chosen)
    groups: dict[str, list[PhaseFiles]] = {}
    for files, key in zip(every, keys, strict=True):
        groups.setdefault(key, []).append(files)
    scores, components = scores_of(every)
    mains = [plan_of(files, plan) for files, plan in zip(every, described, strict=True)]
    return site.render(
        "compare.html",
        links,
        names=names,
        chosen=chosen,
        most=MAX_COMPARED,
        phases=[(files, site.state(found, files), list(groups).index(key)) for (found, files), key in zip(pairs, keys, strict=True)],
        topics=topics,
        curves=curves_of(site, list(groups.values())),
        scores=scores,
        components=components,
        mains=[plan.main if plan else {} for plan in mains],
        other_scale=len({found.scale for found, _ in pairs}) > 1,
    )


class Entry(NamedTuple):
    """A search result: recipe, phase, component, setting, check or reason. `path` is its page."""

    kind: str
    name: str
    where: str
    path: str


def search_page(site: Site, links: Links, query: str) -> str:
    """Render the entries with all words of the query, ignoring case: failures first, then in the order of recipes and phases.

    Exported files have all entries of the home, and the browser filters them.
    """
    found = _entries(site, of_home=links.is_static)
    if links.is_static:
        return site.render("search.html", links, query=query, found=found, total=len(found))
    words = query[:MAX_QUERY].casefold().split()
    found = [entry for entry in found if words and all(word in " ".join(entry[:3]).casefold() for word in words)]
    return site.render("search.html", links, query=query, found=found[:MAX_FOUND], total=len(found))


def suggestions(site: Site) -> list[str]:
    """Return the names of recipes, phases, components and settings, for the search box."""
    kinds = ("recipe", "phase", "component", "setting")
    return list(dict.fromkeys(entry.name.partition(" = ")[0] for entry in _entries(site) if entry.kind in kinds))


def _entries(site: Site, *, of_home: bool = False) -> list[Entry]:
    """Return all entries. Each check appears once, and each value of a setting once for a recipe."""
    entries: list[Entry] = []
    checks: dict[str, Entry] = {}
    for one in site.shelf.sets():
        if of_home and not one.in_home:
            continue
        entries.append(Entry("recipe", one.name, f"at {one.scale} scale" if one.scale != "own" else "as it is written", one.path))
        settings: dict[str, list[PhaseAddress]] = {}
        for files in site.shelf.phases(one):
            address = files.address
            entries.append(Entry("phase", address.phase, f"of {address.recipe}, {address.scale}", str(address)))
            entries += [Entry("component", name, f"in {address}", str(address)) for name in files.components]
            for gate, verdict in files.judged:
                where, path = f"verdict on the {GATE_WORDS[gate]} of {address}", f"{address}/{gate}"
                entries += [Entry("reason", case.what, where, path) for failure in failures_of(verdict) for case in failure.cases]
                for check in verdict.checks:
                    checks.setdefault(check.asks, Entry("check", check.asks, f"{where}, among others", path))
            plan = site.plan(one, address.phase) or files.run if files.run else {}
            for name, value in fields_of({name: value for name, value in plan.items() if name not in NOT_A_PLAN}).items():
                if len(text := cell_of(value, name)) <= MAX_SETTING and not LATE_STAGE.search(name):
                    setting = f"{name.replace('_', ' ').replace('.', ': ', 1)} = {text}"
                    settings.setdefault(setting, []).append(address)
        for setting, addresses in settings.items():
            where = f"{name_some([address.phase for address in addresses], 5)} of {one.name}, {one.scale}"
            entries.append(Entry("setting", setting, where, str(addresses[0])))
    order = ("reason", "recipe", "phase", "component", "setting")
    return sorted(entries, key=lambda entry: order.index(entry.kind)) + list(checks.values())


def find_phase(site: Site, address: PhaseAddress) -> tuple[Set, PhaseFiles]:
    """Return a phase of the home or of a recipe."""
    found = site.shelf.find(address.recipe, address.scale)
    files = site.shelf.phase(found, address.phase) if found else None
    if found is None or files is None:
        raise ConfigError(f"phase {address} does not exist: neither the home nor a known recipe has it.")
    return found, files


def _tree(links: Links, phases: list[PhaseFiles], states: dict[str, ShownState]) -> Any:
    nodes: list[Node] = []
    for files in phases:
        state = states[files.address.phase]
        nodes.append(Node(files.address.phase, files.parent, links.page(str(files.address)), state.kind, f"{state.mark} {state.word}"))
    return tree(nodes)
