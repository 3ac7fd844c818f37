"""`phasewise sample`, `phasewise chat` and `phasewise data generate`: text that a model writes, on this machine or as a source."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from phasewise.flows.cli.evaluate import Found, find_model
from phasewise.flows.cli.scan import scan_paths
from phasewise.flows.cli.terminal import shown_on_terminal
from phasewise.flows.recipes.recipe import Scale
from phasewise.tasks.data.conversation_text import encode_conversations, ids_of_tokens
from phasewise.tasks.data.generation import DOCUMENTS, Seed, Task, generate_documents
from phasewise.tasks.data.tokenizer import DocumentTokens
from phasewise.trainer.base.errors import ConfigError, DataError
from phasewise.trainer.base.identity import digest_of_json
from phasewise.trainer.base.storage import as_path, parse_json

if TYPE_CHECKING:
    from phasewise.tasks.evaluation.language_model import JaxLanguageModel

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"  # the last characters of a decoded text if a character lacks bytes
HERE, DEFAULT_TOKENS = "this conversation", 128


@dataclass(frozen=True)
class Writing:
    """How a model continues a text. Temperature 0 takes the likeliest token, `top_k` 0 and `top_p` 1 are off."""

    tokens: int | None  # maximum number of new tokens. None is 128, or half of the tokens that the model reads
    temperature: float
    top_k: int
    top_p: float
    seed: int


@dataclass(frozen=True)
class Writer:
    """An open model with its settings."""

    model: "JaxLanguageModel"
    writing: Writing
    tokens: int

    def write(self, context: Sequence[int], repeat: int, show: Callable[[str], None]) -> str:
        """Continue the tokens of a context. `show` gets the new text piece by piece. A long context loses its beginning."""
        from phasewise.tasks.evaluation.language_model import Prompt, Sampling, generate

        model, writing = self.model, self.writing
        room = model.max_length - self.tokens
        shown = ""

        def show_new(tokens: list[int]) -> bool:
            nonlocal shown
            kept = tokens[: next((place for place, token in enumerate(tokens) if token in model.ends), len(tokens))]
            text = model.tokenizer.decode(kept, skip_special_tokens=False).rstrip(INCOMPLETE)
            if text.startswith(shown):
                show(text[len(shown) :])
                shown = text
            return False

        (grown,) = generate(
            model.params,
            model.config,
            [Prompt(list(context)[-room:], repeat)],
            max_new_tokens=self.tokens,
            ends=model.ends,
            has_stopped=show_new,
            sampling=Sampling(writing.temperature, writing.top_k, writing.top_p),
            seed=writing.seed,
            mesh=None,
        )
        if not grown.finite:
            raise ConfigError("the model writes no finite numbers: its weights have diverged. Take an earlier checkpoint.")
        text = model.tokenizer.decode(grown.tokens, skip_special_tokens=False)
        show(text[len(shown) :] if text.startswith(shown) else "")
        return text


@contextmanager
def _opened(
    target: str, scale: Scale | None, home: str | None, weights: Literal["last", "ema"], tokenizer: str | None, writing: Writing
) -> Iterator[tuple[Found, Writer]]:
    with shown_on_terminal(), ExitStack() as stack:
        found = find_model(target, scale, home, weights, tokenizer, stack)
        model = found.open_model()
        tokens = min(DEFAULT_TOKENS, model.max_length // 2) if writing.tokens is None else writing.tokens
        if tokens >= model.max_length:
            raise ConfigError(f"--tokens must be less than the {model.max_length:,} tokens that the model reads, found {tokens:,}.")
        yield found, Writer(model, writing, tokens)


def sample(
    target: str,
    scale: Scale | None,
    home: str | None,
    prompts: Sequence[str],
    writing: Writing,
    *,
    weights: Literal["last", "ema"] = "last",
    tokenizer: str | None = None,
    show: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Continue each prompt with a model, in the shape of `--json`. Without a prompt the model writes a document from its beginning."""
    samples: list[dict[str, Any]] = []
    with _opened(target, scale, home, weights, tokenizer, writing) as (found, writer):
        for number, prompt in enumerate(prompts or ("",)):
            show(f"{prompt}")
            context = writer.model.tok_encode(prompt) or [writer.model.begin_of_text]
            samples.append({"prompt": prompt, "text": writer.write(context, number, show)})
            show("\n")
    return {"checkpoint": str(found.path), "phase": found.phase, "weights": weights, "seed": writing.seed, "samples": samples}


def chat(
    target: str,
    scale: Scale | None,
    home: str | None,
    lines: Iterable[str],
    writing: Writing,
    *,
    weights: Literal["last", "ema"] = "last",
    tokenizer: str | None = None,
    system: str | None = None,
    show: Callable[[str], None] = lambda _: None,
) -> list[dict[str, str]]:
    """Answer each line with the training's chat template, and return the messages. Raises ConfigError without a unique template."""
    messages = [{"role": "system", "content": system}] if system else []
    with _opened(target, scale, home, weights, tokenizer, writing) as (found, writer):
        chats = {one.text: one for one in found.chats()}
        if len(chats) != 1:
            what = f"{len(chats)} chat templates" if chats else "no chat template"
            raise ConfigError(f"{target} must have one chat template, and has {what}: `phasewise sample` continues plain text.")
        (template,) = chats.values()
        model = writer.model
        begin = model.tokenizer.id_to_token(model.begin_of_text) if model.has_begin else None
        ids = ids_of_tokens(model.tokenizer, template, "", DocumentTokens(begin, model.tokenizer.id_to_token(model.end_of_text)))
        for line in lines:
            messages.append({"role": "user", "content": line.rstrip("\n")})
            rendered: Any = template.render(messages, HERE, add_generation_prompt=True)  # pyright: ignore[reportArgumentType]  # messages
            (encoded,) = encode_conversations(model.tokenizer, ids, [rendered.text + template.missing_generation_prompt()], [[]])
            context = [*([model.begin_of_text] if model.has_begin else []), *encoded.ids]
            text = writer.write(context, len(messages), show)
            messages.append({"role": "assistant", "content": text.strip()})
            show("\n")
    return messages


