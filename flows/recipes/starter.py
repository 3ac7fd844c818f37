"""The text of a first recipe file: two phases over a folder, or the main line of another recipe in short."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from phasewise.flows.recipes import words
from phasewise.flows.recipes.hand_off import changes_between
from phasewise.flows.recipes.inspect_source import InspectedFolder
from phasewise.flows.recipes.phase import HandOff, Phase, continued
from phasewise.flows.recipes.recipe import Recipe
from phasewise.trainer.base.errors import RecipeError
from phasewise.trainer.config import AdamC, LearningRateSegment, ModelConfig, Muon, Stability

MAX_LINES = 60
WARM_UP_STEPS, STEPS, WARM_UP_TO = 100, 150, 10
ALL, BETTER = {"all": 100.0}, {"all": 50.0, "best": 50.0}
Values = dict[str, tuple[str, Any]]
"""Setting of a phase → its source text and its value."""

HEAD = '''"""{title}

phasewise show {file}      every value, with all defaults
phasewise run {file}       train, judge and evaluate, phase by phase, then a report
`--set {tried}` tries another value. docs/how-to/recipe.md explains the functions.
"""

from phasewise.flows.recipes.words import {imports}

TEXT = {folder}  # the folder of your text, the root of all paths below
SOURCES = {{
    "all": text(TEXT, {include}, {reading}),
    # The best part of your text: here the longer half. Better name the files: text(TEXT, "books/*.txt", …).
    "best": text(TEXT, {include}, {reading}, filters=[TextFilter(measure="characters", min={characters})]),
}}
'''
TWO_PHASES = """MODEL = llama(num_layers=4, d_model=128, seq_len=256, vocab_size=2048)  # 1.5 million weights

# Your text may be short, so epochs are unlimited (max_epochs=None). A phase may end 0.05 bits per byte above its parent, and need not
# beat the baselines of two small benchmarks. Set must_beat_baseline=True once you train longer. Up to 10 % of the items made from held-out
# text may stand in training text as well, since passages repeat. Items of other benchmarks may not.
GATES = gates(max_increase_bits_per_byte=0.05, max_epochs=None, must_beat_baseline=False, max_held_out_percent=10)

WARM_UP = from_scratch(
    name="warm-up",
    stop_step={warm_up},
    model=MODEL,
    batch=8,  # sequences a step, of seq_len tokens each
    mixture={{"all": 100}},  # percent
    learning_rate=wsd(stop_step={warm_up}, warmup={warm_up_to}, decay=0, peak=2e-3),  # up to the peak, and then constant
    gates=GATES,
)

# A later phase keeps all settings that it does not name, and must declare its changes.
COOLDOWN = continued(
    WARM_UP,
    name="cooldown",
    stop_step={stop},  # steps of all phases count together
    declares=("schedule", "mixture"),
    mixture={{"all": 50, "best": 50}},
    learning_rate=cooldown({warm_up}, {stop}, peak=2e-3, floor=2e-5),  # a straight line down
)

