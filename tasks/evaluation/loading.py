"""The language model of a checkpoint of ours, or of a Hugging Face folder. Importing this module imports lm-eval (seconds)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import jax
from tokenizers import Tokenizer

from phasewise.tasks.data.template import ChatTemplate, turn_end_ids
from phasewise.tasks.data.tokenizer import SpecialTokens, load_tokenizer, special_tokens
from phasewise.tasks.evaluation.language_model import JaxLanguageModel
from phasewise.trainer.base.errors import CheckpointError
from phasewise.trainer.checkpoints.checkpointer import read_about, read_params
from phasewise.trainer.config import Mesh, ModelConfig
from phasewise.trainer.model.hugging_face import read_folder, read_settings
from phasewise.trainer.model.hugging_face_config import Computation
from phasewise.trainer.model.params import abstract_params
from phasewise.trainer.sharding import build_mesh, check_mesh, state_shardings

Weights = Literal["last", "ema"]
IN_FLOAT32 = Computation()


def model_of_checkpoint(
    checkpoint: Path,
    tokenizer: Path,
    *,
    weights: Weights = "last",
    chats: Sequence[ChatTemplate] = (),
    mesh: Mesh | None = None,
    seed: int = 0,
) -> JaxLanguageModel:
    """The last weights of a checkpoint, or their moving average. Each device reads its own part.

    Args:
        tokenizer: the `tokenizer.json` that the model was trained with.
        chats: the chat templates of the conversations that it was trained on: what ends an answer ends what is written, as in its export.
        mesh: of all devices there are; None is one device.

    Raises:
        CheckpointError: the checkpoint is not whole, or has no moving average.
        ConfigError: the mesh fits neither the devices nor the model.
        DataError: the tokenizer lacks the tokens that begin and end a document.
    """
    config = ModelConfig.model_validate(read_about(checkpoint)["run"]["model"])
    found = _built(mesh, config)
    read = load_tokenizer(tokenizer)
    special = special_tokens(read, tokenizer)
    shardings = None if found is None else state_shardings(abstract_params(config), config, found)
    params = read_params(checkpoint, config, ema=weights == "ema", shardings=shardings)
    ends = turn_end_ids(read, chats)
    return JaxLanguageModel(params=params, config=config, tokenizer=read, special=special, ends=ends, seed=seed, mesh=found)


def model_of_folder(
    folder: Path,
    *,
    computation: Computation = IN_FLOAT32,
    mesh: Mesh | None = None,
    seed: int = 0,
) -> JaxLanguageModel:
    """The model of a folder that `transformers` reads, ours or another's: its weights, its tokenizer, how this begins a text, and what
    ends one that it writes: the tokenizer's end token, and all that `generate` of transformers ends at.

    Raises:
        CheckpointError: the folder is not whole, its model is none that this decoder computes, or it has no end token.
        ConfigError: the mesh fits neither the devices nor the model.
    """
    params, config = read_folder(folder, computation=computation)
    tokenizer, special, begins_texts = _read_tokenizer(folder)
    found, ends = _built(mesh, config), _ends_of(folder, config.vocab_size)
    return JaxLanguageModel(
        params=params, config=config, tokenizer=tokenizer, special=special, ends=ends, begins_texts=begins_texts, seed=seed, mesh=found
    )


def _built(mesh: Mesh | None, config: ModelConfig) -> jax.sharding.Mesh | None:
    if mesh is None:
        return None
    check_mesh(mesh, config)
    return build_mesh(mesh)


def _read_tokenizer(folder: Path) -> tuple[Tokenizer, SpecialTokens, bool]:
    """The tokenizer, the ids of its begin and end tokens, and whether it begins a text by itself. One without a begin token has the end
    token in its place, as in lm-eval."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if not (folder / name).exists():
            raise CheckpointError(f"{folder} must hold {name} to be evaluated, and does not: fetch the folder whole, or export it again.")
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    about = read_settings(folder / "tokenizer_config.json")
    begin, end = (_id_of(tokenizer, about.get(name)) for name in ("bos_token", "eos_token"))
    if end is None:
        raise CheckpointError(
            f"the tokenizer in {folder} must have an end token (eos_token), found {about.get('eos_token')}: it ends a text."
        )
    begins = tokenizer.encode("a").ids[:1] == [begin] and tokenizer.encode("a", add_special_tokens=False).ids[:1] != [begin]
    return tokenizer, SpecialTokens(end if begin is None else begin, end), begins


def _ends_of(folder: Path, vocab_size: int) -> list[int]:
    """The ids that `generation_config.json` ends a text at; without that file, `config.json`, as in transformers.

    Raises:
        CheckpointError: they are no ids of the model.
    """
    written = next(path for name in ("generation_config.json", "config.json") if (path := folder / name).exists())
    found = read_settings(written).get("eos_token_id")
    ids = [] if found is None else found if isinstance(found, list) else [found]
    if not all(isinstance(one, int) and 0 <= one < vocab_size for one in ids):
        raise CheckpointError(f"eos_token_id in {written} must be ids below the model's vocab_size of {vocab_size:,}, found {found}.")
    return ids


def _id_of(tokenizer: Tokenizer, token: Any) -> int | None:
    """The id of a special token, which is written as its text or as an object that has it."""
    text = token.get("content") if isinstance(token, dict) else token
    return None if text is None else tokenizer.token_to_id(text)
