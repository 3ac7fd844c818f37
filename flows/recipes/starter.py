"""The text of a first recipe file: two phases over a folder, whose text is inspected, or the main line of another recipe in short."""

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from phasewise.flows.recipes import words
from phasewise.flows.recipes.hand_off import changes_between
from phasewise.flows.recipes.phase import HandOff, Phase, continued
from phasewise.flows.recipes.recipe import Recipe
from phasewise.tasks.data.findings import Record
from phasewise.tasks.data.reading import read_piece
from phasewise.tasks.data.source import Piece, Source
from phasewise.trainer.base.errors import PhasewiseError, RecipeError
from phasewise.trainer.base.storage import parse_json, read_yaml
from phasewise.trainer.config import AdamC, LearningRateSegment, ModelConfig, Muon, Stability

PACKED = (".gz", ".zst", ".xz", ".bz2", ".lz4")
JSON_LINES = (".jsonl", ".ndjson")
MAX_FILES, SAMPLED_FILES, SAMPLED_DOCUMENTS, SNIFFED_BYTES = 100_000, 50, 2_000, 1 << 16


class InspectedFolder(NamedTuple):
    """The source settings of a folder.

    Attributes:
        text_key: the text field of JSON lines. None for plain text.
        left_out: endings of other text files.
        median_characters: median length of the sampled documents. None without documents.
        beside: further text fields of the sampled documents, which are not trained on.
    """

    include: tuple[str, ...]
    text_key: str | None
    left_out: tuple[str, ...]
    median_characters: int | None
    documents: int
    beside: tuple[str, ...] = ()


def inspect_folder(folder: Path) -> InspectedFolder:
    """Inspect a folder, which may be empty. Plain text is selected, unless the folder has more bytes of JSON lines."""
    by_ending: defaultdict[str, list[Path]] = defaultdict(list)
    for path in islice(_files(folder), MAX_FILES):
        by_ending["".join(path.suffixes[-2:]) if path.suffix in PACKED else path.suffix].append(path)
    texts = {ending: files for ending, files in sorted(by_ending.items()) if ending and _is_text(files[0])}
    lines = {ending: files for ending, files in texts.items() if ending.startswith(JSON_LINES)}
    plain = {ending: files for ending, files in texts.items() if ending not in lines}
    line_bytes, plain_bytes = (sum(path.stat().st_size for paths in one.values() for path in paths) for one in (lines, plain))
    chosen = lines if line_bytes > plain_bytes else plain
    if not chosen:
        return InspectedFolder(("*.txt",), None, (), None, 0)
    files = [path for paths in chosen.values() for path in paths]
    key = _text_key(files[0]) if chosen is lines else None
    reading = {"format": "jsonl", "text_key": key} if key else {"format": "paragraphs"}
    source = Source.model_validate({"url": str(folder), "include": tuple(f"*{ending}" for ending in chosen), **reading})
    lengths: list[int] = []
    beside: set[str] = set()
    for path in files[:: max(1, len(files) // SAMPLED_FILES)]:
        try:
            found = read_piece(source, Piece(name=path.name, url=str(path), start=0, stop=path.stat().st_size))
            for one in islice(found, SAMPLED_DOCUMENTS):
                if isinstance(one, Record):
                    lengths.append(len(one.text))
                    beside.update(one.beside)
        except (PhasewiseError, OSError):  # the run reports unreadable files
            continue
    return InspectedFolder(
        include=source.include,
        text_key=key,
        left_out=tuple(ending for ending in texts if ending not in chosen),
        median_characters=int(median(lengths)) if lengths else None,
        documents=len(lengths),
        beside=tuple(sorted(beside)),
    )


def _files(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths = (Path(place) / name for name in sorted(files) if not name.startswith("."))
        yield from (path for path in paths if path.is_file())  # a link may lead nowhere


def _is_text(path: Path) -> bool:
    if path.suffix in PACKED:
        return len(path.suffixes) > 1
    with path.open("rb") as file:
        start = file.read(SNIFFED_BYTES)
    try:
        start.decode()
    except UnicodeDecodeError as error:
        return error.start > len(start) - 4 > 0 and b"\0" not in start
    return bool(start) and b"\0" not in start


def _text_key(path: Path) -> str:
    if path.suffix in PACKED:
        return "text"
    with path.open(encoding="utf-8", errors="replace") as file:
        try:
            first: Any = parse_json(file.readline())
        except ValueError:
            return "text"
    texts = {name: value for name, value in first.items() if isinstance(value, str)} if isinstance(first, dict) else {}
    return "text" if "text" in texts or not texts else max(texts, key=lambda name: len(texts[name]))


MAX_LINES = 60
WARM_UP_STEPS, STEPS, WARM_UP_TO = 100, 150, 10
ALL, BETTER = {"all": 100.0}, {"all": 50.0, "best": 50.0}
Values = dict[str, tuple[str, Any]]  # setting of a phase → its source text and its value
TEXTS = Path(__file__).with_suffix(".yaml")


def starter(file: Path, folder: Path, found: InspectedFolder) -> str:
    """Two phases over the text of a folder: a warm-up at a constant rate, and a cooldown on a better mixture."""
    imports = "Recipe, TextFilter, Tokenizer, continued, cooldown, from_scratch, gates, llama, text, wsd"
    title = "Two phases over your own text: a warm-up, and a cooldown on the best of it."
    body = read_yaml(TEXTS)["two_phases"].format(name=name_for(file), warm_up=WARM_UP_STEPS, warm_up_to=WARM_UP_TO, stop=STEPS)
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
    return read_yaml(TEXTS)["head"].format(
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
