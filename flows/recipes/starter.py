"""A recipe's file to start from, as text: two phases over a folder, or the main line of another recipe in short."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from phasewise.flows.recipes import words
from phasewise.flows.recipes.hand_off import changes_between
from phasewise.flows.recipes.inspect_source import InspectedFolder
from phasewise.flows.recipes.phase import FromScratch, HandOff, Phase, continued
from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.recipes.words import wsd_s
from phasewise.trainer.base.errors import RecipeError
from phasewise.trainer.config import AdamC, Experts, LearningRateSegment, ModelConfig, Muon

MAX_LINES = 60
WARM_UP_STEPS, STEPS, WARM_UP_TO = 100, 150, 10
ALL, BETTER = {"all": 100.0}, {"all": 50.0, "best": 50.0}
Values = dict[str, tuple[str, Any]]
"""What a phase is given: name → how it is written, and the value."""

HEAD = '''"""{title}

phasewise show {file}      every value, with those that are left out here
phasewise run {file}       train, judge and evaluate, phase by phase; then a report
`--set {phase}.learning_rate.0.end=1e-4` tries another value. docs/how-to/recipe.md explains the words.
"""

from phasewise.flows.recipes.words import {imports}

TEXT = {folder}  # the folder of your text; all paths below are relative to it
SOURCES = {{
    "all": text(TEXT, {include}, {reading}),
    # What is best in your text: here the longer half of it. Better name the files: text(TEXT, "books/*.txt", …).
    "best": text(TEXT, {include}, {reading}, filters=[TextFilter(measure="characters", min={characters})]),
}}
'''
TWO_PHASES = """MODEL = llama(num_layers=4, d_model=128, seq_len=256, vocab_size=2048)  # 1.5 million weights

# Your text may be short, so it may be read often (max_epochs=None). A phase may end 0.05 bits per byte above the
# one before it, and need not beat the dumb baselines of two small benchmarks: ask for that (must_beat_baseline=True) once you train longer.
GATES = gates(max_increase_bits_per_byte=0.05, max_epochs=None, must_beat_baseline=False)

WARM_UP = from_scratch(
    name="warm-up",
    stop_step={warm_up},
    model=MODEL,
    batch=8,  # sequences a step, of seq_len tokens each
    mixture={{"all": 100}},  # percent
    learning_rate=wsd(stop_step={warm_up}, warmup={warm_up_to}, decay=0, peak=2e-3),  # up to the peak, and then constant
    gates=GATES,
)

# A later phase keeps what it does not name, and must declare what it changes.
COOLDOWN = continued(
    WARM_UP,
    name="cooldown",
    stop_step={stop},  # steps count on from the phase before
    declares=("schedule", "mixture"),
    mixture={{"all": 50, "best": 50}},
    learning_rate=cooldown({warm_up}, {stop}, peak=2e-3, floor=2e-5),  # a straight line down
)

RECIPE = Recipe(
    name="{name}",  # its folders are called so
    tokenizer=Tokenizer(vocab_size=2048),  # trained on the text
    phases=(WARM_UP, COOLDOWN),
    sources=SOURCES,
)
"""


def starter(file: Path, folder: Path, found: InspectedFolder) -> str:
    """Two phases over the text of a folder: a warm-up at a constant rate, and a cooldown on a better mixture."""
    imports = "Recipe, TextFilter, Tokenizer, continued, cooldown, from_scratch, gates, llama, text, wsd"
    body = TWO_PHASES.format(name=name_for(file), warm_up=WARM_UP_STEPS, warm_up_to=WARM_UP_TO, stop=STEPS)
    return (
        _head(file, folder, found, imports, "Two phases over your own text: a warm-up, and a cooldown on the best of it.", "cooldown")
        + body
    )


def starter_from(file: Path, folder: Path, found: InspectedFolder, proxy: Recipe) -> str:
    """The main line of a recipe at proxy scale in short: its steps, batches, rates, EMA, z-loss and experts, on the text of a folder.

    Raises:
        RecipeError: it does not fit into 60 lines.
    """
    parts: list[str] = []
    short: dict[str, Phase] = {}
    for phase in proxy.main_line:
        made, text = _in_short(phase, proxy, short)
        short[phase.name] = made
        parts.append(text)
    names = _tuple(_constant(name) for name in short)
    model = proxy.main_line[0].model
    shape = _arguments(_shape(model))
    body = (
        f"SHAPE = dict({shape if len(shape) < 100 else _wrapped(shape).strip('()')})\n"
        + ("" if model.experts is None else f"EXPERTS = {_experts(model.experts)}\n")
        + f"GATES = gates({_arguments(_gates(proxy.main_line[0]))})\n\n"
        + "\n".join(parts)
        + f'\nRECIPE = Recipe(\n    name="{name_for(file)}", tokenizer=Tokenizer(vocab_size={model.vocab_size}), sources=SOURCES,\n'
        f"    phases={names},\n)\n"
    )
    imports = ", ".join(word for word in words.__all__ if f"{word}(" in body or word in ("TextFilter", "text"))
    title = f"The main line of {proxy.name} in short: its steps, batches and rates at proxy scale, on your own text."
    written = _head(file, folder, found, imports, title, proxy.main_line[-1].name) + body
    if written.count("\n") > MAX_LINES:
        raise RecipeError(
            f"{proxy.name} is too long for a file of {MAX_LINES} lines: write all of it as data with a FILE that ends in .json."
        )
    return written


def name_for(file: Path) -> str:
    """A recipe's name after its file's; never one of this project's."""
    from phasewise.flows.recipes import NAMES

    name = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in file.stem.lower()).strip("-") or "my-recipe"
    return f"my-{name}" if name in NAMES else name


