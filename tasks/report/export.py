"""A phase's weights as a folder that `transformers` reads, with the tokenizer that they were trained with, and a page about the model."""

import functools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jinja2
import numpy as np
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from phasewise.tasks.data.template import ChatTemplate, turn_end_ids
from phasewise.tasks.data.tokenizer import BEGIN_OF_TEXT, END_OF_TEXT, check_tokenizer, special_tokens
from phasewise.tasks.report.claims import ruling_word
from phasewise.tasks.report.placing import ORIGIN_NAME
from phasewise.trainer.base.errors import CheckpointError, ConfigError
from phasewise.trainer.base.identity import digest_of_file, write_sealed
from phasewise.trainer.base.storage import read_json
from phasewise.trainer.checkpoints.state import average_of_last, read_params
from phasewise.trainer.config import ModelConfig, RunConfig
from phasewise.trainer.model.hugging_face import TokenizerFiles, check_writable, read_folder, read_settings, write_folder
from phasewise.trainer.model.hugging_face_config import DTypeName, to_hugging_face
from phasewise.trainer.model.params import Params, count_parameters
from phasewise.trainer.state import params_digest

README_NAME = "README.md"
PARTS = {"lineage": "lineage", "mixture": "mixture", "evaluation": "evaluation", "gates": "verdicts", "data": "data"}
LAST, EMA, AVERAGE = "last", "ema", "average:"
DType = Literal["float32", "bfloat16"]
GenerationPrompt = Literal["add", "none"]
CHAT_TEMPLATE_NAME = "chat_template.jinja"


def check_weights(weights: str) -> None:
    """Refuse an unknown name of weights.

    Raises:
        ConfigError: expected `last`, `ema` or `average:N` with N of at least 2.
    """
    count = weights.removeprefix(AVERAGE)
    if weights not in (LAST, EMA) and not (weights.startswith(AVERAGE) and count.isdecimal() and int(count) > 1):
        raise ConfigError(f"the weights must be last, ema or average:N with N of at least 2, found {weights!r}.")


def _weights_of(run: RunConfig, checkpoint: Path, weights: str) -> tuple[Params, tuple[int, ...]]:
    check_weights(weights)
    if weights.startswith(AVERAGE):
        return average_of_last(checkpoint.parent, run, int(weights.removeprefix(AVERAGE)))
    return read_params(checkpoint, run.model, ema=weights == EMA), (run.stop_step,)


def differing_weights(folder: Path, run: RunConfig, checkpoint: Path, origin: Mapping[str, Any]) -> str | None:
    """Return the reason why the tensors of an exported folder are not the weights that it names, or None if they are.

    Raises:
        PhasewiseError: the folder or a checkpoint does not read.
    """
    params, steps = _weights_of(run, checkpoint, str(origin["weights"]))
    if (found := params_digest(params)) != origin["params_digest"]:
        return f"{origin['weights']} has the digest {found[:16]}, the folder says {str(origin['params_digest'])[:16]}"
    if list(steps) != list(origin["steps"]):
        return f"{origin['weights']} is of the steps {list(steps)}, the folder says {origin['steps']}"
    if origin["dtype"] not in ("float32", "bfloat16"):
        raise CheckpointError(f"an exported folder must be of float32 or bfloat16, found {origin['dtype']}.")
    if differing := differing_fields(folder, run.model, origin["dtype"]):
        return f"config.json describes another model than the run's: {', '.join(differing)}"
    import jax

    exported, _config = read_folder(folder)
    rounded = jax.tree.map(lambda leaf: np.asarray(np.asarray(leaf).astype(jax.numpy.dtype(origin["dtype"])), np.float32), params)
    if params_digest(rounded) != params_digest(exported):
        return f"its tensors are not {origin['weights']} of the checkpoint as {origin['dtype']}"
    return None


def differing_fields(folder: Path, model: ModelConfig, dtype: DTypeName) -> list[str]:
    """Name the fields of an exported folder's `config.json` that are not as they would be written for this model."""
    expected = json.loads(json.dumps(to_hugging_face(model, dtype)))
    found = read_settings(folder / "config.json")
    return sorted(name for name, value in expected.items() if found.get(name) != value)


