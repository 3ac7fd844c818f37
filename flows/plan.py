"""The parts of a recipe for other rooms: sources, token budgets and caches for the data, a run for the trainer, setups for preflight."""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path

from phasewise.flows.recipes.catalogue import CATALOGUE
from phasewise.flows.recipes.feasibility import check_components
from phasewise.flows.recipes.phase import LOCAL_SLICE, FromScratch, HandOff, Phase, Pretrained
from phasewise.flows.recipes.recipe import BETWEEN, Recipe, scale_in_words
from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.data.listing import shared
from phasewise.tasks.data.plan import DataPlan, plan_data
from phasewise.tasks.data.source import Source
from phasewise.tasks.data.stand_ins import StandIn, stand_in_source
from phasewise.tasks.data.tokenizer import DocumentTokens
from phasewise.tasks.home import Home
from phasewise.tasks.preflight.plan import Setup, step_shape
from phasewise.tasks.training.execution import ONE_DEVICE
from phasewise.tasks.training.pretrained import start_checkpoint
from phasewise.trainer.base.errors import DataError, RecipeError, TrainingError
from phasewise.trainer.base.run_folder import RunFolder, read_result
from phasewise.trainer.config import Graft, LossEvaluation, RunConfig, StartFrom, StatePart
from phasewise.trainer.data.cache import TokenCache
from phasewise.trainer.data.manifest import read_manifest
from phasewise.trainer.data.packing import ComponentRows, DrawnRows, RowRule

OF_PHASE = (
    "start_step", "stop_step", "model", "optimizer", "learning_rate", "stability", "order", "checkpoints", "recovery", "packing", "loss_on",
    "instrumentation",
)  # fmt: skip
"""Fields of a run with the phase's own values."""


def sources_of(recipe: Recipe, home: Home) -> dict[str, Source]:
    """Component → its source in the recipe, or its proxy data set or real data set, depending on the scale."""
    check_components(recipe)
    if recipe.uses_stand_ins:
        proxies = {name: stand_in_source(stand_in, home.sources / name) for name, stand_in in stand_ins_of(recipe).items()}
        return {**proxies, **recipe.sources}
    found = {name: CATALOGUE[name].source for name in recipe.components if name not in recipe.sources}
    if closed := [name for name, source in found.items() if source is None]:
        raise RecipeError(
            f"{recipe.name} {scale_in_words(recipe.scale)} draws from {', '.join(closed)}, whose data are not public. Give each a source "
            "under `sources` in a recipe's file, or use --scale proxy, which has proxy data sets."
        )
    return {**{name: source for name, source in found.items() if source is not None}, **recipe.sources}


def stand_ins_of(recipe: Recipe) -> dict[str, StandIn]:
    """The proxy data sets of components without a source in the recipe. Empty at scales with real data."""
    if not recipe.uses_stand_ins:
        return {}
    found = {name: CATALOGUE[name].stand_in for name in recipe.components if name not in recipe.sources}
    return {name: stand_in for name, stand_in in found.items() if stand_in is not None}


def data_plan(recipe: Recipe, home: Home, *, digests: KnownDigests | None = None) -> DataPlan:
    """All caches of the recipe, from its current sources. `digests` None uses the digests in the home."""
    sources = sources_of(recipe, home)
    tokenizer = recipe.tokenizer
    main_components = sorted({name for phase in recipe.main_line or recipe.phases for name in phase.components})  # measure every phase
    return plan_data(
        sources,
        home,
        vocab_size=tokenizer.vocab_size,
        tokenizer_name=tokenizer.name,
        tokenizer_components=tokenizer.components,
        special_tokens=tokenizer.special_tokens,
        around=DocumentTokens(tokenizer.begin, tokenizer.end),
        benchmark_components=main_components,
        pins=recipe.pins,
        digests=digests,
        budgets=budgets_of(recipe),
        length_bias=recipe.length_bias,
    )


