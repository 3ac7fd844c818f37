"""Weights of a Hugging Face folder, or of a trained phase, as a checkpoint that a phase can start from."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from phasewise.trainer.base.errors import CheckpointError
from phasewise.trainer.base.identity import read_sealed
from phasewise.trainer.base.run_folder import RunFolder, read_result
from phasewise.trainer.base.wording import name_some
from phasewise.trainer.checkpoints.files import remove_checkpoint, write_digests
from phasewise.trainer.checkpoints.shards import build_writer
from phasewise.trainer.checkpoints.state import MAX_NAMED, leaves_of, read_params, types_of
from phasewise.trainer.config import ModelConfig, RunConfig
from phasewise.trainer.model.hugging_face import read_folder
from phasewise.trainer.model.hugging_face_config import differences_from_source
from phasewise.trainer.state import params_digest


def import_folder(source: Path, target: Path, model: ModelConfig, *, new_rows: int = 0, declares: Collection[str] = ()) -> str:
    """Write the weights of a folder as the checkpoint `target`, which is committed last. Return their `params_digest`.

    Args:
        source: a Hugging Face folder, or the folder of a trained phase.
        model: the phase's model. Its vocabulary has `new_rows` rows more than the folder's.
        new_rows: rows that are added to the embedding and the head. Each one is the mean of the folder's rows (Hewitt, "Initializing New
            Word Embeddings for Pretrained Language Models", 2021).

    Raises:
        CheckpointError: the folder is damaged, holds no supported model, or holds another model.
    """
    run_file, result = RunFolder(source).run_file, read_result(source)
    if run_file.exists() and result is not None:
        found = RunConfig.model_validate(read_sealed(run_file)).model
        params = read_params(RunFolder(source).checkpoint(result["stop_step"]), found)
    else:
        params, found = read_folder(source)
    if different := differences_from_source(found, model, new_rows=new_rows, declares=declares):
        raise CheckpointError(f"{source} holds another model than the phase: {name_some(different, MAX_NAMED, '; ')}.")
    axes = {"embedding": 0} if found.tied_head else {"embedding": 0, "head": 1}  # [vocab, d_model], [d_model, vocab]
    for name, axis in axes.items() if new_rows else ():
        mean = np.asarray(params[name], np.float64).mean(axis=axis, keepdims=True).astype(np.float32)
        grown = np.concatenate([params[name], np.repeat(mean, new_rows, axis=axis)], axis=axis)
        params = params | {name: jax.numpy.asarray(grown)}
    leaves = leaves_of({"params": params})
    about: dict[str, Any] = {"run": {"model": model.model_dump(mode="json"), "caches": {}}, "contract": {}, "leaves": types_of(leaves)}
    remove_checkpoint(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    writer = build_writer(has_shared_folder=True)
    try:
        writer.save(target.resolve(), args=ocp.args.Composite(state=ocp.args.PyTreeSave(leaves), about=ocp.args.JsonSave(about)))
        writer.wait_until_finished()
    finally:
        writer.close()
    write_digests(target)
    return params_digest(params)
