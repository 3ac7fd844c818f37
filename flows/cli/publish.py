"""`phasewise export`, `phasewise report`, `phasewise card` and `phasewise verify`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import click
from rich.console import Console

from phasewise.flows.recipes import NAMES
from phasewise.flows.recipes.recipe import Scale
from phasewise.flows.resolved import resolve
from phasewise.flows.site.export import check_place, write_site
from phasewise.flows.site.shelf import Shelf
from phasewise.flows.site.site import Site
from phasewise.flows.status.phase_status import named_phase, trained_run
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.wording import plural

GIB = 2**30
DType = Literal["float32", "bfloat16"]
GenerationPrompt = Literal["add", "none"]


def write_report(out: str, home: str | None, recipes: tuple[str, ...]) -> dict[str, Any]:
    """Write the pages of a home to the folder `out`."""
    check_place(Path(out).expanduser().absolute())
    opened = Home.at(home, reads_only=True)
    opened.look_at_all()
    return write_site(Site(Shelf(opened, (*NAMES, *recipes))), Path(out))


def print_written(found: dict[str, Any]) -> None:
    """Print the first page and the omitted recipes."""
    click.echo(f"{plural(found['pages'], 'page')} on {', '.join(found['recipes'])}: {found['folder']}/index.html")
    for problem in found["problems"]:
        click.echo(f"left out: {problem}")


def export_target(
    target: str, out: str, scale: Scale, home: str | None, *, weights: str, dtype: DType, generation_prompt: GenerationPrompt | None = None
) -> dict[str, Any]:
    """Write weights of a phase as a Hugging Face folder and return its content in the shape of `--json`."""
    resolved, found = resolve(target, scale, home, reads_only=True, has_weights=True)
    phase = named_phase(resolved, found, "export")
    if "://" in out:
        raise ConfigError(f"the folder to export to must be on this machine, found {out}.")
    run, result = trained_run(resolved, phase)
    from phasewise.tasks.report.claims import HomeFiles, Subject, read_claims
    from phasewise.tasks.report.export import export_phase

    files = HomeFiles(resolved.home.root, work=resolved.home.work, max_read_bytes=0)
    claims = read_claims(files, Subject(run.recipe, run.scale, run.phase, None))
    wrong = {one.field.partition(".")[0] for one in files.problems if not one.field.startswith("evaluation.held_out")}
    exported = export_phase(
        run,
        result,
        resolved.plan.tokenizer,
        Path(out),
        weights=weights,
        dtype=dtype,
        claims={name: value for name, value in claims.items() if name not in wrong},
        chats=resolved.plan.chats_of(phase.components),
        generation_prompt=generation_prompt,
    )
    recipe = resolved.recipe
    return {"recipe": recipe.name, "scale": recipe.scale, "phase": phase.name, "step": phase.stop_step, **exported}


def print_export(exported: dict[str, Any]) -> None:
    """Print the folder, the source of the weights, the files and the chat template."""
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{exported['folder']}: {exported['architecture']}, {exported['dtype']}, {exported['bytes'] / 1e6:,.1f} MB")
    console.print(f"  {exported['phase']} at step {exported['step']:,}, weights {exported['weights']}, from {exported['checkpoint']}")
    console.print(f"  {', '.join(exported['files'])}")
    if exported["chat_template"]:
        console.print(f"  with the chat template {exported['chat_template']}", markup=False)
    if left_out := exported["chat_templates_left_out"]:
        console.print(f"  without a chat template: it was trained on conversations of {', '.join(left_out)}", markup=False)


def card_of_target(target: str, out: str, scale: Scale, home: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Write the card of a phase, in the shape of `--json`. `options`: `key`, `export`, `licence` and `source`."""
    resolved, found = resolve(target, scale, home, reads_only=True, has_weights=True)
    phase = named_phase(resolved, found, "card")
    if "://" in out:
        raise ConfigError(f"the folder for the card must be on this machine, found {out}.")
    from phasewise.tasks.report.card import CardOptions, write_card
    from phasewise.tasks.report.claims import Subject

    recipe = resolved.recipe
    subject = Subject(recipe.name, recipe.scale, phase.name, phase.evaluation.held_out_tokens)
    key, export = (Path(name) if name else None for name in (options["key"], options["export"]))
    given = CardOptions(key=key, export=export, licence=options["licence"], source_folders=_folders(options["source"]))
    return write_card(resolved.home.root, subject, Path(out), given, work=resolved.home.work)


def verify_folder(folder: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Check a card, in the shape of `--json`. `options`: `home`, `export`, `public_key`, `source` and `max_gib`."""
    from phasewise.tasks.report.card import Against, subject_of, verify_card

    home = Home.at(options["home"], reads_only=True) if options["home"] else None
    if home is not None:
        if not home.root.is_dir():
            raise ConfigError(f"there is no home at {home.root}.")
        if subject := subject_of(Path(folder)):
            home.look(subject.run_name, weights_of=subject.phase)
    export, public_key = (Path(name) if name else None for name in (options["export"], options["public_key"]))
    against = Against(
        home=home.root if home else None,
        work=home.work if home else None,
        export=export,
        public_key=public_key,
        source_folders=_folders(options["source"]),
        max_read_bytes=int(options["max_gib"] * GIB),
    )
    found = verify_card(Path(folder), against)
    return {
        "card": str(Path(folder).resolve()),
        "passes": found.passes,
        "signed": found.signed,
        "disagreements": [one._asdict() for one in found.disagreements],
        "not_checked": [one._asdict() for one in found.unchecked],
        "checked": found.checked,
        "bytes_read": found.read_bytes,
    }


def print_card(card: Mapping[str, Any]) -> None:
    """Print the card's folder, result, files and unchecked claims."""
    console = Console(highlight=False, soft_wrap=True)
    signed = "signed" if card["signed"] else "not signed"
    result = "its verdicts let the phase go on" if card["passes"] else "a verdict FAILS, and the card says so"
    console.print(f"{card['card']}: {card['recipe']}/{card['phase']} at step {card['step']:,}, {signed}; {result}", markup=False)
    console.print(f"  {', '.join(card['files'])}", markup=False)
    for line in card["not_checked"]:
        console.print(f"  not checked: {line}", markup=False)


def print_verification(found: Mapping[str, Any]) -> None:
    """Print false claims, unchecked claims, then checked claims."""
    console = Console(highlight=False, soft_wrap=True)
    for one in found["disagreements"]:
        console.print(f"{one['field']}: {one['words']}", markup=False)
    for one in found["not_checked"]:
        console.print(f"not checked: {one['field']}: {one['words']}", markup=False)
    for words in found["checked"]:
        console.print(f"checked: {words}", markup=False)
    wrong, unchecked = len(found["disagreements"]), len(found["not_checked"])
    signed = "signed" if found["signed"] else "not signed"
    end = "all was checked, and holds" if found["passes"] else f"{wrong} claims do not hold, {unchecked} were not checked"
    console.print(f"{found['card']} ({signed}): {end}", markup=False)


def _folders(given: Sequence[str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for one in given:
        name, _, folder = one.partition("=")
        if not name or not folder:
            raise ConfigError(f"--source must be COMPONENT=FOLDER, found {one}.")
        found[name] = Path(folder)
    return found
