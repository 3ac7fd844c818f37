"""Checks of a recipe that need no machine and no data. Every command that resolves a recipe runs them.

`Phase` and `Recipe` check fields and hand-offs. Checks of this machine and of source files are in `flows.checks`.
"""

from collections.abc import Collection, Iterable
from itertools import chain

from phasewise.flows.recipes.catalogue import CATALOGUE
from phasewise.flows.recipes.phase import LOCAL_SLICE, Phase, Pretrained
from phasewise.flows.recipes.recipe import Recipe
from phasewise.tasks.data.conversation import Conversation
from phasewise.tasks.data.template import ChatTemplate, template_of
from phasewise.tasks.data.tokenizer_training import MIN_VOCAB_SIZE, checked_file, names_folder
from phasewise.tasks.preflight.slices import find_slice
from phasewise.tasks.training.pretrained import check_model
from phasewise.trainer.base.errors import ConfigError, RecipeError
from phasewise.trainer.config import DataOrder
from phasewise.trainer.data.mixture import block_counts, check_shares

MAX_BLOCK_SEQUENCES = 2**17
MIN_EMA_DECAY = 0.5
"""Of a recipe that is not scaled. With a smaller decay, the moving average is nearly the last weights: the decay is written backwards."""


def check_feasible(recipe: Recipe, phases: Iterable[Phase]) -> None:
    """Reject a recipe that cannot run anywhere."""
    phases = list(phases)
    for phase in phases:
        for _, name in phase.slice.within(phase.start_step, phase.stop_step):
            if name != LOCAL_SLICE:
                find_slice(name)
        for step, decay in () if recipe.is_scaled else phase.stability.ema_decay.within(phase.start_step, phase.stop_step):
            if decay is not None and decay < MIN_EMA_DECAY:
                raise RecipeError(
                    f"phase {phase.name}: stability.ema_decay from step {step}: expected at least {MIN_EMA_DECAY}, found {decay:g}. It is "
                    f"the share of the average that an update keeps: take {1 - decay:g}, or None for no average."
                )
        part = phase.execution.microbatch_sequences
        for step, size in phase.batch.within(phase.start_step, phase.stop_step):
            if part is not None and size > part and size % part:
                raise RecipeError(
                    f"phase {phase.name}: execution.microbatch_sequences: expected a divisor of the batch of {size} sequences from step "
                    f"{step}, found {part}. Take another number."
                )
        if isinstance(phase.start, Pretrained):
            check_model(phase.start, phase.model, phase.name)
    check_components(recipe)
    check_mixtures(recipe, phases)
    check_conversations(recipe, phases)
    # A tokenizer of the hub is checked after its download
    tokenizer = recipe.tokenizer
    chats: list[ChatTemplate] = [template_of(how) for how in _conversations(recipe).values()]
    if tokenizer.name is None:
        special = {*tokenizer.special_tokens, *(token for chat in chats for token in chat.special_tokens)}
        if tokenizer.vocab_size < MIN_VOCAB_SIZE + len(special):
            raise RecipeError(
                f"tokenizer.vocab_size: expected at least {MIN_VOCAB_SIZE + len(special)}, for 256 bytes and "
                f"{MIN_VOCAB_SIZE - 256 + len(special)} special tokens, found {tokenizer.vocab_size}. Raise it for the tokenizer and every "
                "model."
            )
    elif names_folder(tokenizer.name):
        from phasewise.tasks.data.conversation_text import ids_of_tokens
        from phasewise.tasks.data.tokenizer import DocumentTokens, check_special_tokens, load_tokenizer

        file, around = checked_file(tokenizer.name), DocumentTokens(tokenizer.begin, tokenizer.end)
        check_special_tokens(file, tokenizer.vocab_size, around)
        tokenizer_of_file = load_tokenizer(file)
        for chat in chats:
            ids_of_tokens(tokenizer_of_file, chat, file, around)


def _conversations(recipe: Recipe) -> dict[str, Conversation]:
    found = {name: source.conversation for name, source in recipe.sources.items()}
    for name in set(recipe.components) - set(found):
        entry = CATALOGUE.get(name)
        source = None if entry is None else entry.stand_in if recipe.uses_stand_ins else entry.source
        found[name] = None if source is None else source.conversation
    return {name: how for name, how in sorted(found.items()) if how is not None}