def _head(file: Path, folder: Path, found: InspectedFolder, imports: str, title: str, phase: str) -> str:
    reading = f'format="jsonl", text_key={json.dumps(found.text_key)}' if found.text_key else 'format="paragraphs"'
    return HEAD.format(
        title=title,
        phase=phase,
        file=file if str(file).isprintable() and not set(str(file)) & set('\\"') else "FILE",
        imports=imports if len(imports) < 100 else _wrapped(imports),
        folder=_quoted(str(folder.absolute())),
        include=", ".join(map(_quoted, found.include)),
        reading=reading,
        characters=found.median_characters or 1000,
    )


def _wrapped(imports: str) -> str:
    return f"(\n    {_in_two_lines(imports)},\n)"


def _in_two_lines(listed: str) -> str:
    half = listed.rindex(", ", 0, len(listed) // 2 + 10) + 2
    return f"{listed[:half].rstrip()}\n    {listed[half:]}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _constant(name: str) -> str:
    return name.upper().replace("-", "_")


def _in_short(phase: Phase, proxy: Recipe, short: dict[str, Phase]) -> tuple[Phase, str]:
    values: Values = {"learning_rate": _rates(phase.learning_rate)}
    if isinstance(phase.start, FromScratch):
        values |= _batch(phase) | _steady(phase) | {"mixture": ('{"all": 100}', ALL)}
        if isinstance(phase.optimizer, Muon):
            scale = phase.optimizer.adam_learning_rate_scale
            values["optimizer"] = (f"muon(adam_learning_rate_scale={scale:g})", words.muon(adam_learning_rate_scale=scale))
        model, written = _model(phase.model)
        given = {name: value for name, (_, value) in values.items()}
        made = words.from_scratch(name=phase.name, stop_step=phase.stop_step, model=model, gates=words.gates(**_gates(phase)), **given)
        named = f'name="{phase.name}", stop_step={phase.stop_step}, model={written}, gates=GATES'
        return made, f"{_constant(phase.name)} = from_scratch(\n    {named},\n{_settings(values)}"
    return _continued(phase, proxy.phase(phase.start.parent), short[phase.start.parent], phase.start, values)


def _continued(phase: Phase, before: Phase, parent: Phase, start: HandOff, values: Values) -> tuple[Phase, str]:
    if (batch := _batch(phase))["batch"] != _batch(before)["batch"]:
        values |= batch
    if (steady := _steady(phase)) != _steady(before):
        values |= steady
    if phase.optimizer != before.optimizer and isinstance(phase.optimizer, AdamC):
        given = {"peak_learning_rate": phase.optimizer.peak_learning_rate, "weight_decay": phase.optimizer.weight_decay}
        values["optimizer"] = (f"adamc({', '.join(f'{name}={value:g}' for name, value in given.items())})", words.adamc(**given))
    if phase.model.qk_norm != before.model.qk_norm:
        values["model"] = ("qwen(**SHAPE)", words.qwen(**_shape(phase.model)))
    values |= _rows(phase, before, parent, start)
    if phase.mixture.within(start.step, phase.stop_step) != ((start.step, before.mixture.at(start.step - 1)),):
        falls = phase.learning_rate[-1].end < phase.learning_rate[-1].start
        values["mixture"] = ('{"all": 50, "best": 50}', BETTER) if falls else ('{"all": 100}', ALL)
    if phase.schedule_goes_on:
        values["schedule_goes_on"] = ("True", True)
    fresh = tuple(part for part in start.fresh if part in ("ema", "qk_norm", "optimizer"))
    given = {name: value for name, (_, value) in values.items()}
    made = continued(parent, name=phase.name, stop_step=phase.stop_step, declares=(), fresh=fresh, **given)
    declares = tuple(changes_between(parent, made, drawn={"all", "best"}))
    made = continued(parent, name=phase.name, stop_step=phase.stop_step, declares=declares, fresh=fresh, **given)
    origin = f", fresh={_tuple(map(_quoted, fresh))}" if fresh else ""
    head = f'{_constant(phase.name)} = continued(\n    {_constant(parent.name)}, name="{phase.name}", stop_step={phase.stop_step}{origin},'
    return made, f"{head} declares={_tuple(map(_quoted, declares))},\n{_settings(values)}"


def _rows(phase: Phase, before: Phase, parent: Phase, start: HandOff) -> Values:
    length, values, order = phase.model.seq_len, dict[str, tuple[str, Any]](), dict[str, Any]()
    if length != before.model.seq_len:
        values["model"] = (f"{_constant(parent.name)}.model.but(seq_len={length})", parent.model.but(seq_len=length))
        order["first_step"] = start.step
    if phase.order.buffer_documents != before.order.buffer_documents:
        order["buffer_documents"] = phase.order.buffer_documents
    if order:
        values["order"] = (f"{_constant(parent.name)}.order.but({_arguments(order)})", parent.order.but(**order))
    return values


def _model(model: ModelConfig) -> tuple[ModelConfig, str]:
    if model.experts is None:
        return words.llama(**_shape(model)), "llama(**SHAPE)"
    return words.afmoe(**_shape(model), experts=model.experts), "afmoe(**SHAPE, experts=EXPERTS)"


def _shape(model: ModelConfig) -> dict[str, Any]:
    sparse = ("d_ff", "num_query_heads", "num_kv_heads", "sliding_window", "global_attention_every", "attend_within_documents")
    names = ("num_layers", "d_model", "seq_len", "vocab_size", *(sparse if model.experts else ()))
    return {name: getattr(model, name) for name in names}


def _experts(experts: Experts) -> str:
    written = {name: getattr(experts, name) for name in type(experts).model_fields}
    if experts.balancing is not None:
        fields = _arguments(experts.balancing.model_dump())
        written["balancing"] = f"{type(experts.balancing).__name__}({fields})"
    arguments = ", ".join(f"{name}={value if name == 'balancing' else repr(value)}" for name, value in written.items())
    return f"Experts(\n    {_in_two_lines(arguments)},\n)"


def _gates(phase: Phase) -> dict[str, Any]:
    limit = phase.gates.health.max_violation
    others: dict[str, Any] = {} if limit is None else {"max_violation": round(limit, 3)}
    return {"max_increase_bits_per_byte": 0.5, "max_epochs": None, "must_beat_baseline": False, **others}


def _arguments(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={_quoted(value) if isinstance(value, str) else repr(value)}" for name, value in values.items())


def _settings(values: Values) -> str:
    written = ", ".join(f"{name}={text}" for name, (text, _) in values.items() if name != "learning_rate")
    return f"    learning_rate={values['learning_rate'][0]},\n" + (f"    {written},\n" if written else "") + ")\n"


def _tuple(written: Iterable[str]) -> str:
    parts = list(written)
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def _batch(phase: Phase) -> Values:
    entries = phase.batch.within(phase.start_step, phase.stop_step)
    size = entries[-1][1]
    return {"batch": (str(size), size)}


def _steady(phase: Phase) -> Values:
    last = phase.stop_step - 1
    z_loss, ema = phase.stability.z_loss.at(last), phase.stability.ema_decay.at(last)
    written = ", ".join(f"{name}={value:g}" for name, value in (("z_loss", z_loss), ("ema", ema)) if value is not None)
    return {"stability": (f"stability({written})", words.stability(z_loss=z_loss, ema=ema))}


def _rates(segments: tuple[LearningRateSegment, ...]) -> tuple[str, Any]:
    if len(segments) > 3:
        first, last = segments[0], segments[2]
        steps = {"stop_step": segments[-1].end_step, "cycle": last.end_step, "decay": last.end_step - last.start_step}
        steps["warmup"] = first.end_step
        made = wsd_s(**steps, peak=first.end, floor=last.end)
        if made == segments:
            written = ", ".join(f"{name}={value}" for name, value in steps.items())
            return f"wsd_s({written}, peak={first.end:g}, floor={last.end:g})", made
    return _tuple(_segment(segment) for segment in segments), segments


def _segment(segment: LearningRateSegment) -> str:
    if segment.kind == "constant":
        return f"constant({segment.start_step}, {segment.end_step}, {segment.start!r})"
    return f"{segment.kind}({segment.start_step}, {segment.end_step}, {segment.start!r}, {segment.end!r})"
