"""lm-eval's `HFLM` and our model on the same folder and the same requests. To ask the former needs PyTorch, `transformers`, `accelerate`.

`python -m tests.tasks.evaluation.hflm` makes the golden again, for machines without them: a folder of a small model, and `answers.json`
with what `HFLM` answered.
"""

import json
import shutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from lm_eval.api.instance import Instance

from phasewise.tasks.data.tokenizer import train_tokenizer
from phasewise.tasks.report.export import tokenizer_files
from phasewise.trainer.base.storage import read_json, write_json
from phasewise.trainer.config import ModelConfig, Rope
from phasewise.trainer.model.hugging_face import write_folder
from phasewise.trainer.model.params import init_params
from tests.tasks.evaluation.conftest import write_prose

GOLDEN = Path(__file__).with_name("golden")
SEQ_LEN = 96
MODEL = ModelConfig(
    vocab_size=320, seq_len=SEQ_LEN, num_layers=2, d_model=32, d_ff=48, num_query_heads=4, num_kv_heads=2, head_dim=8,
    rope=Rope(theta=10_000.0, scaling=None), rms_norm_epsilon=1e-5, initializer_std=0.3, compute_dtype="float32",
    qk_norm=False, tied_head=False, sliding_window=None, float32_attention=False,
)  # fmt: skip
Requests = dict[str, list[tuple[Any, ...]]]
Answers = dict[str, list[Any]]


class Difference(NamedTuple):
    log_likelihood: float
    others: int


def made_requests() -> Requests:
    """Choices behind one context, contexts and texts that are too long, none at all, and such as spell the begin token or end in spaces."""
    prose = [write_prose(seed, 60) for seed in range(4)]
    contexts = [prose[0][:40], prose[1][:90], prose[2] * 3, "", " ", prose[3][:30] + "  ", "<|begin_of_text|>" + prose[0][:30], "é – ß\n"]
    choices = (" bace", "bace dido", " x", " tovupare\nfo", prose[1][:60])
    settings: list[dict[str, Any]] = [{"until": ["\n", "qu"], "max_gen_toks": 24}, {"until": [], "max_gen_toks": 7, "do_sample": False}]
    return {
        "loglikelihood": [(context, choice) for context in contexts for choice in choices],
        "loglikelihood_rolling": [(text,) for text in (prose[0], prose[1] * 2, "mo", prose[2][:200])],
        "generate_until": [(context, setting) for setting in settings for context in contexts],
    }


def local_requests(benchmarks: Path, items: int) -> Requests:
    """The first items of four benchmarks, as lm-eval words them; few examples, and cut, so that a small model sees them whole or not."""
    asked: Requests = {"loglikelihood": [], "generate_until": []}
    for row in _rows(benchmarks / "arc_easy/test.jsonl", items):
        asked["loglikelihood"] += [(f"Question: {row['question']}\nAnswer:", f" {choice}") for choice in row["choices"]["text"]]
    for row in _rows(benchmarks / "hellaswag/part_a_test.jsonl", items):
        asked["loglikelihood"] += [(row["ctx"], f" {ending}"[:60]) for ending in row["endings"]]
    for row in _rows(benchmarks / "lambada_openai/test.jsonl", items):
        context, _, word = row["text"].rpartition(" ")
        asked["loglikelihood"].append((context, f" {word}"))
    for row in _rows(benchmarks / "gsm8k/test.jsonl", items):
        asked["generate_until"].append((f"Question: {row['question']}\nAnswer:", {"until": ["Question:", "</s>"], "max_gen_toks": 32}))
    return asked


def write_model(folder: Path, config: ModelConfig = MODEL) -> Path:
    train_tokenizer([[write_prose(seed, 400) for seed in range(20)]], config.vocab_size, folder.parent / "tokenizer.json")
    tokenizer = tokenizer_files(folder.parent / "tokenizer.json", config.seq_len)
    write_folder(folder, init_params(3, config), config, tokenizer=tokenizer, dtype="bfloat16")
    return folder


def ask(model: Any, requests: Requests) -> Answers:
    return {
        kind: getattr(model, kind)([Instance(kind, {}, request, number) for number, request in enumerate(asked)], disable_tqdm=True)  # pyright: ignore[reportArgumentType]  # a literal there
        for kind, asked in requests.items()
    }


def ask_hflm(folder: Path, requests: Requests) -> Answers:
    """Theirs, one request at a time: in a batch, it begins a context that spells the begin token with a second one, or not, by the batch's
    first. It predicts the begin token of a whole text where it adds one: rolling is asked of one that doesn't."""
    hflm: Any = import_module("lm_eval.models.huggingface").HFLM
    settings = {"pretrained": str(folder), "device": "cpu", "dtype": "float32", "batch_size": 1}
    plain = {kind: asked for kind, asked in requests.items() if kind != "loglikelihood_rolling"}
    rolling = {kind: asked for kind, asked in requests.items() if kind == "loglikelihood_rolling"}
    answers = ask(hflm(**settings), plain)
    return answers | (ask(hflm(**settings, add_bos_token=False), rolling) if rolling else {})


def compare(ours: Answers, theirs: Answers) -> Difference:
    pairs = list(zip(ours.get("loglikelihood", []), theirs.get("loglikelihood", []), strict=True))
    values = [(one[0], other[0]) for one, other in pairs]
    values += zip(ours.get("loglikelihood_rolling", []), theirs.get("loglikelihood_rolling", []), strict=True)
    others = sum(one[1] != other[1] for one, other in pairs)
    others += sum(one != other for one, other in zip(ours["generate_until"], theirs["generate_until"], strict=True))
    return Difference(float(np.abs(np.diff(np.array(values), axis=1)).max()), others)


def golden() -> tuple[Requests, Answers]:
    kept = read_json(GOLDEN / "answers.json")
    return {kind: [tuple(request) for request in asked] for kind, asked in kept["requests"].items()}, kept["answers"]


def _rows(path: Path, items: int) -> Iterator[dict[str, Any]]:
    with open(path, encoding="utf-8") as lines:
        yield from (json.loads(line) for line, _ in zip(lines, range(items), strict=False))


if __name__ == "__main__":
    shutil.rmtree(GOLDEN, ignore_errors=True)
    write_model(GOLDEN / "model")
    for name in ("tokenizer.json", "tokenizer.sha256"):
        (GOLDEN / name).unlink()
    write_json(GOLDEN / "answers.json", {"requests": made_requests(), "answers": ask_hflm(GOLDEN / "model", made_requests())})
