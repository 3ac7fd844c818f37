"""Export of a phase's weights for `transformers`, with the tokenizer and a model card."""

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
from phasewise.tasks.data.tokenizer import END_OF_TEXT, check_tokenizer, read_document_tokens, special_tokens
from phasewise.tasks.report.claims import ruling_word
from phasewise.tasks.report.placing import ORIGIN_NAME
from phasewise.trainer.base.errors import CheckpointError, ConfigError
from phasewise.trainer.base.identity import digest_of_file, write_sealed
from phasewise.trainer.base.storage import read_json
from phasewise.trainer.checkpoints.state import average_of_last, read_params
from phasewise.trainer.config import ModelConfig, RunConfig
from phasewise.trainer.model.hugging_face import TokenizerFiles, check_writable, read_folder, write_folder
from phasewise.trainer.model.hugging_face_config import DTypeName, read_settings, to_hugging_face
from phasewise.trainer.model.params import Params, count_parameters
from phasewise.trainer.step import params_digest

README_NAME = "README.md"
PARTS = {"lineage": "lineage", "mixture": "mixture", "evaluation": "evaluation", "gates": "verdicts", "data": "data"}
LAST, EMA, AVERAGE = "last", "ema", "average:"
GenerationPrompt = Literal["add", "none"]
CHAT_TEMPLATE_NAME = "chat_template.jinja"


def _weights_of(run: RunConfig, checkpoint: Path, weights: str) -> tuple[Params, tuple[int, ...]]:
    count = weights.removeprefix(AVERAGE)
    if weights not in (LAST, EMA) and not (weights.startswith(AVERAGE) and count.isdecimal() and int(count) > 1):
        raise ConfigError(f"the weights must be last, ema or average:N with N of at least 2, found {weights!r}.")
    if weights.startswith(AVERAGE):
        return average_of_last(checkpoint.parent, run, int(count))
    return read_params(checkpoint, run.model, ema=weights == EMA), (run.stop_step,)


def differing_weights(folder: Path, run: RunConfig, checkpoint: Path, origin: Mapping[str, Any]) -> str | None:
    """Return the difference between an exported folder's tensors and the weights that it names, or None."""
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
    """List the fields of an exported folder's `config.json` that differ from this model's."""
    expected = json.loads(json.dumps(to_hugging_face(model, dtype)))
    found = read_settings(folder / "config.json")
    return sorted(name for name, value in expected.items() if found.get(name) != value)


def export_phase(
    run: RunConfig, result: dict[str, Any], tokenizer: Path, folder: Path, *, weights: str = LAST, dtype: DTypeName = "float32",
    claims: Mapping[str, Any] | None = None, chats: Sequence[ChatTemplate] = (), generation_prompt: GenerationPrompt | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Write the folder, and return a summary. Of several chat templates none is exported. `average:N` is the mean of the last N steps."""
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
    """Add a missing generation prompt to a unique template if `how` is "add". A ConfigError asks for `how`."""
    chat = _shared(chats)
    if chat is None or not (opening := chat.missing_generation_prompt()) or how == "none":
        return chats
    if how == "add":
        added = f"{{% if add_generation_prompt %}}{{{{ {json.dumps(opening)} }}}}{{% endif %}}"
        return [ChatTemplate(chat.text.removesuffix("\n") + added, chat.name, chat.special_tokens)]
    raise ConfigError(
        f"the chat template {chat.name} has no generation prompt: with add_generation_prompt, it does not write {opening!r}, and a chat "
        "with the model would not start an answer. Say --generation-prompt add, or none to export it unchanged."
    )


def _shared(chats: Sequence[ChatTemplate]) -> ChatTemplate | None:
    return chats[0] if len({chat.text for chat in chats}) == 1 else None


def tokenizer_files(path: Path, seq_len: int, chats: Sequence[ChatTemplate] = ()) -> TokenizerFiles:
    """Prepare the tokenizer for `transformers`, with its BOS token and a unique template. Generation stops at any template's end token."""
    check_tokenizer(path)
    tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
    names, special = read_document_tokens(path), special_tokens(tokenizer, path)
    if tokenizer.post_processor is None and names.begin is not None:
        single, pair = f"{names.begin} $A", f"{names.begin} $A {names.begin} $B:1"
        tokenizer.post_processor = TemplateProcessing(single=single, pair=pair, special_tokens=[(names.begin, special.begin)])
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": names.begin,
        "eos_token": names.end or names.begin,
        "model_max_length": seq_len,
        "clean_up_tokenization_spaces": False,
    }
    files = {"tokenizer.json": tokenizer.to_str(pretty=True)}
    if (chat := _shared(chats)) is not None:
        turn_end, probe = chat.turn_end(), chat.probe()
        text = chat.text if names.begin is None or (probe and probe.begins) else f"{{{{ bos_token }}}}{chat.text}"
        about["chat_template"] = files[CHAT_TEMPLATE_NAME] = text
        if turn_end is not None and not chat.uses_end_of_text:  # a template with `eos_token` needs the training's token
            about["eos_token"] = about["eos_token"] if turn_end == END_OF_TEXT else turn_end
    files["tokenizer_config.json"] = json.dumps(about, indent=2) + "\n"
    return TokenizerFiles(
        {name: content.encode() for name, content in files.items()}, special.begin, special.after, turn_end_ids(tokenizer, chats)
    )


def build_model_card(claims: Mapping[str, Any], origin: Mapping[str, Any] | None = None) -> str:
    """Render a model card in Markdown. With `origin`, the card of an exported folder has the hub's metadata and names missing facts."""
    changes = {name: one for name, one in (claims.get("hand_off") or {}).get("changes", {}).items() if one["found"]}
    known = {name: claims.get(name) for name in ("training", "said", "order", *PARTS)}
    missing = [word for name, word in PARTS.items() if not known[name] or (name == "mixture" and not known["order"])] if origin else []
    named = {name: claims.get(name) or (origin or {}).get(name) for name in ("recipe", "phase", "scale")}
    text = templates().get_template("model_card.md.jinja").render(**named, **known, origin=origin, changes=changes, missing=missing)
    return text.rstrip("\n") + "\n"


@functools.cache
def templates() -> jinja2.Environment:
    """Open the templates of Markdown and JSON, which escape text by `plain` and `tojson`."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"), trim_blocks=True, lstrip_blocks=True
    )
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False}
    plain = functools.partial(re.sub, r"[\\`*_\[\]<>#|]", r"\\\g<0>")
    environment.filters.update(thousands="{:,}".format, ruling_word=ruling_word, plain=plain)
    return environment
