"""The phases of a trace with their data order, and the caches with their indices. A trace needs no run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from phasewise.flows.plan import build_run
from phasewise.flows.recipes.phase import Phase
from phasewise.flows.recipes.recipe import SCALES, Scale
from phasewise.flows.resolved import Resolved, resolve
from phasewise.tasks.data.plan import DataPlan
from phasewise.tasks.data.tokenizer import TokenText
from phasewise.tasks.training.run_identity import noted_caches, read_run
from phasewise.trainer.base.errors import DataError, PhasewiseError
from phasewise.trainer.base.identity import digest_of_file
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.storage import as_path, read_json
from phasewise.trainer.base.wording import name_some
from phasewise.trainer.checkpoints.files import is_committed, saved_steps
from phasewise.trainer.config import Component
from phasewise.trainer.data.cache import TokenCache, build_maps
from phasewise.trainer.data.document_buffer import BufferedComponent, BufferedMixture
from phasewise.trainer.data.loader import Loader, changed_since
from phasewise.trainer.data.manifest import MANIFEST_NAME, SPLITS, Split
from phasewise.trainer.data.packing import ComponentRows, DocumentIndex, RowRule
from phasewise.trainer.data.trace import Draws, Runs, TracedOrder
from phasewise.trainer.skipped_steps import NOTHING, SkippedSteps, read_skipped_steps

Trained = Literal["as traced", "otherwise", "not here"]


class TrainedOrder(NamedTuple):
    """The comparison of a phase's data order with the run in the home. `passed_over`: updates that the run skipped with their data."""

    trained: Trained
    differs: tuple[str, ...] = ()
    passed_over: SkippedSteps = NOTHING


@dataclass(frozen=True)
class TracedPhase:
    """A phase with the places of its rows. `stop_step` is earlier than the phase's own if the lineage leaves the phase earlier."""

    phase: Phase
    stop_step: int
    order: TracedOrder
    trained: TrainedOrder
    rows: Mapping[Component, ComponentRows]

    def runs_of(self, component: Component, draws: Draws) -> Runs:
        """The tokens of draws of one component, row by row."""
        if not self.order.from_caches:
            return self.order.runs_of(component, draws)
        first = self.rows[component].firsts(draws.row)
        return Runs(np.arange(len(first)), np.zeros_like(first), first, first + self.rows[component].used(draws.row))


@dataclass(frozen=True)
class Traced:
    """The traced phases, oldest first, and their caches.

    `plan`: caches for the current sources, settings and code. None if the sources cannot be read.
    """

    resolved: Resolved
    phases: tuple[TracedPhase, ...]
    components: tuple[Component, ...]
    indices: Mapping[Split, Mapping[Component, DocumentIndex]]
    plan: DataPlan | None
    remarks: tuple[str, ...]
    _texts: dict[str, TokenText | None] = field(default_factory=dict, repr=False, compare=False)

    def text_of(self, component: Component) -> TokenText | None:
        """The decoder of a component's tokens. None if the tokenizer is not in the home."""
        manifest = self.indices["train"][component].cache.manifest
        wanted = manifest.tokenizer_digest
        if wanted not in self._texts:
            paths = [self.plan.tokenizer] if self.plan else []
            paths += sorted((self.resolved.home.root / "tokenizers").glob("*/tokenizer.json"))
            path = next((path for path in paths if path.exists() and digest_of_file(path) == wanted), None)
            self._texts[wanted] = TokenText(path, manifest) if path else None
        return self._texts[wanted]


def open_traced(target: str, scale: Scale, home: str | None, *, only_phase: bool) -> Traced:
    """The named phase, with its lineage unless `only_phase`. A target without a phase is the main line. Nothing is written."""
    resolved, phase = resolve(target, scale, home, reads_only=True)
    recipe = resolved.recipe
    if phase is None:
        parts = [(one, one.stop_step) for one in recipe.phases]
    elif only_phase:
        parts = [(phase, phase.stop_step)]
    else:
        parts = [*((one, child.start_step) for one, child in pairwise(recipe.lineage(phase))), (phase, phase.stop_step)]
    try:
        plan, why = resolved.plan, ""
    except PhasewiseError as error:
        plan, why = None, str(error)
    folders: dict[Split, dict[Component, Path]] = {split: {} for split in SPLITS}
    others: list[str] = []
    missing: list[str] = []
    for name in sorted({name for part, stop in parts for name in part.drawn_in(part.start_step, stop)}):
        paths: dict[Split, Path] = {}
        for split in SPLITS:
            if plan and (cache := plan.components[name].cache(split)).is_built:
                paths[split] = cache.folder
        if len(paths) < len(SPLITS):
            paths = {split: path for split in SPLITS if (path := _only_cache(resolved, name, split))}
            others.append(name)
            runs = [read_run(resolved.home.run(recipe.run_name, one.name)) for one in recipe.phases] if plan else []
            trained_on = [run.caches.get(name, "").rstrip("/").rpartition("/")[2] for run in runs if run]
            if len(paths) < len(SPLITS) or (plan and paths["train"].name not in trained_on):
                missing.append(name)
        for split, path in paths.items():
            folders[split][name] = path
    if missing:
        because = f" ({why})" if why else ""
        raise DataError(
            f"a trace reads the token caches, and {resolved.home.root} has no cache of {name_some(missing, 5)} for the current sources, "
            f"settings and code{because}. `phasewise data prepare {target} --scale {recipe.scale} --home {resolved.home.root}` builds them."
        )
    remarks: list[str] = []
    if others:
        reason = f"the sources cannot be read ({why})" if why else "sources, settings or code have changed since"
        remarks.append(f"The caches of {', '.join(others)} are the only ones in this home, and may be out of date: {reason}.")
    maps = build_maps()
    indices: dict[Split, dict[Component, DocumentIndex]] = {
        split: {name: DocumentIndex(TokenCache.open(path, maps)) for name, path in folders[split].items()} for split in SPLITS
    }
    phases = tuple(_traced(resolved, part, stop, indices["train"]) for part, stop in parts)
    away = [one.phase.name for one in phases if one.trained.trained == "not here"]
    for other in SCALES:
        names = [name for name in away if RunFolder(resolved.home.run(f"{recipe.name}-{other}", name)).run_file.exists()]
        if names and other != recipe.scale:
            here = f"This home has {', '.join(names)} trained at {other} scale, and this is {recipe.scale} scale"
            remarks.append(f"{here}: --scale {other} traces that run.")
    return Traced(resolved, phases, tuple(sorted(indices["train"])), indices, plan, tuple(remarks))


