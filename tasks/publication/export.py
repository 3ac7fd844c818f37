"""A phase's last weights as a folder that `transformers` reads, with the tokenizer that they were trained with."""

import json
from pathlib import Path
from typing import Any, Literal

from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from tasks.data.special_tokens import special_tokens
from tasks.data.tokenizer import BEGIN_OF_TEXT, END_OF_TEXT, check_tokenizer
from trainer.base.errors import CheckpointError
from trainer.base.storage import read_json
from trainer.checkpoints.checkpointer import read_params
from trainer.config import RunConfig
from trainer.model.hugging_face import TokenizerFiles, check_writable, write_folder
from trainer.model.params import count_parameters
from trainer.state import params_digest

Weights = Literal["last", "ema"]
DType = Literal["float32", "bfloat16"]


def export_phase(
    run: RunConfig, result: dict[str, Any], tokenizer: Path, folder: Path, *, weights: Weights = "last", dtype: DType = "float32"
) -> dict[str, Any]:
    """Write the folder, and say what is in it.

    Args:
        result: the trainer's result of this phase.
        tokenizer: the `tokenizer.json` of the recipe.
        weights: the last ones, or their moving average.

    Raises:
        CheckpointError: the checkpoint is not whole, has no moving average, or holds other weights than the result names.
        ConfigError: the folder is not empty, or `transformers` has no class for such a model.
        DataError: the tokenizer was edited, or lacks the tokens that begin and end a document.
    """
    check_writable(folder, run.model)
    checkpoint = Path(result["checkpoint"])
    params = read_params(checkpoint, run.model, ema=weights == "ema")
    digest = params_digest(params)
    if weights == "last" and digest != result["params_digest"]:
        raise CheckpointError(
            f"{checkpoint} holds other weights than the phase's result names: expected {result['params_digest'][:12]}, "
            f"found {digest[:12]}. Train the phase again."
        )
    write_folder(folder, params, run.model, tokenizer=tokenizer_files(tokenizer, run.model.seq_len), dtype=dtype)
    files = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    return {
        "folder": str(folder.resolve()),
        "architecture": read_json(folder / "config.json")["architectures"][0],
        "checkpoint": str(checkpoint),
        "weights": weights,
        "params_digest": digest,
        "parameters": count_parameters(run.model),
        "dtype": dtype,
        "bytes": sum(files.values()),
        "files": list(files),
    }


def tokenizer_files(path: Path, seq_len: int) -> TokenizerFiles:
    """The tokenizer, with what tells `transformers` which tokens begin and end a document.

    Our own tokenizer leaves it to the caller to begin a document. A model was never trained without that, so that the exported one does it
    by itself, as Llama 3's does; one that has rules of its own keeps them.
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
    files = {"tokenizer.json": tokenizer.to_str(pretty=True), "tokenizer_config.json": json.dumps(about, indent=2) + "\n"}
    return TokenizerFiles({name: content.encode() for name, content in files.items()}, begin, end)
