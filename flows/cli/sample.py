"""`phasewise sample` and `phasewise chat`: text that a model writes, on this machine."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import click

from phasewise.flows.cli.evaluate import Found, find_model
from phasewise.flows.cli.terminal import shown_on_terminal
from phasewise.flows.recipes.recipe import Scale
from phasewise.tasks.data.conversation_text import encode_conversations, ids_of_tokens
from phasewise.tasks.data.tokenizer import DocumentTokens
from phasewise.trainer.base.errors import ConfigError

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


def print_piece(text: str) -> None:
    """Print text immediately."""
    click.echo(text, nl=False)
    sys.stdout.flush()
