"""One side of the evaluation benchmark as a separate process: this project's model, or lm-eval's `HFLM` if PyTorch is installed.

python evaluation_process.py ours|hflm|compilations FOLDER REQUESTS BATCH   prints a line of JSON

FOLDER is as `evaluation_inputs.write_inputs` leaves it. Time counts from the loaded model to the last answer, compilation included.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def ours(folder: Path, _batch: int) -> Any:
    """The model of the folder."""
    from phasewise.tasks.evaluation.model_loading import model_of_folder

    return model_of_folder(folder / "model")


def hflm(folder: Path, batch: int) -> Any:
    from importlib import import_module

    torch: Any = import_module("torch")
    hf: Any = import_module("lm_eval.models.huggingface")

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    return hf.HFLM(pretrained=str(folder / "model"), device="cpu", dtype="float32", batch_size=batch)


def count_compilations(folder: Path) -> int:
    import jax.monitoring
    from lm_eval.api.instance import Instance

    model = ours(folder, 0)
    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(lambda event, duration_secs, **kwargs: compiled.append(event))
    asked = [("word " * count, " word") for count in (1, 30, 100, 300, 600, 1200, 1900, 5000)]
    for kind, requests in {
        "loglikelihood": asked,
        "loglikelihood_rolling": [(context,) for context, _ in asked],
        "generate_until": [(context, {"max_gen_toks": count}) for count in (4, 40, 400) for context, _ in asked],
    }.items():
        getattr(model, kind)([Instance(kind, {}, request, number) for number, request in enumerate(requests)])  # pyright: ignore[reportArgumentType]  # a literal there
    return compiled.count("/jax/core/compile/backend_compile_duration")


def main(side: str, folder: Path, name: str, batch: int) -> None:
    from lm_eval.api.instance import Instance

    if side == "compilations":
        print(json.dumps({"bench": "evaluation", "metrics": {"compilations": count_compilations(folder)}}))
        return
    asked: list[list[Any]] = json.loads((folder / "requests" / f"{name}.json").read_text())
    kind = "generate_until" if isinstance(asked[0][1], dict) else "loglikelihood"
    model = {"ours": ours, "hflm": hflm}[side](folder, batch)
    wall, cpu = time.perf_counter(), time.process_time()
    answers = getattr(model, kind)([Instance(kind, {}, tuple(request), number) for number, request in enumerate(asked)], disable_tqdm=True)
    seconds = {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
    print(json.dumps({"bench": "evaluation", "metrics": seconds, "answers": answers}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