RECIPE = Recipe(
    name="{name}",  # the name of its folders
    tokenizer=Tokenizer(vocab_size=2048),  # trained on the text
    phases=(WARM_UP, COOLDOWN),
    sources=SOURCES,
)
"""


def starter(file: Path, folder: Path, found: InspectedFolder) -> str:
    """Two phases over the text of a folder: a warm-up at a constant rate, and a cooldown on a better mixture."""
    imports = "Recipe, TextFilter, Tokenizer, continued, cooldown, from_scratch, gates, llama, text, wsd"
    title = "Two phases over your own text: a warm-up, and a cooldown on the best of it."
    body = TWO_PHASES.format(name=name_for(file), warm_up=WARM_UP_STEPS, warm_up_to=WARM_UP_TO, stop=STEPS)
    return _head(file, folder, found, imports, title, "peak=1e-3") + body


def starter_from(file: Path, folder: Path, found: InspectedFolder, proxy: Recipe) -> str:
    """The main line of a recipe at proxy scale, over the text of a folder: its steps, batches, rates, EMA, z-loss and experts."""
    parts: list[str] = []
    short: dict[str, Phase] = {}
    for phase in proxy.main_line:
        if isinstance(phase.start, HandOff):
            parent = phase.start.parent
            short[phase.name], text = _continued(phase, proxy.phase(parent), short[parent], phase.start)
        else:
            values: Values = {"learning_rate": _rates(phase.learning_rate)}
            values |= {"batch": _batch(phase), "stability": _steady(phase), "mixture": ('{"all": 100}', ALL)}
            if isinstance(phase.optimizer, Muon):
                scale = phase.optimizer.adam_learning_rate_scale
                values["optimizer"] = (f"muon(adam_learning_rate_scale={scale:g})", words.muon(adam_learning_rate_scale=scale))
            experts, sizes = phase.model.experts, _shape(phase.model)
            model = words.afmoe(**sizes, experts=experts) if experts else words.llama(**sizes)
            given: dict[str, Any] = {name: value for name, (_, value) in values.items()}
            given |= {"model": model, "gates": words.gates(**_gates(phase))}
            short[phase.name] = words.from_scratch(name=phase.name, stop_step=phase.stop_step, **given)
            written = "afmoe(**SHAPE, experts=EXPERTS)" if experts else "llama(**SHAPE)"
            named = f'name="{phase.name}", stop_step={phase.stop_step}, model={written}, gates=GATES'
            text = f"{_constant(phase.name)} = from_scratch(\n    {named},\n{_settings(values)}"
        parts.append(text)
    first, last = proxy.main_line[0], proxy.main_line[-1]
    shape = _arguments(_shape(first.model))
    experts_line = ""
    if first.model.experts is not None:
        fields = {name: repr(value) for name, value in dict(first.model.experts).items()}
        if balancing := first.model.experts.balancing:
            fields["balancing"] = f"{type(balancing).__name__}({_arguments(balancing.model_dump())})"
        experts_line = f"EXPERTS = Experts({_wrapped(', '.join(f'{name}={value}' for name, value in fields.items()))})\n"
    body = (
        f"SHAPE = dict({shape if len(shape) < 100 else _wrapped(shape)})\n"
        + experts_line
        + f"GATES = gates({_arguments(_gates(first))})\n\n"
        + "\n".join(parts)
        + f'\nRECIPE = Recipe(\n    name="{name_for(file)}", tokenizer=Tokenizer(vocab_size={first.model.vocab_size}), sources=SOURCES,\n'
        f"    phases={_tuple(_constant(name) for name in short)},\n)\n"
    )
    imports = ", ".join(word for word in words.__all__ if f"{word}(" in body or word in ("TextFilter", "text"))
    title = f"The main line of {proxy.name} in short: its steps, batches and rates at proxy scale, on your own text."
    written = _head(file, folder, found, imports, title, f"{last.name}.learning_rate.0.end=1e-4") + body
    if written.count("\n") > MAX_LINES:
        raise RecipeError(
            f"{proxy.name} is too long for a file of {MAX_LINES} lines: write all of it as data with a FILE that ends in .json."
        )
    return written


def name_for(file: Path) -> str:
    """The recipe name for a file. Names of this project's recipes get a prefix."""
    from phasewise.flows.recipes import NAMES

    name = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in file.stem.lower()).strip("-") or "my-recipe"
    return f"my-{name}" if name in NAMES else name


def _head(file: Path, folder: Path, found: InspectedFolder, imports: str, title: str, tried: str) -> str:
    reading = f'format="jsonl", text_key={json.dumps(found.text_key)}' if found.text_key else 'format="paragraphs"'
    reading += ', deduplicate="near"'
    return HEAD.format(
        title=title,
        tried=tried,
        file=file if str(file).isprintable() and not set(str(file)) & set('\\"') else "FILE",
        imports=imports if len(imports) < 100 else f"({_wrapped(imports)})",
        folder=_quoted(str(folder.absolute())),
        include=", ".join(map(_quoted, found.include)),
        reading=reading,
        characters=found.median_characters or 1000,
    )