def build_run(
    recipe: Recipe,
    phase: Phase,
    home: Home,
    caches: Mapping[str, Path],
    *,
    held_out: Mapping[str, Path] | None = None,
    needs_parent: bool = True,
) -> RunConfig:
    """The run of a phase for the trainer, with the schedules of its lineage.

    `caches`: component → folder of its training cache. `held_out`: component → folder of its held-out cache. None measures no held-out loss
    during training. `needs_parent`: if False, the run has no start checkpoint, and can be read but not trained.
    """
    root = recipe.lineage(phase)[0].start
    batch, mixture = recipe.schedules_of_lineage(phase)
    evaluation, every = None, phase.evaluation.loss_every_steps
    if held_out is not None and every is not None:
        folders = {name: str(held_out[name]) for name in phase.components}
        evaluation = LossEvaluation(every_steps=every, sequences=phase.evaluation.loss_sequences, caches=folders)
    return RunConfig(
        **{name: getattr(phase, name) for name in OF_PHASE},
        recipe=recipe.name,
        scale=recipe.scale,
        phase=phase.name,
        seed=root.seed if isinstance(root, FromScratch) else 0,
        batch=batch,
        mixture=mixture,
        start=start_of(recipe, phase, home) if needs_parent else None,
        caches={name: str(caches[name]) for name in phase.components},
        cache_digests={pin.component: pin.digest for pin in recipe.pins if pin.split == "train" and pin.component in phase.components},
        verdict=str(home.verdict(recipe.run_name, phase.name, "data")),
        output=str(home.run(recipe.run_name, phase.name)),
        execution=ONE_DEVICE,
        evaluation=evaluation,
    )


def start_of(recipe: Recipe, phase: Phase, home: Home) -> StartFrom | None:
    """The current start checkpoint of a phase. None for a phase from scratch."""
    if isinstance(phase.start, Pretrained):
        imported, digest = start_checkpoint(phase.start, phase.model, phase.name, home, recipe.run_name)
        fresh: tuple[StatePart, ...] = tuple(
            part for part in phase.state_parts if part != "qk_norm"
        )  # the source has the weights of QK-norm
        return StartFrom(checkpoint=str(imported), params_digest=digest, fresh=fresh)
    if not isinstance(phase.start, HandOff):
        return None
    checkpoint, digest = _checkpoint_of(recipe, phase, phase.start.parent, phase.start.step, home)
    grafts: list[Graft] = []
    for graft in phase.start.graft:
        grafted, graft_digest = _checkpoint_of(recipe, phase, graft.phase, graft.step, home)
        grafts.append(Graft(part=graft.part, checkpoint=grafted, params_digest=graft_digest))
    return StartFrom(checkpoint=checkpoint, params_digest=digest, fresh=phase.start.fresh, graft=tuple(grafts))


def _checkpoint_of(recipe: Recipe, phase: Phase, parent: str, step: int, home: Home) -> tuple[str, str]:
    folder = home.run(recipe.run_name, parent)
    result = read_result(folder)
    if result is None:
        raise TrainingError(f"phase {phase.name} starts from {parent}, which is not trained yet: run {recipe.name} first.")
    checkpoint = RunFolder(folder).checkpoint(step)
    if step == recipe.phase(parent).stop_step:
        return str(checkpoint), result["params_digest"]
    from phasewise.trainer.checkpoints.state import saved_params_digest  # it imports JAX

    return str(checkpoint), saved_params_digest(checkpoint)


def setups_of(phases: Iterable[Phase], slice_name: str | None = None) -> list[Setup]:
    """The setups of phases on slices other than this machine, in order. A setup has one slice, one batch and one compiled step.

    `slice_name`: the slice of all phases, in place of the recipe's slices.
    """
    setups: list[Setup] = []
    for phase in phases:
        starts = sorted({step for values in (phase.slice, phase.batch) for step, _ in values.within(phase.start_step, phase.stop_step)})
        stretches: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for start, stop in zip(starts, [*starts[1:], phase.stop_step], strict=True):
            found = stretches.setdefault((slice_name or phase.slice.at(start), phase.batch.at(start)), [])
            if found and found[-1][1] == start:
                found[-1] = (found[-1][0], stop)
            else:
                found.append((start, stop))
        setups += [
            Setup(phase=phase.name, slice=name, stretches=tuple(found), step=step_shape(phase, batch))
            for (name, batch), found in stretches.items()
            if name != LOCAL_SLICE
        ]
    return setups


