"""Checkpoints of several hosts without a shared folder: each host uploads its files, and the union is the checkpoint.

Orbax writes these checkpoints as zarr, with one file per shard of a leaf, by the host of the shard. Its default format OCDBT has one index
over the files of all hosts, so a host would need access to all files.

Weights of a pretrained model become such a checkpoint.
"""

import itertools
import json
import math
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from phasewise.trainer.base.errors import CheckpointError, StorageError, TrainingError
from phasewise.trainer.base.identity import read_sealed
from phasewise.trainer.base.run_folder import RunFolder, read_result
from phasewise.trainer.base.storage import put_file, read_json
from phasewise.trainer.base.wording import name_some
from phasewise.trainer.checkpoints.files import DIGESTING_THREADS, Digests, digests_here, remove_checkpoint, write_digests
from phasewise.trainer.checkpoints.state import MAX_NAMED, leaves_of, read_params, types_of
from phasewise.trainer.config import ModelConfig, RunConfig
from phasewise.trainer.model.hugging_face import read_folder
from phasewise.trainer.model.hugging_face_config import differences_from_source
from phasewise.trainer.process.distributed import coordinator_client
from phasewise.trainer.step import params_digest

STATE, ARRAY_NAME = "state", ".zarray"  # Orbax writes the shape of a leaf next to its shards, on the first host only
EXCHANGE_SECONDS = 300  # the limit for waiting until the slowest host has uploaded its files
_exchanges = itertools.count()


def build_writer(*, has_shared_folder: bool) -> ocp.AsyncCheckpointer:
    """Build the background writer of checkpoints. Without a shared folder each host creates its own folders."""
    if has_shared_folder:
        return ocp.AsyncCheckpointer(ocp.CompositeCheckpointHandler(state=ocp.PyTreeCheckpointHandler(), about=ocp.JsonCheckpointHandler()))
    everyone = ocp.options.MultiprocessingOptions(primary_host=None)
    # Orbax creates folders before it writes: its signal that they exist comes from the first host for all hosts
    at_once = ocp.options.AsyncOptions(create_directories_asynchronously=False)
    # Orbax's global registry is reset by any reader of a checkpoint, so that host 0 would create the folders again
    arrays = ocp.type_handlers.create_type_handler_registry((jax.Array, ocp.type_handlers.ArrayHandler()))
    return ocp.AsyncCheckpointer(
        ocp.CompositeCheckpointHandler(
            composite_options=ocp.CompositeOptions(multiprocessing_options=everyone, async_options=at_once),
            state=ocp.PyTreeCheckpointHandler(use_ocdbt=False, multiprocessing_options=everyone, type_handler_registry=arrays),
            about=ocp.JsonCheckpointHandler(multiprocessing_options=everyone),
        ),
        async_options=at_once,
        multiprocessing_options=everyone,
    )


def upload_shards(checkpoint: Path, store: Path) -> Digests:
    """Upload this host's files under the names of their digests, and return the files of all hosts."""
    share = digests_here(checkpoint)
    with ThreadPoolExecutor(DIGESTING_THREADS) as threads:
        list(threads.map(lambda item: put_file(checkpoint / item[0], store / item[1][1]), share.items()))
    client, index, key, number = coordinator_client(), jax.process_index(), "phasewise/shards", next(_exchanges)
    client.key_value_set(f"{key}/{number}/{index}", json.dumps([checkpoint.name, share]))
    found = [
        json.loads(client.blocking_key_value_get(f"{key}/{number}/{host}", 1000 * EXCHANGE_SECONDS)) for host in range(jax.process_count())
    ]
    if number:  # all hosts of this exchange have read the previous one
        client.key_value_delete(f"{key}/{number - 1}/{index}")
    if len(steps := sorted({str(step) for step, _ in found})) > 1:
        raise TrainingError(f"all hosts must save the same checkpoint, found {' and '.join(steps)}: start the run again.")
    return united(checkpoint, [{name: (int(size), str(digest)) for name, (size, digest) in share.items()} for _, share in found])


def united(checkpoint: Path, shares: Sequence[Digests]) -> Digests:
    """Return the files of the whole checkpoint. Of a file from several hosts, the first counts, but shards must be equal."""
    files: dict[str, tuple[int, str]] = {}
    for number, share in enumerate(shares):
        for name, said in share.items():
            folder, *parts = name.split("/")
            is_shard = folder == STATE and len(parts) == 2 and all(part.isdecimal() for part in parts[1].split("."))
            if files.setdefault(name, said) != said and is_shard:
                raise StorageError(f"{checkpoint}/{name} was written by host {number}, too, with other bytes. Start the run again.")
    missing: list[str] = []
    for described in sorted((checkpoint / STATE).glob(f"*/{ARRAY_NAME}")):
        leaf = read_json(described)
        counts = [math.ceil(size / shard) for size, shard in zip(leaf["shape"], leaf["chunks"], strict=True)]
        places = [".".join(map(str, place)) for place in itertools.product(*map(range, counts))]
        names = [f"{STATE}/{described.parent.name}/{place or '0'}" for place in places]
        missing += [name for name in names if name not in files]
    if missing:
        raise StorageError(
            f"{checkpoint} lacks shards that no host wrote: {name_some(missing, MAX_NAMED)}. The checkpoint before it is kept. Start the "
            "run again."
        )
    return dict(sorted(files.items()))


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
