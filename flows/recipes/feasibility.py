"""What no machine and no data can give a recipe: it is refused wherever the recipe is resolved, in the same words by every command.

A field, a phase and a hand-off are refused as they are read (`Phase`, `Recipe`). What depends on this machine, on source files or on
what was trained comes later, in `flows.checks` and `flows.declared`.
"""

from collections.abc import Iterable

from phasewise.flows.recipes.catalogue import CATALOGUE
from phasewise.flows.recipes.phase import LOCAL_SLICE, Phase
from phasewise.flows.recipes.recipe import Recipe
from phasewise.tasks.data.conversation import Conversation
from phasewise.tasks.data.template import ChatTemplate, template_of
from phasewise.tasks.data.tokenizer_training import MIN_VOCAB_SIZE, checked_file, names_folder
from phasewise.tasks.preflight.slices import find_slice
from phasewise.trainer.base.errors import ConfigError, RecipeError
from phasewise.trainer.data.mixture import check_shares


def check_feasible(recipe: Recipe, phases: Iterable[Phase]) -> None:
    """Refuse what is known to fail from the recipe alone.

    Raises:
        RecipeError: a component has no text that anything names, a block cannot express a mixture, answers are to be predicted of plain
            text, or the tokenizer has no room for its tokens.
        ConfigError: there is no such slice, no tokenizer in the folder that is named, or a chat template cannot be used.
        DataError: the tokenizer lacks a token that documents or chat templates need, or has ids beyond the vocabulary.
    """
    phases = list(phases)
    for phase in phases:
        for _, name in phase.slice.within(phase.start_step, phase.stop_step):
            if name != LOCAL_SLICE:
                find_slice(name)
    check_components(recipe)
    check_mixtures(recipe, phases)
    check_conversations(recipe, phases)
    # Refuse a tokenizer that its documents cannot be written with. One of the hub is checked when it is fetched
    tokenizer = recipe.tokenizer
    chats: list[ChatTemplate] = [template_of(how) for how in conversations_of(recipe).values()]
    if tokenizer.name is None:
        special = {*tokenizer.special_tokens, *(token for chat in chats for token in chat.special_tokens)}
        if tokenizer.vocab_size < MIN_VOCAB_SIZE + len(special):
            raise RecipeError(
                f"tokenizer.vocab_size: expected at least {MIN_VOCAB_SIZE + len(special)}, for 256 bytes and "
                f"{MIN_VOCAB_SIZE - 256 + len(special)} special tokens, found {tokenizer.vocab_size}. Raise it, and that of every model."
            )
    elif names_folder(tokenizer.name):
        from phasewise.tasks.data.conversation_text import check_templates
        from phasewise.tasks.data.tokenizer import check_special_tokens

        file = checked_file(tokenizer.name)
        check_special_tokens(file, tokenizer.vocab_size)
        check_templates(file, chats)


def conversations_of(recipe: Recipe) -> dict[str, Conversation]:
    """Component → how its records hold conversations; those of plain text, and those whose data are not public, are left out."""
    found = {name: source.conversation for name, source in recipe.sources.items()}
    for name in set(recipe.components) - set(found):
        entry = CATALOGUE.get(name)
        source = None if entry is None else entry.stand_in if recipe.uses_stand_ins else entry.source
        found[name] = None if source is None else source.conversation
    return {name: how for name, how in sorted(found.items()) if how is not None}


def check_components(recipe: Recipe) -> None:
    """Refuse components that nothing names the text of.

    Raises:
        RecipeError: neither the recipe nor the catalogue has a source for one, or at a small scale a stand-in.
    """
    without_own = [name for name in recipe.components if name not in recipe.sources]
    if unknown := [name for name in without_own if name not in CATALOGUE]:
        raise RecipeError(
            f"{recipe.name} draws from {', '.join(unknown)}, which flows/recipes/catalogue does not name: give each a source of its own "
            'under `sources` in the recipe\'s file, such as {"url": "gs://bucket/folder", "include": ["*.jsonl.gz"], "format": "jsonl"}.'
        )
    if recipe.uses_stand_ins and (missing := [name for name in without_own if CATALOGUE[name].stand_in is None]):
        raise RecipeError(
            f"{recipe.name} draws from {', '.join(missing)}, which have no small stand-in: give each a source of its own under `sources` "
            "in the recipe's file."
        )


def check_mixtures(recipe: Recipe, phases: Iterable[Phase]) -> None:
    """Refuse mixtures that blocks cannot express.

    Raises:
        RecipeError: a component with a share has no sequence in a block, a block is further from a share than the phase's limit allows,
            or a mixture starts off the block grid without a word.
    """
    for phase in phases:
        try:
            recipe.mixture_schedule(phase)
            for step, shares in phase.mixture.within(phase.start_step, phase.stop_step):
                limits = phase.gates.data
                points, percent = limits.max_share_error_points, limits.max_share_error_percent
                check_shares(shares, phase.order, step=step, max_error_points=points, max_error_percent=percent)
        except ConfigError as error:
            raise RecipeError(str(error)) from None


def check_conversations(recipe: Recipe, phases: Iterable[Phase]) -> None:
    """Refuse phases that predict answers of what is no conversation, or whose chat template does not say what an answer is.

    Of a pinned cache its manifest says, when the cache is read; of data that are not public nobody can say.

    Raises:
        RecipeError: with the components.
        ConfigError: a chat template cannot be used.
    """
    told = conversations_of(recipe)
    closed = {
        name for name in recipe.components if name not in recipe.sources and not recipe.uses_stand_ins and (CATALOGUE[name].source is None)
    }
    unsaid = {pin.component for pin in recipe.pins if pin.split == "train"} | closed
    for phase in phases:
        if phase.loss_on == "all":
            continue
        drawn = [name for name in phase.components if name not in unsaid]
        if plain := [name for name in drawn if name not in told]:
            raise RecipeError(
                f"phase {phase.name} of {recipe.run_name} has loss_on answers, so all it draws from must be conversations, and "
                f"{', '.join(plain)} {'is' if len(plain) == 1 else 'are'} plain text: give each a source with a `conversation` under "
                "`sources` in the recipe's file, or set loss_on to all."
            )
        if silent := [name for name in drawn if not template_of(told[name]).marks_answers]:
            raise RecipeError(
                f"phase {phase.name} of {recipe.run_name} has loss_on answers, and the chat template of {', '.join(silent)} does not say "
                "what an answer is: put {% generation %} … {% endgeneration %} around what the assistant writes, with the token that ends "
                "its turn."
            )