def typed_lines() -> Iterator[str]:
    """The lines of standard input. A terminal gets a prompt, and Ctrl-D ends."""
    while True:
        if sys.stdin.isatty():
            click.echo("> ", nl=False, err=True)
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield line


print_piece = partial(click.echo, nl=False)  # `echo` flushes
MIN_SCORE = 0.7  # the share of an item in a document above which the document is left out, as in `phasewise scan`


class ModelGenerator:
    """A model of this project as a generator of text."""

    def __init__(self, model: "JaxLanguageModel", path: Path, writing: Writing) -> None:
        from phasewise.trainer.step import params_digest

        limits = {"max_gen_toks": writing.tokens or model.max_length // 2, "top_k": writing.top_k, "top_p": writing.top_p}
        self.settings = {**limits, "temperature": writing.temperature, "do_sample": writing.temperature > 0}
        self.model = model
        model.seed = writing.seed
        weights = {"checkpoint": str(path), "params_digest": params_digest(model.params)}
        self.identity: Mapping[str, Any] = {**weights, "model": model.config.model_dump(mode="json"), **self.settings, "seed": writing.seed}

    def generate(self, prompts: Sequence[str]) -> list[str]:
        """Continue each prompt up to an end token."""
        from lm_eval.api.instance import Instance

        requests = [Instance("generate_until", {}, (prompt, self.settings), number) for number, prompt in enumerate(prompts)]
        return self.model.generate_until(requests)


def read_seeds(path: Path, kind: Literal["rephrase", "answer"], count: int | None, seed: int) -> list[Seed]:
    """Read documents of a folder or file, or questions with answers in JSON lines. `count` draws as many at random.

    Raises ConfigError for a missing file. Raises DataError for a record without a question and an answer with a number.
    """
    found: list[Seed] = []
    if kind == "rephrase":
        from phasewise.tasks.evaluation.corpus_fit import Corpus

        found = [Seed(document.where, document.text) for document in Corpus(path).documents()]
    else:
        if not path.is_file():
            raise ConfigError(f"{path}: expected a file of JSON lines with questions and answers, found none.")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                record = parse_json(line)
                question, answer = str(record["question"]), str(record["answer"])
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(f"{path}, line {number}: expected a JSON object with question and answer, found {line[:80]!r}.") from error
            found.append(Seed(f"{path.name}:{number}", question, answer))
    if count is not None and count < len(found):
        found = sorted(found, key=lambda one: digest_of_json([seed, one.id]))[:count]
    return found


def generate(
    target: str,
    scale: Scale | None,
    home: str | None,
    places: tuple[str, str],
    task: Task,
    writing: Writing,
    *,
    count: int | None,
    benchmarks: str | None,
    weights: Literal["last", "ema"] = "last",
    tokenizer: str | None = None,
) -> dict[str, Any]:
    """Write the folder of generated documents, and return its provenance in the shape of `--json`. `places`: seeds and folder.

    `benchmarks`: folder with test items to search for in the output. None searches nothing.
    """
    path, out = (as_path(place).expanduser() for place in places)

    def scan(documents: Path) -> dict[int, str]:
        limits: dict[str, Any] = {"min_score": MIN_SCORE, "tokenizer": None, "workers": 1, "exclude": (), "suite": None}
        hits = scan_paths((str(documents),), benchmarks or "", home=None, **limits)["hits"]
        return {hit["document"]: f"{hit['benchmark']}, {hit['item']}" for hit in hits}

    began = time.perf_counter()
    with shown_on_terminal(), ExitStack() as stack:
        found = find_model(target, scale, home, weights, tokenizer, stack)
        seeds = read_seeds(path, task.kind, count, writing.seed)
        generator = ModelGenerator(found.open_model(), found.path, writing)
        written = generate_documents(seeds, generator, task, out, scan=scan if benchmarks else None)
    return {**written, "seconds": round(time.perf_counter() - began, 1), "file": str(out / DOCUMENTS)}


def print_generated(written: dict[str, Any]) -> None:
    """Print the number of documents, the reasons against the others, and the way into a recipe."""
    click.echo(f"{written['documents']:,} documents from {written['samples']:,} samples of {written['seeds']:,} seeds: {written['file']}")
    for reason, number in written["left_out"].items():
        click.echo(f"  {number:,} left out: {reason}")
    for item in written["test_items"]:
        click.echo(f"  test item: {item}")
    if not written["searched"]:
        click.echo("  not searched for test items: give --benchmarks DIR. The check of a recipe's data searches its caches in any case.")
    options = ', conversation=Conversation(messages="messages", template=…)' if written["task"]["kind"] == "answer" else ""
    click.echo(f'  in a recipe: text("{written["folder"]}", "{DOCUMENTS}", format="jsonl"{options})')