def check_components(recipe: Recipe) -> None:
    """Reject components without text."""
    from_catalogue = [name for name in recipe.components if name not in recipe.sources]
    if unknown := [name for name in from_catalogue if name not in CATALOGUE]:
        raise RecipeError(
            f"{recipe.name} draws from {', '.join(unknown)}, which flows/recipes/catalogue does not name: give each a source under "
            '`sources` in the recipe\'s file, such as {"url": "gs://bucket/folder", "include": ["*.jsonl.gz"], "format": "jsonl"}.'
        )
    if recipe.uses_stand_ins and (missing := [name for name in from_catalogue if CATALOGUE[name].stand_in is None]):
        raise RecipeError(
            f"{recipe.name} draws from {', '.join(missing)}, which have no proxy data set: give each a source under `sources` in the "
            "recipe's file."
        )


def check_mixtures(recipe: Recipe, phases: Iterable[Phase]) -> None:
    """Reject mixtures that blocks cannot express."""
    for phase in phases:
        limits = phase.gates.data
        try:
            recipe.mixture_schedule(phase)
            for step, shares in phase.mixture.within(phase.start_step, phase.stop_step):
                points, percent = limits.max_share_error_points, limits.max_share_error_percent
                check_shares(shares, phase.order, step=step, max_error_points=points, max_error_percent=percent)
        except ConfigError as error:
            raise RecipeError(str(error)) from None


def phases_without_order(recipe: Recipe) -> frozenset[str]:
    """The phases whose call in a recipe file states no data order."""
    return frozenset(phase.name for phase in recipe.phases if phase.call and "order" not in phase.call.arguments)


def with_blocks(recipe: Recipe, unstated: Collection[str]) -> Recipe:
    """The recipe with blocks that hold the mixtures of the phases `unstated`, which state no data order.

    A first phase and the phases that inherit its order share a block: the default if it holds their mixtures, else the least multiple of
    the batch that does. Without such a block the recipe stays as it is, and the check of its mixtures fails.
    """
    found: dict[str, Phase] = {}
    blocks: dict[str, int] = {}
    for phase in recipe.phases:
        order = phase.order
        if phase.name in unstated and phase.parent is None:
            heirs = [
                one for one in recipe.phases if all(part.name in unstated for part in recipe.lineage(one)) and phase in recipe.lineage(one)
            ]
            size = phase.batch.at(0)
            sizes = chain([order.block_sequences], range(size, MAX_BLOCK_SEQUENCES, size))
            holds = (block for block in sizes if all(_holds(one, order.but(block_sequences=block)) for one in heirs))
            blocks |= dict.fromkeys((one.name for one in heirs), next(holds, order.block_sequences))
        block = blocks.get(phase.name, order.block_sequences)
        found[phase.name] = phase if block == order.block_sequences else phase.with_order(order.but(block_sequences=block))
    changed = any(found[phase.name] is not phase for phase in recipe.phases)
    return Recipe.model_construct(None, **{**dict(recipe), "phases": tuple(found.values())}) if changed else recipe


def _holds(phase: Phase, order: DataOrder) -> bool:
    limits = phase.gates.data
    for step, shares in phase.mixture.within(phase.start_step, phase.stop_step):
        counts = block_counts(shares, order)
        if any(share > 0 and not counts[name] for name, share in shares.items()):
            return False
        try:
            points, percent = limits.max_share_error_points, limits.max_share_error_percent
            check_shares(shares, order, step=step, max_error_points=points, max_error_percent=percent)
        except ConfigError:
            return False
    return True


def check_conversations(recipe: Recipe, phases: Iterable[Phase]) -> None:
    """Reject phases that predict answers of plain text, or of a chat template without marked answers.

    Pinned caches are checked when they are read. Data that are not public are not checked.
    """
    told = _conversations(recipe)
    from_catalogue = [name for name in recipe.components if name not in recipe.sources]
    unsaid = {pin.component for pin in recipe.pins if pin.split == "train"}
    if not recipe.uses_stand_ins:
        unsaid |= {name for name in from_catalogue if CATALOGUE[name].source is None}
    for phase in phases:
        if phase.loss_on == "all":
            continue
        drawn = [name for name in phase.components if name not in unsaid]
        if plain := [name for name in drawn if name not in told]:
            raise RecipeError(
                f"phase {phase.name} of {recipe.run_name} has loss_on answers: all its components must be conversations, and "
                f"{', '.join(plain)} {'is' if len(plain) == 1 else 'are'} plain text: give each a source with a `conversation` under "
                "`sources` in the recipe's file, or set loss_on to all."
            )
        if silent := [name for name in drawn if not template_of(told[name]).marks_answers]:
            raise RecipeError(
                f"phase {phase.name} of {recipe.run_name} has loss_on answers, and the chat template of {', '.join(silent)} does not mark "
                "answers: put {% generation %} … {% endgeneration %} around the assistant's text, with the token that ends its turn."
            )