def needed_tokens(recipe: Recipe, phases: Iterable[Phase] | None = None) -> dict[str, int]:
    """Component → most tokens that an order draws from its start, over all phases with this order."""
    needs: dict[str, int] = {}
    for phase in recipe.phases if phases is None else phases:
        drawn = recipe.mixture_schedule(phase).realised(phase.order.first_step, phase.stop_step)
        for name, sequences in drawn.items():
            needs[name] = max(needs.get(name, 0), sequences * phase.model.seq_len)
    return needs


def drawn_earlier(recipe: Recipe, phase: Phase) -> dict[str, tuple[DrawnRows, ...]]:
    """Component → rows of the lineage before the start of the phase's order."""
    drawn: dict[str, tuple[DrawnRows, ...]] = {}
    for part, child in pairwise(recipe.lineage(phase)):
        stop = min(child.start_step, phase.order.first_step)
        if stop <= part.start_step:
            continue
        for name, sequences in recipe.mixture_schedule(part).realised(part.start_step, stop).items():
            if sequences and name in phase.components:
                drawn[name] = (*drawn.get(name, ()), DrawnRows(sequences, part.model.seq_len, part.packing))
    return dict(sorted(drawn.items()))


def budgets_of(recipe: Recipe) -> dict[str, int]:
    """Component → tokens to read, with `max_tokens` and at the scales between proxy and full. Otherwise empty: everything is read.

    A component without any draws has a budget of one token.
    """
    if recipe.max_tokens is None and recipe.scale not in BETWEEN:
        return {}
    needs = needed_tokens(recipe)
    return shared({name: needs.get(name, 0) for name in recipe.components}, recipe.max_tokens)


def check_enough(recipe: Recipe, plan: DataPlan, phases: Iterable[Phase]) -> None:
    """Reject budgeted caches with less text than the phases draw, because the text would be repeated against the recipe.

    Packed phases compare rows, because rows have padding and long documents are cut. Components without a budget may repeat, and the
    verdict on the data judges their epochs.
    """
    phases = list(phases)
    in_tokens = needed_tokens(recipe, [phase for phase in phases if phase.packing == "chunk"])
    draws: list[tuple[str, int, Phase | None]] = [(name, tokens, None) for name, tokens in sorted(in_tokens.items())]
    for phase in phases:
        if phase.packing != "chunk":
            drawn_rows = recipe.mixture_schedule(phase).realised(phase.order.first_step, phase.stop_step)
            draws += [(name, count, phase) for name, count in sorted(drawn_rows.items()) if name in phase.components]
    short, ratios = list[str](), list[float]()
    for name, drawn, packed in draws:
        component = plan.components[name]
        budget = component.listing.budget
        if budget is None or component.train.pin or not component.train.is_built:
            continue
        if packed is None:
            found, unit = read_manifest(component.train.folder).tokens, "tokens"
        else:
            rows = ComponentRows(TokenCache.open(component.train.folder), RowRule(packed.packing), packed.model.seq_len)
            found, unit = rows.num_rows, f"rows of {packed.name}"
        if found < drawn:
            ratios.append(drawn / max(found, 1))
            short.append(f"{name} has {found:,} {unit} to train on, from {budget.words}, and {drawn:,} are drawn")
    if short:
        enough = round(1.1 * max(ratios) * sum(budgets_of(recipe).values()))
        raise DataError(
            f"less was read than is trained on: {', '.join(short)}. The text would be repeated, against the recipe. Prepare the data with "
            f"--max-tokens {enough}, and train with the same option. Existing caches are kept."
        )