def export_phase(
    run: RunConfig,
    result: dict[str, Any],
    tokenizer: Path,
    folder: Path,
    *,
    weights: str = LAST,
    dtype: DType = "float32",
    claims: Mapping[str, Any] | None = None,
    chats: Sequence[ChatTemplate] = (),
    generation_prompt: GenerationPrompt | None = None,
) -> dict[str, Any]:
    """Write the folder. Return a summary.

    Args:
        weights: `last`, their moving average as `ema`, or `average:N` for the mean of the last N checkpoints.
        claims: facts about the phase, for the page about the model, or None is no more than its run says.
        chats: the chat templates of the training conversations. Of several none goes with the tokenizer: each is for other questions.
        generation_prompt: of a template that opens no answer: add what does, or leave it.

    Raises:
        CheckpointError: the checkpoint is not whole, has no moving average, or has other weights than the result. Or fewer than N are kept.
        ConfigError: there are no such weights, the folder is not empty, `transformers` has no class for such a model, or the chat template
            opens no answer and `generation_prompt` is None.
        DataError: the tokenizer was edited, or lacks the tokens that begin and end a document.
    """
    check_weights(weights)
    check_writable(folder, run.model)
    chats = opening_answers(chats, generation_prompt)
    checkpoint = Path(result["checkpoint"])
    params, steps = _weights_of(run, checkpoint, weights)
    digest = params_digest(params)
    if weights == LAST and digest != result["params_digest"]:
        raise CheckpointError(
            f"{checkpoint} holds other weights than the phase's result names: expected {result['params_digest'][:12]}, "
            f"found {digest[:12]}. Train the phase again."
        )
    which = {"weights": weights, "steps": list(steps), "dtype": dtype, "params_digest": digest}
    origin = {"recipe": run.recipe, "scale": run.scale, "phase": run.phase, "step": run.stop_step, **which}
    about = {ORIGIN_NAME: json.dumps(origin, indent=2) + "\n", README_NAME: build_model_card(claims or {}, origin)}
    beside = tokenizer_files(tokenizer, run.model.seq_len, chats)
    beside = beside._replace(files={**beside.files, **{name: text.encode() for name, text in about.items()}})
    write_folder(folder, params, run.model, tokenizer=beside, dtype=dtype)
    digests = {path.name: digest_of_file(path) for path in sorted(folder.iterdir()) if path.name != ORIGIN_NAME}
    write_sealed(folder / ORIGIN_NAME, {**origin, "files": digests})
    files = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    chat = _shared(chats)
    return {
        "folder": str(folder.resolve()),
        "architecture": read_json(folder / "config.json")["architectures"][0],
        "checkpoint": str(checkpoint),
        **which,
        "parameters": count_parameters(run.model),
        "chat_template": chat.name if chat else None,
        "chat_templates_left_out": [] if chat else sorted({chat.name for chat in chats}),
        "bytes": sum(files.values()),
        "files": list(files),
    }


def opening_answers(chats: Sequence[ChatTemplate], how: GenerationPrompt | None) -> Sequence[ChatTemplate]:
    """Make a template that opens no answer open one, or leave it.

    Raises:
        ConfigError: the template opens no answer, and `how` is None.
    """
    chat = _shared(chats)
    if chat is None or not (opening := chat.missing_generation_prompt()) or how == "none":
        return chats
    if how == "add":
        return [chat.with_generation_prompt()]
    raise ConfigError(
        f"the chat template {chat.name} has no generation prompt: asked for an answer (add_generation_prompt), it does not write "
        f"{opening!r}, and a chat with the model would not begin one. Say --generation-prompt add, or none to export it as it is."
    )


def _shared(chats: Sequence[ChatTemplate]) -> ChatTemplate | None:
    return chats[0] if len({chat.text for chat in chats}) == 1 else None


def tokenizer_files(path: Path, seq_len: int, chats: Sequence[ChatTemplate] = ()) -> TokenizerFiles:
    """Prepare the tokenizer, with the fields that tell `transformers` which tokens begin and end a document.

    Our own tokenizer leaves it to the caller to begin a document. A model was never trained without that, so the exported one does it
    by itself, as Llama 3's does. One that has rules of its own keeps them.

    Args:
        chats: the templates of the training text. With one, `apply_chat_template` gives that text, without the token that ends a document.
            Generation ends with the token that ends an answer of any of them.
    """
    check_tokenizer(path)
    tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
    begin, end = special_tokens(tokenizer, path)
    if tokenizer.post_processor is None:
        single, pair = f"{BEGIN_OF_TEXT} $A", f"{BEGIN_OF_TEXT} $A {BEGIN_OF_TEXT} $B:1"
        tokenizer.post_processor = TemplateProcessing(single=single, pair=pair, special_tokens=[(BEGIN_OF_TEXT, begin)])
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "model_max_length": seq_len,
        "clean_up_tokenization_spaces": False,
    }
    files = {"tokenizer.json": tokenizer.to_str(pretty=True)}
    if (chat := _shared(chats)) is not None:
        turn_end = chat.turn_end()
        about["chat_template"] = files[CHAT_TEMPLATE_NAME] = chat.with_begin()
        if turn_end is not None and not chat.uses_end_of_text:  # a template that writes `eos_token` means the one that it was used with
            about["eos_token"] = turn_end
    files["tokenizer_config.json"] = json.dumps(about, indent=2) + "\n"
    return TokenizerFiles({name: content.encode() for name, content in files.items()}, begin, end, turn_end_ids(tokenizer, chats))


def build_model_card(claims: Mapping[str, Any], origin: Mapping[str, Any] | None = None) -> str:
    """Render the page about a model, in Markdown.

    Args:
        origin: the weights of an exported folder. Its page has the fields that the hub reads at its head, and names the parts of which the
            home knows nothing.
    """
    changes = {name: one for name, one in (claims.get("hand_off") or {}).get("changes", {}).items() if one["found"]}
    known = {name: claims.get(name) for name in ("training", "said", "order", *PARTS)}
    missing = [word for name, word in PARTS.items() if not known[name] or (name == "mixture" and not known["order"])] if origin else []
    named = {name: claims.get(name) or (origin or {}).get(name) for name in ("recipe", "phase", "scale")}
    text = templates().get_template("model_card.md.jinja").render(**named, **known, origin=origin, changes=changes, missing=missing)
    return text.rstrip("\n") + "\n"


@functools.cache
def templates() -> jinja2.Environment:
    """Open the templates of Markdown and JSON: words of people are escaped by `plain` and `tojson`."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"), trim_blocks=True, lstrip_blocks=True
    )
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False}
    plain = functools.partial(re.sub, r"[\\`*_\[\]<>#|]", r"\\\g<0>")
    environment.filters.update(thousands="{:,}".format, ruling_word=ruling_word, plain=plain)
    return environment