def _continued(phase: Phase, before: Phase, parent: Phase, start: HandOff) -> tuple[Phase, str]:
    values: Values = {"learning_rate": _rates(phase.learning_rate)}
    if _batch(phase) != _batch(before):
        values["batch"] = _batch(phase)
    if _steady(phase) != _steady(before):
        values["stability"] = _steady(phase)
    if phase.optimizer != before.optimizer and isinstance(phase.optimizer, AdamC):
        given = {"peak_learning_rate": phase.optimizer.peak_learning_rate, "weight_decay": phase.optimizer.weight_decay}
        values["optimizer"] = (f"adamc({', '.join(f'{name}={value:g}' for name, value in given.items())})", words.adamc(**given))
    if phase.model.qk_norm != before.model.qk_norm:
        values["model"] = ("qwen(**SHAPE)", words.qwen(**_shape(phase.model)))
    order: dict[str, Any] = {}
    if (length := phase.model.seq_len) != before.model.seq_len:
        values["model"] = (f"{_constant(parent.name)}.model.but(seq_len={length})", parent.model.but(seq_len=length))
        order["first_step"] = start.step
    if phase.order.buffer_documents != before.order.buffer_documents:
        order["buffer_documents"] = phase.order.buffer_documents
    if order:
        values["order"] = (f"{_constant(parent.name)}.order.but({_arguments(order)})", parent.order.but(**order))
    if phase.mixture.within(start.step, phase.stop_step) != ((start.step, before.mixture.at(start.step - 1)),):
        falls = phase.learning_rate[-1].end < phase.learning_rate[-1].start
        values["mixture"] = ('{"all": 50, "best": 50}', BETTER) if falls else ('{"all": 100}', ALL)
    if phase.schedule_goes_on:
        values["schedule_goes_on"] = ("True", True)
    fresh = tuple(part for part in start.fresh if part in ("ema", "qk_norm", "optimizer"))
    settings = {name: value for name, (_, value) in values.items()}
    given: dict[str, Any] = settings | {"name": phase.name, "stop_step": phase.stop_step, "fresh": fresh}
    declares = tuple(changes_between(parent, continued(parent, declares=(), **given), drawn={"all", "best"}))
    origin = f", fresh={_tuple(map(_quoted, fresh))}" if fresh else ""
    head = f'{_constant(phase.name)} = continued(\n    {_constant(parent.name)}, name="{phase.name}", stop_step={phase.stop_step}{origin},'
    text = f"{head} declares={_tuple(map(_quoted, declares))},\n{_settings(values)}"
    return continued(parent, declares=declares, **given), text


def _shape(model: ModelConfig) -> dict[str, Any]:
    sparse = ("d_ff", "num_query_heads", "num_kv_heads", "sliding_window", "global_attention_every", "attend_within_documents")
    names = ("num_layers", "d_model", "seq_len", "vocab_size", *(sparse if model.experts else ()))
    return {name: getattr(model, name) for name in names}


def _gates(phase: Phase) -> dict[str, Any]:
    limit = phase.gates.health.max_violation
    others: dict[str, Any] = {} if limit is None else {"max_violation": round(limit, 3)}
    return {"max_increase_bits_per_byte": 0.5, "max_epochs": None, "must_beat_baseline": False, **others}


def _batch(phase: Phase) -> tuple[str, int]:
    size = phase.batch.at(phase.stop_step - 1)
    return str(size), size


def _steady(phase: Phase) -> tuple[str, Stability]:
    last = phase.stop_step - 1
    z_loss, ema = phase.stability.z_loss.at(last), phase.stability.ema_decay.at(last)
    written = ", ".join(f"{name}={value:g}" for name, value in (("z_loss", z_loss), ("ema", ema)) if value is not None)
    return f"stability({written})", words.stability(z_loss=z_loss, ema=ema)


def _rates(segments: tuple[LearningRateSegment, ...]) -> tuple[str, Any]:
    if len(segments) > 3:
        first, last = segments[0], segments[2]
        steps = {"stop_step": segments[-1].end_step, "cycle": last.end_step, "decay": last.end_step - last.start_step}
        steps["warmup"] = first.end_step
        made = words.wsd_s(**steps, peak=first.end, floor=last.end)
        if made == segments:
            written = ", ".join(f"{name}={value}" for name, value in steps.items())
            return f"wsd_s({written}, peak={first.end:g}, floor={last.end:g})", made
    texts: list[str] = []
    for one in segments:
        end = "" if one.kind == "constant" else f", {one.end!r}"
        texts.append(f"{one.kind}({one.start_step}, {one.end_step}, {one.start!r}{end})")
    return _tuple(texts), segments


def _settings(values: Values) -> str:
    written = ", ".join(f"{name}={text}" for name, (text, _) in values.items() if name != "learning_rate")
    return f"    learning_rate={values['learning_rate'][0]},\n" + (f"    {written},\n" if written else "") + ")\n"


def _arguments(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={_quoted(value) if isinstance(value, str) else repr(value)}" for name, value in values.items())


def _wrapped(listed: str) -> str:
    half = listed.rindex(", ", 0, len(listed) // 2 + 10) + 2
    return f"\n    {listed[:half].rstrip()}\n    {listed[half:]},\n"


def _tuple(written: Iterable[str]) -> str:
    parts = list(written)
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _constant(name: str) -> str:
    return name.upper().replace("-", "_")
