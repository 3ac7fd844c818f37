"""Decoding of an exported model against its context: tokens a second and bytes of the cache, with local layers and without, beside
`transformers`.

Each side is a process: `python inference.py ours|transformers FOLDER CONTEXT` prints a line of JSON. Tokens a second are those of one
row, by the difference of two lengths, so that the reading of the context does not count.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CONTEXTS, SHORT, LONG = (512, 2048, 8192), 8, 72
WINDOW, EVERY = 512, 4


def rows(options: Any) -> Iterator[Any]:
    import jax.numpy as jnp

    from experiments.bench.measure import Row, in_turns, on_cores
    from experiments.bench.peers import Place
    from phasewise.flows.recipes.words import afmoe, llama
    from phasewise.trainer.config import Experts, SignBalancing
    from phasewise.trainer.model.decoding import empty_cache
    from phasewise.trainer.model.hugging_face import write_folder
    from phasewise.trainer.model.params import init_params

    shape: dict[str, Any] = {
        "num_layers": 8,
        "d_model": 256,
        "head_dim": 32,
        "num_query_heads": 8,
        "num_kv_heads": 2,
        "seq_len": CONTEXTS[-1] + LONG,
    }
    experts = Experts(
        num_experts=8, num_active=2, num_shared=1, d_expert=256, route_scale=1.0, num_dense_layers=2,
        balancing=SignBalancing(kind="sign", rate=0.001), sequence_loss=0.0,
    )  # fmt: skip
    models = {
        "dense, all layers global": llama(**shape),
        "sparse, all layers global": afmoe(**shape, experts=experts, sliding_window=shape["seq_len"], global_attention_every=EVERY),
        "sparse, one layer in four global": afmoe(**shape, experts=experts, sliding_window=WINDOW, global_attention_every=EVERY),
    }
    place = Place.found()
    with tempfile.TemporaryDirectory() as name, on_cores(2):
        for title, model in models.items():
            folder = Path(name) / title.replace(" ", "-").replace(",", "")
            write_folder(folder, init_params(0, model), model)
            cache = empty_cache(model, jnp.zeros(1, jnp.int32), model.seq_len)
            size = (cache.keys.nbytes + cache.values.nbytes) / 2**20
            for context in CONTEXTS:
                sides: dict[str, Callable[[], float]] = {
                    "ours": lambda folder=folder, context=context: _run(sys.executable, "ours", folder, context)
                }
                if place:
                    python = str(place.venvs / "torch" / "bin" / "python")
                    sides["transformers"] = lambda folder=folder, context=context, python=python: _run(
                        python, "transformers", folder, context
                    )
                found = in_turns(sides, options.repeats)
                ratio = found["ours"] / found["transformers"] if place else None
                note = f"{found['ours']:.0f} tokens/s, cache {size:.0f} MiB for {model.seq_len:,} tokens"
                yield Row(f"decoding after {context:,} tokens, {title}, times transformers", ratio, note=note)


def _run(python: str, side: str, folder: Path, context: int) -> float:
    import subprocess

    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    command = [python, __file__, side, str(folder), str(context)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{side} failed on {folder}:\n{done.stderr[-2000:]}")
    return float(json.loads(done.stdout.splitlines()[-1])["tokens_per_second"])


def ours(folder: Path, context: int) -> Callable[[int], object]:
    from phasewise.tasks.evaluation.language_model import Prompt, Sampling, generate
    from phasewise.trainer.model.hugging_face import read_folder

    params, config = read_folder(folder)
    prompt = [Prompt([number % 1000 for number in range(context)], 0)]
    fixed: dict[str, Any] = {"ends": (), "has_stopped": lambda _: False, "sampling": Sampling(), "seed": 0, "mesh": None}
    return lambda count: generate(params, config, prompt, max_new_tokens=count, **fixed)


def transformers(folder: Path, context: int) -> Callable[[int], object]:
    from importlib import import_module

    torch: Any = import_module("torch")
    library: Any = import_module("transformers")
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model = library.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompt = torch.tensor([[number % 1000 for number in range(context)]])
    mask = torch.ones_like(prompt)

    def write(count: int) -> object:
        with torch.no_grad():
            return model.generate(prompt, attention_mask=mask, max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0)

    return write


def main(side: str, folder: Path, context: int) -> None:
    write = {"ours": ours, "transformers": transformers}[side](folder, context)
    seconds: dict[int, float] = {}
    for count in (SHORT, LONG):
        write(count)  # compiled
        times: list[float] = []
        for _ in range(3):
            start = time.perf_counter()
            write(count)
            times.append(time.perf_counter() - start)
        seconds[count] = min(times)
    print(json.dumps({"tokens_per_second": (LONG - SHORT) / (seconds[LONG] - seconds[SHORT])}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