def _only_cache(resolved: Resolved, name: Component, split: Split) -> Path | None:
    for pin in resolved.recipe.pins:
        if (pin.component, pin.split) == (name, split):
            return as_path(pin.url) if (as_path(pin.url) / MANIFEST_NAME).exists() else None
    found = sorted((resolved.home.root / "tokens" / name).glob(f"{split}-*/{MANIFEST_NAME}"))
    return found[0].parent if len(found) == 1 else None


def _traced(resolved: Resolved, phase: Phase, stop_step: int, indices: Mapping[Component, DocumentIndex]) -> TracedPhase:
    schedule = resolved.recipe.mixture_schedule(phase)
    drawn = schedule.realised(phase.start_step, stop_step)
    laid = {name: ComponentRows(indices[name].cache, RowRule(phase.packing), phase.model.seq_len, indices[name]) for name in drawn}
    rows = {name: of_tokens.num_rows for name, of_tokens in laid.items()}
    for name, count in rows.items():
        if not count:
            tokens = indices[name].cache.manifest.tokens
            raise DataError(f"component {name} must have a row of {phase.model.seq_len} tokens, found {tokens} tokens in all.")
    is_mixed = phase.order.buffer_over == "mixture"
    has_buffer = phase.order.buffer_documents is not None and not is_mixed
    buffered = {name: BufferedComponent(name, laid[name].cache, phase.order, phase.model.seq_len) for name in rows if has_buffer}
    batch, _ = resolved.recipe.schedules_of_lineage(phase)
    mixed = None
    if is_mixed:
        caches = {name: indices[name].cache for name in schedule.components_from(phase.start_step)}
        mixed = BufferedMixture(schedule, caches, phase.model.seq_len, phase.start_step, stop_step)
    order = TracedOrder(schedule, batch, phase.start_step, stop_step, rows, buffered, mixed)
    return TracedPhase(phase, stop_step, order, _trained(resolved, phase, indices), laid)


def _trained(resolved: Resolved, phase: Phase, indices: Mapping[Component, DocumentIndex]) -> TrainedOrder:
    recipe = resolved.recipe
    if not RunFolder(resolved.home.run(recipe.run_name, phase.name)).run_file.exists():
        return TrainedOrder("not here")
    if missing := sorted(set(phase.components) - set(indices)):
        return TrainedOrder("otherwise", tuple(f"the cache of {name}" for name in missing))
    folders = {name: indices[name].cache.folder for name in phase.components}
    run = build_run(recipe, phase, resolved.home, folders, needs_parent=False)
    folder = as_path(run.output)
    if not RunFolder(folder).run_file.exists():
        return TrainedOrder("not here")
    now = Loader(run).contract()
    checkpoints = [RunFolder(folder).checkpoints / str(step) for step in reversed(saved_steps(RunFolder(folder).checkpoints))]
    files = (path / "about" / "metadata" for path in checkpoints if is_committed(path))
    last = next((path for path in files if path.exists()), None)
    if last:
        was: dict[str, Any] = read_json(last)["contract"]
    elif (written := read_run(folder)) is None:
        return TrainedOrder("otherwise", ("the run file in its folder is invalid",))
    elif written.caches.keys() != run.caches.keys():
        return TrainedOrder("otherwise", ("mixture",))
    else:
        was, noted = Loader(written.but(caches=run.caches, cache_digests=run.cache_digests)).contract(), noted_caches(folder, written)
        for name, cache in was["components"].items():
            cache["content"] = noted.get(name, cache["content"] if written.cache_name(name) == run.cache_name(name) else None)
    differs: list[str] = []
    for name in changed_since(was, now):
        if name != "components":
            differs.append(name.replace("_", " "))
            continue
        before, after = was[name], now[name]
        kept = {one for one in before.keys() & after.keys() if changed_since({name: {one: before[one]}}, {name: {one: after[one]}}) == []}
        differs += [f"the cache of {one}" for one in sorted({*before, *after} - kept)]
    return TrainedOrder("otherwise" if differs else "as traced", tuple(differs), read_skipped_steps(folder))
